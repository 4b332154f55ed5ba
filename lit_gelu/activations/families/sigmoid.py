"""Sigmoid, tanh and hard sigmoid: mostly gates, listed as such by ``surgery``."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the name that torch's own documentation gives it

from lit_gelu.activations.families._package import INPLACE, NO_ARGUMENTS
from lit_gelu.activations.naming.entry import ActivationEntry, ActivationFacts
from lit_gelu.activations.naming.forms import ModuleForm
from lit_gelu.activations.numerics.arguments import Derivatives, elementwise, elementwise_derivative, keep_nan, quotient
from lit_gelu.activations.numerics.gates import LOGISTIC_LIMIT, times_logistic, times_logistic_density
from lit_gelu.activations.numerics.piecewise import INF, Piece, PiecewiseMoments, Term
from lit_gelu.activations.onnx_recipes import OnnxOperator, OnnxRecipes

HARD_BOUND = 3.0


@elementwise
def sigmoid(x: Tensor) -> Tensor:
    """Logistic function: ``s(x) = 1 / (1 + exp(-x))``.

    Args:
        x: Any shape; float16, bfloat16, float32 or float64.

    Returns:
        A tensor like ``x``, between 0 and 1.

    Raises:
        ActivationArgumentError: If ``x`` is not a floating tensor.

    Example:
        >>> sigmoid(torch.tensor([-1.0, 0.0, 1.0]))
        tensor([0.2689, 0.5000, 0.7311])
    """
    return times_logistic(1.0, x.clamp(-LOGISTIC_LIMIT, LOGISTIC_LIMIT))


@elementwise_derivative
def sigmoid_derivative(x: Tensor, order: int = 1) -> Tensor:
    """First or second derivative of `sigmoid`: ``q = s(x) s(-x)`` and ``-q tanh(x / 2)``.

    Args:
        x: Any shape; float16, bfloat16, float32 or float64.
        order: 1 or 2.

    Returns:
        A tensor like ``x``; 0 at both infinities.

    Raises:
        ActivationArgumentError: If ``x`` is not a floating tensor or ``order`` neither 1 nor 2.

    Example:
        >>> sigmoid_derivative(torch.tensor([-1.0, 0.0, 1.0]))
        tensor([0.1966, 0.2500, 0.1966])
    """
    u = x.clamp(-LOGISTIC_LIMIT, LOGISTIC_LIMIT)
    return times_logistic_density(1.0 if order == 1 else -torch.tanh(0.5 * u), u)


@elementwise
def tanh(x: Tensor) -> Tensor:
    """Hyperbolic tangent.

    Args:
        x: Any shape; float16, bfloat16, float32 or float64.

    Returns:
        A tensor like ``x``, between -1 and 1.

    Raises:
        ActivationArgumentError: If ``x`` is not a floating tensor.

    Example:
        >>> tanh(torch.tensor([-1.0, 0.0, 1.0]))
        tensor([-0.7616,  0.0000,  0.7616])
    """
    return torch.tanh(x)


@elementwise_derivative
def tanh_derivative(x: Tensor, order: int = 1) -> Tensor:
    """First or second derivative of `tanh`: ``sech(x)**2 = 4 s(2 x) s(-2 x)`` and ``-2 tanh(x) sech(x)**2``.

    Args:
        x: Any shape; float16, bfloat16, float32 or float64.
        order: 1 or 2.

    Returns:
        A tensor like ``x``; 0 at both infinities.

    Raises:
        ActivationArgumentError: If ``x`` is not a floating tensor or ``order`` neither 1 nor 2.

    Example:
        >>> tanh_derivative(torch.tensor([-1.0, 0.0, 1.0]))
        tensor([0.4200, 1.0000, 0.4200])
    """
    u = x.clamp(-LOGISTIC_LIMIT, LOGISTIC_LIMIT) * 2.0
    return times_logistic_density(4.0 if order == 1 else -8.0 * torch.tanh(x), u)


@elementwise
def hard_sigmoid(x: Tensor) -> Tensor:
    """Piecewise linear form of the sigmoid: ``f(x) = min(max(x + 3, 0), 6) / 6``.

    Source: Howard et al. 2019, "Searching for MobileNetV3" (arXiv 1905.02244), section 5.2.

    Args:
        x: Any shape; float16, bfloat16, float32 or float64.

    Returns:
        A tensor like ``x``, between 0 and 1.

    Raises:
        ActivationArgumentError: If ``x`` is not a floating tensor.

    Example:
        >>> hard_sigmoid(torch.tensor([-4.0, 0.0, 1.5]))
        tensor([0.0000, 0.5000, 0.7500])
    """
    middle = (x.clamp(-HARD_BOUND, HARD_BOUND) + HARD_BOUND) / (2.0 * HARD_BOUND)
    # Selected rather than clamped alone, so that autograd gives 0 at the kinks, as torch's own hard sigmoid does.
    return torch.where(x >= HARD_BOUND, 1.0, torch.where(x <= -HARD_BOUND, 0.0, middle))


@elementwise_derivative
def hard_sigmoid_derivative(x: Tensor, order: int = 1) -> Tensor:
    """First or second derivative of `hard_sigmoid`: 1 / 6 between -3 and 3, else 0; and 0 everywhere.

    ``f'`` jumps by 1/6 at -3 and by -1/6 at 3.

    Args:
        x: Any shape; float16, bfloat16, float32 or float64.
        order: 1 or 2.

    Returns:
        A tensor like ``x``; ``f'(-3) = f'(3) = 0``, as in torch.

    Raises:
        ActivationArgumentError: If ``x`` is not a floating tensor or ``order`` neither 1 nor 2.

    Example:
        >>> hard_sigmoid_derivative(torch.tensor([-4.0, 0.0, 1.5]))
        tensor([0.0000, 0.1667, 0.1667])
    """
    inside = (x > -HARD_BOUND) & (x < HARD_BOUND)
    return keep_nan(x, inside.to(x.dtype) / (2.0 * HARD_BOUND) if order == 1 else torch.zeros_like(x))


def hard_sigmoid_joint(x: Tensor) -> Derivatives:
    """Hard sigmoid; at the kinks the outer derivatives."""
    inside = ((x > -3) & (x < 3)).to(x.dtype)
    return Derivatives((x / 6 + 0.5).clamp(0.0, 1.0), inside / 6, torch.zeros_like(x), None)


def sigmoid_joint(x: Tensor) -> Derivatives:
    """The logistic function."""
    value, complement = torch.sigmoid(x), torch.sigmoid(-x)
    first = value * complement
    return Derivatives(value, first, first * (complement - value), None)


def tanh_joint(x: Tensor) -> Derivatives:
    """The hyperbolic tangent."""
    value = torch.tanh(x)
    first = 4 * torch.sigmoid(2 * x) * torch.sigmoid(-2 * x)  # 1 - tanh^2 without the cancellation of the tails
    return Derivatives(value, first, -2 * value * first, quotient(value, x, first))


_HARD_PIECES = Piece(-INF, -3.0), Piece(-3.0, 3.0, (Term(1 / 6, 1), Term(0.5))), Piece(3.0, INF, (Term(1.0),))

ENTRIES = (
    ActivationEntry(
        "sigmoid",
        nn.Sigmoid,
        function=sigmoid,
        derivative=sigmoid_derivative,
        joint=sigmoid_joint,
        facts=ActivationFacts("1 / (1 + exp(-x))", smoothness=float("inf"), asymptotes=("0", "1"), gate=True),
        modules=(ModuleForm(nn.Sigmoid, NO_ARGUMENTS),),
        functions=((torch.sigmoid, ()), (torch.sigmoid_, ()), (F.sigmoid, ())),
        onnx=OnnxRecipes(
            native="Sigmoid(x)", accurate="Div(1.0, Add(Exp(Neg(x)), 1.0))", operator=OnnxOperator("Sigmoid")
        ),
    ),
    ActivationEntry(
        "tanh",
        nn.Tanh,
        function=tanh,
        derivative=tanh_derivative,
        joint=tanh_joint,
        facts=ActivationFacts("tanh(x)", smoothness=float("inf"), asymptotes=("-1", "1"), gate=True),
        modules=(ModuleForm(nn.Tanh, NO_ARGUMENTS),),
        functions=((torch.tanh, ()), (torch.tanh_, ()), (F.tanh, ())),
        onnx=OnnxRecipes(native="Tanh(x)", operator=OnnxOperator("Tanh")),
    ),
    ActivationEntry(
        "hard_sigmoid",
        nn.Hardsigmoid,
        function=hard_sigmoid,
        derivative=hard_sigmoid_derivative,
        joint=hard_sigmoid_joint,
        moments=PiecewiseMoments(_HARD_PIECES),
        facts=ActivationFacts(
            formula="min(max(x + 3, 0), 6) / 6",
            reference="Howard et al. 2019, Searching for MobileNetV3 (arXiv 1905.02244)",
            smoothness=0,
            asymptotes=("0", "1"),
            kinks=((-3.0, 1 / 6), (3.0, -1 / 6)),
            gate=True,
        ),
        aliases=("hardsigmoid",),
        modules=(ModuleForm(nn.Hardsigmoid, INPLACE),),
        functions=((F.hardsigmoid, ()),),
        onnx=OnnxRecipes(
            native="HardSigmoid(x, alpha=ONE_SIXTH, beta=0.5)",
            primitives="Clip(Add(Mul(x, ONE_SIXTH), 0.5), 0.0, 1.0)",
        ),
    ),
)
