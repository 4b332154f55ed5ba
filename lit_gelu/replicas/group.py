"""`ReplicaGroup`: several runs of one net as one LightningModule."""

import os
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Self

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor
from torch.utils._pytree import tree_leaves

from lit_gelu.callbacks.checkpoint_file import REPLICAS_KEY
from lit_gelu.data.resumable_loader import python_and_numpy_states
from lit_gelu.errors import message_of
from lit_gelu.files import write_atomically
from lit_gelu.replicas.data.data_module import ReplicaDataModule
from lit_gelu.replicas.data.macro_steps import MacroSteps, count_further_steps, loop_states, place_in_epoch
from lit_gelu.replicas.epoch_ends import go_on_behind_a_batch, leave_epoch_finished, leave_epoch_unfinished
from lit_gelu.replicas.errors import NotReplicableError, ReplicaArgumentError
from lit_gelu.replicas.evaluation import MemberEvaluation
from lit_gelu.replicas.executors import EagerExecutor, steps_by_name
from lit_gelu.replicas.figures import StepFigures
from lit_gelu.replicas.membership.building import Member, build_members, keys_of
from lit_gelu.replicas.membership.hooks import check_hooks
from lit_gelu.replicas.membership.member_trainer import GroupRun, MemberTrainer
from lit_gelu.replicas.optimizers.group_optimizers import MemberOptimizers
from lit_gelu.replicas.refused_options import check_trainer
from lit_gelu.replicas.stored.extraction import Whereabouts, beginning, checkpoint_of, kept_of, member_checkpoint
from lit_gelu.replicas.stored.stored_group import StoredGroup
from lit_gelu.tasks import ActivationTask
from lit_gelu.tasks.activation_task import CHECKPOINT_KEY


