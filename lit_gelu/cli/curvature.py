"""``lit-gelu curvature``: measure the activations' and the loss's curvature of a checkpoint, and draw it."""

import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from rich.table import Table

from lit_gelu.cli.terminal import console_for_output, silence_known_warnings, write_json
from lit_gelu.errors import ArgumentError, DataError
from lit_gelu.extras import need
from lit_gelu.files import write_atomically

if TYPE_CHECKING:
    from lightning.pytorch import LightningDataModule
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from lit_gelu.curvature.loss_measurement import LossMeasurement

Quantity = Literal["activations", "top_eigenvalue", "smallest_eigenvalue", "trace", "spectral_density"]
_FORMATS = (".png", ".pdf", ".svg")
_COLUMNS = {
    "mean": "mean",
    "standard_deviation": "std",
    "mean_squared_derivative": "E f'^2",
    "curvature": "E|f''|",
    "share_saturated": "|f'|<.01",
    "share_linear": "|f'-1|<.01",
    "share_decreasing": "f'<0",
    "share_dead": "dead units",
}
_STATISTICS = {
    "curvature": "E|f''|, kinks included, per unit of input",
    "mean_squared_derivative": "E f'²: what squared gradients\nare multiplied by in the mean",
}
_MOST_LABELS = 40  # more names do not fit beside a plot


def curvature(
    ckpt: str,
    *,
    data: str,
    data_root: str | None = None,
    model: str | None = None,
    input_shape: Sequence[str] = (),
    split: Literal["train", "val", "test"] = "train",
    samples: int = 256,
    quantities: Sequence[Quantity] = get_args(Quantity),
    mode: Literal["eval", "train"] = "eval",
    json: str | None = None,
    figure: str | None = None,
) -> int:
    """Measure the activations' and the loss's curvature of a checkpoint, and draw it.

    quantities:
      activations           each activation's input and slope, beside what a normal input of the same mean and deviation
                            would give
      top_eigenvalue        the Hessian's largest, by Lanczos iteration
      smallest_eigenvalue   the smallest, from the same products
      trace                 the sum of its eigenvalues with standard error, by layer, and its Frobenius norm
      spectral_density      where its eigenvalues lie, by stochastic Lanczos quadrature

    in a shell:
      lit-gelu curvature last.ckpt --data DigitsData
      lit-gelu curvature last.ckpt --data MNISTData --data-root data --samples 1024 --figure curvature.png
      lit-gelu curvature last.ckpt --data my_package.MyData --model my_package.MyModule --mode train

    Args:
        ckpt: a Lightning checkpoint, or a model's class for one that is untrained
        data: a data module, such as DigitsData or MNISTData
        data_root: the folder with the files of the data module
        model: the model's class, if the checkpoint does not record it: my_module.MyNet, also from the current folder
        input_shape: for a model without example_input_array: the sizes of one row of each input, without the batch;
            1,28,28, or by name input_ids=16:int64 mask=16:int64
        split: which of the data to use
        samples: how many examples, to which the time is proportional: those that its loader gives first
        quantities: which of those below; default: all
        mode: train: dropout and batch statistics in the loss's passes
        json: print JSON, and nothing else on standard output; or write it into a file
        figure: where to draw activations, trace and density, as PNG, PDF or SVG
    """
    if samples < 2:
        raise ArgumentError(f"--samples {samples} is not accepted. Give an integer from 2.")
    if figure is not None:  # before minutes of measuring
        if Path(figure).suffix.lower() not in _FORMATS:
            raise ArgumentError(f"--figure {figure} is not accepted. Give a file {', '.join(_FORMATS)}.")
        need("matplotlib", extra="plots", what="--figure")
    silence_known_warnings()
    from lit_gelu.activations import registry
    from lit_gelu.cli.input_sample import random_sample, sample_for
    from lit_gelu.cli.loading import load_data, load_model
    from lit_gelu.curvature.activation_measurement import statistics_on
    from lit_gelu.curvature.loss import LossProbe
    from lit_gelu.curvature.loss_measurement import measure_loss
    from lit_gelu.curvature.probe.batches import forward_sample
    from lit_gelu.curvature.settings import LossSettings, ProductBudget

    of_loss = tuple(name for name in dict.fromkeys(quantities) if name != "activations")
    # Exactly as many products as these.
    budget = ProductBudget(lanczos_steps=40, trace_probes=20, density_steps=80, accuracy=None, trace_accuracy=None)
    settings = LossSettings(quantities=of_loss, mode=mode, budget=budget) if of_loss else None
    module = load_data(data, data_root)
    net = load_model(ckpt, model, sample_for(input_shape, module))
    batches, present = first_examples(module, split, samples)
    options = {"split": split, "samples": samples, "quantities": list(dict.fromkeys(quantities))}
    report: dict[str, Any] = {
        "schema": "lit-gelu-curvature",
        "schema_version": 2,
        "checkpoint": ckpt,
        "model": type(net).__name__,
        "data": type(module).__name__,
        "settings": options | {"mode": mode},
        "samples": present,
        "notes": [] if present == samples else [f"The loader gives {present} examples; {samples} were asked for."],
        "activations": {},
        "gaussian": {},
        "not_observed": {},
    }
    if "activations" in quantities:
        sample = forward_sample(net, batches[0], random_sample(input_shape) if input_shape else None)
        statistics = statistics_on(net, batches, registry, sample)
        report |= {"activations": statistics.measured, "gaussian": statistics.gaussian}
        report["not_observed"] = statistics.refused
        if sample is None and (statistics.refused or not statistics.measured):
            report["notes"].append("Calls of functions are found by running forward: give --input-shape.")
    loss = None
    if settings is not None:
        sys.stderr.write("up to 140 products with the matrix, each as long as two training steps on the examples\n")
        with LossProbe(net, batches, mode=mode) as probe:
            loss = measure_loss(probe, settings)
        report["notes"] += loss.left_out
        report |= _plain(loss)
    if json != "-":
        console_for_output().print(*_tables(report, loss))
    if json is not None:
        write_json(report, json, as_text=False)
    if figure is not None:
        drawn = _draw(report, loss)
        with write_atomically(figure) as temporary:
            drawn.savefig(temporary, dpi=130)
    return 0


