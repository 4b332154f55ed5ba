"""The derivative of a function that falls and rises, from its output and one bit.

GELU and its kin fall to one lowest point and rise from there, so an output below 0 has two inputs; the bit says which
of them it was. The output then tells the derivative as well as its own rounding lets it: near the lowest point
``f' = sqrt(2 f'' (y - y*))``, and an output rounded by ``h`` there leaves ``f'`` uncertain by ``sqrt(2 f'' h)``. In
16 bits the derivative is the mean over the inputs that have the same output and bit, from a table of all inputs;
in float32 and float64 it is interpolated between the nodes of a table, which alone costs 5e-7.

Largest and root mean square error of GELU's derivative, for inputs from the standard normal distribution: 0.011 and
1.4e-3 in bfloat16 (rounding the derivative alone: 3.9e-3 and 1.3e-3), 5e-3 and 4e-4 in float16, 2e-4 and 3e-6 in
float32, 1.5e-6 and 8e-8 in float64. The other functions' are at most a half more.
"""

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lit_gelu.activations.gpu import routes
from lit_gelu.activations.gpu.autograd import TritonKernel, tried
from lit_gelu.activations.gpu.routes import Route
from lit_gelu.activations.numerics.arguments import keep_nan
from lit_gelu.activations.numerics.bits import packed, unpacked
from lit_gelu.activations.numerics.output_memory import OutputRule

Elementwise = Callable[[Tensor], Tensor]

_TABLES = 64  # that are held at most, each of about half a MiB
_CODES = 1 << 16

# Grids of the interpolation: 512 nodes an octave of the distance from the lowest point, in units of its depth, or of
# the distance from 0 in the left tail.
_NODE_BITS = 9
_FRACTION_BITS = 23 - _NODE_BITS
_OCTAVES = 36  # below the unit; float32 resolves 24 of them
_FIRST_NODE = (127 - _OCTAVES) << _NODE_BITS
_LEFT_NODES = _OCTAVES << _NODE_BITS
_RIGHT_NODES = (_OCTAVES + 7) << _NODE_BITS  # up to 128 times the depth, where every derivative is constant
_FARTHEST = 64.0  # beyond it on either side every derivative is constant


@dataclass(frozen=True)
class Valley:
    """A function that falls to one lowest point, left of 0 and below 0, and rises from there; 0 at 0."""

    value: Elementwise  # exact, of float64
    slope: Elementwise
    kernel: Elementwise  # torch's own, of any dtype
    lowest: float  # where it is lowest
    closed: Elementwise | None = None  # the slope's size from outputs of float32 and float64, where it has a form
    factor: float = 1.0  # of the function
    device: TritonKernel | None = None  # its kernel, whose output a kernel can take the slope from

    @functools.cached_property
    def depth(self) -> float:
        """Minus the lowest value."""
        lowest = torch.tensor(self.lowest, dtype=torch.float64, device="cpu")
        return -self.factor * float(self.value(lowest))

    def output(self, x: Tensor) -> Tensor:
        """Return the function of a tensor, as torch computes it."""
        y = self.kernel(x)
        return y if self.factor == 1.0 else y * self.factor


@functools.lru_cache(_TABLES)
def scaled(valley: Valley, factor: float) -> Valley:
    """Return a positive multiple of a function."""
    return replace(valley, factor=valley.factor * factor)


def slope_of(valley: Valley, y: Tensor, right: Tensor) -> Tensor:
    """Return the slope for flat outputs and integers that are 1 right of the lowest point, else 0; in float32."""
    if y.dtype.itemsize == 2:
        code = _code(y).bitwise_or_(right.to(torch.int32).mul_(_CODES))
        return _mean_slopes(valley, y.dtype, y.device).index_select(0, code)
    if valley.closed is None:
        return _interpolated(valley, y, 1 - right.to(torch.int32))
    size = valley.closed(y / valley.factor) * valley.factor
    return keep_nan(y, torch.where(right.bool(), size, torch.where(y == 0, 0.0, -size))).float()


def _code(y: Tensor) -> Tensor:
    """Return 16-bit floats as numbers from 0 to 65,535."""
    return y.view(torch.int16).to(torch.int32).bitwise_and_(_CODES - 1)


