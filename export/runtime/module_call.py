"""A module called with a file's inputs, as the file is; in float64 too, though its ``forward`` may ask for float32."""

import inspect
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from lit_gelu.export.inputs import probabilities_first
from lit_gelu.surgery.recognition import faithful_copy
from lit_gelu.surgery.sites import without_wrappers

_IN_ORDER = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def ends_with_softmax(metadata: Mapping[str, str]) -> bool:
    """Return whether a file's first output went through a softmax that the module does not have."""
    return metadata.get("lit_gelu.softmax") == "true"


def arguments_for(module: nn.Module, names: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return which of a file's inputs ``forward`` takes in order, and which by name; nested inputs bear no argument's.

    By name wherever it can be: an optional argument that the file lacks would shift those behind it.
    """
    signature = inspect.signature(module.forward)
    kinds = [(parameter.name, parameter.kind) for parameter in signature.parameters.values()]
    before = [name for name, kind in kinds if kind in _IN_ORDER and name in names]
    rest = next((name for name, kind in kinds if kind is inspect.Parameter.VAR_POSITIONAL), "")
    gathered = [name for n in range(len(names)) if rest and (name := f"{rest}_{n}") in names]
    in_order = [*before, *gathered] if gathered else []
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
    errors: list[Exception] = []
    for mode in (nullcontext, Float64Throughout):  # the second for a forward that makes float32 of its inputs
        doubled = {n: (t.double() if t.is_floating_point() else t).clone() for n, t in inputs.items()}
        try:
            with mode():
                return answer(twin, doubled, arguments=arguments, softmax=softmax)
        except Exception as error:  # noqa: BLE001 - forward is the user's: the first error is raised below
            errors.append(error)
    raise errors[0]


class Float64Throughout(TorchFunctionMode):
    """While active, what would be made in float32 is made in float64: ``x.float()``, ``torch.linspace(0, 1, 9)``.

    Without it a module in float64 fails where its ``forward`` turns integers into float32 ahead of a layer, as
    embeddings of time steps do, and rounds where it computes a norm in float32.
    """

    def __enter__(self) -> Self:
        self._default = torch.get_default_dtype()
        super().__enter__()  # type: ignore[no-untyped-call]
        torch.set_default_dtype(torch.float64)
        return self

    def __exit__(self, *error: object) -> None:
        torch.set_default_dtype(self._default)
        super().__exit__(*error)  # type: ignore[no-untyped-call]

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function of torch with float64 in the place of float32."""
        kwargs = dict(kwargs or {})
        if func is Tensor.float:
            return args[0].to(torch.float64, **kwargs)
        if func is not Tensor.view:  # the bits of a tensor, or a shape
            args = tuple(map(_in_float64, args))
            kwargs = {name: _in_float64(value) for name, value in kwargs.items()}
        return func(*args, **kwargs)


def _in_float64(value: Any) -> Any:
    return torch.float64 if value is torch.float32 else value
