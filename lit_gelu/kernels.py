"""Kernels for the activations of a model: which of them have one, and which code runs when.

    model = lit_gelu.kernels.fuse(model)

On NVIDIA GPUs, torch's GELU in 16 bits takes longer than a copy of the tensor, and loses its left tail. A fused model
computes its activations with kernels that do neither, where a tensor is large enough; everywhere else with torch's own.
"""

from typing import TypeVar

from torch import Tensor, nn

from lit_gelu.activations import ActivationRegistry
from lit_gelu.activations.gpu.autograd import LitGeluKernelWarning
from lit_gelu.activations.gpu.modules import KernelModule, OwnKernelModule, is_fused
from lit_gelu.activations.gpu.routes import Route
from lit_gelu.activations.registry import registry_or_default

__all__ = ["LitGeluKernelWarning", "Route", "explain", "fuse", "unfuse"]

_Module = TypeVar("_Module", bound=nn.Module)


def fuse(model: _Module, registry: ActivationRegistry | None = None) -> _Module:
    """Let the activations of a model be computed by kernels where these are faster, in place.

    Kernels exist for ``torch.nn.GELU`` (exact and tanh), ``SiLU``, ``Mish``, ``ELU`` and ``Hardswish``. They run on
    CUDA tensors in float16 or bfloat16 of 4,194,304 elements or more, on devices of compute capability 8.0 or newer
    where Triton is installed; under `torch.compile` a formula takes their place, which the compiler fuses. Elsewhere,
    and for forward-mode derivatives, `torch.func` and derivatives of derivatives, torch computes as before.

    Only the class of the modules changes: their names, ``repr``, hooks, ``state_dict`` and specs stay, and what is
    exported, scripted or traced is torch's operators. A copy of a fused model is fused; a pickle holds torch's modules,
    so fuse what was read from one. If a kernel fails, a `LitGeluKernelWarning` says so once, and torch computes from
    then on.

    Args:
        model: Any model.
        registry: Where the activations are registered; by default the shared one.

    Returns:
        The model itself.

    Example:
        >>> net = fuse(nn.Sequential(nn.Linear(2, 3), nn.GELU()))
        >>> net[1], type(net[1]) is nn.GELU, isinstance(net[1], nn.GELU)
        (GELU(approximate='none'), False, True)
    """
    known = registry_or_default(registry)
    for module in model.modules():
        row = known.entry_of(module)
        form = None if row is None else row.form_of(module)
        if form is not None and form.fused is not None:
            module.__class__ = form.fused
    return model


def unfuse(model: _Module) -> _Module:
    """Undo `fuse`, in place.

    Args:
        model: Any model.

    Returns:
        The model itself.

    Example:
        >>> type(unfuse(fuse(nn.GELU()))) is nn.GELU
        True
    """
    for module in model.modules():
        if is_fused(module):
            module.__class__ = module.plain
    return model


def explain(module: nn.Module, x: Tensor) -> Route:
    """Say which code computes an activation of a tensor, and why.

    Args:
        module: An activation, fused or not.
        x: Its input.

    Returns:
        ``code`` is ``"kernel"``, ``"formula"`` (within `torch.compile`) or ``"torch"``; ``why`` says it in words.

    Example:
        >>> import torch
        >>> explain(fuse(nn.GELU()), torch.zeros(3)).why
        'the tensor lies on cpu, and kernels are for CUDA'
        >>> explain(nn.GELU(), torch.zeros(3)).why
        'GELU is not fused; lit_gelu.kernels.fuse does it'
    """
    if isinstance(module, OwnKernelModule):
        kernel = module.kernel()
        if module.kernels == "off":
            return Route("torch", f"kernels='off' of this {type(module).__name__} leaves all to torch")
        return Route("torch", "it has no kernel with its present arguments") if kernel is None else kernel.route(x)
    if not isinstance(module, KernelModule):
        return Route("torch", f"{type(module).__name__} is not fused; lit_gelu.kernels.fuse does it")
    if getattr(module, "inplace", False):
        return Route("torch", "inplace=True overwrites the input, which takes no memory")
    return module.kernel().route(x)
