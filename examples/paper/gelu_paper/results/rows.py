"""Rows of the tables: results beside the printed errors, and curves beside the points of the paper's figures."""

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from gelu_paper.errors import PaperArgumentError
from gelu_paper.protocol.experiments import EXPERIMENTS, Experiment
from gelu_paper.protocol.presets import preset
from gelu_paper.protocol.published import published_curve, published_number
from gelu_paper.records.run_record import RunRecord
from gelu_paper.results.labels import labels_of
from gelu_paper.results.medians import Summary, median_curve, median_robustness
from gelu_paper.results.selection import LEARNING_RATE, ArmChoice, ArmRuns, choices, place_of


@dataclass(frozen=True)
class Row:
    """One line of a table: an arm in one setting. Errors are shares from 0 to 1, losses in the task's own unit."""

    experiment: Experiment
    preset: str
    arm: str
    candidate: ArmRuns  # the runs that are reported
    quantity: str  # what was measured, such as "test error"
    is_share: bool  # shown in per cent; else a loss
    summary: Summary | None  # None if it was not measured
    published: float | None = None  # what the paper's authors published, in the same unit
    printed: str | None = None  # the same as it was printed, in per cent if a share
    source: str | None = None
    figure: int | None = None  # the paper's, for a point of a curve
    epoch: float | None = None  # epochs that had passed, for a point of a curve
    labels: tuple[str, ...] = ()  # what must be said wherever the numbers are shown
    remarks: tuple[str, ...] = ()  # what a reader has to know of the selection

    @property
    def difference(self) -> float | None:
        """Median minus published number, of the numbers before any rounding; ``None`` without one of them."""
        return None if self.summary is None or self.published is None else self.summary.median - self.published

    @property
    def setting(self) -> str:
        """The settings in words; those that the validation set chose are marked."""
        chosen = [name for name in self.candidate.setting if name in self.experiment.tuned]
        texts = [
            f"{name} {value:g}{' (chosen)' if name in chosen else ''}" for name, value in self.candidate.setting.items()
        ]
        return ", ".join(texts)


@dataclass(frozen=True)
class _Group:
    """An arm's choice, with what its rows have in common."""

    experiment: Experiment
    preset: str
    arm: str
    choice: ArmChoice

    def row(self, quantity: str, summary: Summary | None, is_share: bool = True) -> Row:
        return Row(
            experiment=self.experiment,
            preset=self.preset,
            arm=self.arm,
            candidate=self.choice.chosen,
            quantity=quantity,
            is_share=is_share,
            summary=summary,
            labels=tuple(labels_of(self.choice.chosen.runs)),
            remarks=self.choice.remarks,
        )


def result_rows(records: Sequence[RunRecord], only: Sequence[str] | None = None) -> list[Row]:
    """Return the results: for each experiment, setting and arm the median test error at the chosen learning rate."""
    rows: list[Row] = []
    for _, of_experiment in itertools.groupby(
        _groups(records, only), key=lambda group: (group.preset, group.experiment)
    ):
        groups = list(of_experiment)
        noisy = [row for group in groups for row in _noisy(group)]
        rows += [_result(group) for group in groups]
        rows += [row for _, row in sorted(noisy, key=lambda item: item[0])]
    return rows


def point_rows(records: Sequence[RunRecord], only: Sequence[str] | None = None) -> list[Row]:
    """Return the median curves at every epoch where a point of the paper's figures was read and the runs measured."""
    return [row for group in _groups(records, only) for row in _points(group)]


