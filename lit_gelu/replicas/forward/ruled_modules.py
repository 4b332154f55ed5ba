"""`Ruled`: what stands where the members have an activation, in the one module that computes all of them."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from lit_gelu.replicas.errors import NotReplicableError
from lit_gelu.replicas.forward.hidden import NO_VMAP
from lit_gelu.replicas.forward.rules import ActivationRule, RuleUnderVmap
from lit_gelu.replicas.forward.under_vmap import mapped_call

_HELD = ("_parameters", "_buffers")


class Ruled(nn.Module):
    """Computes by a rule what the members' activations do.

    Its parameters and buffers are those of the activations where all have the same ones: a penalty in a training step
    may read them. Where they have not, ``differing`` has the names, and reading any is an error in a step.
    """

    rule: ActivationRule
    differing: frozenset[str]

    def forward(self, inputs: Tensor) -> Tensor:
        """Apply the rule to all replicas."""
        outputs: Tensor = mapped_call(RuleUnderVmap, inputs, self.rule)
        return outputs

    def train(self, mode: bool = True) -> "Ruled":
        """Set the mode of the members' activations, too."""
        for module in self.rule.modules:
            module.train(mode)
        return super().train(mode)

    def __getattr__(self, name: str) -> Any:
        """Refuse to read what a member's activation has and this has not."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            if any(hasattr(module, name) for module in vars(self)["rule"].modules):
                raise NotReplicableError(_reads(name, vars(self)["rule"].path)) from None
            raise


class _OfOthers(dict[str, Any]):
    """Tensors that not all members have: to go through them, or to read one, is an error."""

    def __init__(self, names: frozenset[str], path: str) -> None:
        super().__init__()
        self.names, self.path = names, path

    def _refuse(self, *_: Any) -> Any:
        raise NotReplicableError(_reads(", ".join(sorted(self.names)), self.path))

    __iter__ = __len__ = __reversed__ = keys = values = items = copy = _refuse

    def __contains__(self, name: object) -> bool:
        return name in self.names and self._refuse()


def become_ruled(module: nn.Module, rule: ActivationRule) -> None:
    """Let a rule stand for an activation wherever the template holds it, also in lists and under several names."""
    named = [_tensors_of(own) for own in rule.modules]
    kinds = {frozenset(name for tensors in held.values() for name in tensors) for held in named}
    own = _tensors_of(module)
    module.__class__ = _kind(rule)
    vars(module).clear()
    nn.Module.__init__(module)
    differing = frozenset(name for kind in kinds for name in kind if len(kinds) > 1)
    vars(module).update(rule=rule, differing=differing)
    if not differing:  # also those of layers in it, whose names have dots here as in the members
        for held in _HELD:
            vars(module)[held].update(own[held])


def _tensors_of(module: nn.Module) -> dict[str, dict[str, Tensor]]:
    """Return parameters and buffers by name, as a module holds them."""
    return {"_parameters": dict(module.named_parameters()), "_buffers": dict(module.named_buffers())}


def _kind(rule: ActivationRule) -> type[Ruled]:
    """Return `Ruled`, which is of the activations' class as well if they have one: a step may look for it."""
    first, *others = {type(module) for module in rule.modules}
    if others or type(first) is not type:
        return Ruled
    return type(first.__name__, (Ruled, first), {"__module__": first.__module__})


@contextmanager
def without_own_tensors(modules: Sequence[Ruled]) -> Iterator[None]:
    """Refuse code that reads tensors of activations of which some members have others."""
    apart = [vars(module) for module in modules if module.differing]
    before = [[attributes[held] for held in _HELD] for attributes in apart]
    for attributes in apart:
        attributes.update(dict.fromkeys(_HELD, _OfOthers(attributes["differing"], attributes["rule"].path)))
    try:
        yield
    finally:
        for attributes, tensors in zip(apart, before, strict=True):
            attributes.update(zip(_HELD, tensors, strict=True))


def _reads(names: str, path: str) -> str:
    return (
        f"The training step reads {names} of the activation {path!r}, which members of a group have for themselves: "
        f"all are computed by the code of one. {NO_VMAP}"
    )
