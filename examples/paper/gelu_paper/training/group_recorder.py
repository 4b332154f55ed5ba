"""`GroupRecorder`: a callback that measures the curves of every run of a group, and keeps what a kill would lose."""

import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities.seed import isolate_rng
from torch import Tensor

from lit_gelu.files import write_atomically
from gelu_paper.jobs import Progress
from gelu_paper.records.run_record import Curve
from gelu_paper.training.curve_recorder import (
    SAMPLES_AT_ONCE,
    SECONDS_BETWEEN_REPORTS,
    TRAINING_CURVES,
    EvaluationSet,
    Points,
    add_points,
    as_curves,
    measured,
)
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
    # What a GPU measures is read when the next measurement is made: until then it and the Trainer both have work. A
    # replica that has diverged makes further steps until then, which no curve has.

    def __init__(
        self,
        replicas: int,
        sets: Mapping[str, EvaluationSet],
        steps: Collection[int],
        epoch_steps: int,
        *,
        checkpoint: Path | None = None,
        report: Callable[[Progress], None] = lambda _: None,
        warning: str = "",
    ) -> None:
        self.diverged = [False] * replicas
        self._sets = dict(sets)
        self._steps, self._epoch_steps = frozenset(steps), epoch_steps
        self._checkpoint, self._report = checkpoint, report
        self._reported, self._saved = -math.inf, time.monotonic()
        self._warning = warning  # that it could not be saved; sent with each report, as a pool may drop one
        self._logged: dict[str, list[Tensor]] = {}  # [steps, replicas] each
        self._points: list[Points] = [{} for _ in self.diverged]
        self._unread: Callable[[], None] | None = None
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
        self._read()
        logged = {name: _joined(values).cpu() for name, values in self._logged.items()}
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

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Stop replicas that have diverged before the members see a hook."""
        self._stop_diverged(trainer, pl_module)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Read the last measurement."""
        self._stop_diverged(trainer, pl_module)

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
                self._logged.setdefault(name, []).append(outputs[name].detach())
        step = int(batch[-1]) + 1
        passed = (trainer.global_step - step) // self._epoch_steps + step / self._epoch_steps
        if step in self._steps:
            self._measure(trainer, cast("ReplicaGroup", pl_module), passed)
        now = time.monotonic()
        if now - self._reported > SECONDS_BETWEEN_REPORTS:
            self._reported = now
            self._report(Progress(passed, self._epoch_steps, self._warning))
        self._keep(trainer, passed, is_epochs_end=step == self._epoch_steps)

    def _measure(self, trainer: Trainer, group: ReplicaGroup, epoch: float) -> None:
        # Numbers of all replicas at once: asking for them one by one takes as long as some steps on a GPU.
        logged = {name: _joined(values).double().mean(0) for name, values in self._logged.items()}
        self._logged = {}
        with group.executor.measuring():
            together = self._measured_together(group)
            measured = None if together is None else _Arriving(together)
        if measured is None:
            means = {name: values.tolist() for name, values in logged.items()}
            self._add(epoch, means, lambda replica: self._measured_alone(trainer, group, replica))
            self._stop_diverged(trainer, group)
            return
        of_steps = _Arriving(logged)  # before the next steps are started, behind which it would come otherwise
        self._stop_diverged(trainer, group)
        self._unread = lambda: self._add(epoch, of_steps.numbers() | measured.numbers())

    def _read(self) -> None:
        """Wait for the device if there is something of it to be added."""
        if self._unread is not None:
            read, self._unread = self._unread, None
            read()

    def _add(
        self,
        epoch: float,
        means: Mapping[str, Sequence[float]],
        further: Callable[[int], Mapping[str, float]] = lambda _: {},
    ) -> None:
        """Let curves grow by every replica's means, and by what is measured of it further."""
        for replica, points in enumerate(self._points):
            if self.diverged[replica]:
                continue
            own = {name: values[replica] for name, values in means.items()}
            add_points(points, epoch, {**own, **further(replica)})
            if not math.isfinite(own.get("train_loss", 0.0)):
                self.diverged[replica] = True

    def _stop_diverged(self, trainer: Trainer, group: LightningModule) -> None:
        """Train no replica further that has diverged; not when a checkpoint is saved, which the clock decides."""
        self._read()
        for replica, has_diverged in enumerate(self.diverged):
            if has_diverged:
                cast("ReplicaGroup", group).active[replica] = False
        trainer.should_stop = trainer.should_stop or all(self.diverged)

    def _measured_alone(self, trainer: Trainer, group: ReplicaGroup, replica: int) -> dict[str, float]:
        """Return what a replica has, with the random numbers of its run alone."""
        task = cast("ActivationTask", group.members[replica])
        with isolate_rng():
            torch.set_rng_state(group.executor.streams.generators[replica].get_state())
            return measured(task, self._sets, trainer)

    def _measured_together(self, group: ReplicaGroup) -> dict[str, Tensor] | None:
        """Return what all replicas have, ``[replicas]`` each on the device, where a group measures all at once."""
        found: dict[str, Tensor] = {}
        for stage, samples in self._sets.items():
            means = group.executor.means(samples.inputs, samples.labels, SAMPLES_AT_ONCE)
            if means is None:
                return None
            found |= {f"{stage}_{name}": values for name, values in means.items()}
        return found

    def _keep(self, trainer: Trainer, passed: float, *, is_epochs_end: bool) -> None:
        """Save a checkpoint if it is time; where that cannot be done the runs go on, and it is tried again later."""
        wait = min(SECONDS_BETWEEN_CHECKPOINTS, _SECONDS_BEFORE_AN_EPOCHS_END if is_epochs_end else math.inf)
        if self._checkpoint is None or time.monotonic() - self._saved < wait:
            return
        try:
            with write_atomically(self._checkpoint) as temporary:
                trainer.save_checkpoint(temporary, weights_only=False)
        except OSError as error:  # a full disk, mostly; what was saved before stays
            if not self._warning:
                self._warning = unsaved(error)
                self._report(Progress(passed, self._epoch_steps, self._warning))
        self._saved = time.monotonic()


def unsaved(error: OSError) -> str:
    """Say that a group has no checkpoint, or an old one."""
    return f"the runs go on, but what a kill would lose is not saved: {error}"


class _Arriving:
    """Values ``[replicas]`` by name on their way to the host, without a wait for them."""

    def __init__(self, values: Mapping[str, Tensor]) -> None:
        self._names = list(values)
        self._brought = torch.stack(list(values.values())) if values else torch.empty(0)
        self._there: torch.cuda.Event | None = None
        if self._brought.is_cuda:
            self._brought = self._brought.to("cpu", non_blocking=True)
            self._there = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._there.record()

    def numbers(self) -> dict[str, list[float]]:
        """Return them by name, when they have come."""
        if self._there is not None:
            self._there.synchronize()
        return dict(zip(self._names, self._brought.tolist(), strict=True))


def _joined(values: Sequence[Tensor]) -> Tensor:
    """Return what steps logged as one tensor, where the latest is: those of a checkpoint are on the CPU."""
    return torch.cat([value.to(values[-1].device) for value in values])