def first_examples(data: "LightningDataModule", split: str, count: int) -> tuple[list[Any], int]:
    """Return the batches that a part of the data gives first, and how many examples these have; the last one is cut."""
    import torch
    from lightning.fabric.utilities.exceptions import MisconfigurationException

    from lit_gelu.curvature.probe.batches import count_examples, take_examples

    torch.manual_seed(0)  # of a shuffling loader's order
    data.prepare_data()
    data.setup({"train": "fit", "val": "validate", "test": "test"}[split])
    try:
        loader: Iterable[Any] | None = getattr(data, f"{split}_dataloader")()
    except MisconfigurationException:  # what lightning raises where a data module has no such method
        loader = None
    if loader is None or isinstance(loader, dict | list | tuple):
        raise DataError(
            f"{type(data).__name__}.{split}_dataloader() gives no single loader. Give another --split, or a data "
            "module with one loader."
        )
    batches, present = [], 0
    for batch in loader:
        batches.append(take_examples(batch, count - present))
        present += count_examples(batches[-1]) or 0
        if present == count:
            break
    if not present:
        raise DataError(
            "The loader is empty, or its examples cannot be counted. Accepted are tensors in tuples, lists, mappings "
            "and dataclasses. Or give another --split."
        )
    return batches, present


def _plain(loss: "LossMeasurement") -> dict[str, Any]:
    eigenvalues = {
        name: {"value": pair.estimate, "residual": pair.residual, "converged": pair.converged}
        for name, pair in loss.eigenpairs.items()
    }
    spectrum = loss.spectrum and {"nodes": loss.spectrum.nodes.tolist(), "weights": loss.spectrum.weights.tolist()}
    return {
        "probe_loss": loss.figures["probe_loss",],
        "gradient_norm": loss.figures["gradient_norm",],
        "parameters": loss.parameters,
        "eigenvalues": eigenvalues,
        "trace": loss.trace and asdict(loss.trace),
        "spectral_density": spectrum,
    }


