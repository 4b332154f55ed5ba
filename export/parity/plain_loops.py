"""`PlainLoops`: linear layers whose terms are added one by one, in their order, as a plain loop does."""

from typing import Any

from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

_MOST_TERMS = 2**28  # of a layer: some seconds; larger ones are left as they are


class PlainLoops(TorchFunctionMode):
    """The order of additions that has the largest errors: nothing of a sum is added up apart from the rest."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        return _linear(*args, **given) if func is functional.linear else func(*args, **given)


def _linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:  # noqa: A002 - torch's names
    if weight.ndim != 2 or not weight.is_floating_point() or input.numel() * len(weight) > _MOST_TERMS:
        return functional.linear(input, weight, bias)
    outputs = input.new_zeros(*input.shape[:-1], len(weight))
    for factor, column in zip(input.unbind(-1), weight.unbind(1), strict=True):
        outputs += factor.unsqueeze(-1) * column
    return outputs if bias is None else outputs + bias