@functools.lru_cache(_TABLES)
def _mean_slopes(valley: Valley, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return the mean slope of the inputs that have an output, by its code, first those left of the lowest point."""
    codes = torch.arange(_CODES, dtype=torch.int32, device="cpu")
    inputs = codes.to(torch.int16).view(dtype)
    output = valley.output(inputs.to(device)).cpu()  # a device's own rounding, so that each input is found again
    place = _code(output).add_((inputs >= valley.lowest).to(torch.int32).mul_(_CODES))
    zero = torch.zeros(2 * _CODES, dtype=torch.float64, device="cpu")
    slopes = valley.factor * valley.slope(inputs.double())
    counts = zero.index_add(0, place, torch.ones_like(slopes))
    means = zero.index_add(0, place, slopes).div_(counts)
    # By branch, sign and size. What is 0 on the left is a tail that underflowed, or dropped by dropout. An output that
    # no input has, as another kernel may round it, takes the slope of the next smaller one.
    means, used = means.view(4, -1), (counts > 0).view(4, -1)
    means[:2, 0], used[:2, 0] = 0.0, True
    source = torch.where(used, torch.arange(means.shape[1], device="cpu"), 0).cummax(1).values
    means = keep_nan(inputs.repeat(2), means.gather(1, source).view(-1))
    return means.float().to(device)


def _interpolated(valley: Valley, y: Tensor, left: Tensor) -> Tensor:
    """Return the slope between the nodes of a table; ``left`` is 1 left of the lowest point, else 0."""
    # Integers take the place of conditions: torch.where takes ten times as long where nobody can guess the branch.
    from_lowest = (y + valley.depth).mul_(1.0 / valley.depth).clamp_(max=256.0).float()
    # What is left of the lowest point is placed by the nearer of that point and 0; all else is put far from 0.
    from_zero = y.abs().mul_(1.0 / valley.depth).float().add_((1 - left).mul_(1 << 20))
    in_tail = (from_zero - from_lowest).view(torch.int32) >> 31  # -1 or 0, the sign bit
    bits = torch.minimum(from_lowest, from_zero).view(torch.int32)
    node = (bits >> _FRACTION_BITS).sub_(_FIRST_NODE).clamp_(0, _RIGHT_NODES - 1)
    node.add_(in_tail.sub_(left).add_(2).mul_(_LEFT_NODES))
    fraction = (bits & ((1 << _FRACTION_BITS) - 1)).float().mul_(2.0**-_FRACTION_BITS)
    start, rise = (table.index_select(0, node) for table in _nodes(valley, y.device))
    return start.addcmul_(fraction, rise).add_(from_lowest.clamp_(max=1.0).mul_(0.0))  # NaN stays NaN


@functools.lru_cache(_TABLES)
def _nodes(valley: Valley, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the slope at each node of the three grids, and how much it is more at the next one."""
    tail = _grid(valley, lambda place: -place, -_FARTHEST)
    tail[0, 0] = 0.0  # of what underflowed, or was dropped
    near, right = (_grid(valley, lambda place: place - 1.0, far) for far in (-_FARTHEST, _FARTHEST))
    start, rise = torch.cat((tail, near, right), 1).float().to(device)
    return start, rise


def _grid(valley: Valley, output: Elementwise, far: float) -> Tensor:
    """Return slope and rise at the nodes of one side of the lowest point; ``output`` is in units of the depth."""
    nodes = _LEFT_NODES if far < 0 else _RIGHT_NODES
    bits = torch.arange(nodes + 1, dtype=torch.int32, device="cpu").add_(_FIRST_NODE) << _FRACTION_BITS
    y = valley.depth / valley.factor * output(bits.view(torch.float32).double())
    slopes = valley.factor * valley.slope(_solve(valley.value, y, far, valley.lowest))
    return torch.stack((slopes[:-1], slopes.diff()))


def _solve(value: Elementwise, y: Tensor, far: float, lowest: float) -> Tensor:
    """Return where a function that falls from ``far`` to ``lowest`` is y, by bisection."""
    above, below = torch.full_like(y, far), torch.full_like(y, lowest)
    for _ in range(60):
        middle = 0.5 * (above + below)
        high = value(middle) > y
        above, below = torch.where(high, middle, above), torch.where(high, below, middle)
    return 0.5 * (above + below)


@dataclass(frozen=True)
class ValleyOutput(OutputRule):
    """Keeps the output, and eight branches in a byte."""

    valley: Valley
    kernels: bool = True  # whether kernels may compute what they can

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the output and the branches."""
        device, valley = self._device(x), self.valley
        if device is not None and valley.factor == 1.0:
            from lit_gelu.activations.gpu import output_kernels

            found = tried(device, lambda x: output_kernels.valley_forward(x, device.name, device.p0, valley.lowest), x)
            if found is not None:
                return found
        return valley.output(x), packed(x >= valley.lowest)

    def backward(self, gradient: Tensor, y: Tensor, *kept: Tensor) -> Tensor:
        """Return the gradient by the input."""
        device = self._device(y)
        if device is not None:
            from lit_gelu.activations.gpu import output_kernels

            take_slope = functools.partial(
                output_kernels.valley_backward, name=device.name, beta=device.p0, factor=self.valley.factor
            )
            found = tried(device, take_slope, gradient, y, *kept)
            if found is not None:
                return found
        return self._by_torch(gradient, y, kept[0])

    def route(self, x: Tensor) -> Route:
        """Return which code computes the function of x."""
        if self.valley.device is None or not self.kernels:
            return super().route(x)
        found = self.valley.device.route(x)
        return Route("torch", "a compiler chooses itself what it keeps") if found.code == "formula" else found

    def _device(self, x: Tensor) -> TritonKernel | None:
        """Return the kernel if it computes a tensor."""
        device = self.valley.device if self.kernels and routes.is_candidate(x) else None
        return device if device is not None and device.route(x).code == "kernel" else None

    def _by_torch(self, gradient: Tensor, y: Tensor, bits: Tensor) -> Tensor:
        """Return the gradient by torch's operations."""
        by_x = torch.empty_like(y)
        flat = (_pieces(part.as_strided((y.numel(),), (1,))) for part in (gradient, y, by_x))
        for upstream, source, target, right in zip(*flat, _pieces(unpacked(bits, y.numel())), strict=True):
            target.copy_(upstream * slope_of(self.valley, source, right))
        return by_x


def _pieces(flat: Tensor) -> Iterator[Tensor]:
    """Cut a flat tensor into pieces, so that what is computed between takes little memory."""
    # On a processor they stay in its cache; a GPU wants much to do at a time.
    return iter(torch.split(flat, 1 << 16 if flat.device.type == "cpu" else 1 << 24))
