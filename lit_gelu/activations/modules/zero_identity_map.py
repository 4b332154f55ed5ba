"""The stochastic zero-identity map."""

from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the name that torch's own documentation gives it

from lit_gelu.activations.errors import ActivationArgumentError
from lit_gelu.activations.functional.zero_identity_map import check_gate, check_passes, zero_identity_map

EVALUATIONS = ("expectation", "stochastic", "mean")


class ZeroIdentityMap(nn.Module):
    """In training ``m x`` with ``m ~ Bernoulli(G(x))`` drawn for each element; in evaluation its expectation.

    There is no rescaling, and the gradient is the mask alone: no term for the mask's dependence on ``x``. It needs
    neither dropout nor another nonlinearity beside it. With the normal gate the expectation is GELU, with the logistic
    one SiLU.

    Bytes kept for the backward pass, for each element in training: 1, the mask.

    Source: Hendrycks and Gimpel 2016, "Gaussian Error Linear Units (GELUs)" (arXiv 1606.08415), section 2; the
    experiments are in section 4 of its first submission ("stochastic 0-I map"). The logistic gate: Ba and Frey 2013,
    "Adaptive dropout for training deep neural networks".

    Args:
        gate: ``"normal"`` for ``G = Phi``, ``"logistic"`` for ``G(x) = 1 / (1 + exp(-x))``.
        evaluation: What it does in evaluation mode: the ``"expectation"``; ``"stochastic"``, a mask as in training; or
            ``"mean"``, the mean of ``passes`` masks at each map. The mean over passes of a whole net is another
            thing: run the net several times with ``"stochastic"``.
        passes: How many masks ``"mean"`` averages.

    Raises:
        ActivationArgumentError: If an argument is none of these, or ``passes`` is given without ``"mean"``.

    Example:
        >>> import torch
        >>> torch.allclose(ZeroIdentityMap().eval()(torch.tensor([1.0])), torch.tensor([0.8413447]))
        True
        >>> _ = torch.manual_seed(0)
        >>> ZeroIdentityMap()(torch.full((100,), 0.5)).unique()
        tensor([0.0000, 0.5000])
    """

    def __init__(self, gate: str = "normal", evaluation: str = "expectation", passes: int = 1) -> None:
        super().__init__()
        check_gate("zero_identity_map", gate)
        check_passes("zero_identity_map", passes)
        if evaluation not in EVALUATIONS:
            accepted = ", ".join(map(repr, EVALUATIONS))
            raise ActivationArgumentError(
                f"zero_identity_map: evaluation={evaluation!r} is not accepted. Use one of {accepted}."
            )
        if passes != 1 and evaluation != "mean":
            raise ActivationArgumentError(
                f"zero_identity_map: passes={passes} needs evaluation='mean'; {evaluation!r} draws no or one mask."
            )
        self.gate = gate
        self.evaluation = evaluation
        self.passes = passes

    def forward(self, x: Tensor) -> Tensor:
        """Apply the map elementwise.

        Args:
            x: Any shape, any floating dtype.

        Returns:
            A tensor like ``x``.
        """
        if self.training or self.evaluation == "stochastic":
            return zero_identity_map(x, training=True, gate=self.gate)
        if self.evaluation == "mean":
            return zero_identity_map(x, training=True, gate=self.gate, passes=self.passes)
        return F.gelu(x) if self.gate == "normal" else F.silu(x)

    def extra_repr(self) -> str:
        """Return the arguments for ``repr``.

        Returns:
            Those that differ from their defaults.
        """
        defaults = {"gate": "normal", "evaluation": "expectation", "passes": 1}
        given = {name: getattr(self, name) for name in defaults}
        return ", ".join(f"{name}={value!r}" for name, value in given.items() if value != defaults[name])
