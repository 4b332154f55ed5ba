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
from lit_gelu.paper.errors import PaperArgumentError
from lit_gelu.paper.run_record import Curve
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


TRAINING_CURVES = ("train_loss", "train_error")
_SECONDS_BETWEEN_REPORTS = 1.0


class CurveRecorder(Callback):
    """Measures validation and test set several times an epoch, evenly spaced, the last time at the epoch's end."""

    # Training curves are means, over the steps since the measurement before, of what the task logs as train_loss and
    # (where it does) train_error. Weights, buffers, modes, optimizer and random numbers are untouched: a run with this
    # callback gives the same weights to the bit as one without. A training loss that is no finite number ends the run:
    # `diverged` is true then. `report` is called with the epochs that have passed, at most once a second.

    def __init__(
        self, sets: Mapping[str, EvaluationSet], evaluations: int, report: Callable[[float], None] = lambda _: None
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
        self._curves: dict[str, tuple[list[float], list[float]]] = {}

    @property
    def curves(self) -> dict[str, Curve]:
        """What was measured so far, by name."""
        return {name: Curve(tuple(epochs), tuple(values)) for name, (epochs, values) in self._curves.items()}

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
        if time.monotonic() - self._reported > _SECONDS_BETWEEN_REPORTS:
            self._reported = time.monotonic()
            self._report(passed)

    def _measure(self, trainer: Trainer, task: ActivationTask, epoch: float) -> None:
        for name, values in self._logged.items():
            self._add(name, epoch, torch.stack(values).cpu().double().mean().item())
        self._logged = {}
        self.diverged = not all(math.isfinite(value) for value in self._curves.get("train_loss", ((), ()))[1][-1:])
        with isolate_rng(), evaluation_sandbox(task), trainer.precision_plugin.val_step_context():
            for stage, samples in self._sets.items():
                for name, value in means(task, samples).items():
                    self._add(f"{stage}_{name}", epoch, value)
        trainer.should_stop = trainer.should_stop or self.diverged

    def _add(self, name: str, epoch: float, value: float) -> None:
        epochs, values = self._curves.setdefault(name, ([], []))
        epochs.append(epoch)
        values.append(value)


def evaluation_steps(steps: int, evaluations: int) -> frozenset[int]:
    """Return the steps of an epoch, from 1 on, after which there is a measurement: evenly spaced, the last too."""
    return frozenset(math.ceil(steps * number / evaluations) for number in range(1, evaluations + 1))
