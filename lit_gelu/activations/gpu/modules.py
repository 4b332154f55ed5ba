"""Modules whose function has a kernel: what torch's become, and the package's own.

Whoever looks at a fused model must see what was there before: graphs, summaries and tracers name the class of a module
and treat those of torch in their own way, `torch.export` keeps the lines of code that each node came from, a pickle is
read where this package is not installed. So the class has the name of torch's, and a pickle holds torch's module; a
copy is what its original is.
"""

import copy
import copyreg
import functools
import inspect
import types
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, ClassVar, Self, TypeGuard

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: F401, N812 - torch.jit.script looks up here what torch's forward names

from lit_gelu.activations.errors import ActivationArgumentError
from lit_gelu.activations.gpu import routes
from lit_gelu.activations.gpu.autograd import Kernel, fused
from lit_gelu.activations.gpu.generated import GeneratedKernel

_OF_EVERY_MODULE = frozenset(vars(nn.Module())) - {"training"}


class KernelModule(nn.Module):
    """Before torch's module, or another's, among the bases: the same module by a kernel."""

    plain: ClassVar[type[nn.Module]]  # torch's, or the other's
    by_torch: Callable[..., Tensor]
    definition: ClassVar[str]  # where the class itself is found, as ``module:name``

    def __init_subclass__(cls, **options: Any) -> None:
        """Give the class torch's name and signature."""
        super().__init_subclass__(**options)
        if cls.__bases__[0] is not KernelModule:  # made by torch on the way, as by an export
            return
        plain: type[nn.Module] = cls.__bases__[1]
        cls.plain, cls.definition = plain, f"{cls.__module__}:{cls.__qualname__}"
        cls.__module__, cls.__qualname__, cls.__name__ = plain.__module__, plain.__qualname__, plain.__name__
        cls.by_torch, cls.forward = plain.forward, _by_kernel(plain.forward)

    def kernel(self) -> Kernel:
        """Return the kernel of the module's function, with its present arguments."""
        raise NotImplementedError

    def __reduce_ex__(self, protocol: Any) -> str | tuple[Any, ...]:
        """Return how a pickle is read: as the module without a kernel."""
        if not is_fused(self):
            return super().__reduce_ex__(protocol)
        if self.plain.__module__.startswith("torch.") and _needs_no_arguments(self.plain):
            return self.plain, (), _state(self)  # with weights_only, it takes no more trust than torch's module
        return copyreg._reconstructor, (self.plain, object, None), _state(self)  # type: ignore[attr-defined]

    def __copy__(self) -> Self:
        """Return a copy of the same class."""
        made = type(self).__new__(type(self))
        made.__setstate__(_state(self))  # type: ignore[no-untyped-call]
        return made

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return a copy of the same class, with copies of all that it holds."""
        memo[id(self)] = made = type(self).__new__(type(self))
        made.__setstate__(copy.deepcopy(_state(self), memo))  # type: ignore[no-untyped-call]
        return made


def _state(module: nn.Module) -> Any:
    """Return what a copy or a pickle takes of a module; its class may say what."""
    return module.__getstate__()  # type: ignore[no-untyped-call]


def _needs_no_arguments(cls: type) -> bool:
    parameters = inspect.signature(cls).parameters.values()
    return all(
        each.default is not each.empty or each.kind in {each.VAR_POSITIONAL, each.VAR_KEYWORD} for each in parameters
    )


def _by_kernel(plain: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return the method that replaces torch's ``forward``."""
    names = tuple(inspect.signature(plain).parameters)[1:2]

    # torch.jit.script goes through `wraps` to torch's code. torch.export notes the lines of functions that are called
    # forward where they are defined: this one is not.
    @functools.wraps(plain)
    def by_kernel(self: KernelModule, *given: Any, **named: Any) -> Tensor:
        tensors = given or tuple(named[name] for name in names if name in named)
        # What overwrites its input needs no memory, which a kernel's output would.
        if len(tensors) != 1 or len(given) + len(named) != 1 or vars(self).get("inplace"):
            return self.by_torch(*given, **named)
        return _computed(self, tensors[0])

    return by_kernel


def _computed(module: KernelModule, x: Tensor) -> Tensor:
    if not routes.is_candidate(x):
        return module.by_torch(x)
    kernel = module.kernel()
    if not isinstance(kernel, ModuleKernel):
        return fused(kernel, module.by_torch, x)
    if module._parameters and kernel.route(x).code == "torch":
        return module.by_torch(x)
    return fused(kernel, kernel.function, x, *kernel.parameters)


