"""The report as tables of text: what Markdown and the terminal show."""

from lit_gelu.export.parity.activation_census import fate_counts
from lit_gelu.export.parity.markdown import cell_text, table_lines
from lit_gelu.export.parity.tables import TextTable, figure
from lit_gelu.export.quantization.report import QuantizationReport


def tables(report: QuantizationReport) -> list[TextTable]:
    """Return all tables of a report that have rows.

    Args:
        report: The report.

    Returns:
        The tables.
    """
    made = (_criteria, _metrics, _outputs, _layers, _fates, _operators)
    return [table for make in made if (table := make(report)).body]


def findings(report: QuantizationReport) -> list[str]:
    """Return what a person should read first.

    Args:
        report: The report.

    Returns:
        Sentences.
    """
    size = f"{report.nbytes:,} bytes, the float file has {report.record.float_bytes:,}"
    found = [f"Size: {size} ({report.record.float_bytes / max(report.nbytes, 1):.2f} times as many)."]
    worst = report.worst_layer
    if worst is not None:
        found.append(f"Most noise: in the output of {worst.site or '(the module itself)'}, {worst.sqnr:.1f} dB.")
    return [*found, *report.notes]


def markdown(report: QuantizationReport) -> str:
    """Return a report as Markdown.

    Args:
        report: The report.

    Returns:
        The text.
    """
    versions = ", ".join(f"{name} {version}" for name, version in sorted(report.versions.items()))
    head = [
        f"# int8 parity of {cell_text(report.path)}: {'passed' if report.passed else 'FAILED'}",
        "",
        f"{report.provider}; {report.record}; {versions}",
        "",
        *(f"- {cell_text(line)}" for line in findings(report)),
    ]
    return "\n".join([*head, *(line for table in tables(report) for line in table_lines(table)), ""])


def _criteria(report: QuantizationReport) -> TextTable:
    """What decides."""
    body = tuple(
        (c.name, figure(c.value), f"{c.kind} {figure(c.limit)}", "ok" if c.passed else "FAILED")
        for c in report.criteria
    )
    return TextTable("What decides", ("figure", "value", "limit", "verdict"), body)


def _metrics(report: QuantizationReport) -> TextTable:
    """The module's own test metrics."""
    body = tuple((m.name, *map(figure, (m.pytorch, m.file, m.difference))) for m in report.metrics)
    return TextTable("Test metrics", ("metric", "PyTorch float32", "file", "difference"), body)


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


def _operators(report: QuantizationReport) -> TextTable:
    """All operators before and after."""
    names = sorted({*report.census, *report.optimized_census})
    body = tuple((n, str(report.census.get(n, 0)), str(report.optimized_census.get(n, 0))) for n in names)
    return TextTable("Operators", ("operator", "in the file", "as onnxruntime runs it"), body)
