"""`CurveRecorder`: a callback that measures a run's curves and leaves the training as it would be without it."""

import math
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, cast

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities.seed import isolate_rng
from torch import Tensor

from lit_gelu.data.in_memory import fits
from gelu_paper.errors import PaperArgumentError
from gelu_paper.jobs import Progress
from gelu_paper.records.run_record import Curve
from lit_gelu.sandbox import evaluation_sandbox
from lit_gelu.tasks import ActivationTask

SAMPLES_AT_ONCE = 1000  # bounds the memory; without effect on the result but for rounding


class EvaluationSet(NamedTuple):
    """All samples of a set: inputs ``[samples, ...]`` and labels ``[samples]``."""

    inputs: Tensor
    labels: Tensor

    @classmethod
    def of(cls, batches: Iterable[tuple[Tensor, Tensor]]) -> "EvaluationSet | None":
        """Gather a loader's batches of inputs and labels; ``None`` if there is none."""
        pairs = list(batches)
        if not pairs:
            return None
        inputs, labels = zip(*pairs, strict=True)
        return cls(torch.cat(inputs), torch.cat(labels))

    def near(self, device: torch.device) -> "EvaluationSet":
        """Return the set on a device, if it may stay there for a whole run, else as it is."""
        if not fits(self.inputs.nbytes + self.labels.nbytes, device):
            return self
        return EvaluationSet(self.inputs.to(device), self.labels.to(device))


def means(module: ActivationTask, samples: EvaluationSet) -> dict[str, float]:
    """Return the means over a set, summed up in float64, of a task's `sample_values`: ``"loss"``, ``"error"``."""
    # The caller sees to evaluation mode, gradients and random numbers.
    found: dict[str, list[Tensor]] = {}
    for start in range(0, len(samples.labels), SAMPLES_AT_ONCE):
        inputs, labels = (part[start : start + SAMPLES_AT_ONCE] for part in samples)
        values = module.sample_values(inputs.to(module.device), labels.to(module.device))
        for name, value in values.items():
            found.setdefault(name, []).append(value)
    return {name: torch.cat(values).cpu().double().mean().item() for name, values in found.items()}


def measured(task: ActivationTask, sets: Mapping[str, EvaluationSet], trainer: Trainer) -> dict[str, float]:
    """Return `means` of a net that a Trainer trains, by stage and name, and leave no trace in the training."""
    with isolate_rng(), evaluation_sandbox(task), trainer.precision_plugin.val_step_context():
        return {
            f"{stage}_{name}": value for stage, samples in sets.items() for name, value in means(task, samples).items()
        }


Points = dict[str, tuple[list[float], list[float]]]  # of curves that grow, by name: epochs and values


def add_points(points: Points, epoch: float, values: Mapping[str, float]) -> None:
    """Let curves grow by what was measured when so many epochs had passed."""
    for name, value in values.items():
        epochs, column = points.setdefault(name, ([], []))
        epochs.append(epoch)
        column.append(value)


def as_curves(points: Points) -> dict[str, Curve]:
    """Return curves as records hold them."""
    return {name: Curve(tuple(epochs), tuple(values)) for name, (epochs, values) in points.items()}


TRAINING_CURVES = ("train_loss", "train_error")
SECONDS_BETWEEN_REPORTS = 1.0


class CurveRecorder(Callback):
    """Measures validation and test set several times an epoch, evenly spaced, the last time at the epoch's end."""

    # Training curves are means, over the steps since the measurement before, of what the task logs as train_loss and
    # (where it does) train_error. Weights, buffers, modes, optimizer and random numbers are untouched: a run with this
    # callback gives the same weights to the bit as one without. A training loss that is no finite number ends the run:
    # `diverged` is true then. `report` is called with how far it is, at most once a second.

    def __init__(
        self, sets: Mapping[str, EvaluationSet], evaluations: int, report: Callable[[Progress], None] = lambda _: None
    ) -> None:
        if evaluations < 1:
            raise PaperArgumentError(f"evaluations={evaluations} is not accepted. Give an integer of at least 1.")
        self.diverged = False
        self._sets = dict(sets)
        self._evaluations = evaluations
        self._report = report
        self._reported = -math.inf
        self._steps: frozenset[int] = frozenset()
        self._logged: dict[str, list[Tensor]] = {}
        self._points: Points = {}

    @property
    def curves(self) -> dict[str, Curve]:
        """What was measured so far, by name."""
        return as_curves(self._points)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Find the steps to measure after."""
        if not isinstance(pl_module, ActivationTask):
            raise PaperArgumentError(f"{type(pl_module).__name__} given; accepted: a lit_gelu.tasks.ActivationTask.")
        self._steps = evaluation_steps(int(trainer.num_training_batches), self._evaluations)
        for name, (inputs, labels) in self._sets.items():
            converted = EvaluationSet(trainer.precision_plugin.convert_input(inputs), labels)
            self._sets[name] = converted.near(pl_module.device)

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,  # noqa: ARG002 - Lightning's signature
        batch: Any,  # noqa: ARG002 - Lightning's signature
        batch_idx: int,
    ) -> None:
        """Keep what the step logged, not the loss that it returned, and measure if it is time."""
        logged = trainer.callback_metrics
        for name in TRAINING_CURVES:
            if name in logged:
                # A copy on the device: asking for the number would make every step wait for the GPU.
                self._logged.setdefault(name, []).append(logged[name].detach().clone())
        passed = trainer.current_epoch + (batch_idx + 1) / int(trainer.num_training_batches)
        if batch_idx + 1 in self._steps:
            self._measure(trainer, cast("ActivationTask", pl_module), passed)
        if time.monotonic() - self._reported > SECONDS_BETWEEN_REPORTS:
            self._reported = time.monotonic()
            self._report(Progress(passed, int(trainer.num_training_batches)))

    def _measure(self, trainer: Trainer, task: ActivationTask, epoch: float) -> None:
        logged = {name: mean_of(values) for name, values in self._logged.items()}
        self._logged = {}
        self.diverged = not math.isfinite(logged.get("train_loss", 0.0))
        add_points(self._points, epoch, logged | measured(task, self._sets, trainer))
        trainer.should_stop = trainer.should_stop or self.diverged


def mean_of(values: list[Tensor]) -> float:
    """Return the mean, computed in float64, of what single steps logged."""
    return torch.stack(values).cpu().double().mean().item()


def evaluation_steps(steps: int, evaluations: int) -> frozenset[int]:
    """Return the steps of an epoch, from 1 on, after which there is a measurement: evenly spaced, the last too."""
    return frozenset(math.ceil(steps * number / evaluations) for number in range(1, evaluations + 1))