def is_fused(module: nn.Module) -> TypeGuard[KernelModule]:
    """Say whether a module is of a class that replaces torch's, and not of one that torch made of such a class."""
    return isinstance(module, KernelModule) and type(module).__bases__[0] is KernelModule


@dataclass(frozen=True, eq=False)
class ModuleKernel(GeneratedKernel):
    """The kernel of what a module computes with the attributes and parameters that it has now."""

    module: KernelModule

    @functools.cached_property  # asked several times a call
    def key(self) -> Hashable:
        """The module's class and attributes, and which of its parameters there are."""
        own = {name: value for name, value in vars(self.module).items() if name not in _OF_EVERY_MODULE}
        return self.module.plain, _hashable(own), tuple(_learned(self.module))

    @property
    def parameters(self) -> tuple[Tensor, ...]:
        """The module's parameters."""
        return tuple(_learned(self.module).values())


class _Plain(nn.Module):
    """A module as it is without its kernel, for calls with other parameters."""

    def __init__(self, module: KernelModule) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor) -> Tensor:
        return self.module.by_torch(x)


def _learned(module: nn.Module) -> dict[str, nn.Parameter]:
    return {name: value for name, value in module._parameters.items() if value is not None}


def _by_torch(module: KernelModule, x: Tensor, *parameters: Tensor) -> Tensor:
    """Compute what a module does, with these parameters in the place of its own."""
    if not parameters:
        return module.by_torch(x)
    given = dict(zip((f"module.{name}" for name in _learned(module)), parameters, strict=True))
    found: Tensor = torch.func.functional_call(_Plain(module), given, (x,))
    return found


def plain_class(cls: type) -> type:
    """Return the class of a module without its kernel."""
    return cls.plain if issubclass(cls, KernelModule) and cls.__bases__[0] is KernelModule else cls


@functools.cache
def kernel_class(plain: type[nn.Module], kernel: Kernel | None) -> type[nn.Module]:
    """Return a module class with a kernel: the given one, or one that is generated from its ``forward``."""

    def kernel_of(self: KernelModule) -> Kernel:
        return kernel or ModuleKernel(plain.__name__, functools.partial(_by_torch, self), self)

    return types.new_class(plain.__name__, (KernelModule, plain), exec_body=lambda body: body.update(kernel=kernel_of))


def _hashable(value: Any) -> Hashable:
    """Return plain data, or an object as it is, as a part of a key."""
    if isinstance(value, dict):
        return tuple((key, _hashable(each)) for key, each in value.items())
    if isinstance(value, (list, tuple)):
        return tuple(map(_hashable, value))
    try:
        hash(value)
    except TypeError:  # a set, an array: the object itself is told, not what it holds
        return type(value), id(value)
    return type(value), value


KERNEL_CHOICES = ("auto", "off")


class OwnKernelModule(nn.Module):
    """Base of the package's modules that have a kernel, which their argument ``kernels`` can switch off."""

    kernels: str = "auto"  # pickles of earlier versions hold no choice

    def kernel(self) -> Kernel | None:
        """Return the kernel of the module's function with its present arguments; ``None`` if there is none."""
        raise NotImplementedError

    def by_torch(self, x: Tensor) -> Tensor:
        """Compute the function by torch's kernels."""
        raise NotImplementedError

    def by_kernel(self, x: Tensor) -> Tensor:
        """Compute the function by the code that its route names."""
        kernel = self.kernel()
        return self.by_torch(x) if kernel is None else fused(kernel, self.by_torch, x)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the function to a floating tensor."""
        if self.kernels == "off" or not routes.is_candidate(x):
            return self.by_torch(x)
        return self.by_kernel(x)


def checked_kernels(kernels: str) -> str:
    """Return ``kernels`` if it is one of the choices."""
    if kernels not in KERNEL_CHOICES:
        raise ActivationArgumentError(
            f"kernels={kernels!r} is not accepted. Use 'auto', which computes large 16-bit tensors on NVIDIA GPUs by a "
            "kernel, or 'off', which leaves all to torch."
        )
    return kernels


def kernels_text(kernels: str) -> str:
    """Return what ``repr`` says of the choice behind other arguments: nothing of the usual one."""
    return "" if kernels == "auto" else f", kernels={kernels!r}"
