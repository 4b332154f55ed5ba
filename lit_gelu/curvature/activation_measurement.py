"""`ActivationMeasurement`: a model's activations, measured again and again: in training, and of a checkpoint."""

import fnmatch
import glob
import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from lit_gelu.activations import ActivationRegistry
from lit_gelu.arguments import check_count, is_count
from lit_gelu.curvature.activation.formulas import has_own_state, kinks_of
from lit_gelu.curvature.activation.gaussian_prediction import PREDICTED, GaussianPrediction
from lit_gelu.curvature.activation.recorder import ELEMENTS, ActivationRecorder
from lit_gelu.curvature.activation.sites import ModuleTree, SampleRows, watchable_sites
from lit_gelu.curvature.activation.statistics import STATISTICS, SUMS, accumulation_dtype, statistics_from_sums
from lit_gelu.curvature.probe.batches import clone_batch
from lit_gelu.curvature.probe.loss_probe import logging_modules, loss_function, muted
from lit_gelu.curvature.ranks import maximum_over_ranks, sum_over_ranks
from lit_gelu.errors import ArgumentError, LitGeluError
from lit_gelu.sandbox import evaluation_sandbox, isolated_random_state, preserved_state
from lit_gelu.surgery.sites import names_for_patterns

Figures = dict[str, dict[str, float]]
"""By site and statistic."""


class Readout(NamedTuple):
    """Numbers on their way to the host: there once ``arrival`` has come, at once if it is ``None``."""

    values: Tensor
    arrival: torch.cuda.Event | None

    def has_arrived(self) -> bool:
        """Return, without waiting, whether the numbers are there."""
        return self.arrival is None or bool(self.arrival.query())  # type: ignore[no-untyped-call]


@dataclass(frozen=True, kw_only=True)
class ActivationSettings:
    """What is measured of activations."""

    # Patterns for the names of the sites; a gate is watched only if it is named in full.
    include: tuple[str, ...] = ("*",)
    # How many rows of each input; "auto" for 8,192 elements, "sparse" for 4,096, ``None`` for all.
    sample_rows: SampleRows = "auto"
    seed: int = 0  # which rows are drawn
    # Measurements in a row after which a channel counts as dead; ``None`` to count none.
    dead_unit_window: int | None = 100
    gaussian: bool = True  # whether to say what a normal input would give

    def __post_init__(self) -> None:
        rows = self.sample_rows
        if rows is not None and not is_count(rows, 1) and not (isinstance(rows, str) and rows in ELEMENTS):
            raise ArgumentError(
                f"sample_rows={rows!r} is not accepted. Give a number, 'auto', 'sparse', or None for all."
            )
        if self.dead_unit_window is not None:
            check_count("dead_unit_window", self.dead_unit_window, 1)
        check_count("seed", self.seed, 0)


