"""`ActivationMeasurement`: a model's activations, measured again and again: in training, and of a checkpoint."""

import fnmatch
import glob
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lit_gelu.activations import ActivationRegistry
from lit_gelu.curvature.activation.call_sites import ModuleTree, watchable_sites
from lit_gelu.curvature.activation.dead_units import DeadUnitWindow
from lit_gelu.curvature.activation.evaluator import ActivationEvent
from lit_gelu.curvature.activation.formulas import has_own_state, kinks_of
from lit_gelu.curvature.activation.gaussian_prediction import PREDICTED, GaussianPrediction
from lit_gelu.curvature.activation.recorder import ActivationRecorder
from lit_gelu.curvature.activation.statistics import STATISTICS, SUMS, statistics_from_sums
from lit_gelu.curvature.probe.training_loss import loss_of, muted
from lit_gelu.curvature.ranks import is_one_of_several, maximum_over_ranks, sum_over_ranks
from lit_gelu.curvature.settings import ActivationSettings
from lit_gelu.errors import LitGeluError
from lit_gelu.sandbox import evaluation_sandbox, isolated_random_state
from lit_gelu.surgery.sites import names_for_patterns

Figures = dict[str, dict[str, float]]
"""By site and statistic."""

WAITING_BYTES = 2**26
"""So much of rows that wait to be summed is kept, at most."""

MOST_WAITING = 64
"""So many recordings wait to be summed, at most."""


class Readout(NamedTuple):
    """Numbers on their way to the host: there once ``arrival`` has come, at once if it is ``None``."""

    values: Tensor
    arrival: torch.cuda.Event | None


