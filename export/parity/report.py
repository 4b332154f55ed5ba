"""`ParityReport` and `ParityRow`: everything that `check_parity` finds, as data and as tables for people."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from lit_gelu.display import Displayed, HtmlTable, page, printable
from lit_gelu.files import without_nonfinite

SCHEMA = "lit-gelu-parity"
SCHEMA_VERSION = 1

VS_PYTORCH = "file vs PyTorch"  # in the file's dtype, which follows, where the module does not run in float64
VS_FLOAT64 = "file vs PyTorch float64"
VS_TRAINED = "approximation gap: file vs module as trained"
ELEMENTWISE = "operator alone vs PyTorch float64"


def in_limits(error: float, limit: float) -> float:
    """Return ``error / limit``; 0 where there is no error, infinite for any error where the limit is 0."""
    return 0.0 if error == 0 else error / limit if limit > 0 else math.inf


@dataclass(frozen=True)
class TaskMetric:
    """One of the module's test metrics on the data."""

    name: str  # as the module logs it
    pytorch: float  # with the module as trained
    file: float  # with the file in the place of forward

    @property
    def difference(self) -> float:
        """The file's value less PyTorch's."""
        return self.file - self.pytorch


@dataclass(frozen=True, repr=False)
class ParityRow(Displayed):
    """One comparison of one output on one family of inputs.

    ``error``, ``own`` and ``limit`` are in units of ``scale``, of whole numbers and truth values shares of the entries;
    of an operator alone in units of ``max(1, |y64|)``. The other errors are absolute.
    """

    comparison: str  # what is compared with what
    inputs: str  # the family of inputs, or the activation for an operator alone
    output: str  # the file's output; empty for an operator alone
    count: int  # rows of input, or values for an operator alone
    max_abs_error: float
    scale: float  # largest magnitude of the reference's finite outputs; for extremes at least that on gaussian inputs
    error: float
    own: float | None  # PyTorch's error in the file's dtype: what that costs anyway; None if it is not known
    limit: float | None  # what the error may be; None for a row that is reported only
    spread: float | None = None  # PyTorch's largest absolute difference from float64
    nonfinite: int = 0  # NaN, or infinite where the reference is not, and not so in PyTorch
    top1_agreement: float | None = None  # share of rows with the same largest logit, for outputs [batch, classes]
    top1_changes: int | None = None  # rows whose largest logit is another one
    extreme: bool = False  # whether the inputs are far outside the range of data
    # The index whose error is largest in units of its limit, such as [:, 2]; empty where indices are not judged, which
    # is on extremes. For an operator alone in 16 bit, the input. Of whole numbers, rows that differ, of all rows.
    index: str = ""
    index_error: float = 0.0
    index_limit: float = 0.0
    index_scale: float = 0.0  # its largest magnitude in float64, on all inputs that are no extremes
    detail: str = ""  # anything else worth knowing
    whole_numbers: bool = False  # whether the output holds whole numbers or truth values

    @property
    def gating(self) -> bool:
        """Whether this row decides; reported rows never do."""
        return self.limit is not None

    @property
    def passed(self) -> bool | None:
        """Whether the row is within its limit; ``None`` for a reported row."""
        return None if self.limit is None else self.excess <= 1

    @property
    def excess(self) -> float:
        """The error in units of the limit, of the worst index if that is more; 0 for a reported row."""
        if self.limit is None:
            return 0.0
        return float("inf") if self.nonfinite else max(in_limits(self.error, self.limit), self.index_excess)

    @property
    def index_excess(self) -> float:
        """The error of the worst index in units of its limit."""
        return in_limits(self.index_error, self.index_limit)

    def __str__(self) -> str:
        """Return the comparison in one line."""
        limit = "reported" if self.limit is None else f"limit {self.limit:.3g}"
        where = f"{self.inputs}, {self.output}" if self.output else self.inputs
        unit = "entries" if self.whole_numbers else "largest output" if self.output else "larger of 1 and the value"
        parts = [f"{self.comparison}, {where}: error {self.error:.3g} of the {unit} ({limit})"]
        if self.index_excess > 1:
            parts.append(self.index_text())
        if self.nonfinite:
            parts.append(f"{self.nonfinite} values not finite")
        if self.top1_changes:
            parts.append(f"{self.top1_changes} rows changed their largest logit")
        if self.error == float("inf") and self.detail:
            parts.append(self.detail)
        return ", ".join(parts)

    def index_text(self) -> str:
        """Return the worst index with its error and limit, empty where none is judged."""
        if not self.index:
            return ""
        error, limit, scale = self.index_error, self.index_limit, self.index_scale
        if self.whole_numbers:
            return f"{self.index} differs in {error:.0f} of {scale:.0f} rows (limit {limit:.3g})"
        if scale == 0:
            return f"{self.index} is off by {error:.3g} (limit {limit:.3g})"
        return f"{self.index} is off by {error / scale:.3g} of its scale {scale:.3g} (limit {limit / scale:.3g})"

    def _summary(self) -> str:
        return str(self)


