"""The files that ``lit-gelu curvature`` writes: JSON, CSV and a figure."""

import csv
import json
import math
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from lit_gelu.cli.curvature.checkpoint import CurvatureReport
from lit_gelu.curvature.loss_measurement import LossMeasurement
from lit_gelu.files import without_nonfinite, write_atomically

SCHEMA = "lit-gelu-curvature"
SCHEMA_VERSION = 1

Row = tuple[str, str, str, float]
"""What a figure is of (site, layer or nothing), which kind of thing that is, the figure's name and value."""


def to_dict(report: CurvatureReport) -> dict[str, Any]:
    """Return all figures as plain data."""
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
        **_loss_as_dict(report.loss or LossMeasurement()),
    }
    finite: dict[str, Any] = without_nonfinite(plain, as_text=False)
    return finite


def _loss_as_dict(loss: LossMeasurement) -> dict[str, Any]:
    trace, spectrum = loss.trace, loss.spectrum
    return {
        "probe_loss": loss.figures.get(("probe_loss",)),
        "gradient_norm": loss.figures.get(("gradient_norm",)),
        "parameters": loss.parameters,
        "note": loss.note,
        "eigenvalues": {
            name: {"value": pair.estimate, "residual": pair.residual, "converged": pair.converged}
            for name, pair in loss.eigenpairs.items()
        },
        "trace": None if trace is None else asdict(trace),
        "spectral_density": None
        if spectrum is None
        else {"nodes": spectrum.nodes.tolist(), "weights": spectrum.weights.tolist()},
    }


def as_json(report: CurvatureReport) -> str:
    """Return all figures as JSON."""
    return json.dumps(to_dict(report), indent=2, allow_nan=False)


def write_csv(report: CurvatureReport, path: str) -> None:
    """Write all figures as a table of four columns: kind, name, figure, value."""
    with write_atomically(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(("kind", "name", "figure", "value"))
        writer.writerows(rows(report))


def rows(report: CurvatureReport) -> Iterator[Row]:
    """Yield all figures that are defined; kinds are "activation", "gaussian", "loss", "layer" and "density"."""
    for row in _all_rows(report):
        if math.isfinite(row[3]):
            yield row


def _all_rows(report: CurvatureReport) -> Iterator[Row]:
    for kind, table in (("activation", report.activations), ("gaussian", report.gaussian)):
        for site, figures in table.items():
            yield from ((kind, site, name, value) for name, value in figures.items())
    loss = report.loss or LossMeasurement()
    yield from (("loss", "", path[0], value) for path, value in loss.figures.items() if len(path) == 1)
    if loss.trace is not None:
        for layer, value in loss.trace.by_layer.items():
            yield "layer", layer, "trace", value
            yield "layer", layer, "trace_standard_error", loss.trace.standard_error_by_layer[layer]
    if loss.spectrum is not None:
        pairs = zip(loss.spectrum.nodes.flatten().tolist(), loss.spectrum.weights.flatten().tolist(), strict=True)
        for node, weight in pairs:
            yield "density", "", "node", node
            yield "density", "", "weight", weight


def write_figure(report: CurvatureReport, path: str) -> None:
    """Draw all figures."""
    from lit_gelu.cli.curvature.drawing import draw

    figure = draw(report)
    with write_atomically(path) as temporary:
        figure.savefig(temporary, dpi=130)
