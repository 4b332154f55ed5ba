"""The hook that keeps some rows of what an activation is given."""

from collections.abc import Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling

from lit_gelu.curvature.activation.channel_layout import ChannelLayout, dim_of_channels
from lit_gelu.curvature.activation.rows import SampleRows, count_rows, rows_for, spread_rows, take_rows
from lit_gelu.sandbox import in_side_pass

ELEMENTS: Mapping[str | int | None, int] = {"auto": 8192, "sparse": 4096}
"""How many elements of each input are taken: the mean is then within 1.1 % or 1.6 % of a deviation."""

HELD_BYTES = 2**26
"""So much of inputs that wait for the end of the forward pass is held at a time, at most."""


class Taken(NamedTuple):
    """Rows of an input.

    Attributes:
        number: The site's number.
        rows: The rows.
        channels: Which dimension of them counts the channels; ``None`` if none does, or it is not known.
    """

    number: int
    rows: Tensor
    channels: int | None = None


_SAVES_ITS_INPUT = frozenset({
    nn.CELU,
    nn.ELU,
    nn.GELU,
    nn.Hardswish,
    nn.LeakyReLU,
    nn.LogSigmoid,
    nn.Mish,
    nn.SELU,
    nn.SiLU,
    nn.Softplus,
})
"""Their backward pass needs the input (that of ReLU, sigmoid and tanh the output): until then nobody overwrites it."""


@dataclass(frozen=True)
class WatchedCall:
    """A place where an activation is computed.

    Args:
        hooked: The module whose input is the activation's.
        activation: What is computed there.
        turn: ``(i, n)``: of the module's calls, only those count whose number leaves the rest ``i`` when divided by
            ``n``.
        mode_of: The module whose training flag says whether a call belongs to an evaluation pass; by default the
            activation itself.
        layout: Where its input has its channels, as far as is known.
    """

    hooked: nn.Module
    activation: nn.Module
    turn: tuple[int, int] | None = None
    mode_of: nn.Module | None = None
    layout: ChannelLayout | None = None


class Sampler:
    """Which rows are taken: the same of all inputs with equally many, drawn anew for every recording.

    Args:
        sample_rows: How many rows; ``"auto"`` for as many as hold 8,192 elements, ``"sparse"`` 4,096, ``None`` for all.
    """

    def __init__(self, sample_rows: SampleRows) -> None:
        self.sample_rows = sample_rows
        self._seed = 0
        self._elements = ELEMENTS.get(sample_rows)
        self._most = self._elements or (sample_rows if isinstance(sample_rows, int) else 0)
        self._generators: dict[torch.device, torch.Generator] = {}
        self._uniform: dict[torch.device, Tensor] = {}
        self._index: dict[tuple[torch.device, torch.Size, bool, int | None], Tensor | None] = {}

    def start(self, seed: int, device: torch.device) -> None:
        """Draw anew.

        Args:
            seed: The same seed and shapes give the same rows.
            device: Where most inputs will be.
        """
        self._seed = seed
        self._index.clear()
        for known in {*self._uniform, device}:
            self._draw(known)

    def take(self, x: Tensor, *, whole_examples: bool, channels: int | None) -> tuple[Tensor, int | None]:
        """Return a copy of some rows of an input, or of all if there are not more.

        Args:
            x: The input.
            whole_examples: As in `lit_gelu.curvature.count_rows`.
            channels: As in `lit_gelu.curvature.count_rows`.

        Returns:
            The rows, and which of their dimensions counts the channels.
        """
        how: dict[str, Any] = {"whole_examples": whole_examples, "channels": channels}
        if is_compiling():  # what is traced must not depend on what was drawn before
            index = self._drawn(x, how)
        else:
            key = (x.device, x.shape, whole_examples, channels)
            if key not in self._index:
                self._index[key] = self._drawn(x, how)
            index = self._index[key]
        if index is None:
            return x.clone(), channels
        return take_rows(x, index, **how), channels if whole_examples or channels is None else 1

    def _drawn(self, x: Tensor, how: dict[str, Any]) -> Tensor | None:
        """Return which rows are taken; ``None`` for all."""
        count = count_rows(x, **how)
        rows = self._rows(x, how)
        return None if rows is None or rows >= count else self._spread(count, rows, x.device)

    def _rows(self, x: Tensor, how: dict[str, Any]) -> int | None:
        if self._elements is None:
            return self._most or None
        return min(self._most, rows_for(x, self._elements, **how))

    def _spread(self, count: int, rows: int, device: torch.device) -> Tensor:
        uniform = self._uniform.get(device)
        if uniform is None:
            uniform = next(iter(self._uniform.values())).to(device) if is_compiling() else self._draw(device)
        return spread_rows(count, uniform[:rows] + torch.arange(rows, device=device))

    def _draw(self, device: torch.device) -> Tensor:
        """Fill a device's random numbers from a generator of this object: the global ones belong to the training."""
        if device not in self._uniform:
            dtype = torch.float32 if device.type == "mps" else torch.float64
            self._generators[device] = torch.Generator(device)
            self._uniform[device] = torch.empty(self._most, dtype=dtype, device=device)
        generator = self._generators[device].manual_seed(self._seed)
        return self._uniform[device].uniform_(generator=generator)