def experiments_of(records: Iterable[RunRecord], only: Sequence[str] | None = None) -> list[tuple[str, Experiment]]:
    """Return name of the preset and experiment for some records, in the order of `EXPERIMENTS`."""
    names = {(record.preset, record.experiment) for record in records}
    unknown = sorted(({name for _, name in names} | set(only or ())) - set(EXPERIMENTS))
    if unknown:
        raise PaperArgumentError(f"No experiment {', '.join(map(repr, unknown))}. Accepted: {', '.join(EXPERIMENTS)}.")
    presets = {name: preset(name) for name in sorted({name for name, _ in names})}
    return [
        (name, experiments.get(experiment, EXPERIMENTS[experiment]))
        for name, experiments in presets.items()
        for experiment in EXPERIMENTS
        if (name, experiment) in names and (only is None or experiment in only)
    ]


def _groups(records: Sequence[RunRecord], only: Sequence[str] | None) -> Iterator[_Group]:
    """Yield every choice: by experiment, then by what is not tuned, then by arm."""
    for name, experiment in experiments_of(records, only):
        of_preset = [record for record in records if record.preset == name]
        found = [
            _Group(experiment, name, arm, choice)
            for arm in _arms(experiment, of_preset)
            for choice in choices(experiment, arm, of_preset)
        ]
        yield from sorted(found, key=lambda group: place_of(group.experiment, group.choice.chosen))


def _arms(experiment: Experiment, records: Iterable[RunRecord]) -> list[str]:
    """Return the experiment's arms, and those that only the records have behind them."""
    recorded = [record.arm for record in records if record.experiment == experiment.name]
    return list(dict.fromkeys([*experiment.arms, *recorded]))


def _result(group: _Group) -> Row:
    """Return the row of an arm's reported number, beside the printed one or the end of the published curve."""
    experiment, chosen, arm = group.experiment, group.choice.chosen, group.arm
    summary, is_share = chosen.test, experiment.metric == "test_error"
    quantity = experiment.metric.replace("_", " ")
    if summary is None:  # a search for a learning rate
        return group.row("validation error", chosen.validation)
    row = group.row(quantity, summary, is_share)
    number = published_number(experiment.name, arm, chosen.setting, tuned=set(experiment.tuned) > {LEARNING_RATE})
    if number is not None:
        return replace(row, published=number.value, printed=number.printed, source=number.source)
    curve = published_curve(experiment.name, arm, experiment.metric, chosen.setting, chosen.learning_rate)
    ends = {run.curves[experiment.metric].epoch[-1] for run in chosen.runs if run.status == "finished"}
    if curve is not None and experiment.selection == "last" and ends == {curve.points[-1][0]}:
        end = curve.points[-1][1]
        return replace(row, published=end, printed=_shown(end, is_share), source=curve.source)
    return row


def _noisy(group: _Group) -> Iterator[tuple[float, Row]]:
    """Yield every whole level of noise with the row of the test error there."""
    curve = median_robustness(group.choice.chosen.runs, "error")
    if curve is None:
        return
    for level, summary in zip(curve.epoch, curve.summaries, strict=True):
        if level and level == int(level):
            yield level, group.row(f"test error under noise {level:g}", summary)


def _points(group: _Group) -> Iterator[Row]:
    """Yield a row for each published point that the runs have a measurement at."""
    chosen = group.choice.chosen
    for name in ("train_loss", "train_error", "val_loss", "test_loss", "test_error"):
        published = published_curve(group.experiment.name, group.arm, name, chosen.setting, chosen.learning_rate)
        measured = median_curve(chosen.runs, name) if published is not None else None
        if published is None or measured is None:
            continue
        is_share = name.endswith("error")
        for epoch, value in published.points:
            places = [place for place, passed in enumerate(measured.epoch) if math.isclose(passed, epoch)]
            for place in places:
                row = group.row(name.replace("_", " "), measured.summaries[place], is_share)
                yield replace(
                    row,
                    published=value,
                    printed=_shown(value, is_share),
                    source=published.source,
                    figure=published.figure,
                    epoch=epoch,
                )


def _shown(value: float, is_share: bool) -> str:
    """Return a number that was read from a drawing, in per cent if it is a share."""
    return f"{100 * value:.6g}" if is_share else f"{value:g}"
