"""A module called with a file's inputs, as the file is."""

import inspect
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from lit_gelu.export.inputs import probabilities_first
from lit_gelu.export.runtime.float64_throughout import Float64Throughout
from lit_gelu.surgery.recognition import faithful_copy
from lit_gelu.surgery.sites import without_wrappers

_IN_ORDER = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_GATHERED = inspect.Parameter.VAR_POSITIONAL
_SOFTMAX = "lit_gelu.softmax"  # in a file's metadata


def ends_with_softmax(metadata: Mapping[str, str]) -> bool:
    """Return whether a file's first output went through a softmax that the module does not have."""
    return metadata.get(_SOFTMAX) == "true"


def arguments_for(module: nn.Module, names: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return which of a file's inputs ``forward`` takes in order, and which by name; nested inputs bear no argument's.

    By name wherever it can be: an optional argument that the file lacks would shift those behind it.
    """
    signature = inspect.signature(module.forward)
    kinds = [(parameter.name, parameter.kind) for parameter in signature.parameters.values()]
    before = [name for name, kind in kinds if kind in _IN_ORDER and name in names]
    gathered = [f"{name}_{n}" for name, kind in kinds if kind is _GATHERED for n in range(len(names))]
    in_order = [*before, *(name for name in gathered if name in names)] if set(gathered) & set(names) else []
    by_name = [name for name in names if name not in in_order]
    try:
        signature.bind(*in_order, **dict.fromkeys(by_name))
    except TypeError:
        return list(names), []
    return in_order, by_name


def answer(
    module: nn.Module, inputs: Mapping[str, Tensor], *, arguments: tuple[list[str], list[str]], softmax: bool
) -> Any:
    """Return what a module returns for a file's inputs, given as `arguments_for` says."""
    in_order, by_name = arguments
    output = module(*(inputs[name] for name in in_order), **{name: inputs[name] for name in by_name})
    return probabilities_first(output) if softmax else output


@torch.no_grad()
def float64_answer(module: nn.Module, inputs: Mapping[str, Tensor], *, softmax: bool) -> Any:
    """Return what a copy of a module returns in float64, where its inputs lie; whatever its ``forward`` raises."""
    device = next(iter(inputs.values())).device
    twin = faithful_copy(without_wrappers(module)).eval().to(device).double()
    arguments = arguments_for(twin, list(inputs))
    modes = (nullcontext, Float64Throughout)  # the second for a forward that makes float32 of its inputs
    errors: list[Exception] = []
    for mode in modes:
        try:
            with mode():
                return answer(twin, _doubled(inputs), arguments=arguments, softmax=softmax)
        except Exception as error:  # noqa: BLE001 - forward is the user's: the first error is raised below
            errors.append(error)
    raise errors[0]


def _doubled(inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return copies, which forward may overwrite, real numbers in float64."""
    return {name: (value.double() if value.is_floating_point() else value).clone() for name, value in inputs.items()}
