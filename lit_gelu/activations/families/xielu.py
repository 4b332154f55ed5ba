"""xIELU: quadratic on the right, the integral of ELU on the left."""

from typing import Any

import torch
from torch import Tensor, nn

from lit_gelu.activations.naming.entry import ActivationEntry, ActivationFacts, ModuleForm
from lit_gelu.activations.numerics.arguments import elementwise, elementwise_derivative
from lit_gelu.activations.numerics.channels import finite_number
from lit_gelu.activations.numerics.gates import decay
from lit_gelu.activations.onnx_recipes import OnnxRecipes
from lit_gelu.errors import ArgumentError

Parameter = float | Tensor

# From here to 0, exp(x) - 1 - x is summed as a series; of that many terms the first one left out is below rounding.
SERIES_FROM = -1.0
SERIES_TERMS = {torch.float32: 12, torch.float64: 20}
_ALIKE = 4  # times beta: up to there `xielu_by_torch` loses no more than three bits of what lies below 0


@elementwise
def xielu(x: Tensor, alpha_p: Parameter = 0.8, alpha_n: Parameter = 0.8, beta: Parameter = 0.5) -> Tensor:
    """Return the expanded integral of ELU: ``alpha_p x**2 + beta x``, below 0 ``alpha_n (exp(x) - 1 - x) + beta x``.

    Transformers' ``xielu`` puts ``exp(min(x, -1e-6))`` for the exponential, which makes it jump by ``1e-6 alpha_n`` at
    0; this is the paper's function.

    Source: Huang and Schlag 2024, "Deriving Activation Functions Using Integration" (arXiv 2411.13010).

    Args:
        x: Any shape, floating.
        alpha_p: Positive: a number or a tensor with one element.
        alpha_n: Above ``beta``: a number or a tensor with one element.
        beta: Slope at 0.

    Example:
        >>> xielu(torch.tensor([-1.0, 0.0, 1.0]))
        tensor([-0.2057,  0.0000,  1.3000])
    """
    # At 0 the slope of `right` is 0 and that of `left` is 1: there the derivatives are the left piece's. Near 0 the
    # series keeps the digits that a small beta needs, far from it the sum those of a beta near alpha_n.
    right, left = torch.relu(x), torch.where(x > 0, 0.0, x)
    near = left > SERIES_FROM
    inner, outer = torch.where(near, left, 0.0), torch.where(near, SERIES_FROM, left)
    series = torch.ones_like(inner)  # exp(x) - 1 - x = x^2 / 2 (1 + x / 3 (1 + x / 4 ...)) for -1 <= x <= 0
    for n in range(SERIES_TERMS[x.dtype], 2, -1):
        series = 1.0 + (inner * series) / n
    by_series = alpha_n * ((0.5 * inner) * (inner * series)) + beta * inner
    by_sum = alpha_n * torch.expm1(outer) + (beta - alpha_n) * outer
    return (alpha_p * right + beta) * right + torch.where(near, by_series, by_sum)


@elementwise
def xielu_by_torch(x: Tensor, alpha_p: Parameter, alpha_n: Parameter, beta: Parameter) -> Tensor:
    """Return the same in fewer functions, which keep less; near 0 it has fewer digits where beta is small."""
    right, left = torch.relu(x), torch.where(x > 0, 0.0, x)
    return (alpha_p * right + beta) * right + (alpha_n * torch.expm1(left) + (beta - alpha_n) * left)


@elementwise_derivative
def xielu_derivative(
    x: Tensor, order: int = 1, alpha_p: Parameter = 0.8, alpha_n: Parameter = 0.8, beta: Parameter = 0.5
) -> Tensor:
    """First or second derivative of `xielu`."""
    left = torch.where(x > 0, 0.0, x)
    if order == 1:
        by_difference, by_sum = alpha_n * torch.expm1(left) + beta, (beta - alpha_n) + alpha_n * torch.exp(left)
        return (2.0 * alpha_p) * torch.relu(x) + torch.where(left > SERIES_FROM, by_difference, by_sum)
    _, inner, outer = decay(left)
    return torch.where(x > 0, 2.0 * alpha_p, (alpha_n * inner) * outer)