class InputHook:
    """The forward pre-hook of one site; it works on the module it was made for only, and in copies of it not at all.

    It can be traced: when it is active it samples and appends to a list of its own, when it is not it does nothing.

    On a CPU a copy in the middle of the forward pass takes ten times as long as among its like, since the model's
    work has emptied the caches. So an input that autograd keeps for the backward pass anyway is held instead, and
    sampled by `take_held` when the forward pass is over.

    Args:
        owner: Has the flag ``active``, the sampler, ``see_at_once``, and adds up ``seconds`` and ``held_bytes``.
        number: The site's number.
        call: What is watched.
        whole_examples: Whether the activation has parameters that may belong to channels.
    """

    def __init__(self, owner: Any, number: int, call: WatchedCall, *, whole_examples: bool) -> None:
        self.number = number
        self.taken: list[Taken] = []
        self.whole_examples = whole_examples
        self._held: list[tuple[Tensor, int]] = []
        self._may_hold = type(call.hooked) in _SAVES_ITS_INPUT and not getattr(call.hooked, "inplace", False)
        self._may_hold = self._may_hold and owner.sampler.sample_rows is not None
        self._owner = owner
        self._module = call.hooked
        self._layout = call.layout
        self._turn = call.turn
        self._calls = 0
        self._flag_of = call.activation if call.mode_of is None else call.mode_of
        self._training = self._flag_of.training

    def start(self) -> None:
        """Forget what was taken."""
        self.clear()
        self._calls = 0
        self._training = self._flag_of.training

    def clear(self) -> None:
        """Let go of what was taken."""
        self.taken.clear()
        self._held.clear()

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Take some rows, if this is to be recorded.

        Args:
            module: Whose forward is about to run.
            args: What it is called with.
            kwargs: The same by name.
        """
        owner = self._owner
        if not owner.active or module is not self._module or self._training != self._flag_of.training:
            return
        if is_compiling():
            self._take(args, kwargs, compiling=True)
        elif not in_side_pass():
            start = perf_counter()
            self._take(args, kwargs, compiling=False)
            owner.seconds += perf_counter() - start

    def take_held(self) -> None:
        """Sample the inputs that are held; to be called before the backward pass, without gradients.

        One that was overwritten after all is left out, and this site's are copied at once from then on.
        """
        for x, version in self._held:
            if x._version == version:
                self._sample(x)
            else:
                self._may_hold = False
        self._held.clear()

    def _take(self, args: tuple[Any, ...], kwargs: dict[str, Any], *, compiling: bool) -> None:
        if self._turn is not None:
            number, self._calls = self._calls, self._calls + 1
            if number % self._turn[1] != self._turn[0]:
                return
        x = args[0] if args else next(iter(kwargs.values()), None)
        if not isinstance(x, Tensor):
            return
        if not compiling:
            # In the middle of a model's work none of this is in the caches: each look at a tensor takes microseconds.
            if self._may_hold and x.requires_grad and x.is_cpu:
                held = self._owner.held_bytes + x.nbytes
                if held <= HELD_BYTES:
                    self._owner.held_bytes = held
                    self._held.append((x, x._version))
                    return
            if self._owner.sampler.sample_rows is None:
                channels = dim_of_channels(self._layout, x.shape)
                # Copies of all rows would double the memory.
                self._owner.see_at_once(Taken(self.number, x.detach(), channels))
                return
        with torch.no_grad():
            self._sample(x.detach())

    def _sample(self, x: Tensor) -> None:
        """Take some rows of an input."""
        channels = dim_of_channels(self._layout, x.shape)
        rows, channels = self._owner.sampler.take(x, whole_examples=self.whole_examples, channels=channels)
        self.taken.append(Taken(self.number, rows, channels))

    def __reduce__(self) -> tuple[type["IdleHook"], tuple[()]]:
        return IdleHook, ()


class IdleHook:
    """What becomes of an `InputHook` in a deep copy or a pickle of the model."""

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Do nothing."""
