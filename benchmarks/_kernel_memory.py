"""Memory of training steps with activations as torch has them and fused: a ViT, and an MLP of twelve layers."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from lit_gelu import activations
from lit_gelu.errors import LitGeluError
from lit_gelu.kernels import fuse

Build = Callable[[Callable[[], nn.Module]], nn.Module]
#: Sizes on a GPU, and small ones.
SIZES = {
    "vit": ((64, 3, 224, 224), (2, 3, 32, 32)),
    "mlp": ((8192, 1024), (8, 32)),
}
LAYERS = 12


def mlp(width: int, gelu: Callable[[], nn.Module]) -> nn.Module:
    """Return twelve layers, four times as wide as their input."""
    widths = [width] + [4 * width] * (LAYERS - 1)
    layers = [part for i, o in zip(widths, [*widths[1:], width], strict=True) for part in (nn.Linear(i, o), gelu())]
    return nn.Sequential(*layers[:-1])


def vit(size: int, gelu: Callable[[], nn.Module]) -> nn.Module:
    """Return torchvision's ViT-B/16 with another GELU, or a small one for small images."""
    from torchvision.models import VisionTransformer

    large = size > 32
    net = VisionTransformer(
        image_size=size,
        patch_size=16 if large else 8,
        num_layers=12 if large else 2,
        num_heads=12 if large else 2,
        hidden_dim=768 if large else 32,
        mlp_dim=3072 if large else 128,
    )
    for module in list(net.modules()):
        for name, child in module.named_children():
            if type(child) is nn.GELU:
                setattr(module, name, gelu())
    return net


NETS: dict[str, Callable[[int, Callable[[], nn.Module]], nn.Module]] = {"vit": vit, "mlp": mlp}
#: How the activations are made, and whether they are fused.
WAYS = {"eager": ("gelu", False), "fused": ("gelu", True), "output": ("gelu(memory='output')", True)}


def needed(net: str, way: str, device: str, quick: bool) -> dict[str, Any]:
    """Run two steps in bfloat16, and return what the second one keeps and needs.

    Args:
        net: A key of `NETS`.
        way: A key of `WAYS`.
        device: Where.
        quick: Small sizes.

    Returns:
        Bytes that autograd keeps of what are no parameters, and the peak of the step on a GPU, else nothing.
    """
    shape = SIZES[net][quick]
    spec, fusing = WAYS[way]
    torch.manual_seed(0)
    model = NETS[net](shape[-1], lambda: activations.create(spec)).to(device, torch.bfloat16).train()
    if fusing:
        fuse(model)
    x = torch.randn(shape, device=device, dtype=torch.bfloat16)
    kept = _step(model, x)
    peak = None
    if torch.device(device).type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    _step(model, x)
    if torch.device(device).type == "cuda":
        peak = torch.cuda.max_memory_allocated() - before
    return {"saved_bytes": kept, "peak_bytes": peak}


def _step(model: nn.Module, x: Tensor) -> int:
    """Run a forward and a backward pass; return the bytes of the storages that are kept between them."""
    parameters = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    storages: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    model.zero_grad(set_to_none=True)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        y = model(x)
    y.float().square().mean().backward()
    return sum(storages.values())


def lacking(way: str) -> str:
    """Return why a way cannot be measured; nothing if it can."""
    try:
        activations.create(WAYS[way][0])
    except (LitGeluError, TypeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def memory_line(net: str, way: str, found: dict[str, Any]) -> str:
    """Return one line of the table."""
    peak = "-" if found["peak_bytes"] is None else f"{found['peak_bytes'] / 2**20:.1f}"
    return f"{net:<8}{way:<10}{found['saved_bytes'] / 2**20:>14.2f}{peak:>14}"
