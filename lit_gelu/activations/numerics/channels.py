"""Parameters that are one number, or one number for each channel of the input."""

import math
from collections.abc import Callable, Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn

from lit_gelu.activations.errors import ActivationArgumentError
from lit_gelu.activations.numerics.arguments import one_node
from lit_gelu.errors import shown
from lit_gelu.memory import checked_memory, memory_text

INFER = "infer"
_FIXED = "_initial_"  # begins the names of buffers with fixed values, one for each channel
_PLACEHOLDER = "_placeholder"  # an empty buffer, which goes with the model to its device and dtype

Numbers = float | tuple[float, ...]


def finite_numbers(name: str, value: Any, *, positive: bool = False) -> Numbers:
    """Return ``value`` as a ``float``, or as a tuple of them if it has one for each channel."""
    several = isinstance(value, Sequence) and not isinstance(value, str)
    for number in value if several else (value,):
        real = isinstance(number, (int, float)) and not isinstance(number, bool) and math.isfinite(number)
        if not real or (positive and number <= 0):
            kind = "a positive finite number" if positive else "a finite number"
            raise ActivationArgumentError(f"{name}={shown(value)} is not accepted: give {kind}, such as {name}=1.0.")
    if several and not value:
        raise ActivationArgumentError(f"{name}={shown(value)} is not accepted: give a number, or one for each channel.")
    return tuple(map(float, value)) if several else float(value)


def positive_number(name: str, value: float) -> float:
    """Return ``value`` as a ``float`` if it is one positive finite number."""
    number = finite_numbers(name, value, positive=True)
    if isinstance(number, tuple):
        raise ActivationArgumentError(f"{name}={shown(value)} is not accepted: give one number, such as {name}=1.0.")
    return number


class ChannelModule(nn.Module):
    """Base of the activations whose parameters are scalar or per channel, fixed or learned.

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
        ActivationArgumentError: If the number of channels is no positive integer, contradicts the values, or is given
            for one fixed value, or ``memory`` is no mode.
    """

    channels: int | str | None

    def __init__(
        self,
        initial: dict[str, Numbers],
        learned: tuple[str, ...],
        learnable: bool,
        channels: int | str | None,
        channel_dim: int,
        memory: str,
    ) -> None:
        super().__init__()
        self.learnable = bool(learnable)
        self.channels = _channel_count(type(self).__name__, initial, self.learnable, channels)
        self.channel_dim = channel_dim
        self.memory = checked_memory(memory)
        self._given_channels = None if any(isinstance(value, tuple) for value in initial.values()) else channels
        self._initial = initial
        self._learned = learned if learnable else ()
        self._fixed = {f"{_FIXED}{name}": value for name, value in initial.items() if isinstance(value, tuple)}
        for name, value in self._fixed.items():
            self.register_buffer(name, torch.tensor(value), persistent=False)
        for name in learned:
            self.register_parameter(name, None)
        if self.channels != INFER:
            self._make_parameters(None, None)
        elif learnable:
            self.register_buffer(_PLACEHOLDER, torch.empty(0), persistent=False)

    @property
    def needs_channels(self) -> bool:
        """Whether the number of channels is still to be inferred."""
        return self.channels == INFER

    def set_channels(self, channels: int, device: torch.device | None = None, dtype: torch.dtype | None = None) -> None:
        """Set the number of channels that was to be inferred, and make the learned parameters."""
        if self.channels not in {INFER, channels}:
            raise ActivationArgumentError(f"{type(self).__name__} has channels={self.channels!r}, not {channels!r}.")
        if self.channels == INFER:
            self.channels = channel_number(type(self).__name__, channels)
            self._buffers.pop(_PLACEHOLDER, None)
            self._non_persistent_buffers_set.discard(_PLACEHOLDER)
            self._make_parameters(device, dtype)

    def initial(self, name: str) -> float | Tensor:
        """Return an initial value as it is used: a number, or the buffer with one for each channel."""
        self.check_channels()
        value = self._initial[name]
        return self.get_buffer(f"{_FIXED}{name}") if isinstance(value, tuple) else value

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Convert or move the module; fixed values are written anew, so that none is rounded twice or uninitialised."""
        before = dict(self._buffers)
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name in self._fixed:
            if self._buffers[name] is not before[name]:
                self._write(name)
        return self

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute; transformers puts an uninitialised tensor in the place of a buffer that no file holds."""
        super().__setattr__(name, value)
        if name in vars(self).get("_fixed", ()):
            self._write(name)

    def _write(self, name: str) -> None:
        values, buffer = self._fixed[name], self._buffers[name]
        # A subclass of tensors is its maker's matter, and so is a buffer of another size: one channel of several.
        if type(buffer) is Tensor and not buffer.is_meta and buffer.shape == (len(values),):
            with torch.no_grad():
                buffer.copy_(torch.tensor(values, dtype=buffer.dtype, device="cpu"))

    def check_channels(self) -> None:
        """Refuse to compute before the number of channels is known."""
        if self.needs_channels:
            raise ActivationArgumentError(
                f"{type(self).__name__}: channels='infer' is not resolved yet, so its parameters do not exist. Call "
                "lit_gelu.surgery.infer_channels_(model) once the model is built and before its optimizer is, or give "
                "the number, such as channels=64."
            )

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
    channels = module.channels if module._given_channels == INFER else module._given_channels
    rest = {"learnable": module.learnable, "channel_dim": module.channel_dim, "memory": module.memory}
    return {**module._initial, "channels": channels, **rest}


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
        raise ActivationArgumentError(
            f"{name}: channels={shown(channels)} is not accepted. Give a positive integer, 'infer', or None for one "
            "value."
        )
    return channels


def _channel_count(
    name: str, initial: dict[str, Numbers], learnable: bool, channels: int | str | None
) -> int | str | None:
    """Return the number of channels that the arguments agree on."""
    counts = {key: len(value) for key, value in initial.items() if isinstance(value, tuple)}
    if channels is not None and channels != INFER:
        counts["channels"] = channel_number(name, channels)
    if len(set(counts.values())) > 1 or (channels == INFER and counts):
        sizes = ", ".join(f"{key}: {count}" for key, count in counts.items())
        raise ActivationArgumentError(
            f"{name}: the numbers of channels do not agree ({sizes}; channels={channels!r}). Values that are given one "
            "for each channel say how many there are: leave channels out."
        )
    if channels is not None and not learnable and set(counts) <= {"channels"}:
        raise ActivationArgumentError(
            f"{name}: channels={channels!r} is given for one fixed value. Add learnable=True, or give one value for "
            "each channel, or leave channels out."
        )
    return next(iter(counts.values()), channels)
