"""Sigmoid, tanh and hard sigmoid: mostly gates, listed as such by ``surgery``."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the name that torch's own documentation gives it

from lit_gelu.activations.naming.entry import ActivationEntry, ActivationFacts
from lit_gelu.activations.numerics.arguments import Derivatives, elementwise, quotient
from lit_gelu.activations.numerics.gates import LOGISTIC_LIMIT, times_logistic, times_logistic_density
from lit_gelu.activations.onnx_recipes import OnnxOperator, OnnxRecipes

HARD_BOUND = 3.0


@elementwise
def sigmoid(x: Tensor) -> Tensor:
    """Return the logistic function: ``s(x) = 1 / (1 + exp(-x))``.

    Example:
        >>> sigmoid(torch.tensor([-1.0, 0.0, 1.0]))
        tensor([0.2689, 0.5000, 0.7311])
    """
    return times_logistic(1.0, x.clamp(-LOGISTIC_LIMIT, LOGISTIC_LIMIT))


def sigmoid_joint(x: Tensor) -> Derivatives:
    """``s(x)``, ``q = s(x) s(-x)``, ``-q tanh(x / 2)``."""
    u = x.clamp(-LOGISTIC_LIMIT, LOGISTIC_LIMIT)
    second = times_logistic_density(-torch.tanh(0.5 * u), u)
    return Derivatives(times_logistic(1.0, u), times_logistic_density(1.0, u), second, None)


@elementwise
def tanh(x: Tensor) -> Tensor:
    """Return the hyperbolic tangent.

    Example:
        >>> tanh(torch.tensor([-1.0, 0.0, 1.0]))
        tensor([-0.7616,  0.0000,  0.7616])
    """
    return torch.tanh(x)


def tanh_joint(x: Tensor) -> Derivatives:
    """``tanh(x)``, ``sech(x)**2 = 4 s(2 x) s(-2 x)`` and ``-2 tanh(x) sech(x)**2``."""
    u, value = x.clamp(-LOGISTIC_LIMIT, LOGISTIC_LIMIT) * 2.0, torch.tanh(x)
    first = times_logistic_density(4.0, u)
    return Derivatives(value, first, times_logistic_density(-8.0 * value, u), quotient(value, x, first))


@elementwise
def hard_sigmoid(x: Tensor) -> Tensor:
    """Return the piecewise linear form of the sigmoid: ``f(x) = min(max(x + 3, 0), 6) / 6``.

    Source: Howard et al. 2019, "Searching for MobileNetV3" (arXiv 1905.02244), section 5.2.

    Example:
        >>> hard_sigmoid(torch.tensor([-4.0, 0.0, 1.5]))
        tensor([0.0000, 0.5000, 0.7500])
    """
    return hard_sigmoid_joint(x).value


def hard_sigmoid_joint(x: Tensor) -> Derivatives:
    """Hard sigmoid; at the kinks the outer derivatives."""
    middle = (x.clamp(-HARD_BOUND, HARD_BOUND) + HARD_BOUND) / (2.0 * HARD_BOUND)
    # Selected rather than clamped alone, so that autograd gives 0 at the kinks, as torch's own hard sigmoid does.
    value = torch.where(x >= HARD_BOUND, 1.0, torch.where(x <= -HARD_BOUND, 0.0, middle))
    first = ((x > -HARD_BOUND) & (x < HARD_BOUND)).to(x.dtype) / (2.0 * HARD_BOUND)
    return Derivatives(value, first, torch.zeros_like(x), None)


ENTRIES = (
    ActivationEntry(
        "sigmoid",
        nn.Sigmoid,
        function=sigmoid,
        joint=sigmoid_joint,
        facts=ActivationFacts("1 / (1 + exp(-x))", smoothness=float("inf"), asymptotes=("0", "1"), gate=True),
        functions=(torch.sigmoid, torch.sigmoid_, F.sigmoid),
        onnx=OnnxRecipes(
            native="Sigmoid(x)", accurate="Div(1.0, Add(Exp(Neg(x)), 1.0))", operator=OnnxOperator("Sigmoid")
        ),
    ),
    ActivationEntry(
        "tanh",
        nn.Tanh,
        function=tanh,
        joint=tanh_joint,
        facts=ActivationFacts("tanh(x)", smoothness=float("inf"), asymptotes=("-1", "1"), gate=True),
        functions=(torch.tanh, torch.tanh_, F.tanh),
        onnx=OnnxRecipes(native="Tanh(x)", operator=OnnxOperator("Tanh")),
    ),
    ActivationEntry(
        "hard_sigmoid",
        nn.Hardsigmoid,
        function=hard_sigmoid,
        joint=hard_sigmoid_joint,
        facts=ActivationFacts(
            formula="min(max(x + 3, 0), 6) / 6",
            reference="Howard et al. 2019, Searching for MobileNetV3 (arXiv 1905.02244)",
            smoothness=0,
            asymptotes=("0", "1"),
            kinks=((-3.0, 1 / 6), (3.0, -1 / 6)),
            gate=True,
        ),
        aliases=("hardsigmoid",),
        functions=(F.hardsigmoid,),
        onnx=OnnxRecipes(
            native="HardSigmoid(x, alpha=ONE_SIXTH, beta=0.5)", primitives="Clip(Add(Mul(x, ONE_SIXTH), 0.5), 0.0, 1.0)"
        ),
    ),
)