class ActivationMeasurement:
    """Watches the sites of a model as it is now, and turns what they are given into figures."""

    def __init__(
        self,
        model: nn.Module,
        settings: ActivationSettings,
        registry: ActivationRegistry,
        input_sample: Any = None,
        *,
        gates_if_alone: bool = False,
    ) -> None:
        # With `gates_if_alone`, gates (tanh, sigmoid) are watched where there is nothing else.
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
        self._most_waiting: int | None = None
        self._predictions = _predictions(self.recorder, registry)

    def is_current(self) -> bool:
        """Return whether the model still consists of the modules that it did."""
        return self._tree.is_unchanged()

    def detach(self) -> None:
        """Take hooks and probes off."""
        self.recorder.detach()
        self._sites.remove()

    def saw_all(self, event: ActivationEvent) -> bool:
        """Return whether every site was called."""
        return self.recorder.evaluator.saw_all(event)

    def may_wait(self, number: int) -> bool:
        """Return whether so many recordings may wait to be summed, none before the first; the same on all ranks."""
        return self.recorder.rows_may_wait and number <= (self._most_waiting or 0)

    def reduce(self, events: Sequence[ActivationEvent], device: torch.device) -> Readout:
        """Add up what was recorded in some steps, over ranks too, and begin to bring it to the host."""
        # In their order; all refer to the last one that was reduced before.
        if self._most_waiting is None:
            self._most_waiting = _most_waiting(sum(taken.rows.nbytes for taken in events[0].waiting), device)
        with self.recorder.inactive():
            self._take_reference(events[0], device)
            sums = torch.stack([self.recorder.evaluator.sums(each, device).flatten() for each in events])
            alive = torch.stack(self._alive(events, device)).to(sums)
        width = [sums.shape[1], alive.shape[1]]
        sums, alive = torch.split(sum_over_ranks(torch.cat([sums, alive], dim=1)), width, dim=1)
        by_site = sums.view(len(sums), len(self.names), len(SUMS))
        reference = self.recorder.reference
        pivot = torch.zeros_like(by_site[0, :, 0]) if reference is None else reference[:, 0].nan_to_num(nan=0.0)
        self.recorder.reference = _next_reference(by_site[-1], pivot, reference)
        return _to_host(torch.cat([sums, pivot.expand(len(sums), -1), self._dead(alive > 0, pivot)], dim=1))

    def figures(self, readout: Readout, *, gaussian: bool = True) -> list[tuple[Figures, Figures]]:
        """Turn what has arrived on the host into figures: of each event the measured ones, and of a normal input."""
        # The measured ones have share_dead where a window of events is full; a normal input is supposed where an
        # activation has no parameters.
        count = len(self.names)
        sums, pivot, dead = torch.split(arrived(readout), [count * len(SUMS), count, count], dim=1)
        rows = statistics_from_sums(sums.view(*pivot.shape, len(SUMS)).double(), pivot.double())
        predicted = self._predicted(rows) if gaussian else [{} for _ in rows]
        figures = []
        for values, shares, others in zip(rows.tolist(), dead.tolist(), predicted, strict=True):
            measured = {
                name: dict(zip(STATISTICS, row, strict=True)) for name, row in zip(self.names, values, strict=True)
            }
            for name, share in zip(self.names, shares, strict=True):
                # A site that was given nothing has no share of non-finite inputs either.
                if not math.isnan(share) and not math.isnan(measured[name]["share_non_finite"]):
                    measured[name]["share_dead"] = share
            figures.append((measured, others))
        return figures

    def state_dict(self) -> dict[str, Any]:
        """Return all that a resumed run needs to measure the same."""
        reference = self.recorder.reference
        return {
            "sites": self.names,
            "reference": None if reference is None else reference.cpu(),
            "window": None if self._window is None else self._window.state_dict(),
            "most_waiting": self._most_waiting,
        }

    def load_state_dict(self, state_dict: dict[str, Any], device: torch.device) -> None:
        """Go on from what `state_dict` returned, on a device; nothing is taken over from other sites."""
        if state_dict["sites"] != self.names:
            return
        if state_dict["reference"] is not None:
            self.recorder.reference = state_dict["reference"].to(device)
        self._most_waiting = state_dict.get("most_waiting")
        window = state_dict["window"]
        if window is not None and self.settings.dead_unit_window is not None:
            self._window = DeadUnitWindow(self.settings.dead_unit_window, window["channels"], device)
            self._window.load_state_dict(window)

    def _dead(self, alive: Tensor, pivot: Tensor) -> Tensor:
        """Return each site's share of dead channels after each of some events; NaN before the window is full."""
        shares = torch.full((len(alive), *pivot.shape), math.nan, dtype=pivot.dtype, device=pivot.device)
        if self._window is not None:
            for row, mask in zip(shares, alive, strict=True):
                self._window.update(mask)
                if self._window.is_full:
                    row.copy_(self._window.shares())
        return shares

    def _predicted(self, rows: Tensor) -> list[Figures]:
        """Return what normal inputs would give, for figures ``[events, sites, statistics]``."""
        predicted: list[Figures] = [{} for _ in rows]
        mean, deviation = (rows[:, :, STATISTICS.index(name)] for name in ("mean", "standard_deviation"))
        for prediction, numbers in self._predictions:
            expectations = prediction(mean[:, numbers].flatten(), deviation[:, numbers].flatten())
            for event, values in zip(predicted, expectations.view(len(rows), len(numbers), -1).tolist(), strict=True):
                for number, row in zip(numbers, values, strict=True):
                    event[self.names[number]] = dict(zip(PREDICTED, row, strict=True))
        return predicted

    def _take_reference(self, event: ActivationEvent, device: torch.device) -> None:
        """At the first event, get from all ranks what moments are taken about and how wide windows are."""
        if self.recorder.reference is None:
            count, total, squares = sum_over_ranks(self.recorder.evaluator.moments(event, device)).unbind(1)
            mean = total / count
            deviation = (squares / count - mean.square()).clamp(min=0).sqrt()
            self.recorder.reference = torch.stack([mean, deviation], dim=1)

    def _alive(self, events: Sequence[ActivationEvent], device: torch.device) -> list[Tensor]:
        """Return the masks of this rank's channels at some events; agree with the others on how many there are."""
        masks, window = [self.recorder.evaluator.alive_channels(event) for event in events], self._window
        if self.settings.dead_unit_window is None:
            return [torch.zeros(0, dtype=torch.bool, device=device) for _ in events]
        if window is None or len(self._called) < len(self.names):
            sizes = self._channels(events, masks, device)
            if window is None:
                window = DeadUnitWindow(self.settings.dead_unit_window, sizes, device)
            else:
                window = window.grown([before or now for before, now in zip(window.channels, sizes, strict=True)])
        self._window = window
        return [window.join(each) for each in masks]

    def _channels(
        self, events: Sequence[ActivationEvent], masks: Sequence[Mapping[int, Tensor]], device: torch.device
    ) -> list[int]:
        """Return how many channels each site had at some events, on any rank; note which sites were called at all."""
        seen = {number for event in events for numbers, _ in event.alive for number in numbers}
        sites = range(len(self.names))
        sizes = [max((len(each[number]) for each in masks if number in each), default=0) for number in sites]
        counts = torch.tensor([sizes, [int(number in seen) for number in sites]])
        if is_one_of_several():
            counts = maximum_over_ranks(counts.to(device)).cpu()
        largest: list[int]
        largest, called = counts.tolist()
        self._called.update(number for number in sites if called[number])
        return largest


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
        stack.enter_context(_without_fused_encoders())
        stack.enter_context(isolated_random_state(model))
        stack.enter_context(evaluation_sandbox(model))
        measurement = ActivationMeasurement(model, settings, registry, input_sample, gates_if_alone=True)
        stack.callback(measurement.detach)
        if not measurement.names:
            return BatchStatistics({}, {}, dict(measurement.refused))
        stack.enter_context(muted(model.modules()))
        measurement.recorder.start()
        for number, batch in enumerate(batches):
            loss_of(model, batch, number)
        measurement.recorder.stop()
        readout = measurement.reduce([measurement.recorder.take()], torch.device("cpu"))
        measured, gaussian = measurement.figures(readout)[0]
        refused = dict(measurement.refused)
        for name in [name for name, row in measured.items() if math.isnan(row["share_non_finite"])]:
            del measured[name]
            gaussian.pop(name, None)
            refused[name] = "it was not called, or with nothing, when the loss of these batches was computed"
        return BatchStatistics(measured, gaussian, refused)


