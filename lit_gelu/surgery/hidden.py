"""Child modules that an attribute of the same name hides, and copies that hide no more than their original.

Python looks an attribute up in the instance before ``nn.Module`` is asked for its children. From torch 2.11 (or before)
to 2.15 ``nn.TransformerDecoderLayer.__setstate__`` takes a layer whose activation is a module for one of an old version
that has none, and puts ``F.relu`` beside it: every copy computes ReLU, among them the layers that
``nn.TransformerDecoder`` and ``nn.Transformer`` make of the one they are given, and ``copy.copy`` spoils the original.
"""

import copy
from typing import Any, TypeVar

from torch import nn

Module = TypeVar("Module", bound=nn.Module)


def hidden_modules(model: nn.Module) -> set[int]:
    """Return the modules that nobody gets who asks for them by name.

    Args:
        model: Any module.

    Returns:
        The ``id`` of every module that is hidden by an attribute wherever it stands.

    Example:
        >>> decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(4, 2, 8, activation=nn.GELU()), 1)
        >>> hidden_modules(decoder) == {id(decoder.layers[0]._modules["activation"])}
        True
    """
    hidden: set[int] = set()
    seen = {id(model)}
    for parent in model.modules():
        for name, child in parent._modules.items():
            if child is not None:
                (hidden if name in vars(parent) else seen).add(id(child))
    return hidden - seen


def faithful_copy(model: Module, memo: dict[int, Any] | None = None) -> Module:
    """Return a deep copy in which the same children are hidden as in the original, and no others.

    Args:
        model: Any module.
        memo: As ``copy.deepcopy`` takes it.

    Returns:
        The copy.

    Example:
        >>> layer = nn.TransformerDecoderLayer(4, 2, 8, activation=nn.GELU())
        >>> copy.deepcopy(layer).activation.__name__, faithful_copy(layer).activation
        ('relu', GELU(approximate='none'))
    """
    memo = {} if memo is None else memo
    twin = copy.deepcopy(model, memo)
    for module in model.modules():
        copied = memo.get(id(module))
        if type(copied) is type(module):
            for name in copied._modules.keys() & (vars(copied).keys() - vars(module).keys()):
                del vars(copied)[name]
    return twin
