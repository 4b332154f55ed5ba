"""`ActivationRecorder`: watches the inputs of activations in a live model and sums their statistics on the device."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling

from lit_gelu.activations import ActivationRegistry
from lit_gelu.activations.registry import registry_or_default
from lit_gelu.curvature.activation.evaluator import ActivationEvaluator, ActivationEvent, Taken
from lit_gelu.curvature.activation.input_layout import (
    ChannelLayout,
    SampleRows,
    count_rows,
    dim_of_channels,
    rows_for,
    spread_rows,
    take_rows,
)
from lit_gelu.curvature.activation.statistics import statistics_by_site
from lit_gelu.errors import ArgumentError
from lit_gelu.sandbox import in_side_pass

ELEMENTS: Mapping[str | int | None, int] = {"auto": 8192, "sparse": 4096}
"""How many elements of each input are taken: the mean is then within 1.1 % or 1.6 % of a deviation."""

HELD_BYTES = 2**26
"""So much of inputs that wait for the end of the forward pass is held at a time, at most."""


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


@dataclass
class _Watched:
    """A site while it is recorded."""

    call: WatchedCall  # where it is
    mode_of: nn.Module  # whose training flag says whether a call counts
    whole_examples: bool  # whether the activation has parameters that may belong to channels
    may_hold: bool  # whether its input is kept for the backward pass anyway, so that nobody overwrites it before
    taken: list[Taken] = field(default_factory=list)  # rows of its inputs
    # Inputs that wait for the end of the forward pass, and their versions.
    held: list[tuple[Tensor, int]] = field(default_factory=list)
    calls: int = 0  # how often it was called
    training: bool = True  # the flag at the start


class ActivationRecorder:
    """Sums the statistics of the inputs of some activations, while it records.

    Its hooks stay on the modules, so that a model compiled later has them, and do nothing until `start`. What they see
    is sampled by whole rows (see `lit_gelu.curvature.activation.input_layout`) and copied at once, before an in-place
    activation overwrites it; on a CPU, inputs that autograd keeps for the backward pass are held until `pause`, `stop`
    or `sums` instead, 64 MiB at most, and copied then, which is cheaper. The sums of all sites that share an activation
    and a shape are computed together, when `sums` is called; `take` hands the rows out, to be summed later. Of all
    rows, where these are wanted, the sums are computed at once (in compiled code, they are copied). The host reads
    nothing before `statistics`.

    All calls of a module between `start` and `stop` count. A call made while the activation's training flag differs
    from what it was at `start` does not: it belongs to an evaluation pass within the recorded one. Copies of the model
    carry no working hook: a deep copy or a pickle of one does nothing.

    Args:
        sites: What to watch, by name: activation modules, or calls of them.
        sample_rows: How many rows of each call to use; ``"auto"`` means as many as hold 8,192 elements (8 at least),
            ``"sparse"`` 4,096, ``None`` all.
        registry: Where the activations' closed forms are looked up; the default registry if not given.

    Raises:
        ArgumentError: If ``sample_rows`` is not positive.

    Attributes:
        seconds: Wall-clock seconds that the hooks took since `start`, where code is not compiled.
        held_bytes: The size of the inputs that are held.
        reference: What the moments of each site are taken about and the scale of its windows about kinks: ``[sites,
            2]``, a mean and a deviation from elsewhere, such as those of an earlier recording. NaN, and by default, is
            0 and the deviation of each input by itself.

    Example:
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.GELU())
        >>> with ActivationRecorder({"1": model[1]}) as recorder:
        ...     recorder.start()
        ...     _ = model(torch.zeros(2, 4))
        ...     recorder.stop()
        ...     figures = recorder.statistics()
        >>> torch.allclose(torch.tensor(figures["1"]["mean"]), model[0].bias.mean())
        True
    """

    def __init__(
        self,
        sites: Mapping[str, nn.Module | WatchedCall],
        sample_rows: SampleRows = "auto",
        registry: ActivationRegistry | None = None,
    ) -> None:
        if sample_rows not in {*ELEMENTS, None} and (not isinstance(sample_rows, int) or sample_rows < 1):
            raise ArgumentError(
                f"{sample_rows=} is not accepted. Give a positive number, 'auto', 'sparse', or None for all rows."
            )
        registry = registry_or_default(registry)
        self.calls = {
            name: site if isinstance(site, WatchedCall) else WatchedCall(site, site) for name, site in sites.items()
        }
        self.sites = {name: call.activation for name, call in self.calls.items()}
        self.sample_rows = sample_rows
        self.evaluator = ActivationEvaluator(list(self.sites.values()), registry)
        self.active = False
        self.seconds = 0.0
        self.held_bytes = 0
        self._event = ActivationEvent()
        self._watched = [
            _Watched(
                call,
                call.activation if call.mode_of is None else call.mode_of,
                whole_examples,
                sample_rows is not None and _keeps_its_input(call.hooked, registry),
            )
            for call, whole_examples in zip(self.calls.values(), self.evaluator.whole_examples, strict=True)
        ]
        self._handles = [
            watched.call.hooked.register_forward_pre_hook(partial(self._see, number), with_kwargs=True)
            for number, watched in enumerate(self._watched)
        ]
        # Which rows are taken: the same of all inputs with equally many, drawn anew for every recording.
        self._seed = 0
        self._elements = ELEMENTS.get(sample_rows)
        self._most_rows = self._elements or (sample_rows if isinstance(sample_rows, int) else 0)
        self._generators: dict[torch.device, torch.Generator] = {}
        self._uniform: dict[torch.device, Tensor] = {}
        self._index: dict[tuple[torch.device, torch.Size, bool, int | None], Tensor | None] = {}

    @property
    def reference(self) -> Tensor | None:
        """What moments are taken about, and the scale of the windows about kinks."""
        return self.evaluator.reference

    @reference.setter
    def reference(self, value: Tensor | None) -> None:
        self.evaluator.reference = value

    @property
    def rows_may_wait(self) -> bool:
        """Whether what is recorded may be summed at any time: no activation changes, and only some rows are kept."""
        return self.sample_rows is not None and not any(self.evaluator.have_state)

    def start(self, seed: int = 0, device: torch.device | None = None) -> None:
        """Forget what was recorded, and record from now on.

        Args:
            seed: Which rows are drawn; the same seed and shapes give the same rows.
            device: Where the inputs will be; compiled code cannot find out.
        """
        self._forget()
        self.seconds = 0.0
        for watched in self._watched:
            watched.calls, watched.training = 0, watched.mode_of.training
        if self.sample_rows is not None:
            self._seed = seed
            self._index.clear()
            for target in {*self._uniform, device or torch.device("cpu")}:
                self._draw(target)
        self.active = True

    def pause(self) -> None:
        """Stop recording for now; what was recorded stays. To be called before a backward pass."""
        self._sample_held()
        self.active = False

    def resume(self) -> None:
        """Go on recording after `pause`."""
        self.active = True

    def stop(self) -> None:
        """Stop recording."""
        self.pause()

    def take(self) -> ActivationEvent:
        """Hand out what was recorded, to be summed later by the ``evaluator``, and forget it; see `rows_may_wait`."""
        taken, self._event = self._gathered(), ActivationEvent()
        return taken

    def sums(self, device: torch.device | None = None) -> Tensor:
        """Return the sums over all that was recorded; they can be added to those of other ranks.

        Args:
            device: Where they shall be; by default where the inputs were.

        Returns:
            One row a site, in the order of ``sites``, with the columns of `lit_gelu.curvature.SUMS`.
        """
        with self.inactive():
            return self.evaluator.sums(self._gathered(), device)

    def reduce_those_with_parameters(self) -> None:
        """Sum what was recorded of activations with parameters of their own, before these are trained."""
        self._sample_held()
        stateful = [each for each, state in zip(self._watched, self.evaluator.have_state, strict=True) if state]
        with self.inactive():
            self.evaluator.see(self._event, _emptied(stateful))

    def statistics(self) -> dict[str, dict[str, float]]:
        """Return the figures by site and name, NaN of a site that was not called; one transfer to the host."""
        sums = self.sums()
        return statistics_by_site(self.sites, sums, self.evaluator.pivot(sums.device))

    def detach(self) -> None:
        """Take the hooks off and forget what was recorded."""
        self.active = False
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._forget()

    @contextmanager
    def inactive(self) -> Iterator[None]:
        """Do not record for a while: an activation without closed form is called to be differentiated."""
        active, self.active = self.active, False
        try:
            yield
        finally:
            self.active = active

    def _forget(self) -> None:
        self._event = ActivationEvent()
        self.held_bytes = 0
        for watched in self._watched:
            watched.taken.clear()
            watched.held.clear()

    def _see(self, number: int, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Take some rows of what a site is given, if this is to be recorded: the forward pre-hook of each site."""
        # It can be traced. It works on the module that it was put on only, and in copies of it not at all.
        if not self.active:
            return
        watched = self._watched[number]
        if module is not watched.call.hooked or watched.training != watched.mode_of.training:
            return
        if is_compiling():
            self._take(number, watched, args, kwargs, compiling=True)
        elif not in_side_pass():
            start = time.perf_counter()
            self._take(number, watched, args, kwargs, compiling=False)
            self.seconds += time.perf_counter() - start

    def _take(
        self, number: int, watched: _Watched, args: tuple[Any, ...], kwargs: dict[str, Any], *, compiling: bool
    ) -> None:
        """Hold an input, sum it at once, or take rows of it."""
        turn = watched.call.turn
        if turn is not None:
            before, watched.calls = watched.calls, watched.calls + 1
            if before % turn[1] != turn[0]:
                return
        x = args[0] if args else next(iter(kwargs.values()), None)
        if not isinstance(x, Tensor) or x.layout != torch.strided or x.is_nested or x.is_complex():
            return
        if not compiling:
            # On a CPU a copy in the middle of the forward pass takes ten times as long as among its like, since the
            # model's work has emptied the caches: each look at a tensor takes microseconds. So an input that autograd
            # keeps for the backward pass anyway is held instead, and sampled when the forward pass is over.
            if watched.may_hold and x.requires_grad and x.is_cpu and self.held_bytes + x.nbytes <= HELD_BYTES:
                self.held_bytes += x.nbytes
                watched.held.append((x, x._version))
                return
            if self.sample_rows is None:  # copies of all rows would double the memory
                channels = dim_of_channels(watched.call.layout, x.shape)
                with self.inactive():
                    self.evaluator.see(self._event, [Taken(number, x.detach(), channels)])
                return
        with torch.no_grad():
            self._sample(number, watched, x.detach())

    def _sample(self, number: int, watched: _Watched, x: Tensor) -> None:
        """Take some rows of an input, or all if there are not more."""
        channels = dim_of_channels(watched.call.layout, x.shape)
        how: dict[str, Any] = {"whole_examples": watched.whole_examples, "channels": channels}
        if is_compiling():  # what is traced must not depend on what was drawn before
            index = self._drawn(x, how)
        else:
            key = (x.device, x.shape, watched.whole_examples, channels)
            if key not in self._index:
                self._index[key] = self._drawn(x, how)
            index = self._index[key]
        if index is None:
            watched.taken.append(Taken(number, x.clone(), channels))
            return
        channels = channels if watched.whole_examples or channels is None else 1
        watched.taken.append(Taken(number, take_rows(x, index, **how), channels))

    def _drawn(self, x: Tensor, how: dict[str, Any]) -> Tensor | None:
        """Return which rows are taken; ``None`` for all."""
        count = count_rows(x, **how)
        rows = self._most_rows if self._elements is None else min(self._most_rows, rows_for(x, self._elements, **how))
        if not rows or rows >= count:
            return None
        uniform = self._uniform.get(x.device)
        if uniform is None:
            uniform = next(iter(self._uniform.values())).to(x.device) if is_compiling() else self._draw(x.device)
        return spread_rows(count, uniform[:rows] + torch.arange(rows, device=x.device))

    def _draw(self, device: torch.device) -> Tensor:
        """Fill a device's random numbers from a generator of this object: the global ones belong to the training."""
        if device not in self._uniform:
            dtype = torch.float32 if device.type == "mps" else torch.float64
            self._generators[device] = torch.Generator(device)
            self._uniform[device] = torch.empty(self._most_rows, dtype=dtype, device=device)
        generator = self._generators[device].manual_seed(self._seed)
        return self._uniform[device].uniform_(generator=generator)

    def _sample_held(self) -> None:
        """Sample the inputs that wait for it; to be called before the backward pass."""
        # One that was overwritten after all is left out, and its site's are copied at once from then on.
        if not self.held_bytes:
            return
        start = time.perf_counter()
        with torch.no_grad():
            for number, watched in enumerate(self._watched):
                for x, version in watched.held:
                    if x._version == version:
                        self._sample(number, watched, x)
                    else:
                        watched.may_hold = False
                watched.held.clear()
        self.held_bytes = 0
        self.seconds += time.perf_counter() - start

    def _gathered(self) -> ActivationEvent:
        """Return the event, with all that the hooks took."""
        # What was summed before an optimizer step is about the same number as what was given behind it.
        self.reduce_those_with_parameters()
        self._event.waiting += _emptied(self._watched)
        return self._event

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.detach()

    def __reduce__(self) -> tuple[type["_Idle"], tuple[()]]:
        return _Idle, ()


class _Idle:
    """What becomes of a recorder in a deep copy or a pickle of the model: its hooks do nothing."""

    active = False
    _see = ActivationRecorder._see


def _emptied(sites: list[_Watched]) -> list[Taken]:
    """Return what some sites took, and let them forget it."""
    taken = [each for watched in sites for each in watched.taken]
    for watched in sites:
        watched.taken.clear()
    return taken


def _keeps_its_input(module: nn.Module, registry: ActivationRegistry) -> bool:
    """Return whether a module's backward pass needs its input: until then nobody overwrites it."""
    row = registry.entry_of_class(type(module))
    form = None if row is None else row.form_of(module)
    return form is not None and form.keeps_input and not getattr(module, "inplace", False)
