"""`ParityReport`: every comparison between a file and its module, as a table and as JSON."""

import io
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table

from lit_gelu.errors import NotAvailableYetError

VS_FLOAT32 = "file vs PyTorch float32"
VS_FLOAT64 = "file vs PyTorch float64"
VS_TRAINED = "approximation gap: file vs module as trained"
ELEMENTWISE = "operator alone vs PyTorch float64"


@dataclass(frozen=True)
class ParityRow:
    """One comparison on one family of inputs.

    Args:
        comparison: What is compared with what.
        inputs: The family of inputs, or the activation for an operator alone.
        count: Rows of input, or values for an operator alone.
        max_abs_error: Largest absolute difference over all outputs.
        mean_abs_error: Mean absolute difference.
        scale: Largest magnitude of the reference's finite outputs.
        spread: The same largest difference between PyTorch float32 and float64: what float32 costs anyway.
        limit: What ``max_abs_error`` may be; ``None`` for a row that is reported only.
        nonfinite: Outputs that are NaN, or infinite where the reference is not, and that PyTorch float32 does not
            share.
        top1_agreement: Share of rows with the same largest logit, for outputs of shape [batch, classes].
        top1_flips: Rows whose largest logit changed although the margin between the reference's two best exceeds twice
            ``max_abs_error``.
        extreme: Whether the inputs are far outside the range of data.
        detail: Anything else worth knowing.
    """

    comparison: str
    inputs: str
    count: int
    max_abs_error: float
    mean_abs_error: float
    scale: float
    spread: float | None
    limit: float | None
    nonfinite: int = 0
    top1_agreement: float | None = None
    top1_flips: int | None = None
    extreme: bool = False
    detail: str = ""

    @property
    def gating(self) -> bool:
        """Whether this row decides; reported rows never do."""
        return self.limit is not None

    @property
    def passed(self) -> bool | None:
        """Whether the row is within its limit; ``None`` for a reported row."""
        if self.limit is None:
            return None
        return self.nonfinite == 0 and not self.top1_flips and self.max_abs_error <= self.limit

    def __str__(self) -> str:
        """Return the comparison in one line."""
        limit = "reported" if self.limit is None else f"limit {self.limit:.3g}"
        parts = [f"{self.comparison}, {self.inputs}: max |error| {self.max_abs_error:.3g} ({limit})"]
        if self.nonfinite:
            parts.append(f"{self.nonfinite} values not finite")
        if self.top1_flips:
            parts.append(f"{self.top1_flips} rows changed their largest logit")
        return ", ".join(parts)


