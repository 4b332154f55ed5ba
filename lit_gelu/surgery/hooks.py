"""Hooks of a module, handed on when another one takes its place."""

from torch import nn

_HOOKS = (
    "_backward_hooks",
    "_backward_pre_hooks",
    "_forward_hooks",
    "_forward_hooks_always_called",
    "_forward_hooks_with_kwargs",
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
    "_is_full_backward_hook",
)


def share_hooks(source: nn.Module, target: nn.Module) -> None:
    """Give a module the very dictionaries of another's hooks, so that a handle's ``remove`` works for both.

    Args:
        source: Has the hooks.
        target: Gets them; its own are forgotten.

    Example:
        >>> source, target = nn.ReLU(), nn.GELU()
        >>> handle = source.register_forward_hook(print)
        >>> share_hooks(source, target)
        >>> len(target._forward_hooks), handle.remove(), len(target._forward_hooks)
        (1, None, 0)
    """
    for attribute in _HOOKS:
        setattr(target, attribute, getattr(source, attribute))


def forget_hooks(module: nn.Module) -> None:
    """Take a module's hooks off it, and leave them to those that share them.

    Args:
        module: The module.

    Example:
        >>> source, target = nn.ReLU(), nn.GELU()
        >>> _ = source.register_forward_hook(print)
        >>> share_hooks(source, target)
        >>> forget_hooks(source)
        >>> len(source._forward_hooks), len(target._forward_hooks)
        (0, 1)
    """
    share_hooks(nn.Identity(), module)
