"""Softplus, its square root and log-sigmoid."""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the name that torch's own documentation gives it

from lit_gelu.activations.naming.entry import ActivationEntry, ActivationFacts, ModuleForm
from lit_gelu.activations.numerics.arguments import Derivatives, check_positive, elementwise, elementwise_derivative
from lit_gelu.activations.numerics.gates import LOGISTIC_LIMIT, decay, times_logistic, times_logistic_density
from lit_gelu.activations.onnx_recipes import Arguments, OnnxCases, OnnxOperator, OnnxRecipes, OnnxSpelling
from lit_gelu.errors import SpecError

# Below it log(1 + e) is e in float64: the next term is e / 2 times as large.
LINEAR_TAIL = -40.0

LOG_TWO = 0.6931471805599453
LOG_TWO_REST = 2.3190468138462996e-17  # log 2 - LOG_TWO
_NEAR = 0.5


@elementwise
def softplus(x: Tensor, beta: float = 1.0) -> Tensor:
    """Return the smooth form of ReLU: ``f(x) = log(1 + exp(beta x)) / beta``.

    Exact everywhere. ``torch.nn.functional.softplus`` returns ``x`` where ``beta x`` is above a threshold, 20: there it
    is too small by up to ``exp(-20) / beta``, 2.1e-9 for ``beta = 1``.

    Source: Dugas et al. 2001, "Incorporating Second-Order Functional Knowledge for Better Option Pricing" (NeurIPS).

    Args:
        x: Any shape, floating.
        beta: Slope of the argument, a positive number.

    Raises:
        ArgumentError: If ``x`` is not a floating tensor or ``beta`` not positive.

    Example:
        >>> softplus(torch.tensor([-1.0, 0.0, 1.0]))
        tensor([0.3133, 0.6931, 1.3133])
    """
    check_positive("softplus", "beta", beta)
    return _softplus(x, beta)


def softplus_joint(x: Tensor, beta: float = 1.0) -> Derivatives:
    """``log(1 + exp(u)) / beta``, ``s(u)``, ``beta s(u) s(-u)`` with ``u = beta x``; without torch's threshold."""
    check_positive("softplus", "beta", beta)
    u = (beta * x).clamp(-LOGISTIC_LIMIT, LOGISTIC_LIMIT)
    return Derivatives(_softplus(x, beta), times_logistic(1.0, u), times_logistic_density(beta, u), None)


@elementwise
def log_sigmoid(x: Tensor) -> Tensor:
    """Return the logarithm of the logistic function: ``f(x) = -log(1 + exp(-x))``.

    Example:
        >>> log_sigmoid(torch.tensor([-1.0, 0.0, 1.0]))
        tensor([-1.3133, -0.6931, -0.3133])
    """
    return -_softplus(-x, 1.0)


@elementwise_derivative
def log_sigmoid_derivative(x: Tensor, order: int = 1) -> Tensor:
    """First or second derivative of `log_sigmoid`: ``s(-x)`` and ``-s(x) s(-x)``."""
    u = x.clamp(-LOGISTIC_LIMIT, LOGISTIC_LIMIT)
    return times_logistic(1.0, -u) if order == 1 else times_logistic_density(-1.0, u)


def _softplus(x: Tensor, beta: float) -> Tensor:
    """Return ``log(1 + exp(beta x)) / beta`` as ``max(x, 0)`` plus what is left, which is even in ``x``."""
    u = (beta * x).clamp(-LOGISTIC_LIMIT, LOGISTIC_LIMIT)
    e, inner, outer = decay(u)
    rest = torch.where(u < LINEAR_TAIL, (inner / beta) * outer, torch.log1p(e) / beta)
    return torch.where(x < 0, 0.0, x) + rest


@elementwise
def sqrt_softplus(x: Tensor) -> Tensor:
    """Return the square root of softplus: ``f(x) = sqrt(log(1 + exp(x)))``.

    A router's scoring function. The tail is computed as ``exp(x / 2)``: softplus itself underflows where its root is
    still far from it, and there its autograd gives NaN.

    Source: transformers 5.23, ``SqrtSoftplusActivation``, "the router scoring function used by DeepSeek V4".

    Example:
        >>> sqrt_softplus(torch.tensor([-1.0, 0.0, 1.0]))
        tensor([0.5597, 0.8326, 1.1460])
    """
    return torch.where(x <= LINEAR_TAIL, _tail(x), torch.sqrt(softplus(_body(x))))


@elementwise_derivative
def sqrt_softplus_derivative(x: Tensor, order: int = 1) -> Tensor:
    """First or second derivative of `sqrt_softplus`."""
    inside = _body(x)
    u = inside.clamp(max=LOGISTIC_LIMIT)
    square = softplus(inside)
    root = torch.sqrt(square)
    if order == 1:
        return torch.where(x <= LINEAR_TAIL, 0.5 * _tail(x), times_logistic(0.5, u) / root)
    return torch.where(x <= LINEAR_TAIL, 0.25 * _tail(x), _bend(u) / (4.0 * square) / root)


def _bend(u: Tensor) -> Tensor:
    """Return ``2 f**2 s(u) s(-u) - s(u)**2``, whose terms cancel: the second derivative times ``4 f**3``."""
    # It is ``e (2 f**2 - e) / (1 + e)**2`` with ``e = exp(u)``, or ``(2 f**2 / e - 1) / (1 + 1 / e)**2`` on the right.
    # About 0, where ``|g|`` is small beside its terms and ``u g'`` too, ``log(1 + e)`` is written as ``log 2`` plus
    # ``log1p((e - 1) / 2)``, so that ``log 2 - e / 2`` is exact.
    e, square = decay(u)[0], softplus(u)
    outer = torch.where(u < 0, e * (2.0 * square - e), 2.0 * square * e - 1.0) / ((1.0 + e) * (1.0 + e))
    near = u.abs() < _NEAR
    e = torch.exp(torch.where(near, u, 0.0))
    inner = (LOG_TWO - 0.5 * e) + (torch.log1p(0.5 * (e - 1.0)) + LOG_TWO_REST)
    return torch.where(near, 2.0 * e * inner / ((1.0 + e) * (1.0 + e)), outer)


