"""`ActivationChoice`: what a comparison of activations gave, as an object that prints, draws and writes itself."""

import json
import math
import statistics
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from lightning.pytorch import LightningModule

from lit_gelu.choose import sequential
from lit_gelu.choose.statistics import (
    ALPHA,
    Metric,
    MetricDifference,
    Test,
    all_differences,
    listed,
    unpaired_test,
    verdict,
)
from lit_gelu.display import Displayed, HtmlTable, count_of
from lit_gelu.files import without_nonfinite

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SCHEMA = 5
# How differences are tested: the words for it, and what does it; Student's test is that of `all_differences`.
TESTS: dict[str, tuple[str, Test | None]] = {
    "paired": ("Student's test of {} over {} seeds", None),
    "sequential": (
        "the sequential t-test of {} over {} seeds",
        lambda of, to, rounding: sequential.sequential_test(of - to, rounding),
    ),
    "unpaired": ("Welch's test of {} over {} runs of each, or more", unpaired_test),
}
_FUTILE = 0.05  # the chance of a decision below which more seeds are not worth their time


@dataclass(repr=False)
class TrainedRun(Displayed):
    """One run: a candidate with a seed."""

    label: str  # the candidate's
    spec: str  # its activation
    seed: int  # what ``seed_everything`` was given before the module was built
    val: dict[str, float] = field(default_factory=dict)  # logged in a validation of the trained module, by name
    test: dict[str, float] = field(default_factory=dict)  # logged in a test of it
    seconds: float = 0.0  # its training, or its share of the group's
    failure: str = ""  # why it ended early; empty if it did not
    diverged: bool = False  # whether its parameters were not all finite at the end, whatever it logged

    def value(self, metric: Metric) -> float | None:
        """Return the metric at the end of the run, ``None`` if there is none, NaN if the run diverged."""
        if self.failure:
            return None
        if self.diverged:  # an error rate is a number all the same
            return math.nan
        return (self.val if metric.stage == "val" else self.test).get(metric.name)


@dataclass(repr=False)
class CandidateReport(Displayed):
    """What is known of one candidate."""

    label: str  # what it is called
    spec: str  # its activation
    runs: list[TrainedRun]  # one a seed, in the order of the seeds

    def values(self, metric: Metric) -> list[float]:
        """Return the metric at the end of each run; a run that diverged or failed is worse than any other."""
        worst = math.inf if metric.mode == "min" else -math.inf
        values = [run.value(metric) for run in self.runs]
        return [worst if value is None or not math.isfinite(value) else value for value in values]

    def is_whole(self, metric: Metric) -> bool:
        """Return whether every run came to its end with a number."""
        return all(map(math.isfinite, self.values(metric)))


