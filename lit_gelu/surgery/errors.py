"""What can go wrong when activations are swapped."""

from lit_gelu.errors import SwapError

__all__ = ["CheckpointMismatchError", "NoMatchError", "SwapConflictError", "SwapError"]


class NoMatchError(SwapError):
    """A target that matches no activation site; the message lists the sites."""


class SwapConflictError(SwapError):
    """Two targets that claim one site."""


class CheckpointMismatchError(SwapError):
    """A checkpoint of a model with other activations, or with activations in other places."""
