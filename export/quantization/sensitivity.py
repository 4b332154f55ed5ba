"""Which layers cost most in int8, and which of them stay in float32 for it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import onnx

from lit_gelu.export.errors import ExportOptionError
from lit_gelu.export.parity.execution import SessionSetup
from lit_gelu.export.quantization.calibration import Feed
from lit_gelu.export.quantization.layers import NetLayer
from lit_gelu.export.quantization.noise import Noise
from lit_gelu.export.runtime import CPU

Quantize = Callable[[Sequence[NetLayer]], onnx.ModelProto]


@dataclass(frozen=True)
class LayerCost:
    """What one layer costs."""

    layer: str
    sqnr: float  # Signal-to-quantisation-noise ratio of the first output with this layer alone in int8, decibels


def first_outputs(model: onnx.ModelProto, feeds: Sequence[Feed]) -> list[np.ndarray]:
    """Return the first output of each batch, on the CPU."""
    with SessionSetup((CPU,)).opened(model) as predictor:
        return [np.asarray(predictor.session.run(None, dict(feed))[0]) for feed in feeds]


def noise_of(outputs: Sequence[np.ndarray], references: Sequence[np.ndarray]) -> Noise:
    """Compare outputs batch by batch."""
    noise = Noise()
    for y, reference in zip(outputs, references, strict=True):
        noise.add(y, reference)
    return noise


def layers_within(
    layers: Sequence[NetLayer],
    quantize: Quantize,
    feeds: Sequence[Feed],
    references: Sequence[np.ndarray],
    max_difference: float,
) -> tuple[list[NetLayer], list[LayerCost]]:
    """Leave layers in float32, the costliest first, until the difference is small enough; return others and costs."""
    # A layer's cost is the noise in the first output when it alone is quantised: one run over the data a layer.

    def noise(some: Sequence[NetLayer]) -> Noise:
        return noise_of(first_outputs(quantize(some), feeds), references)

    if noise(layers).difference <= max_difference:
        return list(layers), []
    alone = {layer.node: noise([layer]).sqnr for layer in layers}
    ranked = sorted(layers, key=lambda layer: alone[layer.node])
    costs = [LayerCost(layer.name, alone[layer.node]) for layer in ranked]
    for count in range(1, len(ranked)):
        kept = {layer.node for layer in ranked[:count]}
        left = [layer for layer in layers if layer.node not in kept]
        if noise(left).difference <= max_difference:
            return left, costs
    raise ExportOptionError(
        f"max_difference={max_difference:g} cannot be met: even {ranked[-1].name} alone, the layer that costs least, "
        "makes a larger difference on the calibration data. Give a larger one, other data, or another method."
    )
