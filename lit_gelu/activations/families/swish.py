"""SiLU, and Swish with its slope as an argument."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the name that torch's own documentation gives it

from lit_gelu.activations.naming.entry import ActivationEntry, ActivationFacts, ModuleForm
from lit_gelu.activations.numerics.arguments import (
    LOGISTIC_END,
    Derivatives,
    elementwise,
    elementwise_derivative,
    gated,
    largest,
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
    LOGISTIC_LIMIT,
    logistic_curvature,
    logistic_plus_density,
    unbounded_logistic_gate,
)
from lit_gelu.activations.onnx_recipes import Arguments, OnnxCases, OnnxRecipes, OnnxSpelling
from lit_gelu.memory import compute


@elementwise
def silu(x: Tensor) -> Tensor:
    """Return the sigmoid linear unit: ``f(x) = x s(x)`` with ``s(x) = 1 / (1 + exp(-x))``.

    Source: Hendrycks and Gimpel 2016 (arXiv 1606.08415), section 4; Elfwing et al. 2017 (arXiv 1702.03118).

    Example:
        >>> silu(torch.tensor([-1.0, 0.0, 1.0]))
        tensor([-0.2689,  0.0000,  0.7311])
    """
    return unbounded_logistic_gate(x, x)


@elementwise_derivative
def silu_derivative(x: Tensor, order: int = 1) -> Tensor:
    """First or second derivative of `silu`: that of `swish` with ``beta = 1``."""
    return swish_derivative(x, order)


@elementwise
def swish(x: Tensor, beta: float | Tensor = 1.0, channel_dim: int = 1) -> Tensor:
    """Return Swish: ``f(x) = x s(beta x)`` with ``s(u) = 1 / (1 + exp(-u))``.

    ``beta = 1`` is SiLU, ``beta = 0`` is ``x / 2``, ``beta -> inf`` approaches ReLU; a negative ``beta`` shuts the
    other side.

    Source: Ramachandran, Zoph and Le 2017, "Searching for Activation Functions" (arXiv 1710.05941), section 4.

    Args:
        x: Any shape, floating.
        beta: A number, a tensor with one element, or one of shape ``(channels,)``.
        channel_dim: Which dimension of ``x`` the channels are.

    Raises:
        ArgumentError: If ``x`` is not a floating tensor or ``beta`` does not fit its channels.

    Example:
        >>> swish(torch.tensor([-1.0, 0.0, 1.0]), beta=2.0)
        tensor([-0.1192,  0.0000,  0.8808])
    """
    beta = per_channel("swish", "beta", beta, x, channel_dim)
    return unbounded_logistic_gate(x, beta * x.clamp(-largest(x), largest(x)))


@elementwise_derivative
def swish_derivative(x: Tensor, order: int = 1, beta: float | Tensor = 1.0, channel_dim: int = 1) -> Tensor:
    """First or second derivative of `swish` with respect to ``x``."""
    beta = per_channel("swish", "beta", beta, x, channel_dim)
    u = (beta * x.clamp(-largest(x), largest(x))).clamp(-LOGISTIC_LIMIT, LOGISTIC_LIMIT)
    return logistic_plus_density(u, u) if order == 1 else logistic_curvature(2.0, u.abs(), u, factor=beta)


def swish_by_torch(x: Tensor, beta: float | Tensor) -> Tensor:
    """Return ``x sigmoid(beta x)`` by torch's functions."""
    return x * torch.sigmoid((beta * x).to(x.dtype))


def swish_joint(x: Tensor, beta: float = 1.0) -> Derivatives:
    """``x s(u)``, ``u = beta x``: f' = s(u) (1 + u s(-u)), f'' = beta s(u) s(-u) (2 + u (s(-u) - s(u)))."""
    u = (beta * x).clamp(-LOGISTIC_END, LOGISTIC_END)
    gate, closed = torch.sigmoid(u), torch.sigmoid(-u)
    value, bend = gated(x, gate, u <= -LOGISTIC_END), (beta * gate * closed) * (2 + u * (closed - gate))
    return Derivatives(value, gate * (1 + u * closed), bend, gate)


