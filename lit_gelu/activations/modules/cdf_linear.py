"""``x`` times a cumulative distribution function."""

import functools
from collections.abc import Callable

from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the name that torch's own documentation gives it

from lit_gelu.activations.errors import ActivationArgumentError
from lit_gelu.activations.functional.cdf_linear import Distribution, cdf_linear, check_distribution
from lit_gelu.activations.modules.memory import checked_memory, compute

KERNELS: dict[str, Callable[[Tensor], Tensor]] = {"normal": F.gelu, "logistic": F.silu}


class CDFLinear(nn.Module):
    """``f(x) = x F(x)`` with a distribution function ``F``, elementwise, any shape and floating dtype.

    The normal and the logistic case call torch's kernels of GELU and SiLU. An object may be a ``torch.nn.Module`` with
    learned parameters; tensors of anything else stay on their device and in their dtype. To give an object's function a
    name that a checkpoint can hold, register one::

        @lit_gelu.activations.register("gumbel_linear")
        def gumbel_linear(x):
            return lit_gelu.activations.functional.cdf_linear(x, torch.distributions.Gumbel(0.0, 1.0))

    Bytes kept for the backward pass, for each float32 element: 4 in the normal and the logistic case (torch's kernels),
    21 in the Cauchy and 32 in the Laplace case, in 16 bit too, because they are computed in float32; 4 with
    ``memory="recompute"``, 2 in 16 bit.

    Source: Hendrycks and Gimpel 2016, "Gaussian Error Linear Units (GELUs)" (arXiv 1606.08415), section 5.

    Args:
        distribution: ``"normal"``, ``"logistic"``, ``"cauchy"`` or ``"laplace"``, or an object with ``cdf(x)``, and
            ``pdf(x)`` or ``log_prob(x)`` if it has one; see `lit_gelu.activations.functional.cdf_linear`.
        memory: ``"recompute"`` keeps ``x`` alone for the backward pass; ``"autograd"`` what the kernels need.

    Raises:
        ActivationArgumentError: If ``distribution`` is neither, ``memory`` no mode, or ``"recompute"`` with an object.

    Example:
        >>> import torch
        >>> CDFLinear("cauchy")(torch.tensor([-1.0, 0.0, 1.0]))
        tensor([-0.2500,  0.0000,  0.7500])
        >>> CDFLinear(torch.distributions.Normal(0.0, 2.0))(torch.tensor([-1.0, 0.0, 1.0]))
        tensor([-0.3085,  0.0000,  0.6915])
    """

    def __init__(self, distribution: str | Distribution = "normal", memory: str = "autograd") -> None:
        super().__init__()
        check_distribution("cdf_linear", distribution)
        self.distribution = distribution
        self.memory = checked_memory(memory)
        if memory == "recompute" and not isinstance(distribution, str):
            raise ActivationArgumentError(
                "memory='recompute' is not accepted with a distribution that is an object: tensors in it would get no "
                "gradients. Leave memory out, or use torch.utils.checkpoint."
            )

    def forward(self, x: Tensor) -> Tensor:
        """Apply the function elementwise.

        Args:
            x: Any shape, any floating dtype.

        Returns:
            A tensor like ``x``.
        """
        if isinstance(self.distribution, str):
            kernel = KERNELS.get(self.distribution)
            if kernel is not None:
                return kernel(x)
        return compute(self.memory, functools.partial(cdf_linear, distribution=self.distribution), x)

    def extra_repr(self) -> str:
        """Return the arguments for ``repr``.

        Returns:
            ``distribution=...``.
        """
        memory = "" if self.memory == "autograd" else f", memory={self.memory!r}"
        return f"distribution={self.distribution!r}{memory}"
