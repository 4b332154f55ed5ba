"""`ActivationChoice`: what a comparison of activations found, as an object that prints itself."""

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from lightning.pytorch import LightningModule

from lit_gelu.choose.intervals import PairedDifference, all_differences
from lit_gelu.choose.metric import Metric
from lit_gelu.choose.run_files import SCHEMA, TrainedRun, is_finite
from lit_gelu.choose.verdict import listed, sentences
from lit_gelu.display import Displayed, HtmlTable, count_of
from lit_gelu.files import without_nonfinite

_UNITS = {"step_seconds": ("ms/step", 1e3), "kept_bytes": ("MB/step", 1e-6), "latency_seconds": ("ms/row", 1e3)}
_BENDS = {"top_eigenvalue": "top eigenvalue", "curvature": "curvature"}


@dataclass(repr=False)
class CandidateReport(Displayed):
    """What is known of one candidate.

    Args:
        label: What it is called.
        spec: Its activation.
        runs: One a seed, in the order of the seeds.
        step_seconds: The median time of a training step; ``None`` if it was not measured, as the others.
        kept_bytes: What a training step keeps for its backward pass, without parameters.
        latency_seconds: The median time of one row in the exported file.
        bends: Figures of curvature, see `lit_gelu.choose.bends.bends`.
    """

    label: str
    spec: str
    runs: list[TrainedRun]
    step_seconds: float | None = None
    kept_bytes: int | None = None
    latency_seconds: float | None = None
    bends: dict[str, float] = field(default_factory=dict)

    def values(self, metric: Metric) -> list[float]:
        """Return the metric at the end of each run; a run that diverged or failed is worse than any other."""
        worst = math.inf if metric.mode == "min" else -math.inf
        found = [run.value(metric) for run in self.runs]
        return [worst if value is None or not math.isfinite(value) else value for value in found]

    def is_whole(self, metric: Metric) -> bool:
        """Return whether every run came to its end with a number."""
        return all(is_finite(run.value(metric)) for run in self.runs)

    def middle(self, metric: Metric) -> TrainedRun | None:
        """Return the run nearest to the median: it stands for the candidate where one run is measured."""
        values = self.values(metric)
        finite = [pair for pair in zip(values, self.runs, strict=True) if math.isfinite(pair[0])]
        if not finite:
            return None
        median = statistics.median(value for value, _ in finite)
        return min(finite, key=lambda pair: abs(pair[0] - median))[1]

    def _summary(self) -> str:
        return f"{self.label}: {self.spec}, {count_of(len(self.runs), 'run')}"