@dataclass(repr=False)
class ActivationChoice(Displayed):
    """What `lit_gelu.choose.choose` or `lit_gelu.choose.compare` gave.

    ``print(choice)`` gives the table and the sentences, `to_json` all figures, `module` the best run's module.
    """

    metric: Metric  # what decides
    seeds: list[int]  # of the runs of every candidate; of runs that are not paired, of any
    candidates: list[CandidateReport]  # the best median first; those with runs that failed come last
    baseline: str | None = None  # the label of the candidate that others are compared with too
    trained: str = ""  # how: in a group, or one after another and why
    notes: list[str] = field(default_factory=list)  # what else should be known, in sentences
    files: dict[str, str] = field(default_factory=dict)  # what was written, by what it is, as names within `folder`
    folder: Path | None = None  # where finished runs and files are, if they are kept
    module: LightningModule | None = None  # the best run's, trained
    test: str = "paired"  # how differences are tested, by `TESTS`
    compared: str = "activation"  # what the candidates are
    differences: list[MetricDifference] = field(init=False)  # of all pairs whose runs all came to their end

    def __post_init__(self) -> None:
        def rank(candidate: CandidateReport) -> tuple[bool, float, float]:
            best = min(map(self.metric.badness, candidate.values(self.metric)))  # where no median is a number
            return not candidate.is_whole(self.metric), self.metric.badness(self.median(candidate)), best

        self.candidates = sorted(self.candidates, key=rank)
        complete = [candidate for candidate in self.candidates if candidate.is_whole(self.metric)]
        values = {one.label: one.values(self.metric) for one in complete}
        self.differences = all_differences(values, TESTS[self.test][1])

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
        pairs = zip(self.best.values(self.metric), self.best.runs, strict=True)
        return min(pairs, key=lambda pair: self.metric.badness(pair[0]))[1]

    def difference(self, of: str, to: str) -> MetricDifference | None:
        """Return the difference of two candidates; ``None`` if one of them is not compared."""
        both = (d for one in self.differences for d in (one, one.reversed()))
        return next((d for d in both if (d.of, d.to) == (of, to)), None)

    @property
    def verdict(self) -> list[str]:
        """What is decided and what is not, and which runs did not come to their end."""
        labels = [candidate.label for candidate in self.candidates if candidate.is_whole(self.metric)]
        seeds = min(len(candidate.runs) for candidate in self.candidates)
        lines = verdict(self.metric, labels, self.differences, seeds, self.baseline, TESTS[self.test][0])
        if self.test == "sequential":
            lines += [self._seeds_needed(difference) for difference in self.undecided()]
        for candidate in self.candidates:
            kinds: dict[str, list[str]] = {}
            for run in candidate.runs:
                value = run.value(self.metric)
                if run.failure or value is None:
                    why = f"failed ({run.failure})" if run.failure else f"logged no {self.metric.name}"
                    kinds.setdefault(why, []).append(str(run.seed))
                elif not math.isfinite(value):
                    kinds.setdefault("diverged", []).append(str(run.seed))
            if kinds:
                parts = [f"{why} with seed {listed(seeds)}" for why, seeds in kinds.items()]
                lines.append(f"{candidate.label} {listed(parts)}, and is not compared.")
        return lines

    def undecided(self) -> list[MetricDifference]:
        """Return the differences from the baseline, or else from the best, that are not decided and not 0."""
        reference = self.baseline or self.best.label
        pairs = (d for one in self.differences for d in (one, one.reversed()) if d.of == reference)
        return [difference for difference in pairs if not difference.is_decided and not difference.equal]

    def is_futile(self, difference: MetricDifference, most: int) -> bool:
        """Return whether seeds up to ``most`` would decide a difference in less than one of twenty cases."""
        alpha = ALPHA / len(self.differences)
        return sequential.chance_of_decision(self._paired(difference), most, alpha) < _FUTILE

    def _paired(self, difference: MetricDifference) -> np.ndarray:
        values = {candidate.label: candidate.values(self.metric) for candidate in self.candidates}
        return np.subtract(values[difference.of], values[difference.to])

    def _seeds_needed(self, difference: MetricDifference) -> str:
        """Return how many seeds a difference as large as the one seen needs, by the spread seen so far."""
        differences = self._paired(difference)
        spread, effect = float(differences.std(ddof=1)), abs(difference.mean)
        stated = sequential.seeds_stated(effect / max(spread, 1e-12), len(differences), ALPHA / len(self.differences))
        number = " to ".join(dict.fromkeys(str(seeds or "10,000 or more") for seeds in stated))
        return (
            f"{difference.of} and {difference.to}: with the spread seen so far ({spread:.2g}), a difference of "
            f"{effect:.2g}, which is the one seen, needs about {number} seeds."
        )

    @property
    def _references(self) -> list[str]:
        return list(dict.fromkeys(filter(None, [self.best.label, self.baseline])))

    @property
    def header(self) -> list[str]:
        """The heads of the table's columns."""
        return [
            self.compared,
            f"median {self.metric.name}",
            "lowest",
            "highest",
            *(f"to {x}" for x in self._references),
        ]

    @property
    def rows(self) -> list[list[str]]:
        """The table: a row a candidate."""
        rows = []
        for candidate in self.candidates:
            values = candidate.values(self.metric)
            numbers = (self.median(candidate), min(values), max(values))
            differences = [_interval(self.difference(candidate.label, label)) for label in self._references]
            rows.append([candidate.label, *(f"{number:.4g}" for number in numbers), *differences])
        return rows

    def __str__(self) -> str:
        """Return the table, and below it what is decided."""
        lines = [self.header, *self.rows]
        first, *others = [max(map(len, column)) for column in zip(*lines, strict=True)]
        table = []
        for label, *cells in lines:
            numbers = (cell.rjust(width) for cell, width in zip(cells, others, strict=True))
            table.append("  ".join([label.ljust(first), *numbers]).rstrip())
        return "\n".join([*table, "", *self.verdict, *self.notes, *filter(None, [self.trained])])

    def to_json(self) -> str:
        """Return all figures as JSON; what is no number is text."""
        plain = {
            "schema": SCHEMA,
            "metric": asdict(self.metric),
            "test": self.test,
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
            "differences": [asdict(each) | {"decided": each.is_decided} for each in self.differences],
        }
        return json.dumps(without_nonfinite(plain, as_text=True), indent=1)

    def _summary(self) -> str:
        medians = ", ".join(f"{one.label} {self.median(one):.4g}" for one in self.candidates)
        return f"{self.metric.name} over {self._extent}: {medians}"

    @property
    def _extent(self) -> str:
        if self.test == "paired":
            return count_of(len(self.seeds), "seed")
        return count_of(sum(len(candidate.runs) for candidate in self.candidates), "run")

    def _html_table(self) -> HtmlTable:
        below = [*self.verdict, *self.notes, self.trained]
        return HtmlTable(tuple(self.header), self.rows, f"{self.metric.name}, medians over {self._extent}", below)

    def draw_differences(self) -> "Figure":
        """Draw how far each candidate is from the best one, and from the baseline, with 95 % intervals."""
        from matplotlib.figure import Figure

        references = self._references
        figure = Figure(figsize=(6.4, 1.2 + 0.42 * len(self.candidates) * len(references)), layout="constrained")
        for axes, label in zip(figure.subplots(len(references), 1, squeeze=False)[:, 0], references, strict=True):
            rows = [d for c in self.candidates if (d := self.difference(c.label, label)) is not None]
            axes.axvline(0, color="0.5", linewidth=1)
            for place, row in enumerate(rows):
                colour = "#D55E00" if row.is_decided else "0.45"
                if row.low is not None and row.high is not None:
                    axes.plot([row.low, row.high], [place, place], color=colour, linewidth=2)
                axes.plot([row.mean], [place], "o", color=colour)
            axes.set_yticks(range(len(rows)), [row.of for row in rows])
            axes.set_ylim(len(rows) - 0.5, -0.5)
            axes.set_xlabel(f"{self.metric.name} beside that of {label}, mean over {self._extent}, 95 %")
            axes.spines[["top", "right"]].set_visible(False)
        return figure


def _interval(difference: MetricDifference | None) -> str:
    if difference is None:
        return "-"
    if difference.equal:
        return "0"
    ends = "" if difference.low is None else f" [{difference.low:+.3g}, {difference.high:+.3g}]"
    return f"{difference.mean:+.3g}{ends}{' *' if difference.is_decided else ''}"
