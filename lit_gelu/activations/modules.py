"""The modules that torch does not have; where torch has the function, the registry builds torch's own module."""

from typing import Any

from torch import Tensor, nn

from lit_gelu.activations.families.cdf_linear import CDFLinear
from lit_gelu.activations.families.gated import GEGLU, ReGLU, SwiGLU
from lit_gelu.activations.families.gaussian_gelu import GaussianGELU
from lit_gelu.activations.families.gelu import SigmoidGELU
from lit_gelu.activations.families.piecewise_linear import Identity
from lit_gelu.activations.families.piecewise_quadratic import SquaredReLU
from lit_gelu.activations.families.swish import Swish
from lit_gelu.activations.families.zero_identity_map import ZeroIdentityMap
from lit_gelu.activations.naming.entry import FunctionActivation
from lit_gelu.activations.naming.names import Names, registry_or_default
from lit_gelu.activations.numerics.channels import ChannelModule
from lit_gelu.errors import ArgumentError

__all__ = [
    "GEGLU", "CDFLinear", "ChannelModule", "FunctionActivation", "GatedFFN", "GaussianGELU", "Identity", "ReGLU",
    "SigmoidGELU", "SquaredReLU", "SwiGLU", "Swish", "ZeroIdentityMap",
]  # fmt: skip


class GatedFFN(nn.Module):
    """``output_projection(activation(gate_projection(x)) * value_projection(x))``.

    With ``gate="silu"`` it is the MLP of LLaMA (``gate_proj``, ``up_proj``, ``down_proj`` there), with ``"gelu"``,
    ``"relu"`` and ``"sigmoid"`` Shazeer's GEGLU, ReGLU and GLU blocks. Without biases it has ``3 dim hidden_dim``
    parameters: as many as an ungated block four times as wide as ``dim``, at the default ``hidden_dim``.

    Source: Shazeer 2020, "GLU Variants Improve Transformer" (arXiv 2002.05202), equation 6; Touvron et al. 2023,
    "LLaMA" (arXiv 2302.13971), section 2.2.

    Args:
        dim: Size of the last dimension of input and output.
        hidden_dim: Size between the projections; ``None``: two thirds of ``4 dim``, rounded up to a multiple of
            ``multiple_of``.
        gate: The spec of an elementwise activation.
        bias: Whether the projections have biases.
        multiple_of: What the default ``hidden_dim`` is a multiple of, such as 256.
        registry: Where names are looked up; by default `lit_gelu.activations.registry`.

    Raises:
        ArgumentError: If a size is no positive integer, ``hidden_dim`` no multiple of ``multiple_of``, or ``gate`` not
            elementwise.

    Example:
        >>> import torch
        >>> block = GatedFFN(4096, multiple_of=256)
        >>> block.hidden_dim
        11008
        >>> GatedFFN(6, gate="gelu(approximate='tanh')")(torch.zeros(2, 5, 6)).shape
        torch.Size([2, 5, 6])
    """

    def __init__(
        self,
        dim: int,
        hidden_dim: int | None = None,
        gate: Any = "silu",
        bias: bool = False,
        multiple_of: int = 1,
        *,
        registry: Names | None = None,
    ) -> None:
        super().__init__()
        sizes = {"dim": dim, "hidden_dim": 1 if hidden_dim is None else hidden_dim, "multiple_of": multiple_of}
        for name, size in sizes.items():
            if isinstance(size, bool) or not isinstance(size, int) or size < 1:
                raise ArgumentError(f"GatedFFN: {name}={size!r} is not accepted. Give a positive integer.")
        if hidden_dim is None:
            hidden_dim = -(-8 * dim // (3 * multiple_of)) * multiple_of
        elif hidden_dim % multiple_of:
            raise ArgumentError(
                f"GatedFFN: hidden_dim={hidden_dim} is no multiple of multiple_of={multiple_of}. Leave one out: "
                "multiple_of rounds the default hidden_dim."
            )
        self.dim, self.hidden_dim = dim, hidden_dim
        self.gate_projection = nn.Linear(dim, self.hidden_dim, bias)
        self.value_projection = nn.Linear(dim, self.hidden_dim, bias)
        names = registry_or_default(registry)
        spec = names.resolve(gate)
        if not spec.opaque and not names.entry(spec.name).facts_for(spec.arguments).elementwise:
            raise ArgumentError(
                f"GatedFFN: gate={str(spec)!r} is not elementwise. The block itself multiplies by the value: give the "
                "activation of the gate alone, such as 'silu' for SwiGLU."
            )
        self.activation = names.create(gate)
        self.output_projection = nn.Linear(self.hidden_dim, dim, bias)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the block to the last dimension of ``(..., dim)``; the result has the same shape."""
        gate: Tensor = self.activation(self.gate_projection(x))
        result: Tensor = self.output_projection(gate * self.value_projection(x))
        return result
