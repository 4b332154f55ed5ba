"""The stochastic zero-identity map, of which GELU is the expectation (SiLU with a logistic gate)."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the name that torch's own documentation gives it

from lit_gelu.activations.errors import ActivationArgumentError
from lit_gelu.activations.families.gaussian_gelu import HENDRYCKS_2016
from lit_gelu.activations.families.gelu import EXACT_ONNX, gelu, gelu_derivative
from lit_gelu.activations.families.swish import SILU_ONNX, silu, silu_derivative
from lit_gelu.activations.naming.entry import ActivationEntry, ActivationFacts
from lit_gelu.activations.naming.forms import ModuleForm
from lit_gelu.activations.numerics.arguments import elementwise
from lit_gelu.activations.numerics.gates import LOGISTIC_LIMIT, normal_cdf, times_logistic
from lit_gelu.activations.onnx_recipes import Arguments, OnnxCases

GATES = ("normal", "logistic")


@elementwise
def zero_identity_map(
    x: Tensor, training: bool = True, generator: torch.Generator | None = None, gate: str = "normal"
) -> Tensor:
    """Return ``x`` with each element kept with probability ``G(x)``, else 0; without training, the mean ``x G(x)``.

    In training ``f(x) = m x`` with ``m = 1`` where ``u < G(x)``, else 0, and ``u`` uniform on [0, 1). There is no
    division by ``G(x)``, and the gradient is ``m`` alone: none flows through the comparison. ``G`` is ``Phi`` for the
    paper's map, or ``1 / (1 + exp(-x))``.

    Source: Hendrycks and Gimpel 2016 (arXiv 1606.08415), section 2; as submitted to ICLR 2017, section 4. The logistic
    gate: Ba and Frey 2013, "Adaptive dropout for training deep neural networks", section 3, where the probability has
    weights of its own.

    Args:
        x: Any shape, floating.
        training: Whether to draw, rather than to return the expectation.
        generator: Where the random numbers come from, on the device of ``x``; ``None`` is torch's default.
        gate: ``"normal"`` or ``"logistic"``.

    Raises:
        ActivationArgumentError: If ``x`` is not a floating tensor or ``gate`` no gate.

    Example:
        >>> generator = torch.Generator().manual_seed(0)
        >>> zero_identity_map(torch.full((6,), 0.5), generator=generator)
        tensor([0.5000, 0.0000, 0.5000, 0.5000, 0.5000, 0.5000])
        >>> zero_identity_map(torch.tensor([0.5]), training=False)
        tensor([0.3457])
    """
    if not training:
        return expectation(x, gate)
    check_gate(gate)
    if gate == "normal":
        probability = normal_cdf(x.detach())
    else:
        probability = times_logistic(1.0, x.detach().clamp(-LOGISTIC_LIMIT, LOGISTIC_LIMIT))
    uniform = torch.rand(probability.shape, dtype=probability.dtype, device=probability.device, generator=generator)
    # A selection, not a product: 0 * -inf is NaN. NaN compares as false and is passed on.
    return torch.where((uniform < probability) | torch.isnan(x), x, 0.0)


def expectation(x: Tensor, gate: str = "normal") -> Tensor:
    """Return the map's expectation: exact GELU, or SiLU."""
    check_gate(gate)
    return gelu(x) if gate == "normal" else silu(x)


def expectation_derivative(x: Tensor, order: int = 1, gate: str = "normal") -> Tensor:
    """First or second derivative of the expectation."""
    check_gate(gate)
    return gelu_derivative(x, order) if gate == "normal" else silu_derivative(x, order)


def check_gate(gate: str) -> None:
    """Refuse what is no gate."""
    if gate not in GATES:
        raise ActivationArgumentError(f"zero_identity_map: gate={gate!r} is not accepted. Use 'normal' or 'logistic'.")


class ZeroIdentityMap(nn.Module):
    """In training ``m x`` with ``m ~ Bernoulli(G(x))`` drawn for each element; in evaluation its expectation.

    There is no rescaling, and the gradient is the mask alone: no term for the mask's dependence on ``x``. It needs
    neither dropout nor another nonlinearity beside it. With the normal gate the expectation is GELU, with the logistic
    one SiLU.

    Bytes kept for the backward pass, for each element in training: 1, the mask.

    Args:
        gate: ``"normal"`` for ``G = Phi``, ``"logistic"`` for ``G(x) = 1 / (1 + exp(-x))``.
        evaluation: What it does in evaluation mode: the ``"expectation"``, or ``"stochastic"``, a mask as in training:
            run a net several times for a Monte Carlo mean.

    Raises:
        ActivationArgumentError: If an argument is none of these.

    Example:
        >>> torch.allclose(ZeroIdentityMap().eval()(torch.tensor([1.0])), torch.tensor([0.8413447]))
        True
        >>> _ = torch.manual_seed(0)
        >>> ZeroIdentityMap()(torch.full((100,), 0.5)).unique()
        tensor([0.0000, 0.5000])
    """

    def __init__(self, gate: str = "normal", evaluation: str = "expectation") -> None:
        super().__init__()
        check_gate(gate)
        if evaluation not in {"expectation", "stochastic"}:
            raise ActivationArgumentError(
                f"zero_identity_map: evaluation={evaluation!r} is not accepted. Use 'expectation' or 'stochastic'."
            )
        self.gate = gate
        self.evaluation = evaluation

    def forward(self, x: Tensor) -> Tensor:
        """Apply the map to a floating tensor."""
        if self.training or self.evaluation == "stochastic":
            return zero_identity_map(x, gate=self.gate)
        return F.gelu(x) if self.gate == "normal" else F.silu(x)

    def extra_repr(self) -> str:
        """Return the arguments for ``repr`` that differ from their defaults."""
        defaults = {"gate": "normal", "evaluation": "expectation"}
        return ", ".join(
            f"{name}={getattr(self, name)!r}" for name in defaults if getattr(self, name) != defaults[name]
        )


def _live(module: nn.Module) -> dict[str, Any]:
    return {"gate": module.gate}


def _facts(gate: str = "normal", evaluation: str = "expectation", **_: Any) -> ActivationFacts:
    probability = "Phi(x)" if gate == "normal" else "sigmoid(x)"
    in_evaluation = "m x" if evaluation == "stochastic" else f"x {probability}"
    return ActivationFacts(
        f"m x with m ~ Bernoulli({probability}) in training; {in_evaluation} in evaluation",
        HENDRYCKS_2016 if gate == "normal" else "Ba and Frey 2013, Adaptive Dropout for Training Deep Neural Networks",
        smoothness=float("inf"),
        asymptotes=("0", "x"),
        stochastic=True,
        stochastic_in_evaluation=evaluation == "stochastic",
    )


def _case(arguments: Arguments) -> str | None:
    """Return which gate it has; one that draws in evaluation too has no operators, and the export refuses it."""
    if arguments.get("evaluation") == "stochastic":
        return None
    return f"zero_identity_map(gate={arguments.get('gate', 'normal')!r})"


_ONNX = OnnxCases(  # in evaluation the map is its expectation
    {"zero_identity_map(gate='normal')": EXACT_ONNX, "zero_identity_map(gate='logistic')": SILU_ONNX}, _case
)


ENTRIES = (
    ActivationEntry(
        "zero_identity_map",
        ZeroIdentityMap,
        function=expectation,
        derivative=expectation_derivative,
        facts=_facts,
        aliases=("soi",),
        modules=(ModuleForm(ZeroIdentityMap, live=_live),),
        onnx=_ONNX,
    ),
)
