"""GELU whose values are kept within bounds."""

from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the name that torch's own documentation gives it

from lit_gelu.activations.errors import ActivationArgumentError


class ClippedGELU(nn.Module):
    """``f(x) = min(max(x Phi(x), min), max)``, elementwise, any shape and floating dtype.

    Source: Wu et al. 2020, "Integer Quantization for Deep Learning Inference" (arXiv 2004.09602).

    Args:
        min: Lower bound; without effect below -0.17, GELU's minimum.
        max: Upper bound.

    Raises:
        ActivationArgumentError: If ``min`` is not below ``max``.

    Example:
        >>> import torch
        >>> ClippedGELU(max=6.0)(torch.tensor([-1.0, 1.0, 20.0]))
        tensor([-0.1587,  0.8413,  6.0000])
    """

    def __init__(self, min: float = -10.0, max: float = 10.0) -> None:  # noqa: A002 - the source's names
        super().__init__()
        if not min < max:
            raise ActivationArgumentError(f"min={min!r}, max={max!r} is not accepted. Give min below max.")
        self.min = float(min)
        self.max = float(max)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the function elementwise.

        Args:
            x: Any shape, any floating dtype.

        Returns:
            A tensor like ``x``.
        """
        return F.gelu(x).clamp(self.min, self.max)

    def extra_repr(self) -> str:
        """Return the arguments for ``repr``.

        Returns:
            ``min=..., max=...``.
        """
        return f"min={self.min}, max={self.max}"