def _tables(report: dict[str, Any], loss: "LossMeasurement | None") -> list[Table]:
    from lit_gelu.curvature.activation.statistics import statistic_of

    tables = []
    if report["activations"] or report["not_observed"]:
        rows: list[Sequence[str]] = []
        for site, figures in report["activations"].items():
            values = {name: statistic_of(figures, name) for name in _COLUMNS}
            cells = (f"{v:.1%}" if name.startswith("share_") else f"{v:.3f}" for name, v in values.items())
            rows.append((site or "(the model)", *("-" if cell.startswith("nan") else cell for cell in cells)))
        rows += [(site, f"not observed: {reason}") for site, reason in report["not_observed"].items()]
        title = f"activations of {report['model']} on {report['samples']} examples"
        tables.append(_table(title, ("site", *_COLUMNS.values()), rows))
    if loss is not None:
        rows = [
            ("probe loss", f"{loss.figures['probe_loss',]:.6g}", "", "mean over the examples"),
            ("gradient norm", f"{loss.figures['gradient_norm',]:.4g}", "", ""),
        ]
        for name, pair in loss.eigenpairs.items():
            remark = f"{'converged' if pair.converged else 'not converged'}; error: residual"
            rows.append((name.replace("_", " "), f"{pair.estimate:.6g}", f"{pair.residual:.1g}", remark))
        trace = loss.trace
        if trace is not None:
            remark = f"error: standard error of {trace.probes} probes"
            rows.append(("trace", f"{trace.trace:.6g}", f"{trace.standard_error:.2g}", remark))
            rows.append(("Frobenius norm", f"{trace.frobenius_norm:.6g}", "", "root of the sum of squared eigenvalues"))
            for layer, value in trace.by_layer.items():
                error = f"{trace.standard_error_by_layer[layer]:.2g}"
                rows.append((f"trace of {layer or '(the model)'}", f"{value:.4g}", error, ""))
        title = f"Hessian of the loss by {loss.parameters:,} parameters"
        tables.append(_table(title, ("quantity", "value", "error", "remark"), rows))
    tables = tables or [_table("no activation was observed", (), ())]
    tables[-1].caption = " ".join(report["notes"]) or None
    return tables


def _table(title: str, columns: Iterable[str], rows: Iterable[Sequence[str]]) -> Table:
    table = Table(title=title, title_justify="left", caption_justify="left")
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number and column != "remark" else "left")
    for row in rows:
        table.add_row(*row)
    return table


def _draw(report: dict[str, Any], loss: "LossMeasurement | None") -> "Figure":
    """Draw the activations beside what a normal input would give, the trace by layer, and the spectral density."""
    from matplotlib.figure import Figure

    from lit_gelu.curvature.activation.statistics import statistic_of
    from lit_gelu.curvature.loss_measurement import draw_density

    activations = report["activations"]
    trace, spectrum = (None, None) if loss is None else (loss.trace, loss.spectrum)
    panels = 2 * bool(activations) + (trace is not None) + (spectrum is not None)
    rows = max(len(activations), 0 if trace is None else len(trace.by_layer), 4)
    figure = Figure(figsize=(4.8 * max(panels, 1), min(12.0, 2.6 + 0.24 * rows)), layout="constrained")
    figure.suptitle(
        f"{report['model']} ({Path(report['checkpoint']).name}): {report['samples']} examples of {report['data']}"
    )
    axes = iter(figure.subplots(1, max(panels, 1), squeeze=False).flat)
    for name, title in _STATISTICS.items() if activations else ():
        panel = next(axes)
        tables = {"measured": activations, "normal input, same mean and deviation": report["gaussian"]}
        for marker, (label, table) in zip("ox", tables.items(), strict=True):
            values = [statistic_of(table.get(site, {}), name) for site in activations]
            panel.plot(values, range(len(values)), marker, label=label)
        _name_rows(panel, list(activations))
        panel.set_xlim(0, 1.15 * panel.get_xlim()[1])
        panel.set_title(title, fontsize=9)
        panel.legend(fontsize=7, frameon=False)
    if trace is not None:
        panel = next(axes)
        errors = [trace.standard_error_by_layer[layer] for layer in trace.by_layer]
        panel.barh(range(len(errors)), list(trace.by_layer.values()), xerr=errors, color="tab:blue", ecolor="black")
        _name_rows(panel, list(trace.by_layer))
        total = f"{trace.trace:.4g} ± {trace.standard_error:.2g} in all"
        panel.set_title(f"Hessian: trace by layer,\n{total}; bars: standard error", fontsize=9)
    if spectrum is not None:
        draw_density(next(axes), spectrum, "Hessian")
    return figure


def _name_rows(axes: "Axes", names: list[str]) -> None:
    """Write the names beside the rows, first on top; of many, every so many."""
    shown = list(enumerate(names))[:: max(1, -(-len(names) // _MOST_LABELS))]
    axes.set_yticks([row for row, _ in shown], [name or "(the model)" for _, name in shown], fontsize=7)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.grid(axis="x", alpha=0.3)