class XIELU(nn.Module):
    """``alpha_p x^2 + beta x`` above 0, ``alpha_n (exp(x) - 1 - x) + beta x`` below; any shape and floating dtype.

    Args:
        alpha_p: Coefficient above 0, or its initial value if it is learned; positive.
        alpha_n: The same below 0; above ``beta``.
        beta: Slope at 0; positive.
        learnable: Whether ``alpha_p`` and ``alpha_n`` are learned.

    Raises:
        ArgumentError: If a coefficient is out of its range.

    Example:
        >>> XIELU()(torch.tensor([-1.0, 0.0, 1.0])).detach()
        tensor([-0.2057,  0.0000,  1.3000])
    """

    # The paper learns ``alpha_p > 0`` and ``alpha_n > beta`` through a softplus. Here they are ``alpha_p exp(log_p)``
    # and ``beta + (alpha_n - beta) exp(log_n)`` with both parameters starting at 0, so that they start at exactly the
    # numbers given and weight decay pulls them back there, as everywhere in this package. Their shape is ``(1,)``, as
    # that of ``torch.nn.PReLU``: FSDP shards nothing without a dimension.

    log_p: nn.Parameter | None
    log_n: nn.Parameter | None

    def __init__(self, alpha_p: float = 0.8, alpha_n: float = 0.8, beta: float = 0.5, learnable: bool = True) -> None:
        super().__init__()
        self.initial_alpha_p = finite_number("alpha_p", alpha_p, positive=True)
        self.initial_alpha_n = finite_number("alpha_n", alpha_n, positive=True)
        self.beta = finite_number("beta", beta, positive=True)
        if not self.initial_alpha_n > self.beta:
            raise ArgumentError(f"alpha_n={alpha_n!r} is not accepted: give a number above beta={beta!r}.")
        self.learnable = bool(learnable)
        for name in ("log_p", "log_n"):
            self.register_parameter(name, nn.Parameter(torch.zeros(1)) if self.learnable else None)

    @property
    def alpha_p(self) -> float | Tensor:
        """The present coefficient above 0: a number if it is fixed, a scalar tensor if it is learned."""
        return self.initial_alpha_p if self.log_p is None else self.initial_alpha_p * self.log_p.reshape(()).exp()

    @property
    def alpha_n(self) -> float | Tensor:
        """The present coefficient below 0: a number if it is fixed, a scalar tensor if it is learned."""
        if self.log_n is None:
            return self.initial_alpha_n
        return self.beta + (self.initial_alpha_n - self.beta) * self.log_n.reshape(()).exp()

    def forward(self, x: Tensor) -> Tensor:
        """Apply the function elementwise."""
        function = xielu_by_torch if self.initial_alpha_n <= _ALIKE * self.beta else xielu
        return function(x, self.alpha_p, self.alpha_n, self.beta)

    def extra_repr(self) -> str:
        """Return the arguments for ``repr``."""
        return ", ".join(f"{name}={value}" for name, value in _read(self).items())


def _read(module: nn.Module) -> dict[str, Any]:
    initial = {"alpha_p": module.initial_alpha_p, "alpha_n": module.initial_alpha_n}
    return {**initial, "beta": module.beta, "learnable": module.learnable}


def _live(module: nn.Module) -> dict[str, Any]:
    return {"alpha_p": module.alpha_p, "alpha_n": module.alpha_n, "beta": module.beta}


def _facts(
    alpha_p: float = 0.8, alpha_n: float = 0.8, beta: float = 0.5, learnable: bool = True, **_: Any
) -> ActivationFacts:
    return ActivationFacts(
        "alpha_p x^2 + beta x if x > 0 else alpha_n (exp(x) - 1 - x) + beta x",
        "Huang and Schlag 2024, Deriving Activation Functions Using Integration (arXiv 2411.13010)",
        smoothness=2 if alpha_n == 2 * alpha_p else 1,
        asymptotes=(f"{beta - alpha_n:g} x - {alpha_n:g}", f"{alpha_p:g} x^2"),
        learnable=learnable,
    )


ENTRIES = (
    ActivationEntry(
        "xielu",
        XIELU,
        function=xielu,
        derivative=xielu_derivative,
        facts=_facts,
        modules=(ModuleForm(XIELU, _read, live=_live),),
        # `by_sum` above: alpha_n l alone may overflow. Every node has the shape of x, so beta - alpha_n is made of u,
        # which is beta wherever l is not 0.
        onnx=OnnxRecipes(
            native="r = Relu(x); l = Min(x, 0.0); t = Tanh(Mul(l, 0.5)); u = Add(Mul(r, alpha_p), beta); "
            "Add(Mul(u, r), Add(Mul(Div(t, Sub(1.0, t)), alpha_n * 2.0), Mul(l, Sub(Min(u, beta), alpha_n))))",
            absolute=3e-8,
        ),
    ),
)
