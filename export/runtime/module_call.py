"""A module called with a file's inputs, as the file is."""

import inspect
from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor, nn

from lit_gelu.export.inputs import probabilities_first

_SOFTMAX = "lit_gelu.softmax"  # in a file's metadata


def ends_with_softmax(metadata: Mapping[str, str]) -> bool:
    """Return whether a file's first output went through a softmax that the module does not have."""
    return metadata.get(_SOFTMAX) == "true"


def takes_by_name(module: nn.Module, names: Iterable[str]) -> bool:
    """Return whether a file's inputs bear the names of ``forward``'s arguments; those of nested inputs do not."""
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    arguments = inspect.signature(module.forward).parameters
    return all(name in arguments and arguments[name].kind in by_name for name in names)


def answer(module: nn.Module, inputs: Mapping[str, Tensor], *, by_name: bool, softmax: bool) -> Any:
    """Return what a module returns for a file's inputs, given by name: one that the file lacks would shift them."""
    output = module(**inputs) if by_name else module(*inputs.values())
    return probabilities_first(output) if softmax else output
