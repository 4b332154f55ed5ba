"""A module called with a file's inputs, as the file is."""

import inspect
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from lit_gelu.export.inputs import probabilities_first
from lit_gelu.export.runtime.float64_throughout import Float64Throughout
from lit_gelu.surgery.recognition import faithful_copy
from lit_gelu.surgery.sites import without_wrappers

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


@torch.no_grad()
def float64_answer(module: nn.Module, inputs: Mapping[str, Tensor], *, softmax: bool) -> Any:
    """Return what a copy of a module returns in float64, where its inputs lie; whatever its ``forward`` raises."""
    device = next(iter(inputs.values())).device
    twin = faithful_copy(without_wrappers(module)).eval().to(device).double()
    by_name = takes_by_name(twin, inputs)
    modes = (nullcontext, Float64Throughout)  # the second for a forward that makes float32 of its inputs
    errors: list[Exception] = []
    for mode in modes:
        try:
            with mode():
                return answer(twin, _doubled(inputs), by_name=by_name, softmax=softmax)
        except Exception as error:  # noqa: BLE001 - forward is the user's: the first error is raised below
            errors.append(error)
    raise errors[0]


def _doubled(inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return copies, which forward may overwrite, real numbers in float64."""
    return {name: (value.double() if value.is_floating_point() else value).clone() for name, value in inputs.items()}