class ReplicaGroup(LightningModule):
    """Runs of one net that differ in activation, learning rate, dropout and seed, trained as one.

    On a CPU every replica is its run alone: weights, the optimizer's state and random numbers are equal to the bit
    (logged losses to 1e-6: they are added up in another order), as far as the processor's library computes a batch of
    products as it computes each; MKL does on those that were tried. One batch of the Trainer is several optimizer
    steps of all replicas; ``trainer.global_step`` counts steps, and ``max_steps`` is kept to. Checkpoints hold the
    whole group, and a run that is resumed from one ends with the same bits, also with another ``steps_per_batch``.

    Linear layers, dropout, norms and registered activations are computed as each replica alone would; convolutions,
    and steps that branch on tensors or draw random numbers in other ways, with ``executor="loop"``, one replica after
    another. Validation and tests go through `members` one by one: `measured` has what each logged, ``[replicas]`` by
    name, of the last pass, and the group logs the mean.

    Args:
        members: What `build_members` returns.
        steps_per_batch: Optimizer steps in one batch of the Trainer; ``"auto"`` means as many as make 512 steps of
            single replicas, and on a GPU 512.
        executor: How steps are made, ``"auto"`` by default; `EagerExecutor` says which ways there are.
        differ: Names of attributes in which members may differ because no training step reads them.

    Raises:
        MembersDifferError: If the members cannot share their code.
        NotReplicableError: If a training step, an optimizer or the Trainer asks for what a group cannot do.
        ReplicaArgumentError: If an argument is not accepted.

    Example:
        >>> from lit_gelu.tasks import TweetTagger
        >>> group = ReplicaGroup.of(TweetTagger, [{"activation": "elu"}, {"learning_rate": 1e-4}], seeds=[0, 1])
        >>> len(group.members), tuple(group.state_dict()["output.weight"].shape)
        (2, (2, 25, 256))
    """

    def __init__(
        self,
        members: Sequence[Member],
        *,
        steps_per_batch: int | str = "auto",
        executor: str = "auto",
        differ: Collection[str] = (),
    ) -> None:
        super().__init__()
        is_count = isinstance(steps_per_batch, int) and not isinstance(steps_per_batch, bool) and steps_per_batch > 0
        if not is_count and steps_per_batch != "auto":
            raise ReplicaArgumentError(
                f'steps_per_batch={steps_per_batch!r} is not accepted. Give an integer of at least 1, or "auto".'
            )
        for member in members:
            check_hooks(member.module)
        self.automatic_optimization = False
        self.steps_per_batch = steps_per_batch
        self.executor = EagerExecutor(members, executor, differ)
        self.tree = self.executor.stacks.tree
        self.seeds, self.keys = [member.seed for member in members], keys_of(members)
        self._figures = StepFigures(self.active, getattr(self.executor.forward, "logged_as", {}))
        self.measured: dict[str, Tensor] = {}
        self._plateau_epoch = -1  # the last one behind which schedulers looked at a value
        self._ends: dict[int, dict[str, Any]] = {}  # where the runs of inactive replicas are
        self._fitting: Trainer | None = None  # the one that trains the group, or was the last to
        self._looked_at: dict[str, Any] = {}  # counts of a checkpoint that was loaded for something else
        self._plan: Tensor | None = None
        self._converted: tuple[object, tuple[Tensor, Tensor]] | None = None  # samples, and what they are made into
        self._epoch_start: list[Tensor] = []
        self._steps, self._place = 0, 0  # of an epoch, and made of it

    @classmethod
    def of(
        cls,
        build: Callable[..., LightningModule],
        cells: Sequence[Mapping[str, Any]],
        seeds: Sequence[int] | None = None,
        **options: Any,
    ) -> Self:
        """Build the members as `build_members` does, and a group of them; ``options`` are those of the class."""
        return cls(build_members(build, cells, seeds), **options)

    @property
    def members(self) -> list[LightningModule]:
        """The live modules; their parameters are parts of the group's."""
        return self.executor.stacks.modules  # type: ignore[return-value] # LightningModules, in a group

    @property
    def active(self) -> Tensor:
        """Which replicas are trained, bool ``[replicas]``: ``group.active[3] = False`` leaves one as it is from now on.

        The others go on as without it, to the bit. A replica cannot become active again. `Trainer.fit` ends when none
        is active. What a group logs is the mean of those that are.
        """
        return self.executor.active

    @property
    def logged(self) -> dict[str, list[Tensor]]:
        """What training steps logged, ``[steps, replicas]`` in parts, of the epoch so far."""
        return self._figures.logged

    @property
    def steps_of_epoch(self) -> tuple[int, int]:
        """Optimizer steps that are made of the epoch, and how many it has; the Trainer counts batches of several."""
        return self._place, self._data.order.steps

    def member_checkpoint(self, replica: int) -> dict[str, Any]:
        """Return an ordinary checkpoint of a member, as the run alone would have saved it."""
        optimizer, data = self.executor.optimizer, getattr(self._trainer, "datamodule", None)
        state = None if optimizer is None else optimizer.member_state(replica)
        schedulers = [] if optimizer is None else optimizer.configured[replica].states()
        of_data = data.state_dict() if isinstance(data, ReplicaDataModule) else {}
        return member_checkpoint(self.members[replica], state, self._place_of(replica), schedulers, of_data)

    def save_member(self, replica: int, path: str | os.PathLike[str]) -> None:
        """Write `member_checkpoint` to a file, in one rename."""
        with write_atomically(path) as temporary:
            torch.save(self.member_checkpoint(replica), temporary)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move the stacks to another device or type, as torch does, and let the members hold their parts there."""
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call] # torch's
        self.executor.stacks.attach(fn)
        for member in self.members:
            member._dtype = self._dtype  # as Lightning's own `to` does
        return self

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the members' gradients, as Lightning asks before a fit and a validation in it."""
        for member in self.members:
            member.zero_grad(set_to_none)

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:  # type: ignore[override] # torch has overloads
        """Return the stacks under the members' own names."""
        return self.tree.state_dict(*args, **kwargs)

    def load_state_dict(self, state_dict: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Load stacks; the members see them."""
        try:
            return self.tree.load_state_dict(state_dict, *args, **kwargs)
        except RuntimeError as error:
            raise ReplicaArgumentError(
                f"The tensors of the checkpoint are not those of this group: {message_of(error)}. Resume with the "
                "members that it was saved with."
            ) from error

    def configure_callbacks(self) -> list[Callback]:
        """Refuse what would mix replicas, before anything is trained; there are no callbacks."""
        check_trainer(self.trainer, self.executor.refused_on_a_gpu)
        return []

    def configure_optimizers(self) -> MemberOptimizers:
        """Return the optimizer of all members; they hold their parts of the stacks from now on."""
        return self.executor.configure_optimizers()

    def setup(self, stage: str) -> None:  # noqa: ARG002 - Lightning's name
        """Let the members see a Trainer, each as if its run were alone."""
        for message in _UNTRUE:
            warnings.filterwarnings("ignore", message=message)
        self._converted = None  # it may have another precision
        is_fit = self.trainer.state.fn == TrainerFn.FITTING
        if is_fit:
            self._looked_at = {}
            if self._fitting is not self.trainer:
                self._begin_run()
        data: Any = self._data
        given = data.data if isinstance(data, ReplicaDataModule) else data
        self._run = GroupRun(self.trainer, data.order.steps if is_fit else None, given, self.executor)
        for module, replica in self._seeing_a_trainer():
            module.trainer = MemberTrainer(self._run, module, replica)  # type: ignore[assignment] # stands for one

    def _begin_run(self) -> None:
        """Forget where the run of another Trainer was; a checkpoint is loaded behind this."""
        self._fitting = self.trainer
        self._figures.begin_epoch()
        self.measured, self._plateau_epoch = {}, -1
        self._epoch_start, self._plan, self._steps, self._place = [], None, 0, 0

    def teardown(self, stage: str) -> None:  # noqa: ARG002 - Lightning's name
        """Let the members see none again."""
        for module, _ in self._seeing_a_trainer():
            module.trainer = None

    def on_fit_start(self) -> None:
        """Let the members refuse what they would refuse alone."""
        for member in self.members:
            member.on_fit_start()

    def on_fit_end(self) -> None:
        """Step what looks at values, where the run was resumed behind its last epoch, but before the last hook."""
        self._step_on_plateau(self.trainer.current_epoch - 1)

    def on_train_start(self) -> None:
        """Let the loader go on where a checkpoint was saved."""
        go_on_behind_a_batch(self.trainer)
        self._loader.start = self._place if self.trainer.fit_loop.restarted_mid_epoch else 0
        self._loader.before = self.trainer.global_step - self._loader.start
        if self._plan is None and self._epoch_start:
            now = self.executor.streams.states()
            self.executor.streams.set_states(self._epoch_start)
            self._plan = self._drawn()
            self.executor.streams.set_states(now)

    def on_train_epoch_start(self) -> None:
        """Begin an epoch; Lightning calls this for new ones only."""
        self._note_stopped()
        self._step_on_plateau(self.trainer.current_epoch - 1)  # where the run was resumed before that epoch's last hook
        self._figures.begin_epoch()
        self._run.begun = 0
        self._loader.start, self._place = 0, 0
        self._loader.before = self.trainer.global_step
        self._epoch_start = self.executor.streams.states()
        self._plan = self._drawn()
        self._steps = len(self._plan)

    def training_step(self, batch: Tensor, batch_index: int) -> dict[str, Tensor]:  # noqa: ARG002 - Lightning's names
        """Make the steps whose numbers are in the batch, but no more than ``max_steps`` leaves."""
        self._note_stopped()
        trainer = self.trainer
        left = trainer.max_steps - trainer.global_step if trainer.max_steps >= 0 else len(batch)
        steps, before = batch.tolist()[:left], trainer.global_step
        optimizer: Any = self.optimizers()
        with self.executor.following_members():
            parts: list[dict[str, Tensor]] = optimizer.step(closure=lambda: self._made(steps[0], len(steps)))
        logged = steps_by_name(parts)
        count_further_steps(trainer, len(steps) - 1)
        self._place = steps[-1] + 1
        self._run.further, self._run.begun = 0, self._place
        self._figures.take(self, logged)
        self._run.latest.update(self._figures.of_step(logged))
        self._figures.write(trainer, parts, before, len(steps))
        return logged

    def on_train_epoch_end(self) -> None:
        """Step the schedulers that look at what validation found."""
        self._run.latest.update(self._figures.of_epoch())
        self._figures.end_epoch(self)
        self._step_on_plateau(self.trainer.current_epoch)

    def on_train_batch_start(self, *_: Any) -> int | None:
        """Make no further step when no replica is active, unless a least number of them was asked for."""
        if self.active.any():  # a callback may have found that out as late as here
            return None
        trainer = self.trainer
        trainer.should_stop = True
        may_end = trainer.current_epoch >= (trainer.min_epochs or 0) and trainer.global_step >= (trainer.min_steps or 0)
        return -1 if may_end else None

    def on_train_batch_end(self, *_: Any) -> None:
        """End the run when no replica is active."""
        if not self.active.any():
            self.trainer.should_stop = True

    def on_validation_start(self) -> None:
        """Begin a pass of the members, one by one, over the validation set."""
        self._begin_evaluation("validation", self.trainer.val_dataloaders)

    def on_validation_epoch_start(self) -> None:
        """Call the members' own hook."""
        self._evaluation.call("on_validation_epoch_start")

    def validation_step(self, batch: Any, batch_index: int, dataloader_idx: int = 0) -> None:
        """Call the members' own ``validation_step``."""
        self._evaluation.step(batch, batch_index, dataloader_idx)

    def on_validation_epoch_end(self) -> None:
        """Keep in `measured` what the members logged, and log the mean."""
        self._keep_measured()

    def on_validation_end(self) -> None:
        """End the pass."""
        self._end_evaluation()

    def on_test_start(self) -> None:
        """Begin a pass of the members, one by one, over the test set."""
        self._begin_evaluation("test", self.trainer.test_dataloaders)

    def on_test_epoch_start(self) -> None:
        """Call the members' own hook."""
        self._evaluation.call("on_test_epoch_start")

    def test_step(self, batch: Any, batch_index: int, dataloader_idx: int = 0) -> None:
        """Call the members' own ``test_step``."""
        self._evaluation.step(batch, batch_index, dataloader_idx)

    def on_test_epoch_end(self) -> None:
        """Keep in `measured` what the members logged, and log the mean."""
        self._keep_measured()

    def on_test_end(self) -> None:
        """End the pass."""
        self._end_evaluation()

    def forward(self, *_: Any, **__: Any) -> Any:
        """Refuse to answer for all members."""
        raise NotReplicableError(
            "A group has no forward pass, and predicts nothing: it holds several nets. Call one of its members: "
            "group.members[0](inputs), Trainer.predict(group.members[0], ...)."
        )

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keep the streams, where in the epoch they were, and who is active."""
        self._note_stopped()
        stacks = self.executor.stacks
        checkpoint[REPLICAS_KEY] = StoredGroup(
            keys=self.keys,
            seeds=self.seeds,
            steps=self._steps,
            place=self._place,
            streams=self.executor.streams.states(),
            epoch_start=self._epoch_start,
            active=self.active.tolist(),
            ends=self._ends,
            measured=self.measured,
            plateau_epoch=self._plateau_epoch,
            rows=stacks.rows,
            members=[kept_of(own, stacks.rows, self._beginning(number)) for number, own in enumerate(self.members)],
            generators=dict(python_and_numpy_states()),
            others=[dict(states) for states in self.executor.streams.others()],
            figures=self._figures.of_epoch_so_far(),
        ).to_dict()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Go on as the group that saved the checkpoint."""
        record = StoredGroup.read(checkpoint)
        record.check_group(self.seeds, self.keys)
        is_fit = self._trainer is not None and self._trainer.state.fn == TrainerFn.FITTING
        if is_fit:
            record.check_steps(self._data.order.steps)
        if self._trainer is not None:  # Lightning would do this behind loading: numbers would lose half of their digits
            self._trainer.precision_plugin.convert_module(self)
        self.executor.streams.set_states(record.streams)
        self.executor.streams.set_others(record.others)  # none in files of earlier code
        self._epoch_start, self._plan = record.epoch_start, None
        self._steps, self._place = record.steps, record.place
        self.active.copy_(torch.tensor(record.active))
        self._ends, self.measured, self._plateau_epoch = record.ends, record.measured, record.plateau_epoch
        self._figures.go_on_from(record.figures)
        for replica, member in enumerate(self.members):
            is_a_task = isinstance(member, ActivationTask)
            if is_overridden("on_load_checkpoint", member, ActivationTask if is_a_task else LightningModule):
                own = checkpoint_of(checkpoint, record, replica)
                own.pop(CHECKPOINT_KEY, None)  # a task's activations are there
                member.on_load_checkpoint(own)
        if is_fit:
            loader = self._data.loader(self)
            loader.before = checkpoint["global_step"] - self._place
            place_in_epoch(checkpoint, self._place, loader)
            leave_epoch_unfinished(checkpoint["loops"]["fit_loop"])
            if self.trainer.max_steps != -1 and not self.trainer.enable_validation:
                leave_epoch_finished(checkpoint["loops"]["fit_loop"])
        elif "loops" in checkpoint:
            self._looked_at = {name: checkpoint[name] for name in ("global_step", "loops")}

    def _place_of(self, replica: int) -> Whereabouts | None:
        loops = self._looked_at.get("loops") or (self._fitting and loop_states(self._fitting))
        if not self._epoch_start or not loops:
            return None
        self._note_stopped()
        return Whereabouts(**(self._ends.get(replica) or self._present(replica)), steps=self._steps, loops=loops)

    @property
    def _global_step(self) -> int:
        """The steps by the Trainer that trained the group, which one that tests it has not counted."""
        if self._looked_at or self._fitting is None:
            return int(self._looked_at.get("global_step", 0))
        return self._fitting.global_step

    def _beginning(self, replica: int) -> dict[str, Any]:
        """Return what a member's checkpoint begins with."""
        return beginning(self._ends.get(replica, {}).get("global_step", self._global_step), self._steps)

    def _present(self, replica: int) -> dict[str, Any]:
        return {
            "global_step": self._global_step,
            "in_epoch": self._place,
            "stream": self.executor.streams.generators[replica].get_state(),
            "epoch_start": self._epoch_start[replica],
            "others": dict(self.executor.streams.others()[replica]),
        }

    def _note_stopped(self) -> None:
        """Remember where the runs of replicas ended that are inactive since."""
        for replica in (~self.active).nonzero().flatten().tolist() if self._epoch_start else ():
            if replica not in self._ends:
                self._ends[replica] = self._present(replica)

    @property
    def _data(self) -> ReplicaDataModule:
        return self.trainer.datamodule  # type: ignore[attr-defined, no-any-return] # set by a connector

    @property
    def _loader(self) -> MacroSteps:
        return self.trainer.train_dataloader  # type: ignore[return-value] # of `ReplicaDataModule`

    def _drawn(self) -> Tensor:
        """Draw the samples of an epoch, ``[steps, replicas, batch]``, and bring them to where steps look them up."""
        rows = self._data.order.epoch(self.executor.streams.generators, self.trainer.current_epoch)
        steps = self.executor.device_steps
        if steps is None:
            return rows
        rows, device = rows.to(torch.int32), steps.adam.device
        # Without memory that the device reads by itself, the host would wait for all that it has been told to do.
        return (rows.pin_memory() if device.type == "cuda" else rows).to(device, non_blocking=True)

    @property
    def _optimizer(self) -> MemberOptimizers:
        assert self.executor.optimizer is not None  # noqa: S101 - a Trainer has had it configured
        return self.executor.optimizer

    def _made(self, first: int, count: int) -> list[dict[str, Tensor]]:
        """Make steps of an epoch, all at once where nothing happens between them, and return what each part logged."""
        assert self._plan is not None  # noqa: S101 - drawn when the epoch began
        inputs, labels = self._tensors()
        rows = self._plan[first : first + count]
        if self.executor.takes_several and not self._optimizer.has_schedulers:
            return [self.executor.steps(inputs, labels, rows, first)]
        made, run = [], self._run
        for further, own in enumerate(rows):
            run.further, run.begun = further, first + further + 1
            made.append(self.executor.steps(inputs, labels, own.unsqueeze(0), first + further))
            run.further = further + 1
            if not self.executor.takes_several:  # a user's step, which may read it
                run.latest.update(self._figures.of_step(made[-1]))
            is_last = run.begun == len(self._plan)
            self._optimizer.step_schedulers(first + further, self.trainer.current_epoch if is_last else -1)
        return made

    def _tensors(self) -> tuple[Tensor, Tensor]:
        """Return all samples' inputs and labels, once in the numbers that the Trainer's precision makes of batches."""
        samples = self._data.samples
        if self._converted is None or self._converted[0] is not samples:
            self._converted = samples, self.trainer.precision_plugin.convert_input((samples.inputs, samples.labels))
        return self._converted[1]

    def _step_on_plateau(self, epoch: int) -> None:
        """Step what looks at values behind an epoch, once and if it is over."""
        if self._plateau_epoch < epoch and self._place == self._data.order.steps:
            self._plateau_epoch = epoch
            self._optimizer.step_on_plateau(epoch, self.measured)

    def _seeing_a_trainer(self) -> list[tuple[LightningModule, int | None]]:
        """Return the modules whose code runs, with their number: the members, and the one that stands for them."""
        step = getattr(self.executor.forward, "step", None)
        members = [(member, replica) for replica, member in enumerate(self.members)]
        return [*members, *([] if step is None else [(step.member, None)])]

    def _begin_evaluation(self, stage: str, loaders: Any) -> None:
        self._note_stopped()
        found = tree_leaves(loaders)
        self._evaluation = MemberEvaluation(self.members, self.executor.streams, self._run, stage, found)
        self._evaluation.call(f"on_{stage}_start")

    def _end_evaluation(self) -> None:
        self._evaluation.end()
        self.executor.stacks.take_back()

    def _keep_measured(self) -> None:
        measured = self._evaluation.values()
        self.executor.stacks.take_back()
        if not self.trainer.sanity_checking:
            self.measured = measured
            self._run.latest.update(measured)
        for name, values in measured.items():
            self.log(name, self._figures.mean(values), prog_bar=True, add_dataloader_idx=False)


# What Lightning says of training that steps optimizers itself, and of batches that it takes for steps.
_UNTRUE = ("Using ModelCheckpoint with manual optimization", "The number of training batches .* the logging interval")
