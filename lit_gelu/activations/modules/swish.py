"""Swish with a fixed or a learned slope."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the name that torch's own documentation gives it

from lit_gelu.activations.functional._arguments import per_channel
from lit_gelu.activations.modules.channels import ChannelModule, finite_numbers, positive_scale
from lit_gelu.activations.modules.memory import checked_memory, compute_with


def swish(x: Tensor, beta: float | Tensor) -> Tensor:
    """Return ``x sigmoid(beta x)`` by torch's kernels.

    Args:
        x: Any shape, any floating dtype.
        beta: A number, or a tensor that is broadcast with ``x``.

    Returns:
        A tensor like ``x``.
    """
    return x * torch.sigmoid((beta * x).to(x.dtype))


class Swish(ChannelModule):
    """``f(x) = x sigmoid(beta x)``, elementwise, any shape and floating dtype.

    ``beta = 1`` is SiLU (torch's kernel is called); ``beta -> 0`` is ``x / 2``, ``beta -> inf`` is ReLU. A learned
    slope is kept positive: ``beta = beta_0 exp(log_scale)`` with the parameter ``log_scale`` starting at 0, so that it
    starts at exactly ``beta_0`` and weight decay pulls it back there.

    Bytes kept for the backward pass, for each float32 element: 4 as SiLU, else 8; 4 with ``memory="recompute"``.

    Source: Ramachandran, Zoph and Le 2017, "Searching for Activation Functions" (arXiv 1710.05941), section 4.

    Args:
        beta: The slope, or the initial slope if it is learned; positive. A tuple has one for each channel.
        learnable: Whether the slope is learned.
        channels: How many slopes are learned: ``None`` for one, a number for one a channel, ``"infer"`` for as many as
            the layer before has outputs; see `lit_gelu.surgery.infer_channels_`.
        channel_dim: Which dimension of ``x`` the channels are: 1 as in ``torch.nn.PReLU``, -1 in transformers.
        memory: ``"recompute"`` keeps ``x`` alone for the backward pass; ``"autograd"`` what the kernels need.

    Raises:
        ActivationArgumentError: If ``beta`` is not positive and finite, ``memory`` no mode, or the channels are no
            number or contradict ``beta``.

    Example:
        >>> import torch
        >>> Swish(beta=2.0)(torch.tensor([-1.0, 0.0, 1.0]))
        tensor([-0.1192,  0.0000,  0.8808])
        >>> Swish(beta=(1.0, 2.0), channel_dim=-1)(torch.ones(2))
        tensor([0.7311, 0.8808])
    """

    log_scale: nn.Parameter | None

    def __init__(
        self,
        beta: float | tuple[float, ...] = 1.0,
        learnable: bool = False,
        channels: int | str | None = None,
        channel_dim: int = 1,
        memory: str = "autograd",
    ) -> None:
        initial = finite_numbers("beta", beta, positive=True)
        super().__init__({"beta": initial}, ("log_scale",) if learnable else (), channels, channel_dim)
        self.initial_beta = initial
        self.learnable = bool(learnable)
        self.memory = checked_memory(memory)
        if not learnable:
            self.register_parameter("log_scale", None)

    @property
    def beta(self) -> float | Tensor:
        """The present slope: a number if it is fixed, a tensor if it is learned or there is one for each channel."""
        self.check_channels()
        initial = self.initial("beta", self.initial_beta)
        return initial if self.log_scale is None else initial * positive_scale(self.log_scale)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the function elementwise.

        Args:
            x: Any shape, any floating dtype.

        Returns:
            A tensor like ``x``.
        """
        beta = per_channel("swish", "beta", self.beta, x, self.channel_dim)
        if not isinstance(beta, Tensor) and beta == 1.0:
            return F.silu(x)
        return compute_with(self.memory, swish, x, beta=beta)

    def extra_repr(self) -> str:
        """Return the arguments for ``repr``.

        Returns:
            ``beta=..., learnable=...``.
        """
        memory = "" if self.memory == "autograd" else f", memory={self.memory!r}"
        return f"beta={self.initial_beta}, learnable={self.learnable}{self.channel_text()}{memory}"
