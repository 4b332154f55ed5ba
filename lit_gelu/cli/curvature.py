"""``lit-gelu curvature``: measure the activations' and the loss's curvature of a checkpoint, and draw it."""

import json as json_format
import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from rich.table import Table

from lit_gelu.cli.terminal import console_for_output, silence_known_warnings, write_text
from lit_gelu.errors import ArgumentError, DataError
from lit_gelu.extras import need
from lit_gelu.files import without_nonfinite, write_atomically

if TYPE_CHECKING:
    from lightning.pytorch import LightningDataModule, LightningModule

    from lit_gelu.curvature.activation_measurement import Figures
    from lit_gelu.curvature.loss_measurement import LossMeasurement

Quantity = Literal["activations", "top_eigenvalue", "smallest_eigenvalue", "trace", "spectral_density"]
_FORMATS = (".png", ".pdf", ".svg")
_DRAWN = ("activations", "trace", "spectral_density")
_MATRICES = {"hessian": "Hessian", "gauss_newton": "Gauss-Newton matrix"}
_COLUMNS = {
    "mean": "mean",
    "standard_deviation": "std",
    "skewness": "skew",
    "excess_kurtosis": "kurtosis",
    "mean_squared_derivative": "E f'^2",
    "curvature": "E|f''|",
    "share_saturated": "|f'|<.01",
    "share_linear": "|f'-1|<.01",
    "share_decreasing": "f'<0",
    "share_dead": "dead units",
}