@contextmanager
def _without_fused_encoders() -> Iterator[None]:
    """Keep `torch.nn.TransformerEncoderLayer` from the kernel of its evaluation, which calls no activation."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def _to_host(values: Tensor) -> Readout:
    """Begin to bring numbers to the host; on CUDA into pinned memory, while the device goes on."""
    if values.device.type != "cuda":
        return Readout(values.cpu(), None)
    host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
    host.copy_(values, non_blocking=True)
    arrival = torch.cuda.Event()  # type: ignore[no-untyped-call]
    arrival.record(torch.cuda.current_stream(values.device))
    return Readout(host, arrival)


def has_arrived(readout: Readout) -> bool:
    """Return, without waiting, whether the numbers are there."""
    return readout.arrival is None or bool(readout.arrival.query())  # type: ignore[no-untyped-call]


def arrived(readout: Readout) -> Tensor:
    """Return the numbers, as soon as they are there."""
    if readout.arrival is not None:
        readout.arrival.synchronize()
    return readout.values


def _most_waiting(nbytes: int, device: torch.device) -> int:
    """Return how many recordings may wait, given the size of the first; the same on all ranks."""
    if is_one_of_several():
        nbytes = int(maximum_over_ranks(torch.tensor([nbytes], device=device)))
    return min(MOST_WAITING, WAITING_BYTES // max(nbytes, 1))


def _next_reference(sums: Tensor, pivot: Tensor, before: Tensor | None) -> Tensor:
    """Return this event's mean and deviation for the next one; where nothing was measured, those before."""
    count, first, second = sums[:, 0], sums[:, SUMS.index("sum")], sums[:, SUMS.index("sum_of_squares")]
    shift = first / count
    deviation = (second / count - shift.square()).clamp(min=0).sqrt()
    moments = torch.stack([pivot + shift, deviation], dim=1)
    return moments if before is None else torch.where((count > 0)[:, None], moments, before)


def _predictions(
    recorder: ActivationRecorder, registry: ActivationRegistry
) -> list[tuple[GaussianPrediction, list[int]]]:
    """Return the predictions with the numbers of their sites: of registered activations without parameters."""
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
