"""Floating-point inputs of modules that gaussian values do not fit, such as one that takes a logarithm of its input."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lit_gelu.export.inputs import Call
from lit_gelu.export.parity.integer_inputs import Kind, drawn


@dataclass(frozen=True)
class OfSample:
    """Values that the sample holds, in any order and as often as it comes."""

    values: Tensor
    label = "sample's values"

    def draw(self, shape: torch.Size, generator: torch.Generator) -> Tensor:
        """Return some of them."""
        known = self.values.flatten()
        return known[torch.randint(len(known), shape, generator=generator)]


@dataclass(frozen=True)
class Magnitudes:
    """Magnitudes of gaussian values, where the sample holds one value alone."""

    label = "|gaussian|"

    def draw(self, shape: torch.Size, generator: torch.Generator) -> Tensor:
        """Return some."""
        return torch.randn(shape, generator=generator).abs()


def instead_of_gaussian(
    call: Call, kinds: Mapping[int, Kind], accepts: Callable[[Sequence[Tensor]], str]
) -> tuple[dict[int, Kind], list[str]]:
    """Return what to draw floating-point inputs from if the module takes the sample and no gaussian values, and a note.

    Args:
        call: The sample.
        kinds: What the integer inputs may hold.
        accepts: Says what is wrong with inputs, nothing if the module takes them.
    """
    floats = [i for i, t in enumerate(call.tensors) if t.is_floating_point() and t.numel() and i not in kinds]
    if not floats or accepts(call.tensors):
        return {}, []

    def trouble(others: Mapping[int, Kind]) -> str:
        return accepts(drawn(call.tensors, {**kinds, **others}, torch.Generator().manual_seed(0)))

    with_gaussian = trouble(dict.fromkeys(floats, _Gaussian()))
    if not with_gaussian:
        return {}, []
    varied = any(call.tensors[i].min() < call.tensors[i].max() for i in floats)
    others: dict[int, Kind] = {i: OfSample(call.tensors[i]) if varied else Magnitudes() for i in floats}
    if trouble(others):
        return {}, []
    what = "the sample's own" if varied else "their magnitudes"
    return others, [f"with gaussian values {with_gaussian}; {what} were drawn instead."]


class _Gaussian:
    def draw(self, shape: torch.Size, generator: torch.Generator) -> Tensor:
        return torch.randn(shape, generator=generator)
