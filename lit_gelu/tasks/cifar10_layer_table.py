"""The layers of `CIFAR10ConvNet` as Table 1 of the GELU paper lists them."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from lit_gelu.curvature.sandbox import evaluation_mode
from lit_gelu.data.whitening import ZCAWhitening
from lit_gelu.tasks.layers import ConvLayer
from lit_gelu.tasks.noise import GaussianNoise

PIXELS = (1, 3, 32, 32)


class LayerRow(NamedTuple):
    """One row of the table.

    Attributes:
        layer: The type of the layer, as the table words it.
        channels: Number of channels that it puts out.
        size: Height and width that it puts out.
    """

    layer: str
    channels: int
    size: int

    def __str__(self) -> str:
        """Return the row as text."""
        return f"{self.layer:<40} {self.channels:>4} {self.size:>4}"


def layer_table(net: nn.Module, preprocessing: nn.Module | None = None) -> list[LayerRow]:
    """Pass one image of zeros through a net and return what its layers put out."""
    rows: list[LayerRow] = []
    if preprocessing is not None:
        rows.append(LayerRow("raw RGB input", *PIXELS[1:3]))

    modules = [*(() if preprocessing is None else preprocessing.modules()), *net.modules()]
    words = {module: _words(module) for module in modules}
    words |= {module: "softmax output" for name, module in net.named_children() if name == "output"}

    def add(module: nn.Module, _: object, outputs: Tensor) -> None:
        rows.append(LayerRow(words[module], outputs.shape[1], outputs.shape[2] if outputs.ndim > 2 else 1))

    handles = [module.register_forward_hook(add) for module in modules if words[module]]
    pixels = torch.zeros(PIXELS, dtype=torch.float32 if preprocessing is None else torch.uint8)
    try:
        with torch.no_grad(), evaluation_mode(net):
            net(pixels if preprocessing is None else preprocessing(pixels))
    finally:
        for handle in handles:
            handle.remove()
    return rows


def _words(module: nn.Module) -> str:
    """Return how the table words a layer, nothing if it has no row of its own."""
    match module:
        case ZCAWhitening():
            return "ZCA whitening"
        case GaussianNoise():
            return f"Gaussian noise, deviation {module.deviation}"
        case ConvLayer():
            height, width = module.conv.kernel_size
            return f"{height}x{width} conv with activation"
        case nn.MaxPool2d():
            return f"{module.kernel_size}x{module.kernel_size} max pool, stride {module.stride}"
        case nn.Dropout():
            return f"dropout with p = {module.p}"
        case nn.AdaptiveAvgPool2d():
            return "global average pool"
    return ""
