"""`ActivationRecorder`: watches the inputs of activations in a live model and sums their statistics on the device."""

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache, partial
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling

from lit_gelu.activations import ActivationRegistry
from lit_gelu.activations.registry import registry_or_default
from lit_gelu.curvature.activation.formulas import formulas_of, has_own_state
from lit_gelu.curvature.activation.sites import (
    SampleRows,
    WatchedCall,
    count_rows,
    dim_of_channels,
    rows_for,
    spread_rows,
    take_rows,
)
from lit_gelu.curvature.activation.statistics import SUMS, accumulation_dtype, measure, statistics_by_site
from lit_gelu.sandbox import in_side_pass

ELEMENTS: Mapping[str | int | None, int] = {"auto": 8192, "sparse": 4096}
"""How many elements of each input are taken: the mean is then within 1.1 % or 1.6 % of a deviation."""

_IN_CACHE = 49152  # about so many elements are added up at once on a CPU: more leave its caches between two operations
_HELD_BYTES = 2**26  # so much of inputs is held until the end of the forward pass, at most


class _Watched:
    """A site while it is recorded."""

    def __init__(self, call: WatchedCall, registry: ActivationRegistry) -> None:
        self.call = call
        self.mode_of = call.activation if call.mode_of is None else call.mode_of
        # Parameters may depend on the channel: then samples are whole examples.
        state = (*call.activation.parameters(), *call.activation.buffers())
        self.whole_examples = any(tensor.numel() > 1 for tensor in state)
        entry = registry.entry_of(call.hooked)
        form = None if entry is None else entry.form_of(call.hooked)
        # Whether autograd keeps the input anyway, so that nobody overwrites it before the backward pass.
        self.may_hold = form is not None and form.keeps_input and not getattr(call.hooked, "inplace", False)
        self.calls = 0
        self.training = True  # the flag at the start


class _Rows(NamedTuple):
    """Rows of a site's input."""

    number: int  # of the site
    rows: Tensor
    channels: int | None  # which dimension of them counts the channels; ``None`` if none does, or it is not known


