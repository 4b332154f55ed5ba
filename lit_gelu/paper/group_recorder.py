"""`GroupRecorder`: a callback that measures the curves of every run of a group, and keeps what a kill would lose."""

import math
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities.seed import isolate_rng
from torch import Tensor

from lit_gelu.files import write_atomically
from lit_gelu.paper.curve_recorder import (
    SAMPLES_AT_ONCE,
    SECONDS_BETWEEN_REPORTS,
    TRAINING_CURVES,
    EvaluationSet,
    Points,
    add_points,
    as_curves,
    measured,
)
from lit_gelu.paper.run_progress import Progress
from lit_gelu.paper.run_record import Curve
from lit_gelu.replicas import ReplicaGroup

if TYPE_CHECKING:
    from lit_gelu.tasks import ActivationTask

SECONDS_BETWEEN_CHECKPOINTS = 60.0
_SECONDS_BEFORE_AN_EPOCHS_END = 20.0  # what is saved there is small work to be made again, and epochs may be short


class GroupRecorder(Callback):
    """Measures every replica of a group as `CurveRecorder` measures a run alone, after the same steps."""

    # Members are measured one by one by the same code, so that validation and test curves are those of the runs alone
    # to the bit; the training losses are added up in another order. A replica whose training loss is no finite number
    # is measured for the last time; the others go on, and the training ends when none is left. All of it is in the
    # Trainer's checkpoints. `checkpoint` is where one is kept: every minute, and at the ends of longer epochs.

    def __init__(
        self,
        replicas: int,
        sets: Mapping[str, EvaluationSet],
        steps: Collection[int],
        epoch_steps: int,
        *,
        checkpoint: Path | None = None,
        report: Callable[[Progress], None] = lambda _: None,
    ) -> None:
        self.diverged = [False] * replicas
        self._sets = dict(sets)
        self._steps, self._epoch_steps = frozenset(steps), epoch_steps
        self._checkpoint, self._report = checkpoint, report
        self._reported, self._saved = -math.inf, time.monotonic()
        self._logged: dict[str, list[Tensor]] = {}  # [steps, replicas] each
        self._points: list[Points] = [{} for _ in self.diverged]
        self._began, self._before = time.monotonic(), 0.0

    @property
    def seconds(self) -> float:
        """How long it has taken, also before a kill."""
        return self._before + time.monotonic() - self._began

    def curves(self, replica: int) -> dict[str, Curve]:
        """Return what was measured of a replica so far, by name."""
        return as_curves(self._points[replica])

    def state_dict(self) -> dict[str, Any]:
        """Return what was recorded, for a checkpoint."""
        logged = {name: torch.cat(values) for name, values in self._logged.items()}
        return {"points": self._points, "logged": logged, "diverged": self.diverged, "seconds": self.seconds}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from what a checkpoint holds."""
        self._points = [
            {name: (list(epochs), list(values)) for name, (epochs, values) in points.items()}
            for points in state_dict["points"]
        ]
        self._logged = {name: [values] for name, values in state_dict["logged"].items()}
        self.diverged = list(state_dict["diverged"])
        self._before = state_dict["seconds"]

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Bring the sets near."""
        for name, (inputs, labels) in self._sets.items():
            converted = EvaluationSet(trainer.precision_plugin.convert_input(inputs), labels)
            self._sets[name] = converted.near(pl_module.device)

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,  # noqa: ARG002 - Lightning's signature; it counts batches of several steps
    ) -> None:
        """Keep what the steps logged, and measure if it is time."""
        for name in TRAINING_CURVES:
            if name in outputs:
                self._logged.setdefault(name, []).append(outputs[name].detach().cpu())
        step = int(batch[-1]) + 1
        passed = (trainer.global_step - step) // self._epoch_steps + step / self._epoch_steps
        if step in self._steps:
            self._measure(trainer, cast("ReplicaGroup", pl_module), passed)
        now = time.monotonic()
        if now - self._reported > SECONDS_BETWEEN_REPORTS:
            self._reported = now
            self._report(Progress(passed, self._epoch_steps))
        self._keep(trainer, is_epochs_end=step == self._epoch_steps)

    def _measure(self, trainer: Trainer, group: ReplicaGroup, epoch: float) -> None:
        # Numbers of all replicas at once: asking for them one by one takes as long as some steps on a GPU.
        logged = {name: torch.cat(values).double().mean(0).tolist() for name, values in self._logged.items()}
        self._logged = {}
        together = self._measured_together(group)
        for replica, points in enumerate(self._points):
            if self.diverged[replica]:
                continue
            means = {name: values[replica] for name, values in logged.items()}
            if together is not None:
                add_points(points, epoch, means | {name: values[replica] for name, values in together.items()})
            else:
                task = cast("ActivationTask", group.members[replica])
                with isolate_rng():  # a measurement that draws numbers draws those of the run alone
                    torch.set_rng_state(group.executor.streams.generators[replica].get_state())
                    add_points(points, epoch, means | measured(task, self._sets, trainer))
            if not math.isfinite(means.get("train_loss", 0.0)):
                self.diverged[replica] = True
                group.active[replica] = False
        trainer.should_stop = trainer.should_stop or all(self.diverged)

    def _measured_together(self, group: ReplicaGroup) -> dict[str, list[float]] | None:
        """Return what all replicas have, where a group on a GPU measures all at once."""
        found: dict[str, list[float]] = {}
        for stage, samples in self._sets.items():
            means = group.executor.means(samples.inputs, samples.labels, SAMPLES_AT_ONCE)
            if means is None:
                return None
            found |= {f"{stage}_{name}": values.tolist() for name, values in means.items()}
        return found

    def _keep(self, trainer: Trainer, is_epochs_end: bool) -> None:
        """Save a checkpoint if it is time."""
        wait = min(SECONDS_BETWEEN_CHECKPOINTS, _SECONDS_BEFORE_AN_EPOCHS_END if is_epochs_end else math.inf)
        if self._checkpoint is None or time.monotonic() - self._saved < wait:
            return
        with write_atomically(self._checkpoint) as temporary:
            trainer.save_checkpoint(temporary, weights_only=False)
        self._saved = time.monotonic()