def _body(x: Tensor) -> Tensor:
    """Return ``x``, and the border where the tail is taken; not ``clamp``, whose slope at the border is 0."""
    return torch.where(x <= LINEAR_TAIL, LINEAR_TAIL, x)


def _tail(x: Tensor) -> Tensor:
    """Return ``exp(x / 2)`` left of where softplus is the exponential, for all of float64."""
    return torch.exp(0.5 * torch.where(x <= LINEAR_TAIL, x, LINEAR_TAIL).clamp(min=-LOGISTIC_LIMIT))


class SqrtSoftplus(nn.Module):
    """``f(x) = sqrt(log(1 + exp(x)))``, elementwise, any shape and floating dtype."""

    def forward(self, x: Tensor) -> Tensor:
        """Apply the function elementwise."""
        return sqrt_softplus(x)


def _live(module: nn.Module) -> dict[str, Any]:
    threshold: Any = module.threshold
    if threshold < _TORCHS_THRESHOLD:  # it shows: torch goes over to x with a jump
        raise SpecError(
            f"softplus with threshold={threshold} is another function, of which no formula is known: give "
            f"threshold={_TORCHS_THRESHOLD} or more, torch's default."
        )
    return {"beta": module.beta}


_TORCHS_THRESHOLD = 20.0  # above it Softplus(x) - x is below 2.1e-9


def _facts(threshold: float = _TORCHS_THRESHOLD, **_: Any) -> ActivationFacts:
    return ActivationFacts(
        "log(1 + exp(beta x)) / beta (torch: x where beta x > threshold)",
        "Dugas et al. 2001, Incorporating Second-Order Functional Knowledge for Better Option Pricing",
        smoothness=math.inf if threshold >= _TORCHS_THRESHOLD else None,  # below, it jumps there
        asymptotes=("0", "x"),
    )


def _case(arguments: Arguments) -> str:
    """Return whether it is ONNX's operator: above torch's threshold of 20, Softplus(x) - x is below 2.1e-9."""
    standard = arguments.get("beta", 1.0) == 1.0 and arguments.get("threshold", 20.0) == 20.0
    return "softplus(beta=1)" if standard else "softplus"


_TORCH_FORMULA = "s = Mul(x, beta); Where(Greater(s, threshold), x, Div(Softplus(s), beta))"
_ONNX = OnnxCases(
    {
        "softplus(beta=1)": OnnxRecipes(
            native="Softplus(x)",
            primitives="Add(Relu(x), Log(Add(Exp(Neg(Abs(x))), 1.0)))",
            spellings=(OnnxSpelling("Softplus(x)", {"beta": 1.0, "threshold": 20.0}),),
            operator=OnnxOperator("Softplus"),
        ),
        "softplus": OnnxRecipes(
            native=_TORCH_FORMULA,
            primitives="s = Mul(x, beta); "
            "Where(Greater(s, threshold), x, Div(Add(Relu(s), Log(Add(Exp(Neg(Abs(s))), 1.0))), beta))",
            spellings=(OnnxSpelling(_TORCH_FORMULA),),
        ),
    },
    _case,
)


ENTRIES = (
    ActivationEntry(
        "softplus",
        nn.Softplus,
        function=softplus,
        joint=softplus_joint,
        facts=_facts,
        modules=(ModuleForm(nn.Softplus, live=_live, keeps_input=True),),
        functions=(F.softplus,),
        onnx=_ONNX,
    ),
    ActivationEntry(
        "log_sigmoid",
        nn.LogSigmoid,
        function=log_sigmoid,
        derivative=log_sigmoid_derivative,
        facts=ActivationFacts("-log(1 + exp(-x))", smoothness=float("inf"), asymptotes=("x", "0")),
        aliases=("logsigmoid",),
        modules=(ModuleForm(nn.LogSigmoid, keeps_input=True),),
        functions=(F.logsigmoid,),
        # log_sigmoid is -Softplus(-x). torch's own export, Log(Sigmoid(x)), is -inf below x = -17 in onnxruntime,
        # whose Sigmoid reaches 0 there.
        onnx=OnnxRecipes(
            native="Neg(Softplus(Neg(x)))",
            spellings=(OnnxSpelling("Neg(Softplus(Neg(x)))"), OnnxSpelling("Log(Sigmoid(x))")),
            primitives="Sub(Min(x, 0.0), Log(Add(Exp(Neg(Abs(x))), 1.0)))",
        ),
    ),
    ActivationEntry(
        "sqrt_softplus",
        SqrtSoftplus,
        function=sqrt_softplus,
        derivative=sqrt_softplus_derivative,
        facts=ActivationFacts(
            formula="sqrt(log(1 + exp(x)))",
            reference="transformers 5.23, SqrtSoftplusActivation",
            smoothness=float("inf"),
            asymptotes=("0", "sqrt(x)"),
            gate=True,
        ),
        aliases=("sqrtsoftplus",),
        # sqrt_softplus has no primitives: where Log(1 + e) has lost e, its root is still 2e-4.
        onnx=OnnxRecipes(native="Sqrt(Softplus(x))", absolute=3e-23),
    ),
)
