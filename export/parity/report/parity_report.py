"""`ParityReport`: everything that `check_parity` found, as data."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult

from lit_gelu.display import Displayed
from lit_gelu.export.parity.activation_census import ActivationFate
from lit_gelu.export.parity.alone.elementwise import ElementwiseCheck
from lit_gelu.export.parity.causes.culprit import Culprit
from lit_gelu.export.parity.causes.divergence import Divergence, LayerError
from lit_gelu.export.parity.repeatability import Repeatability
from lit_gelu.export.parity.rows import ELEMENTWISE, VS_FLOAT64, ParityRow
from lit_gelu.export.parity.task_metrics import TaskMetric
from lit_gelu.files import without_nonfinite

SCHEMA = "lit-gelu-parity"
SCHEMA_VERSION = 1


@dataclass(frozen=True, repr=False)
class ParityReport(Displayed):
    """What `check_parity` found.

    Args:
        path: The file, as it was given.
        provider: The execution provider that really ran it.
        approximate: The file's form of GELU.
        rows: The comparisons.
        dtype: The file's dtype, in torch's name.
        floor: What an output may be off by even where PyTorch is exact, in units of the largest output.
        elementwise: Each distinct activation, run alone.
        layers: The error of each activation's output within the net.
        repeatability: Whether the file repeats itself; ``None`` if it was not run.
        metrics: The module's own test metrics, on a LightningDataModule.
        census: How often each operator occurs in the file.
        optimized_census: The same after onnxruntime's own optimisation; empty if it was not asked for.
        activations: What onnxruntime made of each call of an activation.
        placement: Number of nodes by execution provider, before fusion; empty if onnxruntime does not say.
        culprit: What causes a breach; ``None`` if there is none.
        divergence: The first layer that a breach shows in.
        faults: Where file, record and module do not agree, whatever the numbers: names and types of outputs, labels,
            activations and their operators. One is enough to fail.
        versions: Of what wrote the file and of what ran it.
        notes: What could not be compared, and why.
    """

    path: str
    provider: str
    approximate: str
    rows: tuple[ParityRow, ...]
    dtype: str = "float32"
    floor: float = 1e-5
    elementwise: tuple[ElementwiseCheck, ...] = ()
    layers: tuple[LayerError, ...] = ()
    repeatability: Repeatability | None = None
    metrics: tuple[TaskMetric, ...] = ()
    census: Mapping[str, int] = field(default_factory=dict)
    optimized_census: Mapping[str, int] = field(default_factory=dict)
    activations: tuple[ActivationFate, ...] = ()
    placement: Mapping[str, int] = field(default_factory=dict)
    culprit: Culprit | None = None
    divergence: Divergence | None = None
    faults: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether every gating row passed, one is of the whole net, two runs gave the same, and there is no fault."""
        return not self.reasons

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why the file fails, in a few words each; empty for one that passed."""
        found = []
        if self.failures:
            found.append(f"{len(self.failures)} {'comparison' if len(self.failures) == 1 else 'comparisons'}")
        if any(row.nonfinite for row in self.failures):
            found.append("NaN or infinity where there should be none")
        if not any(row.gating and row.comparison != ELEMENTWISE for row in self.rows):
            found.append("the net as a whole could not be compared")
        if self.repeatability is not None and not self.repeatability.identical:
            found.append("two runs on the same input differ")
        if self.faults:
            found.append(self.faults[0].rstrip(".") + (f", and {len(self.faults) - 1} more" * (len(self.faults) > 1)))
        return tuple(found)

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
        """Return one line: the verdict, why, and the largest error of the gating rows without extremes, NaN for NaN."""
        rows = [row for row in self.rows if row.gating and not row.extreme]
        verdict = "passed" if self.passed else f"FAILED ({'; '.join(self.reasons)})"
        worst = max(rows, key=lambda row: row.error, default=None)
        is_finite = worst is not None and not any(row.nonfinite for row in rows)
        text = f"{worst.error:.2e} {worst.unit}" if worst is not None and is_finite else "NaN"
        return f"parity {verdict} on {self.provider}: largest error {text}"

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain data; `SCHEMA_VERSION` grows when an entry changes its meaning or goes away."""
        plain = {key: _plain(value) for key, value in vars(self).items()}
        plain["rows"] = [{**asdict(row), "passed": row.passed} for row in self.rows]
        plain["metrics"] = [{**asdict(metric), "difference": metric.difference} for metric in self.metrics]
        return {"schema": SCHEMA, "schema_version": SCHEMA_VERSION, **plain, "passed": self.passed}

    def to_json(self, indent: int | None = 2) -> str:
        """Return the report as JSON; numbers that are not finite are written as text, which JSON demands."""
        return json.dumps(without_nonfinite(self.to_dict(), as_text=True), indent=indent, allow_nan=False)

    def to_markdown(self) -> str:
        """Return the report as Markdown tables; every figure in them is one of the JSON's, with three digits."""
        from lit_gelu.export.parity.report.tables import markdown

        return markdown(self)

    def to_html(self) -> str:
        """Return the report as a page of its own, with plots as inline SVG, that needs nothing from elsewhere."""
        from lit_gelu.export.parity.report.page import page

        return page(self)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the table and the lines around it, for ``rich.print``."""
        from lit_gelu.export.parity.report.terminal import lines, table

        yield table(self)
        yield from lines(self)

    def __str__(self) -> str:
        """Return the table as plain text."""
        from lit_gelu.export.parity.report.tables import plain_text

        return plain_text(self)

    def _summary(self) -> str:
        return f"{self.path!r}: {self.summary()}"

    def _repr_html_(self) -> str:
        """Return the tables that Jupyter shows."""
        from lit_gelu.export.parity.report.tables import findings, html_of, tables

        return html_of(self.summary(), tables(self), findings(self))


def _plain(value: Any) -> Any:
    """Return records as mappings, and tuples as lists."""
    if hasattr(value, "__dataclass_fields__"):
        return asdict(value)
    if isinstance(value, tuple):
        return [_plain(entry) for entry in value]
    return dict(value) if isinstance(value, Mapping) else value