class ActivationRecorder:
    """Sums the statistics of the inputs of some activations, while it records."""

    # Its hooks stay on the modules, so that a model compiled later has them, and do nothing until `start`. Rows are
    # copied at once, before an in-place activation overwrites them, and the host reads nothing before `statistics`. On
    # a CPU a copy in the middle of the forward pass takes ten times as long as among its like, since the model's work
    # has emptied the caches: an input that autograd keeps is held instead, and its rows are copied at `pause`.
    # A call while the training flag differs from that at `start` belongs to an evaluation pass within the recorded one.

    def __init__(
        self,
        sites: Mapping[str, nn.Module | WatchedCall],
        sample_rows: SampleRows = "auto",
        registry: ActivationRegistry | None = None,
    ) -> None:
        registry = registry_or_default(registry)
        calls = {
            name: site if isinstance(site, WatchedCall) else WatchedCall(site, site) for name, site in sites.items()
        }
        self.sites = {name: call.activation for name, call in calls.items()}
        self.sample_rows = sample_rows
        self.active = False
        self.seconds = 0.0  # that the hooks took since `start`, where code is not compiled
        self.called: set[int] = set()  # the numbers of the sites that were given something
        self._watched = [_Watched(call, registry) for call in calls.values()]
        self._formulas = [formulas_of(module, registry) for module in self.sites.values()]
        # A name shared by all sites that compute the same function; of one with state of its own, or not registered,
        # its number.
        specs = [(module, registry.spec_of(module)) for module in self.sites.values()]
        self._functions = [
            number if spec.opaque or has_own_state(module) else str(spec) for number, (module, spec) in enumerate(specs)
        ]
        self._held: list[tuple[int, Tensor, int]] = []  # sites, their inputs, and the versions of these
        self._held_bytes = 0
        self._rows: list[_Rows] = []  # that are not added up yet
        self._table: Tensor | None = None  # the columns of `SUMS`, a row a site
        self._alive: dict[int, Tensor | None] = {}  # by site: which channels have |f'| >= 0.01 at any element
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

    def start(self, seed: int = 0, device: torch.device | None = None) -> None:
        """Forget what was recorded, and record from now on; compiled code cannot find out on which device."""
        # Equal seeds and shapes draw equal rows.
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
        """Stop recording until `resume`: around a backward pass, which may call activations again."""
        start = time.perf_counter()
        self._sample_held()
        self.seconds += time.perf_counter() - start
        self.active = False

    def resume(self) -> None:
        """Go on recording."""
        self.active = True

    def stop(self) -> None:
        """Stop recording; what was recorded stays."""
        self._sample_held()
        self.active = False

    def add_up(self) -> None:
        """Sum what was recorded; to be called before activations with parameters of their own are trained."""
        self._sample_held()
        groups, alike = dict[Any, list[_Rows]](), Counter[Any]()
        for taken in self._rows:
            rows = taken.rows
            key = (self._functions[taken.number], rows.shape, taken.channels, rows.dtype, rows.device)
            part = alike[key] * rows.numel() // _IN_CACHE if rows.is_cpu else 0
            alike[key] += 1
            groups.setdefault((key, part), []).append(taken)
        self._rows.clear()
        for group in groups.values():
            numbers = tuple(taken.number for taken in group)
            rows = torch.stack([taken.rows for taken in group]) if len(group) > 1 else group[0].rows.unsqueeze(0)
            dim = None if group[0].channels is None else group[0].channels + 1
            with self.inactive(), torch.autocast(rows.device.type, enabled=False):
                activity = measure(self._formulas[numbers[0]], rows, channel_dim=dim)
            if self._table is None:
                self._table = torch.zeros(len(self.sites), len(SUMS), dtype=activity.sums.dtype, device=rows.device)
            self._table.index_add_(0, _index(numbers, self._table.device), activity.sums.to(self._table))
            self.called.update(numbers)
            if rows.numel() > 0:  # nothing says which channels pass nothing on where there is nothing
                masks = [None] * len(numbers) if activity.alive is None else activity.alive.unbind()
                for number, mask in zip(numbers, masks, strict=True):
                    previous = self._alive.get(number, mask)
                    if mask is None or previous is None or previous.shape != mask.shape:
                        self._alive[number] = None
                    else:
                        self._alive[number] = mask if previous is mask else previous | mask

    def sums(self, device: torch.device | None = None) -> Tensor:
        """Return the sums over all that was recorded, the columns of `SUMS`, a row a site; ranks' can be added."""
        self.add_up()
        if self._table is None:
            device = device or torch.device("cpu")
            return torch.zeros(len(self.sites), len(SUMS), dtype=accumulation_dtype(device), device=device)
        return self._table if device is None else self._table.to(device, accumulation_dtype(device))

    def alive_channels(self) -> dict[int, Tensor]:
        """Return, by site, which channels have |f'| >= 0.01 at any element, for sites that always had equally many."""
        self.add_up()
        return {number: mask for number, mask in self._alive.items() if mask is not None}

    def statistics(self) -> dict[str, dict[str, float]]:
        """Return the figures by site and name, NaN of a site that was not called; one transfer to the host."""
        return statistics_by_site(self.sites, self.sums())

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
        self._held.clear()
        self._held_bytes = 0
        self._rows.clear()
        self._table, self._alive = None, {}
        self.called = set()

    def _see(self, number: int, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Take some rows of what a site is given, if this is to be recorded: the forward pre-hook of each site."""
        # It can be traced. It works on the module that it was put on only, and in copies of it not at all.
        if not self.active:
            return
        watched = self._watched[number]
        if module is not watched.call.hooked or watched.training != watched.mode_of.training:
            return
        if is_compiling():
            self._take(number, watched, args, kwargs)
        elif not in_side_pass():
            start = time.perf_counter()
            self._take(number, watched, args, kwargs)
            self.seconds += time.perf_counter() - start

    def _take(self, number: int, watched: _Watched, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        turn = watched.call.turn
        if turn is not None:
            before, watched.calls = watched.calls, watched.calls + 1
            if before % turn[1] != turn[0]:
                return
        x = args[0] if args else next(iter(kwargs.values()), None)
        if not isinstance(x, Tensor) or x.layout != torch.strided or x.is_nested or x.is_complex():
            return
        if self.sample_rows is None and not is_compiling():  # copies of all rows would double the memory
            self._rows.append(_Rows(number, x.detach(), dim_of_channels(watched.call.layout, x.shape)))
            self.add_up()
        elif (
            not is_compiling()
            and watched.may_hold
            and x.requires_grad
            and x.is_cpu
            and self._held_bytes + x.nbytes <= _HELD_BYTES
        ):
            self._held.append((number, x, x._version))
            self._held_bytes += x.nbytes
        else:
            self._sample(number, x)

    @torch.no_grad()
    def _sample(self, number: int, x: Tensor) -> None:
        """Copy some rows of an input, or all if there are not more."""
        watched = self._watched[number]
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
            self._rows.append(_Rows(number, x.clone(), channels))
        else:
            channels = channels if watched.whole_examples or channels is None else 1
            self._rows.append(_Rows(number, take_rows(x, index, **how), channels))

    def _sample_held(self) -> None:
        """Copy rows of the inputs that are held."""
        for number, x, version in self._held:
            if x._version == version:
                self._sample(number, x)
            else:  # it was overwritten after all: this input is lost, those to come are copied at once
                self._watched[number].may_hold = False
        self._held.clear()
        self._held_bytes = 0

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

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.detach()

    def __reduce__(self) -> tuple[type["_Idle"], tuple[()]]:
        return _Idle, ()


class _Idle:
    """What becomes of a recorder in a deep copy or a pickle of the model: its hooks do nothing."""

    active = False
    _see = ActivationRecorder._see


@lru_cache(maxsize=256)  # making a tensor on a device waits for it
def _index(numbers: tuple[int, ...], device: torch.device) -> Tensor:
    return torch.tensor(numbers, device=device)