@dataclass(frozen=True)
class LayerError:
    """The error of one activation's output within the net."""

    site: str
    call: int  # number of the call, from 0
    value: str  # the value's name in the file
    error: float  # max|y - y64| / max|y64|
    own: float | None  # the same of PyTorch in the file's dtype
    limit: float  # what the error may be

    @property
    def name(self) -> str:
        """The site's name, with the number of a call that is not the first."""
        return (self.site or "(the module itself)") + (f", call {self.call + 1}" if self.call else "")


@dataclass(frozen=True)
class Divergence:
    """Where the file leaves the module."""

    # The first activation whose output is outside its limit; None if all are within theirs, and the difference comes
    # after the last one.
    layer: LayerError | None
    after: LayerError | None  # the last activation before it whose output is within its limit; None if there is none
    nodes: tuple[str, ...]  # the file's nodes between the two, with the parameters that they read

    def __str__(self) -> str:
        """Return one sentence."""
        place = "after the last activation" if self.layer is None else f"in {self.layer.name}"
        size = "" if self.layer is None else f" (error {self.layer.error:.3g}, limit {self.layer.limit:.3g})"
        agreed = "the input" if self.after is None else self.after.name
        shown = ", ".join(self.nodes[-6:]) or "no node"
        return f"the first difference is {place}{size}; up to {agreed} both agree, between them: {shown}"


@dataclass(frozen=True)
class Culprit:
    """What causes a difference."""

    kind: str  # graph optimisation, provider, or file: its operators or weights, with no optimisation at all
    names: tuple[str, ...]  # the optimisations without any of which the file is within its limit, or the provider
    level: str  # the lowest optimisation level that shows the difference; empty for other kinds
    excess_with: float  # the error as the file is run, in units of the limit
    excess_without: float  # the same without the culprit

    def __str__(self) -> str:
        """Return one sentence."""
        what = "the file itself"
        if self.kind != "file":
            kind = "the provider" if self.kind == "provider" else "onnxruntime's"
            level = f" ({self.level})" if self.level else ""
            what = f"{kind} {', '.join(self.names) or 'optimisation'}{level}"
        without = "without any graph optimisation" if self.kind == "file" else "without"
        return f"{what}: {self.excess_with:.3g} times the limit, {self.excess_without:.3g} {without}"


