"""GELU with the mean and standard deviation of its normal distribution as arguments."""

import functools
import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the name that torch's own documentation gives it

from lit_gelu.activations.naming.entry import ActivationEntry, ActivationFacts, ModuleForm
from lit_gelu.activations.numerics.arguments import (
    NORMAL_END,
    Derivatives,
    check_floating,
    check_positive,
    elementwise,
    elementwise_derivative,
    gated,
    largest,
    one_node,
    per_channel,
)
from lit_gelu.activations.numerics.channels import (
    ChannelModule,
    channel_arguments,
    finite_number,
    positive_scale,
    present_channel_arguments,
)
from lit_gelu.activations.numerics.gates import (
    INVERSE_SQRT_TWO_PI,
    NORMAL_LIMIT,
    SQRT_HALF,
    normal_cdf_plus_density,
    times_normal_density,
    unbounded_normal_gate,
)
from lit_gelu.activations.onnx_recipes import Arguments, OnnxCases, OnnxRecipes, numbers
from lit_gelu.memory import compute

HENDRYCKS_2016 = "Hendrycks and Gimpel 2016, Gaussian Error Linear Units (arXiv 1606.08415)"


@elementwise
def gaussian_gelu(x: Tensor, mu: float | Tensor = 0.0, sigma: float | Tensor = 1.0, channel_dim: int = 1) -> Tensor:
    """Return ``x`` times the probability that a normal variable of mean ``mu``, deviation ``sigma`` is below ``x``.

    ``f(x) = x Phi(u)`` with ``u = (x - mu) / sigma``. ``sigma -> 0`` approaches ``x`` above ``mu`` and 0 below it: ReLU
    for ``mu = 0``.

    Source: Hendrycks and Gimpel 2016 (arXiv 1606.08415), section 2.

    Args:
        x: Any shape, floating.
        mu: A number, a tensor with one element, or one of shape ``(channels,)``.
        sigma: The same, positive. A number is checked; a tensor is not, because that would wait for the device.
        channel_dim: Which dimension of ``x`` the channels are.

    Raises:
        ArgumentError: If ``x`` is not a floating tensor, ``sigma`` not positive, or a shape does not fit.

    Example:
        >>> gaussian_gelu(torch.tensor([-1.0, 0.0, 1.0]), mu=0.5, sigma=2.0)
        tensor([-0.2266,  0.0000,  0.5987])
        >>> gaussian_gelu(torch.tensor([-1.0, 0.0, 1.0]), sigma=1e-30)
        tensor([-0., 0., 1.])
    """
    mu, sigma = _parameters("gaussian_gelu", x, mu, sigma, channel_dim)
    return unbounded_normal_gate(x, _quotient(x - mu, sigma))


@elementwise_derivative
def gaussian_gelu_derivative(
    x: Tensor, order: int = 1, mu: float | Tensor = 0.0, sigma: float | Tensor = 1.0, channel_dim: int = 1
) -> Tensor:
    """First or second derivative of `gaussian_gelu` with respect to ``x``."""
    mu, sigma = _parameters("gaussian_gelu_derivative", x, mu, sigma, channel_dim)
    u = _quotient(x - mu, sigma).clamp(-NORMAL_LIMIT, NORMAL_LIMIT)
    v = _quotient(x, sigma)
    if order == 1:
        return normal_cdf_plus_density(v, u)
    return times_normal_density(_quotient(2.0 - _bounded(u * v), sigma), u)


def _parameters(
    name: str, x: Tensor, mu: float | Tensor, sigma: float | Tensor, channel_dim: int
) -> tuple[float | Tensor, float | Tensor]:
    """Return both parameters, shaped; ``sigma`` is kept above 0, so that one that reaches 0 gives the limit."""
    check_positive(name, "sigma", sigma)
    smallest = torch.finfo(x.dtype).tiny
    sigma = per_channel(name, "sigma", sigma, x, channel_dim)
    above_zero = sigma.clamp(min=smallest) if isinstance(sigma, Tensor) else max(sigma, smallest)
    return per_channel(name, "mu", mu, x, channel_dim), above_zero


def _bounded(value: Tensor) -> Tensor:
    """Return ``value`` without infinities: what it is multiplied by may be 0."""
    return value.clamp(-largest(value), largest(value))


def _quotient(numerator: Tensor, sigma: float | Tensor) -> Tensor:
    """Return ``numerator / sigma``, bounded; both ends lie far outside the gate's limits."""
    return _bounded(_bounded(numerator) / sigma)


