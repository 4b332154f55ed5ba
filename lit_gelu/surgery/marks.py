"""A key in the ``state_dict`` of what was swapped in, so that a model without the swap does not take its weights.

An activation without parameters leaves no trace in a ``state_dict``, so every new one adds a key with an empty tensor:
``load_state_dict(strict=True)`` of a model without the swap fails with it. Its name is all that torch's error shows
(and not that of ``_extra_state``), so it names the activation and the loader that puts it in. A model with the same
swap takes the key, and weights that lack it. The module has the tensor as an attribute too, where
``torch.distributed.checkpoint`` and ``torch.func.functional_call`` look keys up.
"""

import re
from collections.abc import MutableMapping
from typing import Any

import torch
from torch import Tensor, nn

from lit_gelu.activations import ActivationSpec
from lit_gelu.activations.naming.forms import NOT_OF_THE_FUNCTION

_KEY = "_lit_gelu_swap_key"  # the attribute that holds the key
_LOADER = "__load_with_lit_gelu_callbacks_load_from_checkpoint"
_LONGEST = 100  # characters of the activation in a key


def mark(module: nn.Module, spec: ActivationSpec) -> None:
    """Have a module that a swap puts in say so, by its canonical spec, in its ``state_dict``."""
    before = vars(module).pop(_KEY, None)
    vars(module).pop(str(before), None)
    key = f"swapped_to_{_words(spec)}{_LOADER}"
    vars(module)[_KEY] = key
    vars(module)[key] = torch.empty(0)
    if before is None:
        untyped: Any = module
        untyped.register_state_dict_post_hook(_write)
        untyped.register_load_state_dict_pre_hook(_take)


def without_marks(state_dict: MutableMapping[str, Any]) -> None:
    """Take the keys of swaps out of a ``state_dict``, once the activations are known to be right.

    Args:
        state_dict: Changed in place.

    Example:
        >>> weights = {"0.weight": 1, "1.swapped_to_gelu__load_with_lit_gelu_callbacks_load_from_checkpoint": 2}
        >>> without_marks(weights)
        >>> weights
        {'0.weight': 1}
    """
    for key in [key for key in state_dict if is_mark(key)]:
        del state_dict[key]


def is_mark(key: str) -> bool:
    """Say whether a key of a ``state_dict`` is that of a swap."""
    return key.endswith(_LOADER) and key.rpartition(".")[2].startswith("swapped_to_")


def marks_in(text: str) -> list[str]:
    """Return the keys of swaps that an error of ``load_state_dict`` names, without what they say of the loader.

    Example:
        >>> marks_in('"1.swapped_to_gelu__load_with_lit_gelu_callbacks_load_from_checkpoint", "2.weight".')
        ['1.swapped_to_gelu']
    """
    return sorted(set(re.findall(rf'"([^"]*swapped_to_[^"]*){_LOADER}"', text)))


def _words(spec: ActivationSpec) -> str:
    """Return a spec as one word, the same for equal functions."""
    parts = [spec.name]
    for name, value in spec.kwargs:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if name not in NOT_OF_THE_FUNCTION:
            parts += [name, f"{value:.12g}" if number else str(value)]
    text = "_".join(parts).replace("-", "_minus_")
    return re.sub(r"[^0-9A-Za-z]+", "_", text).strip("_")[:_LONGEST]


def _write(module: nn.Module, state_dict: dict[str, Any], prefix: str, local_metadata: Any) -> None:  # noqa: ARG001
    """Add the key; a hook's signature."""
    key: str = vars(module)[_KEY]
    empty: Tensor = vars(module)[key]
    state_dict[prefix + key] = empty


def _take(module: nn.Module, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:  # noqa: ARG001
    """Take the own key out; another one stays and is refused as unexpected."""
    state_dict.pop(prefix + vars(module)[_KEY], None)