@dataclass(frozen=True, repr=False)
class ParityReport(Displayed):
    """What `check_parity` found."""

    path: str  # the file, as it was given
    provider: str  # the execution provider that really ran it
    approximate: str  # the file's form of GELU
    rows: tuple[ParityRow, ...]  # the comparisons; those of each distinct activation's operators alone too
    dtype: str = "float32"  # the file's, in torch's name
    floor: float = 1e-5  # what an output may be off by even where PyTorch is exact, in units of the largest output
    # Whether two runs gave the same bits, as the file is run and without graph optimisations, which take out a Dropout
    # that other runtimes would run; None if it was not run.
    repeats: bool | None = None
    metrics: tuple[TaskMetric, ...] = ()  # the module's own test metrics, on a LightningDataModule
    census: Mapping[str, int] = field(default_factory=dict)  # how often each operator occurs in the file
    optimized_census: Mapping[str, int] = field(default_factory=dict)  # the same as onnxruntime runs it
    culprit: Culprit | None = None  # what causes a breach
    divergence: Divergence | None = None  # the first layer that a breach shows in
    # Where file, record and module do not agree, whatever the numbers: names and types of outputs, labels, activations
    # and their operators. One is enough to fail.
    faults: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)  # of what wrote the file and of what ran it
    notes: tuple[str, ...] = ()  # what could not be compared, and why

    @property
    def passed(self) -> bool:
        """Whether every gating row passed, one is of the whole net, two runs gave the same, and there is no fault."""
        return not self.reasons

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why the file fails, in a few words each; empty for one that passed."""
        reasons, count = [], len(self.failures)
        if count:
            reasons.append(f"{count} {'comparison' if count == 1 else 'comparisons'}")
        if any(row.nonfinite for row in self.failures):
            reasons.append("NaN or infinity where there should be none")
        if not any(row.gating and row.comparison != ELEMENTWISE for row in self.rows):
            reasons.append("the net as a whole could not be compared")
        if self.repeats is False:
            reasons.append("two runs on the same input differ")
        if self.faults:
            reasons.append(self.faults[0].rstrip(".") + (f", and {len(self.faults) - 1} more" * (len(self.faults) > 1)))
        return tuple(map(printable, reasons))

    @property
    def failures(self) -> tuple[ParityRow, ...]:
        """The gating rows that did not pass."""
        return tuple(row for row in self.rows if row.passed is False)

    def row(self, inputs: str, comparison: str = VS_FLOAT64, output: str | None = None) -> ParityRow:
        """Return one comparison, by default of the first output; ``KeyError`` if there is none."""
        for row in self.rows:
            if (row.inputs, row.comparison) == (inputs, comparison) and output in {None, row.output}:
                return row
        raise KeyError(f"no row for {inputs!r}, {comparison!r}, output {output!r}")

    def summary(self) -> str:
        """Return one line: the verdict, why, and the largest error."""
        verdict = "passed" if self.passed else f"FAILED ({'; '.join(self.reasons)})"
        error = "not finite" if self.largest_error is None else f"{self.largest_error:.2e}"
        return f"parity {verdict} on {self.provider}: largest error {error}"

    @property
    def largest_error(self) -> float | None:
        """The largest error of the gating rows without extremes, each in its own unit; ``None`` if not finite."""
        rows = [row for row in self.rows if row.gating and not row.extreme]
        finite = bool(rows) and all(row.error < math.inf and not row.nonfinite for row in rows)
        return max(row.error for row in rows) if finite else None

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain data; `SCHEMA_VERSION` grows when an entry changes its meaning or goes away."""
        plain = asdict(self)
        plain["rows"] = [{**asdict(row), "passed": row.passed} for row in self.rows]
        plain["metrics"] = [{**asdict(metric), "difference": metric.difference} for metric in self.metrics]
        return {"schema": SCHEMA, "schema_version": SCHEMA_VERSION, **plain, "passed": self.passed}

    def to_json(self, indent: int | None = 2) -> str:
        """Return the report as JSON; numbers that are not finite are written as text, which JSON demands."""
        return json.dumps(without_nonfinite(self.to_dict(), as_text=True), indent=indent, allow_nan=False)

    def to_markdown(self) -> str:
        """Return the report as Markdown that a terminal shows as well: a table, and lines below it."""
        rows = [tuple(map(cell_text, row)) for row in (HEAD, *table(self))]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        rows.insert(1, tuple("-" * width for width in widths))
        text = ["| " + " | ".join(map(str.ljust, row, widths)) + " |" for row in rows]
        text += ["", *(f"- {cell_text(line)}" for line in lines(self)), ""]
        return "\n".join([f"# {cell_text(self._title())}", "", *text, "passed" if self.passed else "FAILED", ""])

    def to_html(self) -> str:
        """Return the report as a page of its own, which needs nothing from elsewhere."""
        return page(self._title(), self._repr_html_())

    def __str__(self) -> str:
        """Return the Markdown, whose last line is the verdict."""
        return self.to_markdown().rstrip()

    def _title(self) -> str:
        return f"Parity of {self.path}: {'passed' if self.passed else 'FAILED'}"

    def _summary(self) -> str:
        return f"{self.path!r}: {self.summary()}"

    def _html_table(self) -> HtmlTable:
        return HtmlTable(HEAD, table(self), self.summary(), lines(self))


