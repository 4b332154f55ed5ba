"""What ``lit-gelu curvature`` measures on a checkpoint."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import LightningDataModule, LightningModule

from lit_gelu import activations
from lit_gelu.curvature.activation_measurement import Figures, statistics_on
from lit_gelu.curvature.loss import LossProbe
from lit_gelu.curvature.loss_measurement import LossMeasurement, measure_loss
from lit_gelu.curvature.probe.examples import count_examples, take_examples
from lit_gelu.curvature.probe.forward_inputs import forward_sample
from lit_gelu.curvature.probe.loss_probe import Mode
from lit_gelu.curvature.settings import LossSettings
from lit_gelu.errors import LitGeluError


class NoBatchesError(LitGeluError, ValueError):
    """A data module whose batches cannot be had or counted."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What to measure, and on which data."""

    split: str  # "train", "val" or "test"
    samples: int
    seed: int  # of the order of the data, and of all random vectors
    quantities: tuple[str, ...]  # "activations", and quantities of `LossSettings`, whose fields the others are too
    operator: str
    mode: Mode  # of the loss's passes; the activations are measured in evaluation
    lanczos_steps: int
    trace_probes: int
    density_steps: int

    @property
    def of_loss(self) -> LossSettings | None:
        """What is measured of the loss: with exactly as many products as were asked for."""
        quantities = tuple(name for name in self.quantities if name != "activations")
        if not quantities:
            return None
        fields = asdict(self) | {"quantities": quantities, "accuracy": None, "trace_accuracy": None}
        return LossSettings(**{name: value for name, value in fields.items() if name not in {"split", "samples"}})


@dataclass
class CurvatureReport:
    """What was measured; what was not asked for is empty or ``None``."""

    source: str  # the checkpoint
    model: str  # its class, as `data`
    data: str
    settings: Settings
    samples: int  # that were used
    activations: Figures = field(default_factory=dict)  # by site and statistic
    gaussian: Figures = field(default_factory=dict)  # the same for a normal input of the same mean and deviation
    refused: dict[str, str] = field(default_factory=dict)  # sites that cannot be watched, and why
    loss: LossMeasurement | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def matrix(self) -> str:
        """The name of the loss's matrix."""
        return {"hessian": "Hessian", "gauss_newton": "Gauss-Newton matrix"}[self.settings.operator]


def measure(
    model: LightningModule, data: LightningDataModule, settings: Settings, *, source: str = "", input_sample: Any = None
) -> CurvatureReport:
    """Measure a model on the examples that its data's loader gives first; the model is left as it was."""
    torch.manual_seed(settings.seed % 2**63)  # torch takes no larger one
    loader = _batches(data, settings.split)
    batches = list(first_examples(loader, settings.samples))
    examples = sum(count_examples(batch) or 0 for batch in batches)
    report = CurvatureReport(source, type(model).__name__, type(data).__name__, settings, examples)
    if examples < settings.samples:
        report.notes.append(
            f"{type(data).__name__}.{settings.split}_dataloader() gives {examples} examples; {settings.samples} were "
            f"asked for.{_left_out(loader)}"
        )
    if "activations" in settings.quantities:
        _measure_activations(model, batches, report, input_sample)
    of_loss = settings.of_loss
    if of_loss is not None:
        with LossProbe(model, batches, mode=settings.mode, seed=settings.seed) as probe:
            report.loss = measure_loss(probe, of_loss)
        report.notes += report.loss.left_out
    return report


def first_examples(batches: Iterable[Any], count: int) -> Iterable[Any]:
    """Yield batches until there are enough examples, the last one cut."""
    missing = count
    for batch in batches:
        present = count_examples(batch)
        if not present:
            raise NoBatchesError(
                f"A batch of type {type(batch).__name__} has no examples that can be counted. Accepted are tensors in "
                "tuples, lists, mappings and dataclasses."
            )
        yield take_examples(batch, missing)
        missing -= present
        if missing <= 0:
            return
    if missing == count:
        raise NoBatchesError("The data module's loader is empty. Give another --split.")


def _batches(data: LightningDataModule, split: str) -> Iterable[Any]:
    """Return the loader of a part of the data."""
    data.prepare_data()
    data.setup({"train": "fit", "val": "validate", "test": "test"}[split])
    try:
        loader: Iterable[Any] | None = getattr(data, f"{split}_dataloader")()
    except MisconfigurationException:  # what lightning raises where a data module has no such method
        loader = None
    if loader is None or isinstance(loader, dict | list | tuple):
        raise NoBatchesError(
            f"{type(data).__name__}.{split}_dataloader() gives no single loader. Give another --split, or a data "
            "module with one loader."
        )
    return loader


def _left_out(loader: Iterable[Any]) -> str:
    """Return that a loader leaves the last examples out, where it does."""
    return " It leaves out a last batch that is not full." if getattr(loader, "drop_last", False) is True else ""


def _measure_activations(
    model: LightningModule, batches: list[Any], report: CurvatureReport, input_sample: Any
) -> None:
    """Fill in the statistics of the activations, from the passes that compute the loss."""
    sample = forward_sample(model, batches[0]) if input_sample is None else input_sample
    found = statistics_on(model, batches, activations.registry, sample)
    report.activations, report.gaussian, report.refused = found
    notes = [] if found.measured else ["No activation was observed."]
    if sample is None and (found.refused or notes):
        notes.append("Calls of functions are found by running forward: give example_input_array, or --input-shape.")
    elif notes and not found.refused:
        notes.append(f"{report.model} has none, and running its forward calls none.")
    if notes:
        report.notes.append(" ".join(notes))