def curvature(
    ckpt: str,
    *,
    data: str,
    data_root: str | None = None,
    model: str | None = None,
    input_shape: Sequence[str] = (),
    split: Literal["train", "val", "test"] = "train",
    samples: int = 256,
    seed: int = 0,
    quantities: Sequence[Quantity] = get_args(Quantity),
    operator: Literal["hessian", "gauss_newton"] = "hessian",
    mode: Literal["eval", "train"] = "eval",
    lanczos_steps: int = 40,
    trace_probes: int = 20,
    density_steps: int = 80,
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
      lit-gelu curvature last.ckpt --data DigitsData --quantities activations trace --json all.json
      lit-gelu curvature last.ckpt --data DigitsData --json | jq .eigenvalues
      lit-gelu curvature last.ckpt --data DigitsData --operator gauss_newton --split test
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
        seed: of a shuffling loader's order, and of all random vectors
        quantities: which of those below; default: all
        operator: whose eigenvalues and trace
        mode: train: dropout and batch statistics in the loss's passes
        lanczos_steps: products with the matrix for the eigenvalues
        trace_probes: products for the trace
        density_steps: products for the density
        json: print JSON, and nothing else on standard output; or write it into a file
        figure: where to draw activations, trace and density, as PNG, PDF or SVG
    """
    if samples < 2:
        raise ArgumentError(f"--samples {samples} is not accepted. Give an integer from 2.")
    if figure is not None:  # before minutes of measuring
        if Path(figure).suffix.lower() not in _FORMATS:
            raise ArgumentError(f"--figure {figure} is not accepted. Give a file {', '.join(_FORMATS)}.")
        if set(quantities).isdisjoint(_DRAWN):
            raise ArgumentError(f"--figure draws {', '.join(_DRAWN)}: none of them is among --quantities.")
        need("matplotlib", extra="plots", what="--figure")
    silence_known_warnings()
    from lit_gelu.cli.input_sample import random_sample, sample_for
    from lit_gelu.cli.loading import load_data, load_model
    from lit_gelu.curvature.loss import LossProbe
    from lit_gelu.curvature.loss_measurement import measure_loss
    from lit_gelu.curvature.settings import LossSettings

    options: dict[str, Any] = {
        "operator": operator,
        "mode": mode,
        "seed": seed,
        "lanczos_steps": lanczos_steps,
        "trace_probes": trace_probes,
        "density_steps": density_steps,
    }
    of_loss = tuple(name for name in dict.fromkeys(quantities) if name != "activations")
    # Exactly as many products as were asked for.
    settings = LossSettings(quantities=of_loss, accuracy=None, trace_accuracy=None, **options) if of_loss else None
    module = load_data(data, data_root)
    net = load_model(ckpt, model, sample_for(input_shape, module))
    report = CurvatureReport(ckpt, type(net).__name__, type(module).__name__)
    report.settings = {"split": split, "samples": samples, "quantities": list(dict.fromkeys(quantities)), **options}
    batches = first_examples(report, module, split, samples, seed)
    if "activations" in quantities:
        measure_activations(report, net, batches, random_sample(input_shape) if input_shape else None)
    if settings is not None:
        text = f"up to {lanczos_steps + trace_probes + density_steps} products with the {report.matrix}"
        sys.stderr.write(f"{text} on {report.samples} examples, each as long as two training steps on them\n")
        with LossProbe(net, batches, mode=mode, seed=seed) as probe:
            report.loss = measure_loss(probe, settings)
        report.notes += report.loss.left_out
    if json != "-":
        console_for_output().print(*_tables(report))
    if json is not None:
        write_text(json_format.dumps(to_dict(report), indent=2, allow_nan=False), json)
    if figure is not None:
        from lit_gelu.cli.curvature_figure import draw

        drawn = draw(report)
        with write_atomically(figure) as temporary:
            drawn.savefig(temporary, dpi=130)
    return 0


@dataclass
class CurvatureReport:
    """What was measured; what was not asked for is empty or ``None``."""

    source: str  # the checkpoint
    model: str  # its class, as `data`
    data: str
    settings: dict[str, Any] = field(default_factory=dict)  # the command's options
    samples: int = 0  # that were used
    activations: "Figures" = field(default_factory=dict)  # by site and statistic
    gaussian: "Figures" = field(default_factory=dict)  # the same for a normal input of the same mean and deviation
    refused: dict[str, str] = field(default_factory=dict)  # sites that cannot be watched, and why
    loss: "LossMeasurement | None" = None
    notes: list[str] = field(default_factory=list)

    @property
    def matrix(self) -> str:
        """The name of the loss's matrix."""
        return _MATRICES[self.settings["operator"]]

    @property
    def examples(self) -> str:
        """What was measured on."""
        return f"{self.samples} examples of {self.data}, {self.settings['split']}"


def first_examples(
    report: CurvatureReport, data: "LightningDataModule", split: str, count: int, seed: int
) -> list[Any]:
    """Return the batches that a part of the data gives first, until there are enough examples, the last one cut."""
    import torch
    from lightning.fabric.utilities.exceptions import MisconfigurationException

    from lit_gelu.curvature.probe.examples import count_examples, take_examples

    torch.manual_seed(seed % 2**63)  # torch takes no larger one
    data.prepare_data()
    data.setup({"train": "fit", "val": "validate", "test": "test"}[split])
    try:
        loader: Iterable[Any] | None = getattr(data, f"{split}_dataloader")()
    except MisconfigurationException:  # what lightning raises where a data module has no such method
        loader = None
    if loader is None or isinstance(loader, dict | list | tuple):
        raise DataError(
            f"{report.data}.{split}_dataloader() gives no single loader. Give another --split, or a data module with "
            "one loader."
        )
    batches = []
    for batch in loader:
        present = count_examples(batch)
        if not present:
            raise DataError(
                f"A batch of type {type(batch).__name__} has no examples that can be counted. Accepted are tensors in "
                "tuples, lists, mappings and dataclasses."
            )
        batches.append(take_examples(batch, count - report.samples))
        report.samples += min(present, count - report.samples)
        if report.samples == count:
            return batches
    if not batches:
        raise DataError("The data module's loader is empty. Give another --split.")
    report.notes.append(f"{report.data}.{split}_dataloader() gives {report.samples} examples; {count} were asked for.")
    return batches


def measure_activations(
    report: CurvatureReport, model: "LightningModule", batches: Sequence[Any], input_sample: Any
) -> None:
    """Measure a model's activations in evaluation mode; the model is left as it was."""
    from lit_gelu.activations import registry
    from lit_gelu.curvature.activation_measurement import statistics_on
    from lit_gelu.curvature.probe.forward_inputs import forward_sample

    sample = forward_sample(model, batches[0], input_sample)
    report.activations, report.gaussian, report.refused = statistics_on(model, batches, registry, sample)
    if not report.activations:
        report.notes.append("No activation was observed.")
    if sample is None and (report.refused or not report.activations):
        report.notes.append(
            "Calls of functions are found by running forward: give example_input_array, or --input-shape."
        )


def to_dict(report: CurvatureReport) -> dict[str, Any]:
    """Return all figures as plain data."""
    loss = report.loss
    plain: dict[str, Any] = {
        "schema": "lit-gelu-curvature",
        "schema_version": 2,
        "checkpoint": report.source,
        "model": report.model,
        "data": report.data,
        "settings": report.settings,
        "samples": report.samples,
        "notes": report.notes,
        "activations": report.activations,
        "gaussian": report.gaussian,
        "not_observed": report.refused,
    }
    if loss is not None:
        plain |= {
            "probe_loss": loss.figures.get(("probe_loss",)),
            "gradient_norm": loss.figures.get(("gradient_norm",)),
            "parameters": loss.parameters,
            "eigenvalues": {
                name: {"value": pair.estimate, "residual": pair.residual, "converged": pair.converged}
                for name, pair in loss.eigenpairs.items()
            },
            "trace": None if loss.trace is None else asdict(loss.trace),
            "spectral_density": None
            if loss.spectrum is None
            else {"nodes": loss.spectrum.nodes.tolist(), "weights": loss.spectrum.weights.tolist()},
        }
    finite: dict[str, Any] = without_nonfinite(plain, as_text=False)
    return finite


def _tables(report: CurvatureReport) -> list[Table]:
    """Return what was measured as tables."""
    tables = []
    if report.activations or report.refused:
        tables.append(_table_of_activations(report))
    loss = report.loss
    title = f"loss of {report.model} on {report.samples} examples, {report.settings['mode']} mode"
    if loss is not None:
        title += f"; {report.matrix} of {loss.parameters:,} parameters"
    table = Table(title=title, title_justify="left", caption=" ".join(report.notes) or None, caption_justify="left")
    for column in ("quantity", "value", "error", "remark"):
        table.add_column(column, justify="right" if column in {"value", "error"} else "left")
    tables.append(table)
    if loss is None:
        return tables
    table.add_row("probe loss", f"{loss.figures['probe_loss',]:.6g}", "", "mean over the examples")
    table.add_row("gradient norm", f"{loss.figures['gradient_norm',]:.4g}", "", "")
    for name, pair in loss.eigenpairs.items():
        remark = "converged" if pair.converged else "not converged: more --lanczos-steps"
        table.add_row(
            name.replace("_", " "), f"{pair.estimate:.6g}", f"{pair.residual:.1g}", f"{remark}; error: residual"
        )
    if loss.trace is not None:
        trace = loss.trace
        remark = f"error: standard error of {trace.probes} probes"
        table.add_row("trace", f"{trace.trace:.6g}", f"{trace.standard_error:.2g}", remark)
        table.add_row("Frobenius norm", f"{trace.frobenius_norm:.6g}", "", "root of the sum of squared eigenvalues")
        layers = Table(title="trace by layer; they add up to the whole", title_justify="left")
        for column in ("layer", "trace", "standard error", "share"):
            layers.add_column(column, justify="left" if column == "layer" else "right")
        for layer, value in trace.by_layer.items():
            share = f"{value / trace.trace:.1%}" if trace.trace else "-"
            error = f"{trace.standard_error_by_layer[layer]:.2g}"
            layers.add_row(layer or "(the model)", f"{value:.4g}", error, share)
        tables.append(layers)
    return tables


def _table_of_activations(report: CurvatureReport) -> Table:
    """Return a row a site; the figure and the JSON show beside it what a normal input would give."""
    from lit_gelu.curvature.plots import statistic_of

    table = Table(title=f"activations of {report.model} on {report.examples}", title_justify="left")
    table.add_column("site")
    for title in _COLUMNS.values():
        table.add_column(title, justify="right")
    for site, figures in report.activations.items():
        cells = []
        for name in _COLUMNS:
            value = statistic_of(figures, name)
            cells.append("-" if math.isnan(value) else f"{value:.1%}" if name.startswith("share_") else f"{value:.3f}")
        table.add_row(site or "(the model)", *cells)
    for site, reason in report.refused.items():
        table.add_row(site, f"not observed: {reason}")
    return table
