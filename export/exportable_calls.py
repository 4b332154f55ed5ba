"""Calls that torch's exporter does not translate, or translates to something else, in others that it does."""

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - the name that torch's own documentation gives it
from torch.overrides import TorchFunctionMode

_REFLECTED = (
    Tensor.__rsub__, Tensor.__rdiv__, Tensor.__rtruediv__, Tensor.__rpow__, Tensor.__rfloordiv__, Tensor.__rmod__,
    torch.rsub,
)  # fmt: skip
_RANK = 4  # of the attention that torch's exporter takes


class ExportableCalls(TorchFunctionMode):
    """While active, calls are made in a form that torch's exporter translates; the values are the same."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function of torch, or its other form."""
        kwargs = kwargs or {}
        if func is F.scaled_dot_product_attention:
            return attention(*args, **kwargs)
        reflected = args[1::-1] if func in _REFLECTED else args[:2]
        if len(reflected) == 2 and isinstance(reflected[0], float) and _is_whole(reflected[1]):
            # The exporter cannot promote ``1.0 - mask`` for a mask of whole numbers.
            args = (*(torch.as_tensor(a, dtype=torch.get_default_dtype()) for a in args[:2]), *args[2:])
        return func(*args, **kwargs)


def _is_whole(value: Any) -> bool:
    return isinstance(value, Tensor) and not (value.is_floating_point() or value.is_complex())


def attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, *args: Any, **kwargs: Any
) -> Tensor:
    """Return ``scaled_dot_product_attention``: of four dimensions whatever the rank, and 0 where all is masked."""
    # The exporter gives what is masked all over the mean of all values for a Boolean mask, and NaN for one with -inf.
    extra = query.ndim - _RANK
    lead = query.shape[: extra + 1]
    masked = None
    if attn_mask is not None:
        if attn_mask.dtype == torch.bool:
            attn_mask = torch.where(attn_mask, 0.0, -torch.inf).to(query.dtype)
        masked = attn_mask.amax(-1, keepdim=True) == -torch.inf
        if extra > 0 and attn_mask.ndim > _RANK - 1:
            attn_mask = attn_mask.expand(*query.shape[:-1], key.shape[-2]).flatten(0, extra)
    if extra > 0:
        query, key, value = (tensor.flatten(0, extra) for tensor in (query, key, value))
    else:
        query, key, value = (tensor[(None,) * -extra] for tensor in (query, key, value))
    result = F.scaled_dot_product_attention(query, key, value, attn_mask, *args, **kwargs)
    result = result.reshape(*lead, *result.shape[1:]) if extra > 0 else result[(0,) * -extra]
    return result if masked is None else result.masked_fill(masked, 0.0)


def _grouped_matmul(input: Any, weight: Any, offs: Any) -> Any:  # noqa: A002 - the operator's own name for it
    """Return the rows of each group times the matrix of that group; groups end at ``offs``."""
    from onnxscript.onnx_opset import opset20

    op: Any = opset20  # its types ask for one element type of a tensor that may have several
    ends = op.Cast(offs, to=7)
    start, products = op.Constant(value_ints=[0]), []
    for i in range(weight.shape[0]):
        end = op.Slice(ends, op.Constant(value_ints=[i]), op.Constant(value_ints=[i + 1]))
        rows = op.Slice(input, start, end, op.Constant(value_ints=[0]))
        products.append(op.MatMul(rows, op.Gather(weight, op.Constant(value_int=i))))
        start = end
    return op.Concat(*products, axis=0)


def translations() -> dict[Callable[..., Any], Callable[..., Any]]:
    """Return how operators of other libraries are written in ONNX, of those libraries that are imported."""
    with contextlib.suppress(AttributeError):
        return {torch.ops.transformers.grouped_mm_fallback.default: _grouped_matmul}
    return {}
