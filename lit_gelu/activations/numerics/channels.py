"""Parameters that are one number, or, learned, one number for each channel of the input."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from lit_gelu.activations.numerics.arguments import one_node
from lit_gelu.errors import ArgumentError, shown
from lit_gelu.memory import checked_memory, memory_text

INFER = "infer"
_PLACEHOLDER = "_placeholder"  # an empty buffer, which goes with the model to its device and dtype


def finite_number(name: str, value: Any, *, positive: bool = False) -> float:
    """Return ``value`` as a ``float`` if it is one finite number, and a positive one where that is asked."""
    real = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if not real or (positive and value <= 0):
        kind = "a positive finite number" if positive else "a finite number"
        raise ArgumentError(f"{name}={shown(value)} is not accepted: give {kind}, such as {name}=1.0.")
    return float(value)


class ChannelModule(nn.Module):
    """Base of the activations whose parameters are fixed numbers, or learned, one or one for each channel.

    Learned parameters start at 0. With ``channels="infer"`` there are none until the number of channels is known:
    `lit_gelu.surgery.swap` and `lit_gelu.surgery.infer_channels_` find it, and so does loading a state dict.

    Args:
        initial: The parameters' values, or their initial values if they are learned.
        learned: Names of the ``torch.nn.Parameter`` objects.
        learnable: Whether they are learned.
        channels: How many values each parameter has: ``None`` for one, ``"infer"`` for as many as the layer before has.
            The one of ``None`` has shape ``()``, that of 1 has shape ``(1,)``, which FSDP can shard.
        channel_dim: Which dimension of the input the channels are.
        memory: How the backward pass has what it needs; see `lit_gelu.memory`.

    Raises:
        ArgumentError: If the number of channels is no positive integer or is given for a fixed value, or ``memory`` is
            no mode.
    """

    channels: int | str | None

    def __init__(
        self,
        initial: dict[str, float],
        learned: tuple[str, ...],
        learnable: bool,
        channels: int | str | None,
        channel_dim: int,
        memory: str,
    ) -> None:
        super().__init__()
        self.learnable = bool(learnable)
        if channels is not None and not learnable:
            raise ArgumentError(
                f"{type(self).__name__}: channels={shown(channels)} is given for a fixed value. Add learnable=True, or "
                "leave channels out."
            )
        self.channels = channels if channels in (None, INFER) else channel_number(type(self).__name__, channels)
        self.channel_dim = channel_dim
        self.memory = checked_memory(memory)
        self._initial = initial
        self._learned = learned if learnable else ()
        for name in learned:
            self.register_parameter(name, None)
        if self.channels == INFER:
            self.register_buffer(_PLACEHOLDER, torch.empty(0), persistent=False)
        else:
            self._make_parameters(None, None)

    @property
    def needs_channels(self) -> bool:
        """Whether the number of channels is still to be inferred."""
        return self.channels == INFER

    def set_channels(self, channels: int, device: torch.device | None = None, dtype: torch.dtype | None = None) -> None:
        """Set the number of channels that was to be inferred, and make the learned parameters."""
        if self.channels not in {INFER, channels}:
            raise ArgumentError(f"{type(self).__name__} has channels={self.channels!r}, not {channels!r}.")
        if self.channels == INFER:
            self.channels = channel_number(type(self).__name__, channels)
            self._buffers.pop(_PLACEHOLDER, None)
            self._non_persistent_buffers_set.discard(_PLACEHOLDER)
            self._make_parameters(device, dtype)

    def initial(self, name: str) -> float:
        """Return an initial value, which learned parameters shift or scale once they are there."""
        if self.needs_channels:
            raise ArgumentError(
                f"{type(self).__name__}: channels='infer' is not resolved yet, so its parameters do not exist. Call "
                "lit_gelu.surgery.infer_channels_(model) once the model is built and before its optimizer is, or give "
                "the number, such as channels=64."
            )
        return self._initial[name]

    def _make_parameters(self, device: torch.device | None, dtype: torch.dtype | None) -> None:
        shape = () if self.channels is None else (int(self.channels),)
        for name in self._learned:
            setattr(self, name, nn.Parameter(torch.zeros(shape, device=device, dtype=dtype)))

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        """Take the number of channels from what is loaded, if it is still to be inferred."""
        saved = state_dict.get(f"{prefix}{self._learned[0]}") if self._learned else None
        if self.needs_channels and isinstance(saved, Tensor) and saved.dim() == 1:
            # As `infer_channels_` makes them; what is loaded says nothing of where the model is.
            near = self._buffers.get(_PLACEHOLDER)
            self.set_channels(len(saved), *((None, None) if near is None else (near.device, near.dtype)))
        if self.channels == 1:  # saved with channels=None; the other way round, torch loads them itself
            for name in self._learned:
                scalar = state_dict.get(f"{prefix}{name}")
                if isinstance(scalar, Tensor) and scalar.dim() == 0:
                    state_dict[f"{prefix}{name}"] = scalar.reshape(1)
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

    def extra_repr(self) -> str:
        """Return the arguments for ``repr``."""
        values = ", ".join(f"{name}={value}" for name, value in self._initial.items())
        dims = "" if self.channels is None else f", channels={self.channels!r}, channel_dim={self.channel_dim}"
        return f"{values}, learnable={self.learnable}{dims}{memory_text(self.memory)}"


def channel_arguments(module: Any) -> dict[str, Any]:
    """Return the arguments that build a `ChannelModule` again: with its channels, once they have been inferred."""
    names = ("learnable", "channels", "channel_dim", "memory")
    return {**module._initial, **{name: getattr(module, name) for name in names}}


def present_channel_arguments(module: Any) -> dict[str, Any]:
    """Return the arguments of a `ChannelModule`'s function: its values as they are now, and where the channels are."""
    where = {} if module.channels is None else {"channel_dim": module.channel_dim}
    return {name: getattr(module, name) for name in module._initial} | where


@one_node
def positive_scale(log_scale: Tensor) -> Tensor:
    """Return ``exp(log_scale)``, kept finite: a scale that overflows would make ``inf * 0`` of values and gradients."""
    return torch.exp(log_scale.clamp(max=math.log(torch.finfo(log_scale.dtype).max) - 1.0))


def channel_number(name: str, channels: Any) -> int:
    """Return a number of channels if it is a positive integer."""
    if isinstance(channels, bool) or not isinstance(channels, int) or channels < 1:
        raise ArgumentError(
            f"{name}: channels={shown(channels)} is not accepted. Give a positive integer, 'infer', or None for one "
            "value."
        )
    return channels