@dataclass(frozen=True)
class ParityReport:
    """What `check_parity` found.

    Args:
        path: The file, as it was given.
        provider: The execution provider that really ran it.
        approximate: The file's form of GELU.
        rows: The comparisons.
        census: How often each operator occurs in the file.
        optimized_census: The same after onnxruntime's own optimisation; empty if it was not asked for.
        versions: Of what wrote the file and of what ran it.
        notes: What could not be compared, and why.
    """

    path: str
    provider: str
    approximate: str
    rows: tuple[ParityRow, ...]
    census: Mapping[str, int] = field(default_factory=dict)
    optimized_census: Mapping[str, int] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether every gating row passed, and there is one."""
        verdicts = [row.passed for row in self.rows if row.gating]
        return bool(verdicts) and all(verdicts)

    @property
    def failures(self) -> tuple[ParityRow, ...]:
        """The gating rows that failed."""
        return tuple(row for row in self.rows if row.passed is False)

    def summary(self) -> str:
        """Return the verdict in one line.

        Returns:
            Such as ``parity passed 21 comparisons, largest error outside extremes 1.19e-07 (CPUExecutionProvider)``.
        """
        near = [
            row.max_abs_error for row in self.rows if row.gating and not row.extreme and row.comparison != ELEMENTWISE
        ]
        number = sum(row.gating for row in self.rows)
        verdict = "passed" if self.passed else f"FAILED in {len(self.failures)} of"
        comparisons = f"{number} comparisons, largest error outside extremes {max(near, default=math.nan):.2e}"
        return f"parity {verdict} {comparisons} ({self.provider})"

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain data.

        Returns:
            The fields, with the verdict of each row and of the whole.
        """
        rows = [{**asdict(row), "passed": row.passed} for row in self.rows]
        return {**vars(self), "rows": rows, "notes": list(self.notes), "passed": self.passed}

    def to_json(self, indent: int | None = 2) -> str:
        """Return the report as JSON; numbers that are not finite are written as text, which JSON demands.

        Args:
            indent: As ``json.dumps`` takes it.

        Returns:
            The text.
        """
        return json.dumps(_without_nonfinite(self.to_dict()), indent=indent, allow_nan=False)

    def to_html(self) -> str:
        """Refuse: not in this release.

        Raises:
            NotAvailableYetError: Always.
        """
        raise NotAvailableYetError("not available yet: ParityReport.to_html(). Use to_json() or print the report.")

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the table and the lines around it, for ``rich.print``."""
        yield self._table()
        yield from self._lines()

    def __str__(self) -> str:
        """Return the table as plain text."""
        console = Console(file=io.StringIO(), width=120, color_system=None, legacy_windows=False)
        console.print(self)
        text: str = console.file.getvalue()  # type: ignore[attr-defined]
        return text.rstrip()

    def _table(self) -> Table:
        """Return a table with one line for each family of inputs, one for each gap and one for each operator alone."""
        table = Table(
            title=f"{self.path}: {self.provider}, approximate={self.approximate}",
            box=box.SIMPLE_HEAD,
            padding=(0, 1, 0, 0),
        )
        table.add_column("inputs", overflow="fold")
        for title in ("n", "float32", "float64", "own", "limit", "top-1", ""):
            table.add_column(title, justify="right" if title else "left", no_wrap=True)
        lines: dict[str, dict[str, ParityRow]] = {}
        for row in self.rows:
            label = f"{row.inputs}: gap to the module as trained" if row.comparison == VS_TRAINED else row.inputs
            lines.setdefault(label, {})[row.comparison] = row
        for label, rows in lines.items():
            row = next(iter(rows.values()))
            first = rows.get(VS_FLOAT32, rows.get(VS_TRAINED))
            second = rows.get(VS_FLOAT64, rows.get(ELEMENTWISE))
            verdict = "FAILED" if any(r.passed is False for r in rows.values()) else "ok" if row.gating else "reported"
            top1 = "" if row.top1_agreement is None else f"{100 * row.top1_agreement:.4g} %"
            errors = (_short(None if r is None else r.max_abs_error) for r in (first, second))
            table.add_row(label, str(row.count), *errors, _short(row.spread), _short(row.limit), top1, verdict)
        return table

    def _lines(self) -> list[str]:
        """Return what stands below the table."""
        lines = [
            "float32, float64: largest difference between the file and PyTorch; own: between PyTorch's float32 and "
            "float64",
            "limit: the tolerance (for extremes times the largest output), or twice PyTorch's own error where that is "
            "larger",
        ]
        lines += [f"{row.inputs}: {row.detail}" for row in self.rows if row.detail]
        lines += [f"note: {note}" for note in self.notes]
        if self.optimized_census:
            lines.append(f"operators in the file: {_counts(self.census)}")
            lines.append(f"after onnxruntime's optimisation: {_counts(self.optimized_census)}")
        return [*lines, "passed" if self.passed else "FAILED"]


def _short(value: float | None) -> str:
    """Return a number for a table cell."""
    return "" if value is None else f"{value:.1e}"


def _counts(census: Mapping[str, int]) -> str:
    """Return counts as one line."""
    return ", ".join(f"{count} {name}" for name, count in sorted(census.items()))


def _without_nonfinite(value: Any) -> Any:
    """Return plain data in which NaN and infinities are text."""
    if isinstance(value, Mapping):
        return {key: _without_nonfinite(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_nonfinite(entry) for entry in value]
    return repr(value) if isinstance(value, float) and not math.isfinite(value) else value
