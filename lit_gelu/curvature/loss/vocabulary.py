"""Cross-entropy over a large vocabulary, from hidden states: products with the Hessian without logits that stay.

Double backward makes ten results or more that are as large as the logits, rows times words: 200 MB each for 1,024 rows
and 50,000 words. Here loss, gradient and product are computed some rows at a time. With logits ``z = h W' + b``, their
softmax p, the one-hot target y, a row's weight w, and a direction ``(a, A, c)`` of ``(h, W, b)``::

    g = w (p - y)                 grad_h = g W             grad_W = g' h
    dz = a W' + h A' + c          r = w p (dz - p . dz)
    product_h = r W + g A         product_W = r' h + g' a
"""

import contextlib
import inspect
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - the name that torch's own documentation gives it
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakTensorKeyDictionary

LARGE = 4096  # words, from which on logits are more than hidden states
_NUMBERS = 2**22  # of logits at a time: 16 MB in float32
_RESHAPES = frozenset({
    Tensor.view, Tensor.reshape, Tensor.flatten, Tensor.contiguous, Tensor.squeeze, torch.reshape, torch.flatten,
})  # fmt: skip


class ChunkedCrossEntropy(TorchFunctionMode):
    """While active, ``cross_entropy`` of what a large linear layer gives is computed from what goes into the layer.

    Views and slices of rows in between are followed. Class weights, label smoothing, targets that are probabilities,
    another order of dimensions, and logits that were written to or have hooks are left to torch.
    """

    def __init__(self) -> None:
        super().__init__()
        self._layers: Any = WeakTensorKeyDictionary()  # by logits: hidden states, weight, bias, and their versions

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is F.cross_entropy and (loss := self._loss(*args, **kwargs)) is not None:
            return loss
        if func is Tensor.register_hook and self._layer_of(args[0]):
            self._layers.clear()  # views of these logits would not lead through the hook
        result = func(*args, **kwargs)
        if func is F.linear:
            self._remember(result, *args, **kwargs)
        elif args and isinstance(args[0], Tensor) and (layer := self._layer_of(args[0])) and result is not args[0]:
            hidden, weight, bias = layer
            if not isinstance(result, Tensor) or result.shape[-1:] != weight.shape[:1]:
                return result
            shape = (*result.shape[:-1], hidden.shape[-1])
            if func in _RESHAPES:
                self._remember(result, hidden.reshape(shape), weight, bias)
            elif func is Tensor.__getitem__ and (rows := _rows_of(hidden, args[1])) is not None and rows.shape == shape:
                self._remember(result, rows, weight, bias)
        return result

    def _remember(self, logits: Tensor, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> None:  # noqa: A002
        is_large = len(weight) >= LARGE and len(weight) > weight.shape[-1]
        if is_large and logits.dtype == weight.dtype == input.dtype and logits.requires_grad:
            layer = input, weight, bias
            self._layers[logits] = layer, _versions(logits, *layer)

    def _layer_of(self, logits: Tensor) -> tuple[Tensor, Tensor, Tensor | None] | None:
        """Return what logits were computed from, ``None`` if something was written to since, or a hook sees them."""
        layer, versions = self._layers.get(logits, (None, ()))
        return layer if layer and versions == _versions(logits, *layer) and not logits._backward_hooks else None

    def _loss(self, *args: Any, **kwargs: Any) -> Tensor | None:
        """Return the loss, ``None`` where that is left to torch."""
        call = inspect.signature(F.cross_entropy).bind(*args, **kwargs)
        call.apply_defaults()
        options = call.arguments
        logits, target, reduction = options["input"], options["target"], options["reduction"]
        unset = all(options[each] is None for each in ("weight", "size_average", "reduce"))  # deprecated, they hold
        is_plain = unset and target.numel() and not options["label_smoothing"] and reduction in {"mean", "sum"}
        if not is_plain or target.is_floating_point() or logits.ndim > 2 or (layer := self._layer_of(logits)) is None:
            return None
        hidden, weight, bias = layer
        counted = (target != options["ignore_index"]).reshape(-1)
        rows = counted.to(hidden.dtype) / (counted.sum() if reduction == "mean" else 1)
        words = torch.where(counted, target.reshape(-1), 0)
        loss: Tensor = _Loss.apply(hidden.reshape(-1, hidden.shape[-1]), weight, bias, words, rows)
        return loss


def _rows_of(hidden: Tensor, index: Any) -> Tensor | None:
    """Return the rows that an index chooses, ``None`` where it chooses words: on a GPU that may end the process."""
    last = index[-1] if isinstance(index, tuple) and index else None
    if isinstance(last, Tensor) and (len(index) >= hidden.ndim or index[0] is Ellipsis):
        return None
    with contextlib.suppress(IndexError):
        return hidden[index]
    return None


def _versions(*tensors: Tensor | None) -> tuple[int, ...]:
    return tuple(tensor._version for tensor in tensors if tensor is not None)


def _chunks(rows: int, words: int) -> Iterator[slice]:
    step = max(1, _NUMBERS // words)
    return (slice(start, start + step) for start in range(0, rows, step))


def _surplus(hidden: Tensor, weight: Tensor, bias: Tensor | None, words: Tensor) -> tuple[Tensor, Tensor]:
    """Return p of some rows, and p - y."""
    p = F.linear(hidden, weight, bias).softmax(-1)
    surplus = p.clone()
    surplus[torch.arange(len(words), device=words.device), words] -= 1
    return p, surplus


class _Loss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, words: Tensor, rows: Tensor) -> Tensor:
        ctx.save_for_backward(hidden, weight, bias, words, rows)
        parts = [
            F.cross_entropy(F.linear(hidden[some], weight, bias), words[some], reduction="none").dot(rows[some])
            for some in _chunks(len(words), len(weight))
        ]
        return torch.stack(parts).sum()

    @staticmethod
    def backward(ctx: Any, scale: Tensor) -> Any:
        return (*_Gradient.apply(*ctx.saved_tensors, scale), None, None)


class _Gradient(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, words: Tensor, rows: Tensor, scale: Tensor
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        ctx.save_for_backward(hidden, weight, bias, words, rows, scale)
        by_hidden, by_weight = torch.empty_like(hidden), torch.zeros_like(weight)
        by_bias = None if bias is None else torch.zeros_like(bias)
        for some in _chunks(len(words), len(weight)):
            g = _surplus(hidden[some], weight, bias, words[some])[1] * (scale * rows[some])[:, None]
            by_hidden[some] = g @ weight
            by_weight.addmm_(g.T, hidden[some])
            if by_bias is not None:
                by_bias += g.sum(0)
        return by_hidden, by_weight, by_bias

    @staticmethod
    def backward(ctx: Any, a: Tensor, direction: Tensor, c: Tensor | None = None) -> Any:
        hidden, weight, bias, words, rows, scale = ctx.saved_tensors
        by_hidden, by_weight, by_scale = torch.empty_like(hidden), torch.zeros_like(weight), torch.zeros_like(scale)
        by_bias = None if bias is None else torch.zeros_like(bias)
        for some in _chunks(len(words), len(weight)):
            p, surplus = _surplus(hidden[some], weight, bias, words[some])
            dz = F.linear(a[some], weight, c).addmm_(hidden[some], direction.T)
            by_scale += (surplus * dz).sum(-1).dot(rows[some])
            r = p.mul_(dz - (p * dz).sum(-1, keepdim=True)).mul_((scale * rows[some])[:, None])
            g = surplus.mul_((scale * rows[some])[:, None])
            by_hidden[some] = r @ weight + g @ direction
            by_weight.addmm_(r.T, hidden[some]).addmm_(g.T, a[some])
            if by_bias is not None:
                by_bias += r.sum(0)
        return by_hidden, by_weight, by_bias, None, None, by_scale


def is_chunked(node: Any) -> bool:
    """Return whether a type of graph nodes is one of this module, which has its second derivative."""
    return getattr(node, "_forward_cls", None) in {_Loss, _Gradient}