HEAD = ("inputs", "n", "max abs", "error", "own", "limit", "top-1", "verdict")


def figure(value: float | None) -> str:
    """Return a number for a cell."""
    return "" if value is None else f"{value:.3g}"


def table(report: ParityReport) -> list[tuple[str, ...]]:
    """Return one row for each output on each family of inputs, for each gap and for each operator alone."""
    several = len({row.output for row in report.rows if row.output}) > 1
    suffixes = {VS_TRAINED: ": gap to the module as trained", ELEMENTWISE: " alone"}
    rows = []
    for row in report.rows:
        output = f", {row.output}" if several and row.output else ""
        top1 = "" if row.top1_agreement is None else f"{100 * row.top1_agreement:.4g} %"
        figures = map(figure, (row.max_abs_error, row.error, row.own, row.limit))
        verdict = {True: "ok", False: "FAILED", None: "reported"}[row.passed]
        name = f"{row.inputs}{output}{suffixes.get(row.comparison, '')}"
        rows.append((name, str(row.count), *figures, top1, verdict))
    return rows


def lines(report: ParityReport) -> list[str]:
    """Return what stands below the table: what was found first."""
    text = findings(report)
    worst: dict[tuple[str, str], ParityRow] = {}  # of each index beyond its limit, the inputs that show it most
    for row in sorted(report.failures, key=lambda row: row.index_excess):
        if row.index_excess > 1:
            worst[row.output, row.index] = row
    text += [f"{row.inputs}, {row.output}: {row.index_text()}" for row in worst.values()]
    text += [f"{row.inputs}: {row.detail}" for row in report.rows if row.detail]
    text += [f"{m.name}: {m.pytorch:.4g} with PyTorch, {m.file:.4g} with the file" for m in report.metrics]
    if report.optimized_census:
        for where, census in (("in the file", report.census), ("as onnxruntime runs it", report.optimized_census)):
            text.append(f"operators {where}: {', '.join(f'{n} {name}' for name, n in sorted(census.items()))}")
    versions = ", ".join(f"{name} {version}" for name, version in sorted(report.versions.items()))
    return [
        *text,
        "max abs: largest difference between the file and PyTorch's float64; error: the same in units of the largest "
        f"output (for an operator alone, of max(1, |y|)); own: the error of PyTorch's {report.dtype}; limit: "
        f"{report.floor:.3g}, or twice own where that is larger",
        f"{report.provider}, {report.dtype}, approximate={report.approximate}; {versions}",
    ]


def findings(report: ParityReport) -> list[str]:
    """Return what a person should read first."""
    text = [f"Fault: {fault}" for fault in report.faults]
    if report.culprit is not None:
        text.append(f"Cause: {report.culprit}.")
    if report.divergence is not None:
        text.append(f"Where: {report.divergence}.")
    if report.repeats is False:
        text.append("Two runs on the same input gave different outputs: it draws random numbers.")
    return [printable(line) for line in (*text, *report.notes)]


def cell_text(text: str) -> str:
    r"""Return text that cannot end a cell."""
    return printable(text.replace("\\", "\\\\").replace("|", "\\|").replace("\n", " "))