@one_node
def zero_mean_gelu(x: Tensor, sigma: float) -> Tensor:
    """Return ``sigma GELU(x / sigma)`` by torch's function, and in pieces where ``x / sigma`` may overflow."""
    check_floating("gaussian_gelu", x)
    may_overflow = x.dtype == torch.float16 or sigma < math.sqrt(torch.finfo(x.dtype).tiny)
    return normal_gated(x, 0.0, sigma) if may_overflow else sigma * F.gelu(x / sigma)


@elementwise
def normal_gated(x: Tensor, mu: float | Tensor, sigma: float | Tensor, channel_dim: int = 1) -> Tensor:
    """Return ``x erfc((mu - x) / (sigma sqrt 2)) / 2``: what `functional.gaussian_gelu` does, in fewer functions."""
    # A tensor sigma counts as at least the square root of the smallest normal number: the gradient has 1 / sigma^2.
    # The tail is as accurate, since ``erfc`` has it; at ``x = -inf`` it is NaN, as torch's own GELU is.
    mu = per_channel("gaussian_gelu", "mu", mu, x, channel_dim)
    sigma = per_channel("gaussian_gelu", "sigma", sigma, x, channel_dim)
    smallest = math.sqrt(torch.finfo(x.dtype).tiny)
    scale = (sigma.clamp(min=smallest) if isinstance(sigma, Tensor) else max(sigma, smallest)) * math.sqrt(2)
    return x * torch.erfc((mu - x) / scale) * 0.5


def gaussian_gelu_joint(x: Tensor, mu: float = 0.0, sigma: float = 1.0) -> Derivatives:
    """``x Phi(u)``, ``u = (x - mu) / sigma``: f' = Phi + x phi / sigma, f'' = phi / sigma (2 - x u / sigma)."""
    standard = (mu, sigma) == (0.0, 1.0)
    u = (x if standard else (x - mu) / sigma).clamp(-NORMAL_END, NORMAL_END)
    gate = torch.erfc(u * -SQRT_HALF).mul_(0.5)
    square = u * u
    density = torch.exp(square * -0.5).mul_(INVERSE_SQRT_TWO_PI / sigma)
    weighted = (u if standard else mu + sigma * u) * density
    value = gated(x, gate, u <= -NORMAL_END)
    if standard:
        return Derivatives(value, gate + weighted, density.mul_(2 - square), gate)
    return Derivatives(value, gate + weighted, 2 * density - weighted * (u / sigma), gate)


