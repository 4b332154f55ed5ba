"""Modules whose function has a kernel: what torch's become, and the package's own."""

from torch import Tensor, nn

from lit_gelu.activations.errors import ActivationArgumentError
from lit_gelu.activations.gpu.autograd import Kernel, fused


class KernelModule(nn.Module):
    """Before one of torch's modules among the bases: the same module by a kernel, under the same name."""

    def kernel(self) -> Kernel:
        """Return the kernel of the module's function, with its present arguments."""
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        """Apply the function to a floating tensor of any shape, elementwise."""
        plain = super().forward
        # What overwrites its input needs no memory, which a kernel's output would.
        found: Tensor = plain(x) if getattr(self, "inplace", False) else fused(self.kernel(), plain, x)
        return found

    def _get_name(self) -> str:
        """Return the name of torch's module: ``repr`` does not tell what computes it."""
        return type(self).__mro__[2].__name__


KERNEL_CHOICES = ("auto", "off")


class OwnKernelModule(nn.Module):
    """Base of the package's modules that have a kernel, which their argument ``kernels`` can switch off."""

    kernels: str

    def kernel(self) -> Kernel | None:
        """Return the kernel of the module's function with its present arguments; ``None`` if there is none."""
        raise NotImplementedError

    def by_torch(self, x: Tensor) -> Tensor:
        """Compute the function by torch's kernels."""
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        """Apply the function to a floating tensor."""
        kernel = None if self.kernels == "off" else self.kernel()
        return self.by_torch(x) if kernel is None else fused(kernel, self.by_torch, x)


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