@dataclass(repr=False)
class ActivationChoice(Displayed):
    """What `lit_gelu.choose.choose` found.

    ``print(choice)`` gives the table and the sentences, `to_json` all figures, `module` the best run's module.

    Args:
        metric: What decides.
        seeds: Of the runs of every candidate.
        candidates: What is known of each, the best median first; those with runs that failed come last.
        baseline: The label of the candidate that others are compared with too, if there is one.
        trained: How: in a group, or one after another and why.
        notes: What else should be known, in sentences.
        folder: Where files were written; ``None`` if nowhere.
        files: Their names, by what they are.
        module: The best run's module, in evaluation mode.
    """

    metric: Metric
    seeds: list[int]
    candidates: list[CandidateReport]
    baseline: str | None = None
    trained: str = ""
    notes: list[str] = field(default_factory=list)
    folder: Path | None = None
    files: dict[str, str] = field(default_factory=dict)
    module: LightningModule | None = None

    def __post_init__(self) -> None:
        """Bring the candidates in order, and compare those that came to their end with every seed."""
        self.candidates.sort(key=self._place)
        whole = {c.label: c.values(self.metric) for c in self.candidates if c.is_whole(self.metric)}
        self.differences: list[PairedDifference] = all_differences(whole)

    def _place(self, candidate: CandidateReport) -> tuple[bool, float]:
        return not candidate.is_whole(self.metric), self.metric.badness(self.median(candidate))

    def median(self, candidate: CandidateReport) -> float:
        """Return the median over the seeds; a run that diverged or failed is worse than any other."""
        return statistics.median(candidate.values(self.metric))

    @property
    def best(self) -> CandidateReport:
        """The candidate with the best median."""
        return self.candidates[0]

    @property
    def best_run(self) -> TrainedRun:
        """Its best run."""
        values = self.best.values(self.metric)
        return self.best.runs[min(range(len(values)), key=lambda place: self.metric.badness(values[place]))]

    def difference(self, of: str, to: str) -> PairedDifference | None:
        """Return the difference of two candidates; ``None`` if one of them is not compared."""
        for found in self.differences:
            if {found.of, found.to} == {of, to} and of != to:
                return found if found.of == of else found.reversed()
        return None

    @property
    def verdict(self) -> list[str]:
        """What is decided and what is not, and which runs did not come to their end."""
        medians = {c.label: self.median(c) for c in self.candidates if c.is_whole(self.metric)}
        said = sentences(self.metric, medians, self.differences, len(self.seeds), self.baseline)
        return said + [self._failed(c) for c in self.candidates if not c.is_whole(self.metric)]

    def _failed(self, candidate: CandidateReport) -> str:
        failed = [run for run in candidate.runs if run.failure]
        ended = [(run, run.value(self.metric)) for run in candidate.runs if not run.failure]
        diverged = [run for run, value in ended if value is not None and not is_finite(value)]
        silent = [run for run, value in ended if value is None]
        parts = []
        if silent:
            parts.append(f"logged no {self.metric.name} with {_seeds(silent, len(self.seeds))}")
        if diverged:
            parts.append(f"diverged with {_seeds(diverged, len(self.seeds))}")
        if failed:
            parts.append(f"failed with {_seeds(failed, len(self.seeds))} ({failed[0].failure})")
        return f"{candidate.label} {listed(parts)}, and is not compared."

    @property
    def header(self) -> list[str]:
        """The heads of the table's columns."""
        costs = [unit for name, (unit, _) in _UNITS.items() if self._any(name)]
        curved = [text for name, text in _BENDS.items() if any(name in c.bends for c in self.candidates)]
        against = [f"to {label}" for label in self._references()]
        return ["activation", f"median {self.metric.name}", "lowest", "highest", *against, *costs, *curved]

    @property
    def rows(self) -> list[list[str]]:
        """The table: a row a candidate."""
        return [self._row(candidate) for candidate in self.candidates]

    def _references(self) -> list[str]:
        """Return what the differences in the table are to: the best, and the baseline."""
        if not self.best.is_whole(self.metric):
            return []
        return list(dict.fromkeys(filter(None, [self.best.label, self.baseline])))

    def _any(self, name: str) -> bool:
        return any(getattr(candidate, name) is not None for candidate in self.candidates)

    def _row(self, candidate: CandidateReport) -> list[str]:
        values = candidate.values(self.metric)
        cells = [candidate.label, *(f"{value:.4g}" for value in (self.median(candidate), min(values), max(values)))]
        cells += [_interval(self.difference(candidate.label, label)) for label in self._references()]
        for name, (_, factor) in _UNITS.items():
            if self._any(name):
                value = getattr(candidate, name)
                cells.append("-" if value is None else f"{factor * value:.3g}")
        for name in _BENDS:
            if any(name in c.bends for c in self.candidates):
                cells.append(f"{candidate.bends[name]:.3g}" if name in candidate.bends else "-")
        return cells

    def __str__(self) -> str:
        """Return the table, and below it what is decided."""
        lines = [self.header, *self.rows]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        return "\n".join([*(_aligned(line, widths) for line in lines), "", *self.verdict, *self.notes, self.trained])

    def to_json(self) -> str:
        """Return all figures as JSON; what is no number is text.

        Returns:
            The text.
        """
        found = {
            "schema": SCHEMA,
            "metric": asdict(self.metric),
            "seeds": self.seeds,
            "baseline": self.baseline,
            "best": {"label": self.best.label, "spec": self.best.spec, "seed": self.best_run.seed},
            "verdict": self.verdict,
            "notes": self.notes,
            "trained": self.trained,
            "files": self.files,
            "candidates": [
                asdict(c) | {"median": self.median(c), "values": c.values(self.metric)} for c in self.candidates
            ],
            "differences": [asdict(found) | {"decided": found.is_decided} for found in self.differences],
        }
        return json.dumps(without_nonfinite(found, as_text=True), indent=1)

    def _summary(self) -> str:
        medians = ", ".join(f"{one.label} {self.median(one):.4g}" for one in self.candidates)
        return f"{self.metric.name} over {count_of(len(self.seeds), 'seed')}: {medians}"

    def _html_table(self) -> HtmlTable:
        said = [*self.verdict, *self.notes, self.trained]
        return HtmlTable(tuple(self.header), self.rows, f"{self.metric.name}, medians over the seeds", said)


def _aligned(cells: Sequence[str], widths: Sequence[int]) -> str:
    first, *numbers = zip(cells, widths, strict=True)
    return "  ".join([first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in numbers)]).rstrip()


def _seeds(runs: Sequence[TrainedRun], of: int) -> str:
    if len(runs) == of:
        return "every seed"
    return f"{'seed' if len(runs) == 1 else 'seeds'} {listed([str(run.seed) for run in runs])}"


def _interval(found: PairedDifference | None) -> str:
    if found is None:
        return "-"
    if found.equal:
        return "0"
    ends = "" if found.low is None else f" [{found.low:+.3g}, {found.high:+.3g}]"
    return f"{found.mean:+.3g}{ends}{' *' if found.is_decided else ''}"


def label_notes(specs: Mapping[str, str]) -> list[str]:
    """Say which labels are one activation."""
    by_spec: dict[str, list[str]] = {}
    for label, spec in specs.items():
        by_spec.setdefault(spec, []).append(label)
    return [f"{listed(labels)} are one activation, {spec}." for spec, labels in by_spec.items() if len(labels) > 1]
