"""What a page says of a run, as plain data: `ReportedRun` and its parts."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

Level = Literal["alarm", "warning", "note", "good"]
Status = Literal["finished", "failed", "interrupted", "unknown"]
Proof = Literal["passed", "failed", "none", "unreadable"]


@dataclass(frozen=True)
class CurveSummary:
    """What all values of a curve are, those too that a page leaves out.

    Args:
        finite: How many are finite.
        from_one: How many of these are 1 or more.
        lowest: The smallest finite one.
        lowest_step: Its first step.
        first_not_finite: The first step with NaN or an infinity; ``None`` if there is none.
    """

    finite: int = 0
    from_one: int = 0
    lowest: float = math.inf
    lowest_step: int = 0
    first_not_finite: int | None = None

    def with_value(self, step: int, value: float) -> "CurveSummary":
        """Return the summary with one value more, of a later step."""
        if not math.isfinite(value):
            return self if self.first_not_finite is not None else replace(self, first_not_finite=step)
        lowest, at = (value, step) if value < self.lowest else (self.lowest, self.lowest_step)
        return CurveSummary(self.finite + 1, self.from_one + (value >= 1), lowest, at, self.first_not_finite)


@dataclass(frozen=True)
class LoggedCurve:
    """The values of one logged name.

    Args:
        name: As it was logged, such as ``train_loss`` or ``curvature/net.1/share_dead``.
        steps: As Lightning's loggers number them, rising.
        values: One a step; NaN and infinities as they were logged.
        whole: Of a curve that was thinned out, what all of its values were.
    """

    name: str
    steps: tuple[int, ...]
    values: tuple[float, ...]
    whole: CurveSummary | None = field(default=None, repr=False, compare=False)

    @property
    def summary(self) -> CurveSummary:
        """What all values are, as far as they are known."""
        return summary_of(self.steps, self.values) if self.whole is None else self.whole


def summary_of(steps: Iterable[int], values: Iterable[float]) -> CurveSummary:
    """Return the summary of values at rising steps."""
    summary = CurveSummary()
    for step, value in zip(steps, values, strict=True):
        summary = summary.with_value(step, value)
    return summary


@dataclass(frozen=True)
class SwapChange:
    """One site of a swap: its fully qualified name, and the specs before and after."""

    site: str
    old: str
    new: str


@dataclass(frozen=True)
class SwapEvent:
    """A swap that was made.

    Args:
        step: As loggers number it: so many batches came before it, but for those that only accumulate
            (``accumulate_grad_batches``).
        epoch: The epoch, from 0; ``None`` where that was not recorded.
        changes: What was replaced.
        annealing: Whether the old activation was still giving way to the new one.
    """

    step: int
    epoch: int | None
    changes: tuple[SwapChange, ...]
    annealing: bool = False


@dataclass(frozen=True)
class SiteActivations:
    """The activation at one site, as spec, when the run began and when it ended; empty where that is not known."""

    name: str
    at_start: str
    at_end: str


@dataclass(frozen=True)
class OptimizerSettings:
    """What of an optimizer decides which sharpness it bears.

    Args:
        name: Its class; empty where a file does not say it.
        learning_rate: Of its first group, at the end; NaN where it is not known.
        momentum: Of SGD; for adaptive optimizers their first beta.
        nesterov: Whether SGD takes Nesterov's form of momentum.
        weight_decay: The largest of its groups.
        adaptive: Whether each parameter has a step size of its own, as with Adam.
        plain: Whether it is SGD, whose limit is known, and the same in all groups but for their learning rates.
        group_rates: Of several groups, the learning rate of each.
    """

    name: str
    learning_rate: float
    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0
    adaptive: bool = False
    plain: bool = False
    group_rates: tuple[float, ...] = ()

    @property
    def largest_rate(self) -> float:
        """The largest learning rate of all groups; NaN if one is not known."""
        rates = self.group_rates or (self.learning_rate,)
        return math.nan if any(map(math.isnan, rates)) else max(rates)

    @property
    def groups_differ(self) -> bool:
        """Whether its groups have several learning rates."""
        return len(set(self.group_rates)) > 1


@dataclass(frozen=True)
class RunFinding:
    """One thing that a reader should know.

    Args:
        level: ``alarm``: the run is wrong; ``warning``: look at it; ``note``: worth knowing; ``good``: checked, well.
        topic: A word or two, the same for all findings of a kind.
        where: The site, file or metric; empty for the whole run.
        text: What was found, with its numbers.
        advice: What can be done; empty if there is nothing to do.
        figures: The numbers that it rests on, by name.
        source: Where the rule comes from.
    """

    level: Level
    topic: str
    where: str
    text: str
    advice: str = ""
    figures: Mapping[str, float] = field(default_factory=dict)
    source: str = ""


@dataclass(frozen=True, kw_only=True)
class ExportedFile:
    """An ONNX file and what is known of its proof.

    Args:
        name: The file's name.
        size: Bytes, weights beside it included.
        opset: Version of the standard operators; 0 where it could not be read.
        dtype: Of its arithmetic, as `lit_gelu.export.export_onnx` recorded it; empty in files of others.
        approximate: Which form of GELU, as recorded.
        target: What it was written for, as recorded.
        activations: How often each activation is computed, by spec.
        proof: What the comparison with PyTorch said; ``none`` if there was none.
        largest_error: Of the gating comparisons, in units of the largest output.
        provider: Which execution provider ran it in the comparison.
        report: The name of the whole report beside it; empty if it is not there.
        report_fits: Whether that report is the one that the file's metadata names; ``None`` where it names none.
        trouble: Why the file cannot be read; empty if it can.
    """

    name: str
    size: int
    opset: int = 0
    dtype: str = ""
    approximate: str = ""
    target: str = ""
    activations: Mapping[str, int] = field(default_factory=dict)
    proof: Proof = "none"
    largest_error: float | None = None
    provider: str = ""
    report: str = ""
    report_fits: bool | None = None
    trouble: str = ""


@dataclass(frozen=True, kw_only=True)
class ReportedRun:
    """All that a page says, and what its JSON holds.

    Args:
        title: Of the page.
        source: What it was made from: ``RunReport``, or the name of a folder or a checkpoint.
        made: When, as ISO 8601 in UTC.
        status: How the run ended.
        failure: The error that ended it; empty if none did.
        steps: Optimizer steps that were made.
        epochs: Epochs that were made.
        seconds: Wall-clock time of the fit.
        configuration: By group (``model``, ``trainer``, ...), values as text by name.
        optimizers: At the end of the run.
        curves: All that was logged, thinned out where it was long.
        sites: The activations.
        swaps: In the order in which they were made.
        findings: The gravest first.
        files: Exported files.
        environment: Versions, processor, GPU, commit, as text by name.
        environment_of: Whether that is where the ``run`` was made, or only the ``page``.
        missing: What could not be shown, and how to have it the next time.
    """

    title: str
    source: str
    made: str
    status: Status = "unknown"
    failure: str = ""
    steps: int | None = None
    epochs: int | None = None
    seconds: float | None = None
    configuration: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    optimizers: tuple[OptimizerSettings, ...] = ()
    curves: tuple[LoggedCurve, ...] = ()
    sites: tuple[SiteActivations, ...] = ()
    swaps: tuple[SwapEvent, ...] = ()
    findings: tuple[RunFinding, ...] = ()
    files: tuple[ExportedFile, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    environment_of: Literal["run", "page"] = "page"
    missing: tuple[str, ...] = ()

    def curve(self, name: str) -> LoggedCurve | None:
        """Return the curve of a name, ``None`` if nothing was logged under it."""
        return next((curve for curve in self.curves if curve.name == name), None)
