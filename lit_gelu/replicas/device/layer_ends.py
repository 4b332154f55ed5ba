"""What follows a product in a hidden layer of all replicas: bias, activation and dropout, as one kernel on CUDA."""

import copy
from collections.abc import Callable
from itertools import groupby
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from lit_gelu.replicas.forward.keyed_rules import KeyedDropoutRule
from lit_gelu.replicas.forward.rules import ActivationRule, LinearRule
from lit_gelu.tasks.keyed_dropout import has_kernel
from lit_gelu.tasks.keyed_noise import DeviceKeys

ROWS, COLUMNS = 16, 128  # of a tile of the forward kernel
BACKWARD_ROWS, BACKWARD_COLUMNS = 32, 32
PER_BLOCK = 8  # numbers that the generator of dropout draws at once, which lie in one row of a tile

Formula = Callable[[Tensor, float], Tensor]
# In the order of their numbers in `lit_gelu.replicas.device.layer_end_kernels`.
_FORMULAS: tuple[Formula, ...] = (
    lambda u, _: functional.relu(u),
    lambda u, _: functional.gelu(u),
    lambda u, _: functional.gelu(u, approximate="tanh"),
    functional.elu,
    lambda u, _: functional.silu(u),
)


def number_of(module: nn.Module) -> tuple[int, float] | None:
    """Return an activation's number in the kernels and its parameter, or ``None`` if they do not know it."""
    if isinstance(module, nn.GELU):
        return 1 if module.approximate == "none" else 2, 0.0
    if isinstance(module, nn.ELU):
        return 3, float(module.alpha)
    return {nn.ReLU: (0, 0.0), nn.SiLU: (4, 0.0)}.get(type(module))


class LayerEnd:
    """Bias, activation and dropout of all replicas behind the product of a layer.

    Args:
        linear: The layer's product, whose bias it is.
        activation: Of each member one that `number_of` knows, without hooks.
        dropout: ``None`` where the layer has none.
    """

    def __init__(self, linear: LinearRule, activation: ActivationRule, dropout: KeyedDropoutRule | None) -> None:
        self.linear, self.dropout = linear, dropout if dropout is not None and dropout.is_noisy else None
        found = [number_of(module) for module in activation.modules]
        assert None not in found  # noqa: S101 - `FusedForward` has asked
        self.numbers = [number for number in found if number is not None]
        self._read: tuple[Tensor, Tensor] | None = None

    def __call__(self, product: Tensor, part: slice | Tensor | None = None, *, drops: bool) -> Tensor:
        """Return the layer's outputs, ``[replicas, rows, columns]``, of products of so many replicas.

        Args:
            product: Without bias.
            part: Which replicas they are of, a stretch or their numbers; ``None`` means all of them.
            drops: Whether dropout is on, of all replicas, which counts a step.
        """
        bias = self.linear.bias if part is None else self.linear.bias[part]
        dropout = self.dropout if drops else None
        splits_blocks = dropout is not None and product.shape[-1] % PER_BLOCK
        if not has_kernel(product) or product.dtype != torch.float32 or splits_blocks:
            outputs = self._by_operations(product + bias.unsqueeze(1), part)
            return outputs if dropout is None else dropout(outputs)
        keys = None if dropout is None else dropout.device_keys(product.device)
        site = 0 if dropout is None else dropout.site
        ended: Tensor = _EndedLayer.apply(product, bias, self.readings(product.device, part), keys, site)
        return ended

    def with_linear(self, linear: LinearRule) -> Self:
        """Return the end of another product, with the same activations."""
        self.readings(linear.weight.device)  # not later, on a stream that others do not wait for
        other = copy.copy(self)
        other.linear = linear
        return other

    def readings(self, device: torch.device, part: slice | Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return numbers and parameters of the activations; they stay where they are, for a CUDA graph reads them."""
        if self._read is None:
            kinds, alphas = zip(*self.numbers, strict=True)
            self._read = torch.tensor(kinds, dtype=torch.int32, device=device), torch.tensor(alphas, device=device)
        return self._read if part is None else (self._read[0][part], self._read[1][part])

    def _by_operations(self, inputs: Tensor, part: slice | Tensor | None) -> Tensor:
        places = torch.arange(len(self.numbers)) if part is None else torch.arange(len(self.numbers))[part]
        own = [self.numbers[place] for place in places.tolist()]
        runs = [(number, len(list(run))) for number, run in groupby(own)]
        pieces = torch.split(inputs, [length for _, length in runs])
        outputs = [_FORMULAS[kind](piece, alpha) for ((kind, alpha), _), piece in zip(runs, pieces, strict=True)]
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs)


class _EndedLayer(torch.autograd.Function):
    """The kernels of a layer's end; the mask of dropout is drawn again for the gradient."""

    @staticmethod
    def forward(
        ctx: Any, product: Tensor, bias: Tensor, read: tuple[Tensor, Tensor], keys: DeviceKeys | None, site: int
    ) -> Tensor:
        ctx.save_for_backward(product, bias)
        ctx.read, ctx.keys, ctx.site = read, keys, site
        return launch_end(product, bias, read, keys, site)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        product, bias = ctx.saved_tensors
        return *launch_end_backward(gradients[0], product, bias, ctx.read, ctx.keys, ctx.site), None, None, None


def launch_end(
    product: Tensor, bias: Tensor, read: tuple[Tensor, Tensor], keys: DeviceKeys | None, site: int
) -> Tensor:
    """Start the forward kernel."""
    from lit_gelu.replicas.device import layer_end_kernels

    product, bias = product.contiguous(), bias.contiguous()
    outputs = torch.empty_like(product)
    replicas, rows, columns = product.shape
    if product.numel():
        grid = (-(-columns // COLUMNS), -(-rows // ROWS), replicas)
        constants = {"DROPS": keys is not None, "ROWS": ROWS, "COLUMNS": COLUMNS}
        layer_end_kernels.layer_end[grid](
            product, bias, outputs, *read, *_addresses(keys, product), rows, columns, site, **constants
        )
    return outputs


def launch_end_backward(
    gradient: Tensor, product: Tensor, bias: Tensor, read: tuple[Tensor, Tensor], keys: DeviceKeys | None, site: int
) -> tuple[Tensor, Tensor]:
    """Start the kernel of the gradients; return those of product and bias."""
    from lit_gelu.replicas.device import layer_end_kernels

    gradient, product, bias = gradient.contiguous(), product.contiguous(), bias.contiguous()
    of_product, of_bias = torch.empty_like(product), torch.empty_like(bias)
    replicas, rows, columns = product.shape
    if product.numel():
        grid = (-(-columns // BACKWARD_COLUMNS), replicas)
        constants = {"DROPS": keys is not None, "ROWS": BACKWARD_ROWS, "COLUMNS": BACKWARD_COLUMNS}
        layer_end_kernels.layer_end_backward[grid](
            gradient, product, bias, of_product, of_bias, *read, *_addresses(keys, product), rows, columns, site,
            **constants,
        )  # fmt: skip
    return of_product, of_bias


def _addresses(keys: DeviceKeys | None, instead: Tensor) -> tuple[Tensor, ...]:
    """Return what the kernels draw masks by; without dropout, what they do not read."""
    return (instead,) * len(DeviceKeys._fields) if keys is None else keys
