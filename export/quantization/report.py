"""`QuantizationReport`: everything that `check_quantized` found, as data."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table

from lit_gelu.display import Displayed
from lit_gelu.export.parity.report import ActivationFate
from lit_gelu.export.parity.tables import (
    TextTable,
    cell_text,
    fate_counts,
    figure,
    html_of,
    markdown_text,
    metrics_table,
    operators_table,
    plain_text,
    version_text,
)
from lit_gelu.export.parity.task_metrics import TaskMetric
from lit_gelu.export.quantization.int8_metadata import QuantizationRecord
from lit_gelu.files import without_nonfinite

SCHEMA = "lit-gelu-int8"
SCHEMA_VERSION = 1


@dataclass(frozen=True)
class OutputNoise:
    """What one output of the file is off by on the data."""

    output: str
    rows: int  # rows of data
    sqnr: float  # Signal-to-quantisation-noise ratio, decibels; infinite for an output that is the same
    max_abs_error: float  # largest absolute difference
    scale: float  # largest magnitude of PyTorch's output
    nonfinite: int  # outputs that are NaN or infinite where PyTorch's are not
    top1_agreement: float | None  # share of rows with the same largest logit, for outputs of shape [batch, classes]
    top1_changes: int | None  # rows whose largest logit is another one
    changed_share: float | None = None  # share of entries that differ, of whole numbers and truth values


@dataclass(frozen=True)
class LayerNoise:
    """What the output of one activation within the net is off by: the noise of all layers up to there."""

    site: str  # the activation's name
    call: int  # number of the call, from 0
    sqnr: float  # Signal-to-quantisation-noise ratio, decibels


@dataclass(frozen=True)
class Criterion:
    """A figure that decides."""

    name: str
    value: float
    limit: float  # what it may be
    kind: Literal["at most", "at least"]  # whether the limit is the largest or the smallest value that passes

    @property
    def passed(self) -> bool:
        """Whether the figure is within its limit; NaN is not."""
        return self.value <= self.limit if self.kind == "at most" else self.value >= self.limit

    def __str__(self) -> str:
        """Return one line."""
        verdict = "ok" if self.passed else "FAILED"
        return f"{self.name}: {self.value:.4g}, {self.kind} {self.limit:g} is accepted: {verdict}"


@dataclass(frozen=True, repr=False)
class QuantizationReport(Displayed):
    """What `check_quantized` found.

    Args:
        path: The file, as it was given.
        provider: The execution provider that really ran it.
        record: How it was quantised.
        outputs: Each output against PyTorch in float32.
        criteria: What decides.
        metrics: The module's own test metrics, on a LightningDataModule.
        layers: The noise in each activation's output, in the file's order.
        nbytes: Size of the file.
        census: How often each operator occurs in the file.
        optimized_census: The same after onnxruntime's own optimisation: which layers became int8 operators.
        activations: What onnxruntime made of each call of an activation.
        versions: Of what wrote the file and of what ran it.
        faults: Where file, record and module do not agree, whatever the numbers; one is enough to fail.
        notes: What could not be compared, and why.
    """

    path: str
    provider: str
    record: QuantizationRecord
    outputs: tuple[OutputNoise, ...]
    criteria: tuple[Criterion, ...]
    metrics: tuple[TaskMetric, ...] = ()
    layers: tuple[LayerNoise, ...] = ()
    nbytes: int = 0
    census: Mapping[str, int] = field(default_factory=dict)
    optimized_census: Mapping[str, int] = field(default_factory=dict)
    activations: tuple[ActivationFate, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    faults: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether every criterion passed, there is one, no output is NaN or infinite, and there is no fault."""
        finite = not any(output.nonfinite for output in self.outputs)
        return (
            bool(self.criteria) and all(criterion.passed for criterion in self.criteria) and finite and not self.faults
        )

    @property
    def reasons(self) -> tuple[str, ...]:
        """What no figure shows: where the file does not agree with the module, and what is not finite."""
        nonfinite = [output.output for output in self.outputs if output.nonfinite]
        text = f"NaN or infinity in {', '.join(nonfinite)} where there should be none"
        return (*(fault.rstrip(".") for fault in self.faults), *([text] if nonfinite else []))

    @property
    def worst_layer(self) -> LayerNoise | None:
        """The activation whose output has the most noise in it; ``None`` if none could be compared."""
        return min(self.layers, key=lambda layer: layer.sqnr, default=None)

    def summary(self) -> str:
        """Return one line: the verdict, the criteria, and the first output's figures."""
        first = self.outputs[0]
        agreement = "" if first.top1_agreement is None else f", top-1 agreement {100 * first.top1_agreement:.4g} %"
        decided = "; ".join(map(str, self.criteria))
        because = f" ({'; '.join(self.reasons)})" if self.reasons else ""
        verdict = "passed" if self.passed else f"FAILED{because}"
        return f"int8 parity {verdict} on {self.provider}: {decided}{agreement}, SQNR {first.sqnr:.1f} dB"

    def proof(self) -> dict[str, Any]:
        """Return what the file says of this comparison, in its ``lit_gelu.parity``: verdict and main figures."""
        plain = self.to_dict()
        kept = ("passed", "criteria", "outputs", "metrics", "provider", "worst_layer")
        return {**{key: plain[key] for key in kept}, "onnxruntime": self.versions.get("onnxruntime", "")}

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain data; `SCHEMA_VERSION` grows when an entry changes its meaning or goes away."""
        plain = {
            **asdict(self),
            "criteria": [{**asdict(one), "passed": one.passed} for one in self.criteria],
            "metrics": [{**asdict(metric), "difference": metric.difference} for metric in self.metrics],
            "worst_layer": None if self.worst_layer is None else asdict(self.worst_layer),
            "passed": self.passed,
        }
        finite: dict[str, Any] = without_nonfinite(
            {"schema": SCHEMA, "schema_version": SCHEMA_VERSION, **plain}, as_text=True
        )
        return finite

    def to_json(self, indent: int | None = 2) -> str:
        """Return the report as JSON; numbers that are not finite are written as text, which JSON demands."""
        return json.dumps(self.to_dict(), indent=indent, allow_nan=False)

    def to_markdown(self) -> str:
        """Return the report as Markdown tables; every figure in them is one of the JSON's, with three digits."""
        return markdown(self)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield tables and the lines around them, for ``rich.print``."""
        yield f"{self.path}: {self.provider}, int8"
        yield str(self.record)
        for text in tables(self):
            made = Table(title=text.title, box=box.SIMPLE_HEAD, title_justify="left")
            for name in text.head:
                made.add_column(name, overflow="fold")
            for row in text.body:
                made.add_row(*row)
            yield made
        yield from findings(self)
        yield "passed" if self.passed else "FAILED"

    def __str__(self) -> str:
        """Return the tables as plain text."""
        return plain_text(self)

    def _summary(self) -> str:
        return f"{self.path!r}: {self.summary()}"

    def _repr_html_(self) -> str:
        """Return the tables that Jupyter shows."""
        return html_of(self.summary(), tables(self), findings(self))


def tables(report: QuantizationReport) -> list[TextTable]:
    """Return all tables of a report that have rows."""
    made = (
        _criteria(report),
        metrics_table(report.metrics, "float32"),
        _outputs(report),
        _layers(report),
        _fates(report),
        operators_table(report.census, report.optimized_census),
    )
    return [table for table in made if table.body]


def findings(report: QuantizationReport) -> list[str]:
    """Return what a person should read first."""
    size = f"{report.nbytes:,} bytes, the float file has {report.record.float_bytes:,}"
    found = [f"Size: {size} ({report.record.float_bytes / max(report.nbytes, 1):.2f} times as many)."]
    worst = report.worst_layer
    if worst is not None:
        found.append(f"Most noise: in the output of {worst.site or '(the module itself)'}, {worst.sqnr:.1f} dB.")
    return [*(f"Fault: {fault}" for fault in report.faults), *found, *report.notes]


def markdown(report: QuantizationReport) -> str:
    """Return a report as Markdown."""
    about = f"{report.provider}; {report.record}; {version_text(report.versions)}"
    title = f"int8 parity of {cell_text(report.path)}: {'passed' if report.passed else 'FAILED'}"
    return markdown_text(title, about, findings(report), tables(report))


def _criteria(report: QuantizationReport) -> TextTable:
    """What decides."""
    body = tuple(
        (c.name, figure(c.value), f"{c.kind} {figure(c.limit)}", "ok" if c.passed else "FAILED")
        for c in report.criteria
    )
    return TextTable("What decides", ("figure", "value", "limit", "verdict"), body)


def _outputs(report: QuantizationReport) -> TextTable:
    """Each output."""
    body = tuple(
        (
            o.output,
            str(o.rows),
            figure(o.sqnr),
            figure(o.max_abs_error),
            figure(o.scale),
            "" if o.top1_agreement is None else f"{100 * o.top1_agreement:.4g} %, {o.top1_changes} changed",
            str(o.nonfinite),
        )
        for o in report.outputs
    )
    head = ("output", "n", "SQNR dB", "max abs", "scale", "top-1", "not finite")
    legend = (
        "SQNR: energy of PyTorch's output over that of the difference, in decibels (20 dB: a tenth in amplitude); "
        "scale: PyTorch's largest output; top-1: rows with the same largest logit."
    )
    return TextTable("Outputs against PyTorch float32", head, body, legend)


def _layers(report: QuantizationReport) -> TextTable:
    """The noise within the net."""
    body = tuple((layer.site or "(the module itself)", str(layer.call), figure(layer.sqnr)) for layer in report.layers)
    legend = "The noise of all layers up to there, in the activation's output."
    return TextTable("Noise layer by layer", ("activation", "call", "SQNR dB"), body, legend)


def _fates(report: QuantizationReport) -> TextTable:
    """What became of the activations."""
    body = tuple((text, str(count)) for text, count in fate_counts(list(report.activations)).items())
    return TextTable("Activations as onnxruntime runs them", ("in the file -> as it runs", "calls"), body)
