"""The square root of softplus, which scores the experts of a router."""

import torch
from torch import Tensor, nn

from lit_gelu.activations.families._package import NO_ARGUMENTS
from lit_gelu.activations.families.softplus import LINEAR_TAIL, softplus
from lit_gelu.activations.naming.entry import ActivationEntry, ActivationFacts
from lit_gelu.activations.naming.forms import ModuleForm
from lit_gelu.activations.numerics.arguments import elementwise, elementwise_derivative
from lit_gelu.activations.numerics.gates import LOGISTIC_LIMIT, decay, times_logistic
from lit_gelu.activations.onnx_recipes import OnnxRecipes

LOG_TWO = 0.6931471805599453
LOG_TWO_REST = 2.3190468138462996e-17  # log 2 - LOG_TWO
_NEAR = 0.5


@elementwise
def sqrt_softplus(x: Tensor) -> Tensor:
    """Square root of softplus: ``f(x) = sqrt(log(1 + exp(x)))``.

    A router's scoring function. The tail is computed as ``exp(x / 2)``: softplus itself underflows where its root is
    still far from it, and there its autograd gives NaN.

    Source: transformers 5.23, ``SqrtSoftplusActivation``, "the router scoring function used by DeepSeek V4".

    Args:
        x: Any shape, floating.

    Returns:
        A tensor like ``x``. ``f(inf) = inf`` and ``f(-inf) = 0``.

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
    bend = _bend(u) / (4.0 * square) / root
    return torch.where(x <= LINEAR_TAIL, 0.25 * _tail(x), bend)


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


ENTRIES = (
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
        modules=(ModuleForm(SqrtSoftplus, NO_ARGUMENTS),),
        # sqrt_softplus has no primitives: where Log(1 + e) has lost e, its root is still 2e-4.
        onnx=OnnxRecipes(native="Sqrt(Softplus(x))", absolute=3e-23),
    ),
)