class DeadUnitWindow:
    """Remembers, of every channel of every site, at which event it was last alive.

    A channel is alive at an event if |f'| >= 0.01 at any element that was looked at, and dead if it was not for
    ``window`` events. A channel that is open at a share p of its elements is taken for dead with the probability
    ``(1 - p)^n``, n the elements that were looked at: rows a event and rank, times ranks, times ``window``.

    Example:
        >>> window = DeadUnitWindow(2, [3])
        >>> for mask in ([True, False, True], [False, False, True]):
        ...     window.update(torch.tensor(mask))
        >>> window.shares().item() * 3, window.is_full
        (1.0, True)
    """

    def __init__(self, window: int, channels: Sequence[int], device: torch.device | str = "cpu") -> None:
        if window < 1:
            raise ArgumentError(f"{window=} is not accepted. Give a positive number of events.")
        self.window = window
        self.channels = list(channels)
        self.events = 0
        self._last_alive = torch.zeros(sum(self.channels), dtype=torch.int64, device=device)
        sizes = torch.tensor(self.channels, dtype=torch.int64)
        self._sizes = sizes.to(self._last_alive.device, accumulation_dtype(self._last_alive.device))
        self._site = torch.repeat_interleave(torch.arange(len(self.channels)), sizes).to(device)
        self._since = [0] * len(self.channels)  # the events before a site was first seen

    @property
    def is_full(self) -> bool:
        """Whether as many events were seen as the window has."""
        return self.events >= self.window

    def join(self, masks: Mapping[int, Tensor]) -> Tensor:
        """Return the masks of an event, by site, as one; sites without one, or of another length, count as alive."""
        device = self._last_alive.device
        parts = []
        for number, count in enumerate(self.channels):
            mask = masks.get(number)
            if mask is None or mask.shape != (count,):
                mask = torch.ones(count, dtype=torch.bool, device=device)
            parts.append(mask if mask.device == device else mask.to(device))
        return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.bool, device=device)

    def update(self, alive: Tensor) -> None:
        """Take note of an event, by what `join` returned."""
        self.events += 1
        self._last_alive.masked_fill_(alive.to(self._last_alive.device), self.events)

    def grown(self, channels: Sequence[int]) -> "DeadUnitWindow":
        """Return the window with channels of sites that had none; theirs begins here."""
        grown = DeadUnitWindow(self.window, channels, self._last_alive.device)
        grown.events = self.events
        grown._since = [
            since if before else self.events for since, before in zip(self._since, self.channels, strict=True)
        ]
        existing = torch.tensor(self.channels, device=grown._site.device)[grown._site] > 0
        grown._last_alive.fill_(self.events)[existing] = self._last_alive
        return grown

    def shares(self) -> Tensor:
        """Return the share of each site's channels that is dead; NaN of a site without channels, or a full window."""
        dead = (self._last_alive <= self.events - self.window).to(self._sizes)
        shares = torch.zeros_like(self._sizes).index_add_(0, self._site, dead) / self._sizes
        late = [number for number, since in enumerate(self._since) if since and self.events - since < self.window]
        if late:
            shares[late] = torch.nan
        return shares

    def state_dict(self) -> dict[str, Any]:
        """Return all that a resumed run needs."""
        return {
            "events": self.events,
            "channels": list(self.channels),
            "last_alive": self._last_alive.cpu().clone(),
            "since": list(self._since),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from what `state_dict` of a window with these channels returned."""
        self.events, self._since = state_dict["events"], list(state_dict["since"])
        self._last_alive.copy_(state_dict["last_alive"])


class ActivationMeasurement:
    """Watches the sites of a model as it is now, and turns what they are given into figures."""

    def __init__(
        self,
        model: nn.Module,
        settings: ActivationSettings,
        registry: ActivationRegistry,
        input_sample: Any = None,
        *,
        gates_if_alone: bool = False,  # watch gates (tanh, sigmoid) where there is nothing else
    ) -> None:
        self.settings = settings
        self.passed_over: dict[str, None] = {}  # the names of all activations that there are
        self._tree = ModuleTree(model)

        def requested(name: str) -> bool:
            self.passed_over[name] = None
            names = names_for_patterns(name)
            return any(fnmatch.fnmatchcase(each, pattern) for each in names for pattern in settings.include)

        def named(name: str) -> bool:  # as in `lit_gelu.surgery.swap`: a pattern does not catch a gate
            names = names_for_patterns(name)
            return not {*names, *map(glob.escape, names)}.isdisjoint(settings.include)

        self._sites = watchable_sites(model, input_sample, registry=registry, accept=requested, accept_gate=named)
        if gates_if_alone and not self._sites.calls and self._sites.gates:
            self._sites = watchable_sites(model, input_sample, registry=registry, accept_gate=lambda _: True)
        calls = self._sites.calls
        self.names = list(calls)  # of the sites that are watched; none if there is nothing to watch
        self.gates, self.refused = self._sites.gates, self._sites.refused
        self.unknown_kinks = [name for name, call in calls.items() if kinks_of(call.activation, registry) is None]
        self.recorder = ActivationRecorder(calls, settings.sample_rows, registry)
        self._window: DeadUnitWindow | None = None
        self._called: set[int] = set()  # the sites that were given something, on any rank
        self._predictions = _predictions(self.recorder, registry) if settings.gaussian else []

    def is_current(self) -> bool:
        """Return whether the model still consists of the modules that it did."""
        return self._tree.is_unchanged()

    def detach(self) -> None:
        """Take hooks and probes off."""
        self.recorder.detach()
        self._sites.remove()

    def saw_all(self) -> bool:
        """Return whether every site was called since the recorder was started."""
        self.recorder.add_up()
        return len(self.recorder.called) == len(self.names)

    def reduce(self, device: torch.device, *, over_ranks: bool = False) -> Readout:
        """Add up what was recorded, and begin to bring it to the host; with shares of dead units."""
        sums = self.recorder.sums(device).flatten()
        window = self._window = self._window_for(device, over_ranks=over_ranks)
        if window is None:
            return _to_host(sum_over_ranks(sums) if over_ranks else sums)
        alive = window.join(self.recorder.alive_channels()).to(sums)
        if over_ranks:
            sums, alive = torch.split(sum_over_ranks(torch.cat([sums, alive])), [len(sums), len(alive)])
        window.update(alive > 0)
        return _to_host(torch.cat([sums, window.shares().to(sums)]) if window.is_full else sums)

    def figures(self, readout: Readout) -> tuple[Figures, Figures]:
        """Turn what has arrived on the host into figures: the measured ones, and those of a normal input."""
        # The measured ones have share_dead where a window of events is full; a normal input is supposed where an
        # activation has no parameters.
        if readout.arrival is not None:
            readout.arrival.synchronize()
        size = len(self.names) * len(SUMS)
        sums, dead = readout.values[:size].double(), readout.values[size:].tolist()
        rows = statistics_from_sums(sums.view(-1, len(SUMS)))
        measured = {
            name: dict(zip(STATISTICS, row, strict=True)) for name, row in zip(self.names, rows.tolist(), strict=True)
        }
        for name, share in zip(self.names, dead, strict=False):
            # A site that was given nothing has no share of non-finite inputs either.
            if not math.isnan(share) and not math.isnan(measured[name]["share_non_finite"]):
                measured[name]["share_dead"] = share
        predicted: Figures = {}
        mean, deviation = (rows[:, STATISTICS.index(name)] for name in ("mean", "standard_deviation"))
        for prediction, numbers in self._predictions:
            for number, values in zip(numbers, prediction(mean[numbers], deviation[numbers]).tolist(), strict=True):
                predicted[self.names[number]] = dict(zip(PREDICTED, values, strict=True))
        return measured, predicted

    def state_dict(self) -> dict[str, Any]:
        """Return all that a resumed run needs to measure the same."""
        return {"sites": self.names, "window": None if self._window is None else self._window.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any], device: torch.device) -> None:
        """Go on from what `state_dict` returned, on a device; nothing is taken over from other sites."""
        window = state_dict["window"]
        if state_dict["sites"] == self.names and window is not None and self.settings.dead_unit_window is not None:
            self._window = DeadUnitWindow(self.settings.dead_unit_window, window["channels"], device)
            self._window.load_state_dict(window)

    def _window_for(self, device: torch.device, *, over_ranks: bool) -> DeadUnitWindow | None:
        """Return the window with the channels that sites have now; all ranks agree on how many these are."""
        window, length = self._window, self.settings.dead_unit_window
        if length is None or (window is not None and len(self._called) == len(self.names)):
            return window
        masks, sites = self.recorder.alive_channels(), range(len(self.names))
        sizes = [len(masks[number]) if number in masks else 0 for number in sites]
        counts = torch.tensor([sizes, [number in self.recorder.called for number in sites]])
        if over_ranks:
            counts = maximum_over_ranks(counts.to(device)).cpu()
        largest, called = counts.tolist()
        self._called.update(number for number in sites if called[number])
        if window is None:
            return DeadUnitWindow(length, largest, device)
        return window.grown([before or now for before, now in zip(window.channels, largest, strict=True)])


class BatchStatistics(NamedTuple):
    """The statistics of a model's activations on some batches."""

    measured: Figures
    gaussian: Figures  # of a normal input of the same mean and deviation
    refused: dict[str, str]  # sites that cannot be watched, and why


def statistics_on(
    model: nn.Module, batches: Sequence[Any], registry: ActivationRegistry, input_sample: Any = None
) -> BatchStatistics:
    """Measure the activations in the passes that compute the loss of some batches; the model is left as it was."""
    settings = ActivationSettings(sample_rows=None, dead_unit_window=1)
    with ExitStack() as stack:
        # `torch.nn.TransformerEncoderLayer` has a kernel for its evaluation that calls no activation.
        stack.callback(torch.backends.mha.set_fastpath_enabled, torch.backends.mha.get_fastpath_enabled())
        torch.backends.mha.set_fastpath_enabled(False)
        stack.enter_context(isolated_random_state(model))
        stack.enter_context(evaluation_sandbox(model))
        if not any(map(is_lazy, model.parameters())):  # the pass makes such layers others
            stack.enter_context(preserved_state(model))
        measurement = ActivationMeasurement(model, settings, registry, input_sample, gates_if_alone=True)
        stack.callback(measurement.detach)
        if not measurement.names:
            return BatchStatistics({}, {}, dict(measurement.refused))
        stack.enter_context(muted(logging_modules(model.modules())))
        measurement.recorder.start()
        for number, batch in enumerate(batches):
            loss_function(model)(clone_batch(batch), number)  # steps write into it (`x /= 255`)
        measurement.recorder.stop()
        measured, gaussian = measurement.figures(measurement.reduce(torch.device("cpu")))
        refused = dict(measurement.refused)
        for name in [name for name, row in measured.items() if math.isnan(row["share_non_finite"])]:
            del measured[name]
            gaussian.pop(name, None)
            refused[name] = "it was not called, or with nothing, when the loss of these batches was computed"
        return BatchStatistics(measured, gaussian, refused)


def _to_host(values: Tensor) -> Readout:
    """Begin to bring numbers to the host; on CUDA into pinned memory, while the device goes on."""
    if values.device.type != "cuda":
        return Readout(values.cpu(), None)
    host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
    host.copy_(values, non_blocking=True)
    arrival = torch.cuda.Event()  # type: ignore[no-untyped-call]
    arrival.record(torch.cuda.current_stream(values.device))
    return Readout(host, arrival)


def _predictions(
    recorder: ActivationRecorder, registry: ActivationRegistry
) -> list[tuple[GaussianPrediction, list[int]]]:
    by_spec: dict[str, list[int]] = {}
    modules = list(recorder.sites.values())
    for number, module in enumerate(modules):
        spec = registry.spec_of(module)
        if not spec.opaque and not has_own_state(module):
            by_spec.setdefault(str(spec), []).append(number)
    predictions = []
    for numbers in by_spec.values():
        try:
            predictions.append((GaussianPrediction(modules[numbers[0]], registry), numbers))
        except LitGeluError:  # it is not finite everywhere, so it has no expectations
            continue
    return predictions
