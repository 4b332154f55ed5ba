"""The files that ``lit-gelu curvature`` writes: JSON, CSV and a figure."""

import csv
import json
import math
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from lit_gelu.cli.curvature.measure import CurvatureReport
from lit_gelu.files import without_nonfinite, write_atomically

SCHEMA = "lit-gelu-curvature"
SCHEMA_VERSION = 1

Row = tuple[str, str, str, float]
"""What a figure is of (site, layer or nothing), which kind of thing that is, the figure's name and value."""


def to_dict(report: CurvatureReport) -> dict[str, Any]:
    """Return all figures as plain data.

    Args:
        report: What was measured.

    Returns:
        Numbers, texts, lists and mappings; figures that are not defined are ``None``.
    """
    density, trace = report.density, report.trace
    plain = {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "checkpoint": report.source,
        "model": report.model,
        "data": report.data,
        "settings": asdict(report.settings),
        "samples": report.samples,
        "notes": report.notes,
        "activations": report.activations,
        "gaussian": report.gaussian,
        "not_observed": report.refused,
        "loss": report.loss,
        "gradient_norm": report.gradient_norm,
        "parameters": report.parameters,
        "method": report.method,
        "method_reason": report.reason,
        "eigenvalues": {
            name: {"value": pair.value, "residual": pair.residual, "converged": pair.converged}
            for name, pair in report.eigenvalues.items()
        },
        "trace": None if trace is None else asdict(trace),
        "spectral_density": None
        if density is None
        else {"nodes": density.nodes.tolist(), "weights": density.weights.tolist()},
        "critical_sharpness": None if report.sharpness is None else asdict(report.sharpness),
    }
    finite: dict[str, Any] = without_nonfinite(plain, as_text=False)
    return finite


def write_json(report: CurvatureReport, path: str) -> None:
    """Write all figures as JSON.

    Args:
        report: What was measured.
        path: The file.
    """
    with write_atomically(path) as temporary:
        temporary.write_text(json.dumps(to_dict(report), indent=2, allow_nan=False) + "\n", encoding="utf-8")


def write_csv(report: CurvatureReport, path: str) -> None:
    """Write all figures as a table of four columns: kind, name, figure, value.

    Args:
        report: What was measured.
        path: The file.
    """
    with write_atomically(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(("kind", "name", "figure", "value"))
        writer.writerows(rows(report))


def rows(report: CurvatureReport) -> Iterator[Row]:
    """Yield all figures that are defined.

    Args:
        report: What was measured.

    Yields:
        Kind ("activation", "gaussian", "loss", "layer" or "density"), name, figure, value.
    """
    for row in _all_rows(report):
        if math.isfinite(row[3]):
            yield row


def _all_rows(report: CurvatureReport) -> Iterator[Row]:
    for kind, table in (("activation", report.activations), ("gaussian", report.gaussian)):
        for site, figures in table.items():
            yield from ((kind, site, name, value) for name, value in figures.items())
    yield from (("loss", "", name, value) for name, value in _of_loss(report))
    if report.trace is not None:
        for layer, value in report.trace.by_layer.items():
            yield "layer", layer, "trace", value
            yield "layer", layer, "trace_standard_error", report.trace.standard_error_by_layer[layer]
    if report.density is not None:
        pairs = zip(report.density.nodes.flatten().tolist(), report.density.weights.flatten().tolist(), strict=True)
        for node, weight in pairs:
            yield "density", "", "node", node
            yield "density", "", "weight", weight


def _of_loss(report: CurvatureReport) -> Iterator[tuple[str, float]]:
    """Yield name and value of what is one number."""
    for name, number in (("loss", report.loss), ("gradient_norm", report.gradient_norm)):
        if number is not None:
            yield name, number
    for name, pair in report.eigenvalues.items():
        yield name, pair.value
        yield f"{name}_residual", pair.residual
        yield f"{name}_converged", float(pair.converged)
    if report.trace is not None:
        yield "trace", report.trace.trace
        yield "trace_standard_error", report.trace.standard_error
        yield "frobenius_norm", report.trace.frobenius_norm
    if report.sharpness is not None:
        yield "critical_sharpness", report.sharpness.sharpness
        yield "critical_learning_rate", report.sharpness.learning_rate


def write_figure(report: CurvatureReport, path: str) -> None:
    """Draw all figures.

    Args:
        report: What was measured.
        path: The file; its suffix says the format.
    """
    from lit_gelu.cli.curvature.figure import draw

    figure = draw(report)
    with write_atomically(path) as temporary:
        figure.savefig(temporary, dpi=130)