class GaussianGELU(ChannelModule):
    """``f(x) = x Phi((x - mu) / sigma)``, elementwise, any shape and floating dtype.

    ``mu = 0, sigma = 1`` is GELU; ``sigma -> 0`` with ``mu = 0`` is ReLU. With one fixed ``mu = 0`` it is
    ``sigma GELU(x / sigma)``, so torch's function is called. Learned parameters: ``mu_0 + mu_offset`` and
    ``sigma_0 exp(log_scale)``, both parameters starting at 0: sigma stays positive and starts at exactly ``sigma_0``.

    Bytes kept for the backward pass, for each float32 element: 4 where torch's function is called, else 12 (16 if
    learned), in 16 bit too, because it is computed in float32; 4 with ``memory="recompute"``, 2 in 16 bit.

    Args:
        mu: Mean of the normal distribution, or its initial value if learned.
        sigma: Its standard deviation, or the initial value; positive.
        learnable: Whether both are learned.
        channels: How many of each are learned: ``None`` for one, a number for one a channel, ``"infer"`` for as many as
            the layer before has outputs; see `lit_gelu.surgery.infer_channels_`.
            FSDP needs a number: 1 is one value for all, with a dimension.
        channel_dim: Which dimension of ``x`` the channels are: 1 as in ``torch.nn.PReLU``, -1 in transformers.
        memory: ``"recompute"`` keeps ``x`` alone for the backward pass; ``"autograd"`` what torch's functions need.

    Raises:
        ArgumentError: If ``mu`` is not finite or ``sigma`` not positive and finite, ``memory`` no mode, or the channels
            are no number or given for fixed values.

    Example:
        >>> GaussianGELU(mu=0.5, sigma=2.0)(torch.tensor([-1.0, 0.0, 1.0]))
        tensor([-0.2266,  0.0000,  0.5987])
        >>> GaussianGELU(learnable=True, channels=16).log_scale.shape
        torch.Size([16])
    """

    mu_offset: nn.Parameter | None
    log_scale: nn.Parameter | None

    def __init__(
        self,
        mu: float = 0.0,
        sigma: float = 1.0,
        learnable: bool = False,
        channels: int | str | None = None,
        channel_dim: int = 1,
        memory: str = "autograd",
    ) -> None:
        initial = {"mu": finite_number("mu", mu), "sigma": finite_number("sigma", sigma, positive=True)}
        super().__init__(initial, ("mu_offset", "log_scale"), learnable, channels, channel_dim, memory)

    @property
    def mu(self) -> float | Tensor:
        """The present mean: a number if it is fixed, a tensor if it is learned."""
        initial = self.initial("mu")
        return initial if self.mu_offset is None else initial + self.mu_offset

    @property
    def sigma(self) -> float | Tensor:
        """The present standard deviation; a number or a tensor, as `mu`."""
        initial = self.initial("sigma")
        return initial if self.log_scale is None else initial * positive_scale(self.log_scale)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the function to a floating tensor."""
        mu, sigma = self.mu, self.sigma
        if isinstance(mu, float) and isinstance(sigma, float) and mu == 0.0:
            return F.gelu(x) if sigma == 1.0 else compute(self.memory, zero_mean_gelu, x, sigma=sigma)
        function = functools.partial(normal_gated, channel_dim=self.channel_dim)
        return compute(self.memory, function, x, mu=mu, sigma=sigma)


def _facts(learnable: bool = False, **_: Any) -> ActivationFacts:
    return ActivationFacts(
        "x Phi((x - mu) / sigma)", HENDRYCKS_2016, smoothness=float("inf"), asymptotes=("0", "x"), learnable=learnable
    )


# gaussian_gelu with mean 0 is sigma Gelu(x / sigma): one fused node instead of five, for one sigma a channel too. It
# overflows where x / sigma does: for sigma < 1 above sigma times the dtype's largest number. So does PyTorch's kernel
# for fixed numbers, but not for learned ones: sigma<1 is a row of its own, in pieces where that matters. With sigma 1
# it is GELU, whose row it takes.


def _case(arguments: Arguments) -> str:
    """Return whether it has a mean, and a standard deviation by which its input may be divided."""
    mu, sigma = arguments.get("mu", 0.0), arguments.get("sigma", 1.0)
    if any(numbers(mu)):
        return "gaussian_gelu"
    if all(number == 1 for number in numbers(sigma)):
        return "gelu(approximate='none')"  # dividing by 1 and multiplying by it doubles the time
    # One number for all, or one a channel. With fixed numbers the module calls the kernel that overflows as well.
    fixed = isinstance(mu, float) and isinstance(sigma, float)
    return "gaussian_gelu(mu=0)" if fixed or min(numbers(sigma)) >= 1 else "gaussian_gelu(mu=0, sigma<1)"


_FUSED = "Mul(Gelu(Div(x, sigma), approximate='none'), sigma)"
_ONNX = OnnxCases(
    {
        "gaussian_gelu(mu=0)": OnnxRecipes(
            native=_FUSED,
            primitives="Mul(Mul(x, 0.5), Add(Erf(Div(x, sigma * SQRT_2)), 1.0))",
            contrib="Mul(microsoft.Gelu(Div(x, sigma)), sigma)",
            absolute=1e-7,  # times sigma
        ),
        "gaussian_gelu(mu=0, sigma<1)": OnnxRecipes(
            primitives="Mul(Mul(x, 0.5), Add(Erf(Div(x, sigma * SQRT_2)), 1.0))",
            # In float32, x / sigma overflows for no fp16 number. It does for those of bf16 and of float32 above 3.4e38
            # sigma.
            policy={"* * fast": _FUSED, "* fp16 strict": f"fp32 {_FUSED}"},
            absolute=1e-7,  # times sigma
            notes={"fast": "infinite above sigma times the dtype's largest number"},
        ),
        "gaussian_gelu": OnnxRecipes(
            primitives="Mul(Mul(x, 0.5), Add(Erf(Div(Sub(x, mu), sigma * SQRT_2)), 1.0))", absolute=1e-7
        ),
    },
    _case,
)


ENTRIES = (
    ActivationEntry(
        "gaussian_gelu",
        GaussianGELU,
        function=gaussian_gelu,
        derivative=gaussian_gelu_derivative,
        joint=gaussian_gelu_joint,
        facts=_facts,
        modules=(ModuleForm(GaussianGELU, channel_arguments, live=present_channel_arguments),),
        onnx=_ONNX,
    ),
)
