"""Kernels for the activations of a model: which of them have one, and which code runs when.

    model = lit_gelu.kernels.fuse(model)

On NVIDIA GPUs, torch's GELU in 16 bits takes longer than a copy of the tensor, and loses its left tail; and what is
written as several of torch's operations reads and writes the tensor at each of them. A fused model computes its
activations with kernels that do neither, where a tensor is large enough; everywhere else with torch's own.
"""

from typing import Any, TypeVar, cast

from torch import Tensor, nn

from lit_gelu.activations import ActivationRegistry
from lit_gelu.activations.gpu.autograd import Kernel, LitGeluKernelWarning, TritonKernel
from lit_gelu.activations.gpu.modules import OwnKernelModule, is_fused, kernel_class, plain_class
from lit_gelu.activations.gpu.routes import Route
from lit_gelu.activations.numerics.output_memory import OutputModule, OutputRule
from lit_gelu.activations.registry import registry_or_default

__all__ = ["Kernel", "LitGeluKernelWarning", "Route", "TritonKernel", "explain", "fuse", "unfuse"]

_Module = TypeVar("_Module", bound=nn.Module)


def fuse(model: _Module, registry: ActivationRegistry | None = None) -> _Module:
    """Let the activations of a model be computed by kernels where these are faster, in place.

    ``torch.nn.GELU`` (exact and tanh), ``SiLU``, ``Mish``, ``ELU`` and ``Hardswish`` have kernels of this package. For
    other registered functions torch.compile makes a kernel of the function and one of its derivative, at the first
    tensor that is large enough, in some seconds: they read the tensor once where torch's operations read it once each,
    keep it alone for the backward pass, and compute in float32, rounding once. What takes more than one element, an
    element's place or random numbers into account has none; nor has what holds buffers, or parameters of more than one
    number. ``kernel=`` of `ActivationRegistry.register` decides for one of your own; ReLU, sigmoid and tanh, of which
    torch keeps the output alone, are left to torch.

    Kernels run on CUDA tensors in float16 or bfloat16 of 4,194,304 elements or more, on devices of compute capability
    8.0 or newer where Triton is installed. Under `torch.compile` the formulas of this package's kernels take their
    place, which the compiler fuses. Elsewhere, and for forward-mode derivatives, `torch.func` and derivatives of
    derivatives, torch computes as before.

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
        found = _fused_class(module, known)
        if not isinstance(found, str):
            module.__class__ = found
    return model


def _fused_class(module: nn.Module, known: ActivationRegistry) -> type[nn.Module] | str:
    """Return the class with a kernel that a module is given, or why there is none."""
    row = known.entry_of(module)
    plain, name = plain_class(type(module)), type(module).__name__
    if row is None:
        return f"{name} is no registered activation"
    if row.kernel == "off":
        return f"{row.name!r} is left to torch: its row says kernel='off'"
    if isinstance(module, (OwnKernelModule, OutputModule)):
        return f"{name} asks for its kernel itself"
    form = row.form_of(module)
    if form is not None and form.fused is not None:
        return form.fused
    spec = known.spec_of(module)
    if isinstance(row.kernel, Kernel):
        return (
            f"the kernel of {row.name!r} is that of its usual arguments"
            if spec.kwargs
            else kernel_class(plain, row.kernel)
        )
    if row.kernel == "auto" and row.function is None:
        return f"{name} may do more than compute; register it with kernel='generated' if it does not"
    facts = row.facts_for(spec.arguments)
    if not facts.elementwise or facts.stochastic:
        return f"{row.name!r} is no function of one number alone"
    if any(True for each in (module.buffers(), module.children()) for _ in each):
        return f"{name} holds buffers or modules"
    return kernel_class(plain, None)


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
            module.__class__ = module.plain  # type: ignore[assignment]
    return model


def explain(module: nn.Module, x: Tensor, registry: ActivationRegistry | None = None) -> Route:
    """Say which code computes an activation of a tensor, and why.

    Args:
        module: An activation, fused or not.
        x: Its input.
        registry: Where the activation is registered; by default the shared one.

    Returns:
        ``code`` is ``"kernel"``, ``"formula"`` (within `torch.compile`) or ``"torch"``; ``why`` says it in words.

    Example:
        >>> import torch
        >>> explain(fuse(nn.GELU()), torch.zeros(3)).why
        'the tensor lies on cpu, and kernels are for CUDA'
        >>> explain(nn.GELU(), torch.zeros(3)).why
        'GELU is not fused; lit_gelu.kernels.fuse does it'
        >>> explain(nn.Linear(2, 3), torch.zeros(2)).why
        'Linear is no registered activation'
    """
    if isinstance(module, OutputModule):
        return module.rule().route(x)
    if isinstance(module, OwnKernelModule):
        kernel = module.kernel()
        if kernel is None and getattr(module, "memory", "") == "output":
            rule: OutputRule = cast("Any", module).rule()
            return rule.route(x)
        if module.kernels == "off":
            return Route("torch", f"kernels='off' of this {type(module).__name__} leaves all to torch")
        return Route("torch", "it has no kernel with its present arguments") if kernel is None else kernel.route(x)
    if is_fused(module):
        if getattr(module, "inplace", False):
            return Route("torch", "inplace=True overwrites the input, which takes no memory")
        return module.kernel().route(x)
    found = _fused_class(module, registry_or_default(registry))
    why = found if isinstance(found, str) else f"{type(module).__name__} is not fused; lit_gelu.kernels.fuse does it"
    return Route("torch", why)