class Swish(ChannelModule):
    """``f(x) = x sigmoid(beta x)``, elementwise, any shape and floating dtype.

    ``beta = 1`` is SiLU (torch's function is called); ``beta -> 0`` is ``x / 2``, ``beta -> inf`` is ReLU. A learned
    slope is kept positive: ``beta = beta_0 exp(log_scale)`` with the parameter ``log_scale`` starting at 0, so that it
    starts at exactly ``beta_0`` and weight decay pulls it back there.

    Bytes kept for the backward pass, for each float32 element: 4 as SiLU, else 8; 4 with ``memory="recompute"``.

    Args:
        beta: The slope, or the initial slope if it is learned; positive.
        learnable: Whether the slope is learned.
        channels: How many slopes are learned: ``None`` for one, a number for one a channel, ``"infer"`` for as many as
            the layer before has outputs; see `lit_gelu.surgery.infer_channels_`.
            FSDP needs a number: 1 is one value for all, with a dimension.
        channel_dim: Which dimension of ``x`` the channels are: 1 as in ``torch.nn.PReLU``, -1 in transformers.
        memory: ``"recompute"`` keeps ``x`` alone for the backward pass; ``"autograd"`` what torch's functions need.

    Raises:
        ArgumentError: If ``beta`` is not positive and finite, ``memory`` no mode, or the channels are no number or
            given for a fixed slope.

    Example:
        >>> Swish(beta=2.0)(torch.tensor([-1.0, 0.0, 1.0]))
        tensor([-0.1192,  0.0000,  0.8808])
    """

    log_scale: nn.Parameter | None

    def __init__(
        self,
        beta: float = 1.0,
        learnable: bool = False,
        channels: int | str | None = None,
        channel_dim: int = 1,
        memory: str = "autograd",
    ) -> None:
        initial = {"beta": finite_number("beta", beta, positive=True)}
        super().__init__(initial, ("log_scale",), learnable, channels, channel_dim, memory)

    @property
    def beta(self) -> float | Tensor:
        """The present slope: a number if it is fixed, a tensor if it is learned."""
        initial = self.initial("beta")
        return initial if self.log_scale is None else initial * positive_scale(self.log_scale)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the function to a floating tensor."""
        beta = per_channel("swish", "beta", self.beta, x, self.channel_dim)
        if isinstance(beta, float) and beta == 1.0:
            return F.silu(x)
        return compute(self.memory, swish_by_torch, x, beta=beta)


def _swish_facts(learnable: bool = False, **_: Any) -> ActivationFacts:
    return ActivationFacts(
        "x sigmoid(beta x)",
        "Ramachandran, Zoph and Le 2017, Searching for Activation Functions (arXiv 1710.05941)",
        smoothness=float("inf"),
        asymptotes=("0", "x"),
        learnable=learnable,
    )


SILU_ONNX = OnnxRecipes(
    primitives="Mul(x, Sigmoid(x))",
    contrib="microsoft.QuickGelu(x, alpha=1.0)",
    accurate="Div(x, Add(Exp(Neg(x)), 1.0))",
    policy={"ort-cuda fp16|bf16 strict": "microsoft.ScaledSiLU(x, alpha=1.0)"},
)
_SWISH = "Mul(x, Sigmoid(Mul(x, beta)))"
_STABLE_SWISH = "Div(x, Add(Exp(Mul(x, beta * -1.0)), 1.0))"


def _case(arguments: Arguments) -> str:
    """Return whether it has one slope for all; QuickGelu's alpha is one number."""
    return "swish(channels)" if getattr(arguments.get("beta", 1.0), "ndim", 0) else "swish"


_ONNX = OnnxCases(
    {
        "swish": OnnxRecipes(
            primitives=_SWISH,
            contrib="microsoft.QuickGelu(x, alpha=beta)",
            accurate=_STABLE_SWISH,
            spellings=(OnnxSpelling(_SWISH),),
        ),
        "swish(channels)": OnnxRecipes(primitives=_SWISH, accurate=_STABLE_SWISH),
    },
    _case,
)


ENTRIES = (
    ActivationEntry(
        "silu",
        nn.SiLU,
        function=silu,
        derivative=silu_derivative,
        joint=swish_joint,
        facts=ActivationFacts(
            "x sigmoid(x)",
            "Hendrycks and Gimpel 2016 (arXiv 1606.08415); Elfwing, Uchibe and Doya 2018 (arXiv 1702.03118)",
            smoothness=float("inf"),
            asymptotes=("0", "x"),
        ),
        modules=(ModuleForm(nn.SiLU, keeps_input=True),),
        functions=(F.silu,),
        onnx=replace(
            SILU_ONNX,
            notes={
                "ort-cuda fast": "largest error 4.2e-3 (fp16), 2.1e-2 (bf16); 0 below -7.62, -5.56",
                "ort-cpu fp32": "0 below -15.9, an error of 2.3e-6",
            },
            spellings=(OnnxSpelling("Mul(x, Sigmoid(x))"),),
        ),
    ),
    ActivationEntry(
        "swish",
        Swish,
        function=swish,
        derivative=swish_derivative,
        joint=swish_joint,
        facts=_swish_facts,
        modules=(ModuleForm(Swish, channel_arguments, live=present_channel_arguments),),
        onnx=_ONNX,
    ),
)
