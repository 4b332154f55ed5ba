"""Several runs of one net at once: `ReplicaGroup`, its data, and how members are stacked under `torch.vmap`.

A small net spends most of a training step outside of arithmetic. A group trains the runs of a grid (activations,
learning rates, seeds) by one `Trainer.fit`: the members' parameters are stacked for each step, `torch.vmap` computes
all losses at once, and each member's own optimizer steps its own parameters. What cannot be stacked is computed member
by member. Either way it is the mathematics of the runs alone: orders of samples, masks of dropout, schedules and all,
with other rounding.
"""

import copy
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from typing import Any, Self, cast

import lightning
import torch
from lightning.pytorch import Callback, LightningDataModule, LightningModule, callbacks
from lightning.pytorch.core.hooks import DataHooks, ModelHooks

# Private in Lightning 2.6: what reads every form that `configure_optimizers` may return.
from lightning.pytorch.core.optimizer import _configure_optimizers, _configure_schedulers_automatic_opt
from lightning.pytorch.strategies import ParallelStrategy
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities.model_helpers import is_overridden
from lightning.pytorch.utilities.signature_utils import is_param_in_hook_signature
from lightning.pytorch.utilities.types import LRSchedulerConfig
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader, RandomSampler, SubsetRandomSampler, WeightedRandomSampler
from torchmetrics import Metric, MetricCollection

from lit_gelu.activations.registry import registry as default_registry
from lit_gelu.callbacks import ActivationCurvatureMonitor, ActivationSwap, ExactResume, LossCurvatureMonitor, OnnxExport
from lit_gelu.data import InMemoryDataModule
from lit_gelu.data.in_memory import InMemorySamples
from lit_gelu.errors import ArgumentError, UnsupportedRunError
from lit_gelu.random_states import RandomState, seeded
from lit_gelu.sandbox import evaluation_mode
from lit_gelu.tasks.activation_task import ActivationTask
from lit_gelu.tasks.layers import adds_noise

__all__ = ["ReplicaDataModule", "ReplicaGroup"]

# What members of a stack may differ in. If a training step reads it, the template lacks it, and the members are looped.
_READ_BY_OPTIMIZERS = frozenset({"learning_rate", "lr", "momentum", "beta1", "weight_decay"})
_ACTIVATION_NAMES = frozenset({"activation", "activation_spec"})
# What torch, Lightning and `ActivationTask` note in a module, which says nothing of what it computes.
_BOOKKEEPING = frozenset(vars(LightningModule())) - {"training"} | {"_hparams", "_hparams_initial", "_modules_seen"}
_HOOKS = frozenset(name for name in vars(nn.Module()) if "_hooks" in name)

_FORWARDED = frozenset({
    "on_fit_start", "on_validation_epoch_start", "on_validation_epoch_end", "on_test_epoch_start", "on_test_epoch_end",
})  # fmt: skip
_STEPS = (
    "optimizer_step", "optimizer_zero_grad", "backward", "lr_scheduler_step", "configure_gradient_clipping",
    "configure_callbacks",
)  # fmt: skip
_BATCH_HOOKS = ("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer")
_LARGE = 1_000_000  # parameters: from about there on, `benchmarks/replicas.py` finds the loop to be faster on a CPU
_DRAWING_SAMPLERS = (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)
_REFUSED_CALLBACKS: dict[type[Callback], str] = {
    ActivationSwap: "it swaps in one net: build the members with the activations that they are to have",
    ActivationCurvatureMonitor: "it measures the steps of one net: train the modules alone",
    LossCurvatureMonitor: "it measures the loss of one net: train the modules alone",
    OnnxExport: "it writes one net: call lit_gelu.export.export_onnx(group.members[0], path) after the fit",
    ExactResume: "a group is not resumed: train it from its start",
    callbacks.StochasticWeightAveraging: "it sets one learning rate, and every member has its own",
    callbacks.LearningRateFinder: "every member has a learning rate of its own: make them those of the cells",
    callbacks.BatchSizeFinder: "all members have batches of one size: look for it with a module alone",
    callbacks.ModelPruning: "it prunes one net: train the modules alone",
    callbacks.BaseFinetuning: "it adds parameters to one optimizer, and every member has its own",
}


class ReplicaGroup(LightningModule):
    """Runs of one net that differ in activation, learning rate, seed or other arguments, trained as one module.

    Every member ends with the weights of its run alone (``seed_everything``, build, `Trainer.fit`) but for rounding.
    A batch of the Trainer is one optimizer step of every member. What members log in validation is logged as
    ``val_loss_0``, ``val_loss_1``, ... and their mean as ``val_loss``; `measured` has the values of the last pass.

    Members of one class are stacked; layers in which they differ, and dropout, are computed member by member within
    the stack. Members whose training step cannot be stacked (it branches on tensors, draws numbers in other ways,
    changes buffers or the module, has hooks) are computed one after another: `looped` says why.

    Args:
        members: The modules.
        states: Where each one's run begins in the random numbers; ``None`` means where the process is now.

    Raises:
        ArgumentError: If there are no members, or two share what is trained.
        UnsupportedRunError: If a member has hooks that a group does not call, or the Trainer asks for what would mix
            members.

    Example:
        >>> from lit_gelu.tasks import TweetTagger
        >>> group = ReplicaGroup.of(TweetTagger, [{"activation": "elu"}, {"learning_rate": 1e-4}], seeds=[0, 1])
        >>> [str(member.activation_spec) for member in group.members]
        ['elu', "gelu(approximate='tanh')"]
    """

    def __init__(self, members: Sequence[LightningModule], states: Sequence[RandomState] | None = None) -> None:
        super().__init__()
        if not members or (states is not None and len(states) != len(members)):
            raise ArgumentError(
                f"{len(members)} members and {len(members if states is None else states)} random states given. Give at "
                "least one member, and a state for each."
            )
        for (first, one), (second, other) in combinations(enumerate(members), 2):
            if shared := shared_parts(one, other):
                raise ArgumentError(
                    f"Members {first} and {second} have {', '.join(map(repr, shared[:3]))} in common, which their runs "
                    "would train together. Build or copy it for each member."
                )
        for member in members:
            _check_hooks(member)
        self.replicas = nn.ModuleList(members)
        self.random_states = [RandomState.now() for _ in members] if states is None else list(states)
        self.measured: dict[str, Tensor] = {}
        self.looped: dict[int, str] = {}
        self._latest: dict[str, Tensor] = {}  # what training steps logged last, [members] by name
        self._validated: set[str] = set()  # names that members log in the present pass
        self._stacks: list[_Stack] | None = None
        self._configured: list[_Configured] = []
        self._before_sanity_check: list[RandomState] = []

    @classmethod
    def of(
        cls,
        build: Callable[..., LightningModule],
        cells: Sequence[Mapping[str, Any]],
        seeds: Sequence[int] | None = None,
    ) -> Self:
        """Build a member for every cell, under its own seed as `seed_everything` would for its run alone.

        Args:
            build: The class of the modules, or a function that returns one.
            cells: The arguments for every member.
            seeds: A seed for every member; ``None`` means 0 for all.

        Returns:
            The group.

        Raises:
            ArgumentError: If there are no cells, or not as many seeds.
        """
        seeds = [0] * len(cells) if seeds is None else list(seeds)
        if not cells or len(seeds) != len(cells):
            raise ArgumentError(
                f"{len(cells)} cells and {len(seeds)} seeds given. Give at least one cell, and a seed for each or None."
            )
        members, states = [], []
        for cell, seed in zip(cells, seeds, strict=True):
            with seeded(seed):
                members.append(build(**cell))
                states.append(RandomState.now())
        return cls(members, states)

    @property
    def members(self) -> list[LightningModule]:
        """The modules of the runs; after the fit, ordinary trained modules."""
        return cast("list[LightningModule]", list(self.replicas))

    def member_checkpoint(self, replica: int) -> dict[str, Any]:
        """Return a checkpoint of a member's weights and arguments, for its class's ``load_from_checkpoint``."""
        member, trainer = self.members[replica], self._trainer
        checkpoint: dict[str, Any] = {
            "epoch": 0 if trainer is None else trainer.current_epoch,
            "global_step": 0 if trainer is None else trainer.global_step,
            "pytorch-lightning_version": lightning.__version__,
            "state_dict": {name: tensor.detach().clone() for name, tensor in member.state_dict().items()},
        }
        if member.hparams:
            checkpoint[member.CHECKPOINT_HYPER_PARAMS_NAME] = member._hparams_name
            checkpoint[member.CHECKPOINT_HYPER_PARAMS_KEY] = dict(member.hparams)
        member.on_save_checkpoint(checkpoint)
        return checkpoint

    def forward(self, *_: Any, **__: Any) -> Any:
        """Refuse to answer for all members."""
        raise UnsupportedRunError("A group holds several nets. Call one of them: group.members[0](inputs).")

    # Setting up

    def configure_callbacks(self) -> list[Callback]:
        """Refuse a Trainer that would mix members, before anything is trained; there are no callbacks."""
        _check_trainer(self.trainer)
        return []

    def setup(self, stage: str) -> None:  # noqa: ARG002 - Lightning's name
        """Let the members see the Trainer."""
        self._stacks, self.looped = None, {}
        for member in self.members:
            member.trainer = self.trainer

    def teardown(self, stage: str) -> None:  # noqa: ARG002 - Lightning's name
        """Leave ordinary modules."""
        self._stacks = None
        for member in self.members:
            member.trainer = None

    def configure_optimizers(self) -> Any:
        """Return one optimizer that steps all members' own, and their schedulers."""
        self._configured = []
        for replica, member in enumerate(self.members):
            with self._running(replica):
                self._configured.append(configured(member))
        optimizer = _MemberOptimizers([one.optimizer for one in self._configured])
        alike: dict[tuple[Any, ...], _MemberSchedulers] = {}
        settings: dict[tuple[Any, ...], dict[str, Any]] = {}
        for replica, one in enumerate(self._configured):
            for number, config in enumerate(one.schedulers):
                options = {**vars(config), "scheduler": None}
                key = (number, *options.values())
                alike.setdefault(key, _MemberSchedulers(optimizer, config.monitor)).members[replica] = config.scheduler
                settings[key] = {**options, "scheduler": alike[key]}
        return [optimizer], list(settings.values())

    def configure_gradient_clipping(
        self,
        optimizer: Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Clip each member's gradients by their own norm."""
        for member_optimizer in cast("_MemberOptimizers", optimizer).members:
            self.clip_gradients(member_optimizer, gradient_clip_val, gradient_clip_algorithm)

    def lr_scheduler_step(self, scheduler: Any, metric: Any | None) -> None:
        """Step each member's scheduler, by the member's own value where it looks at one."""
        for replica, member_scheduler in scheduler.members.items():
            if metric is None:
                member_scheduler.step()
            else:
                member_scheduler.step(self._values(scheduler.monitor)[replica])

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:  # noqa: ARG002 - Lightning's name
        """Refuse to resume: where members' random numbers were is in no checkpoint."""
        if self._trainer is not None and self._trainer.state.fn == TrainerFn.FITTING:
            raise UnsupportedRunError(
                "ckpt_path= was given to Trainer.fit, and a group is not resumed. Train it from its start, or the "
                "modules alone with the callback ExactResume."
            )

    # Training

    def on_fit_start(self) -> None:
        """Call the members' hook."""
        self._call("on_fit_start")

    def on_train_epoch_start(self) -> None:
        """Look at the members anew: callbacks may have changed them."""
        self._stacks = None

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """Return the sum of all members' losses, each of its own part of ``batch``, ``[members, batch, ...]``."""
        if self._stacks is None:
            self._stacks = _stacks_of(self.members, self.random_states)
        total: Tensor | None = None
        figures: dict[str, dict[int, Tensor]] = {}
        options: dict[str, dict[str, Any]] = {}
        for stack in self._stacks:
            losses, logged = stack.losses(batch, batch_idx)
            total = losses.sum() if total is None else total + losses.sum()
            options |= stack.options
            for name, values in logged.items():
                figures.setdefault(name, {}).update(zip(stack.numbers, values.unbind(), strict=True))
            self.looped |= dict.fromkeys(stack.numbers, stack.reason) if stack.reason else {}
        for name, of_members in figures.items():
            missing = torch.full_like(next(iter(of_members.values())), torch.nan)
            values = torch.stack([of_members.get(replica, missing) for replica in range(len(self.replicas))])
            self._log_training(name, values, options[name])
        assert total is not None  # noqa: S101 - there is at least one member
        return total

    def _log_training(self, name: str, values: Tensor, options: dict[str, Any]) -> None:
        self._latest[name] = values
        self.log(name, values.nanmean(), **options)
        if options.get("on_epoch"):
            for replica, value in enumerate(values):
                self.log(f"{name}_{replica}", value, **{**options, "prog_bar": False})
        elif options.get("logger") is not False and (self.global_step + 1) % self.trainer.log_every_n_steps == 0:  # type: ignore[attr-defined] # a connector's
            named = {f"{name}_{replica}": float(value) for replica, value in enumerate(values)}
            for logger in self.loggers:
                logger.log_metrics(named, self.global_step)

    # Validation and test: the members one by one

    def on_validation_start(self) -> None:
        """Begin a pass."""
        self._before_sanity_check = copy.deepcopy(self.random_states) if self.trainer.sanity_checking else []
        self._draw_for_loader(self.trainer.val_dataloaders, 0)

    def on_validation_epoch_start(self) -> None:
        """Call the members' hook."""
        self._call("on_validation_epoch_start")

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Call the members' step."""
        self._evaluate("validation", self.trainer.val_dataloaders, (batch, batch_idx, dataloader_idx))

    def on_validation_epoch_end(self) -> None:
        """Call the members' hook, and log the mean of what they logged."""
        self._end_pass("on_validation_epoch_end", self.trainer.val_dataloaders)

    def on_validation_end(self) -> None:
        """Let a Trainer's sanity check leave no trace in the random numbers."""
        if self._before_sanity_check:
            self.random_states[:] = self._before_sanity_check
            self._before_sanity_check = []

    def on_test_start(self) -> None:
        """Begin a pass."""
        self._draw_for_loader(self.trainer.test_dataloaders, 0)

    def on_test_epoch_start(self) -> None:
        """Call the members' hook."""
        self._call("on_test_epoch_start")

    def test_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Call the members' step."""
        self._evaluate("test", self.trainer.test_dataloaders, (batch, batch_idx, dataloader_idx))

    def on_test_epoch_end(self) -> None:
        """Call the members' hook, and log the mean of what they logged."""
        self._end_pass("on_test_epoch_end", self.trainer.test_dataloaders)

    def _draw_for_loader(self, loaders: Any, number: int) -> None:
        """Draw, in each member's run, the seed for workers that torch draws as a pass through a loader begins."""
        loader = [*tree_leaves(loaders), *[None] * (number + 1)][number]
        if isinstance(loader, DataLoader) and loader.generator is None:
            for state in self.random_states:
                with state.going_on(in_torch_alone=True):
                    torch.empty((), dtype=torch.int64).random_()

    def _evaluate(self, stage: str, loaders: Any, arguments: tuple[Any, ...]) -> None:
        count = len(tree_leaves(loaders))
        if arguments[1] == 0 and arguments[2] > 0:
            self._draw_for_loader(loaders, arguments[2])
        for replica, member in enumerate(self.members):
            step = getattr(member, f"{stage}_step")
            taken = 1 + is_param_in_hook_signature(step, "batch_idx", min_args=2) + (count > 1)
            with self._running(replica):
                step(*arguments[:taken])

    def _end_pass(self, hook: str, loaders: Any) -> None:
        self._call(hook)
        numbers = range(len(tree_leaves(loaders)))
        suffixes = ["", *(f"/dataloader_idx_{number}" for number in numbers)]  # as Lightning names them
        measured = {
            f"{name}{suffix}": self._values(name, suffix)
            for name in sorted(self._validated)
            for suffix in suffixes
            if f"{name}_0{suffix}" in self.trainer.callback_metrics
        }
        self._validated = set()
        for name, values in measured.items():
            self.log(name, values.nanmean(), prog_bar=True, add_dataloader_idx=False)
        if not self.trainer.sanity_checking:
            self.measured = measured

    def _values(self, name: str, suffix: str = "") -> Tensor:
        """Return the last value of every member, ``[members]``, of what they log."""
        metrics = self.trainer.callback_metrics
        if f"{name}_0{suffix}" in metrics:
            values = [metrics.get(f"{name}_{replica}{suffix}") for replica in range(len(self.replicas))]
            return torch.stack([torch.tensor(torch.nan) if value is None else value.cpu() for value in values])
        if name not in self._latest:
            raise UnsupportedRunError(
                f"A scheduler monitors {name!r}, which the members do not log themselves. Let it monitor a name that "
                "training_step or validation_step logs."
            )
        return self._latest[name].cpu()

    def _call(self, hook: str) -> None:
        for replica, member in enumerate(self.members):
            if is_overridden(hook, member, LightningModule):
                with self._running(replica):
                    getattr(member, hook)()

    @contextmanager
    def _running(self, replica: int) -> Iterator[None]:
        """Let a member's code run outside of training steps: with its random numbers, figures and optimizer."""
        attributes = vars(self.members[replica])
        replaced: dict[str, Any] = {"log": partial(self._log_of, replica)}
        if len(self._configured) == len(self.replicas):
            member_optimizer = self._configured[replica].optimizer
            replaced["optimizers"] = lambda use_pl_optimizer=True: member_optimizer  # noqa: ARG005 - Lightning's name
        attributes.update(replaced)
        try:
            with self.random_states[replica].going_on():
                yield
        finally:
            for name in replaced:
                del attributes[name]

    def _log_of(self, replica: int, name: str, value: Any, prog_bar: bool = False, **options: Any) -> None:  # noqa: ARG002 - Lightning's name; the mean is in the bar
        self._validated.add(name)
        options.pop("metric_attribute", None)  # Lightning finds the members' metrics by itself
        self.log(f"{name}_{replica}", value, **options)


class ReplicaDataModule(LightningDataModule):
    """The data of a `ReplicaGroup`: each member sees its own order of batches, by its seed, as it would alone.

    A training batch is ``(inputs [members, batch, ...], labels [members, batch])``; validation and test go through the
    data's own loaders.

    Args:
        data: What the runs alone would be given.

    Raises:
        ArgumentError: If ``data`` is no `lit_gelu.data.InMemoryDataModule`, or makes batches in ways of its own.
    """

    def __init__(self, data: InMemoryDataModule) -> None:
        super().__init__()
        if not isinstance(data, InMemoryDataModule):
            raise ArgumentError(
                f"data={type(data).__name__} is not accepted: a group takes its batches out of memory. Give an "
                "InMemoryDataModule; a subclass with load_train_and_val and load_test makes one of any two tensors."
            )
        check_data_hooks(data)
        self.data = data

    def prepare_data(self) -> None:
        """Do what the data do."""
        self.data.prepare_data()

    def setup(self, stage: str) -> None:
        """Read what the stage needs.

        Raises:
            UnsupportedRunError: If reading draws random numbers, of which each run alone has its own.
        """
        self.data.trainer = self.trainer
        before = RandomState.now()
        self.data.setup(stage)
        if before != RandomState.now():
            raise UnsupportedRunError(
                f"{type(self.data).__name__} draws random numbers when it reads its sets, so that each run alone "
                "would have other ones. Give a split a generator of its own, such as torch.Generator().manual_seed(0)."
            )

    def teardown(self, stage: str) -> None:
        """Do what the data do."""
        self.data.teardown(stage)

    def train_dataloader(self) -> "_MemberBatches":
        """Return the loader of all members' batches."""
        group = None if self.trainer is None else self.trainer.lightning_module
        if not isinstance(group, ReplicaGroup):
            raise UnsupportedRunError(
                "A ReplicaDataModule is for Trainer.fit of a ReplicaGroup. Give other modules the data themselves."
            )
        loader, samples = self.data.train_dataloader(), self.data.train_set
        if type(samples).__getitems__ is not InMemorySamples.__getitems__:  # type: ignore[union-attr] # the loader is of it
            raise UnsupportedRunError(
                f"{type(self.data).__name__} makes its batches in a way of its own ({type(samples).__name__}), which a "
                "group cannot do for all members at once. Train the modules alone."
            )
        return _MemberBatches(loader, group.random_states)

    def val_dataloader(self) -> Any:
        """Return the data's own loader, or none where the members do not validate."""
        group = None if self.trainer is None else self.trainer.lightning_module
        if isinstance(group, ReplicaGroup) and not is_overridden("validation_step", group.members[0]):
            return []
        return self._refusing_draws(self.data.val_dataloader())

    def test_dataloader(self) -> Any:
        """Return the data's own loader."""
        return self._refusing_draws(self.data.test_dataloader())

    def _refusing_draws(self, loaders: Any) -> Any:
        for loader in tree_leaves(loaders):
            sampler = getattr(loader, "sampler", None)
            if isinstance(sampler, _DRAWING_SAMPLERS) and sampler.generator is None:
                raise ArgumentError(
                    f"{type(self.data).__name__} shuffles what is evaluated, with the numbers of each run alone, and a "
                    "group goes through one order for all. Leave shuffle=True out, or give the loader a generator."
                )
        return loaders


class _MemberBatches:
    """Yields all members' batches; each member's order is drawn from its own numbers when the epoch begins."""

    def __init__(self, loader: DataLoader[Any], states: Sequence[RandomState]) -> None:
        self.samples: Any = loader.dataset
        self.states, self.length = states, len(loader)
        # torch draws what a loader draws, whatever that is in a version: of numbers in the place of samples.
        self.numbers: list[DataLoader[Any]] = [
            DataLoader(
                range(len(self.samples)),  # type: ignore[arg-type] # has a length and items
                batch_size=loader.batch_size,
                sampler=copy.copy(loader.sampler),
                drop_last=loader.drop_last,
                collate_fn=torch.tensor,
                generator=loader.generator,
            )
            for _ in states
        ]

    def __len__(self) -> int:
        """Return the batches in an epoch."""
        return self.length

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        orders = []
        for state, loader in zip(self.states, self.numbers, strict=True):
            with state.going_on():
                orders.append(torch.stack(list(loader)))
        for rows in torch.stack(orders, dim=1):  # [members, batch] of every step
            yield tuple(tensor[rows.to(tensor.device)] for tensor in self.samples.tensors)


# Optimizers and schedulers


@dataclass(frozen=True)
class _Configured:
    """What a member's ``configure_optimizers`` returned."""

    optimizer: Optimizer
    schedulers: list[LRSchedulerConfig]


def configured(member: LightningModule) -> _Configured:
    """Return the one optimizer that a member configures, and its schedulers; refuse any other number."""
    returned: Any = member.configure_optimizers()
    optimizers, schedulers, monitor = ([], [], None) if returned is None else _configure_optimizers(returned)
    if len(optimizers) != 1 or isinstance(optimizers[0], torch.optim.LBFGS):
        kinds = ", ".join(type(optimizer).__name__ for optimizer in optimizers) or "no optimizer"
        raise UnsupportedRunError(
            f"{type(member).__name__}.configure_optimizers returned {kinds}; a group takes one optimizer for each "
            "member, whose step computes no loss. Train this module alone."
        )
    return _Configured(optimizers[0], _configure_schedulers_automatic_opt(schedulers, monitor))


class _MemberOptimizers(Optimizer):
    """Steps all members' own optimizers; its parameter groups are theirs."""

    def __init__(self, members: list[Optimizer]) -> None:
        groups = [group for optimizer in members for group in optimizer.param_groups]
        super().__init__([{"params": group["params"]} for group in groups], {})
        self.members, self.param_groups = members, groups
        for optimizer in members:
            if type(optimizer) in {torch.optim.Adam, torch.optim.AdamW}:
                _take_fused_kernel(optimizer)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Compute all gradients, and step every member."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for optimizer in self.members:
            optimizer.step()
        return loss

    def state_dict(self) -> dict[str, Any]:
        """Return the members' states."""
        return {"members": [optimizer.state_dict() for optimizer in self.members]}


def _take_fused_kernel(optimizer: Optimizer) -> None:
    """Let all parameters of a group be stepped by one kernel of torch's, unless the options say something else."""
    for group in optimizer.param_groups:
        parameters: list[Tensor] = group["params"]
        can = all(p.is_floating_point() and p.device.type in {"cpu", "cuda"} for p in parameters)
        if can and not any(group[option] for option in ("fused", "foreach", "capturable", "differentiable")):
            group["fused"] = True if group["fused"] is None else group["fused"]


class _MemberSchedulers:
    """The schedulers of one kind, by member."""

    def __init__(self, optimizer: Optimizer, monitor: str | None) -> None:
        self.optimizer, self.monitor = optimizer, monitor
        self.members: dict[int, Any] = {}

    def state_dict(self) -> dict[str, Any]:
        """Return the members' states."""
        return {str(replica): scheduler.state_dict() for replica, scheduler in self.members.items()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from the members' states."""
        for replica, scheduler in self.members.items():
            scheduler.load_state_dict(state_dict[str(replica)])


# Stacks of members


class _NotStackableError(Exception):
    """Why members cannot be computed at once; never leaves this file."""


class _Step(nn.Module):
    """A member's training step as a forward pass that also returns what was logged."""

    def __init__(self, member: LightningModule) -> None:
        super().__init__()
        self.member = member
        self.options: dict[str, dict[str, Any]] = {}  # of what is logged, as `LightningModule.log` takes them
        self.arguments = 1 + is_param_in_hook_signature(member.training_step, "batch_idx", min_args=2)

    def forward(self, batch: Any, batch_idx: int) -> tuple[Tensor, dict[str, Tensor]]:
        logged: dict[str, Tensor] = {}

        def log(name: str, value: Any, prog_bar: bool = False, **options: Any) -> None:
            if isinstance(value, Metric | MetricCollection):
                raise UnsupportedRunError(
                    f"The training step logs the metric {name!r} itself, and a group keeps what each step computed. "
                    "Log its value: self.log(name, self.metric(outputs, labels))."
                )
            self.options[name] = {**options, "prog_bar": prog_bar}
            logged[name] = torch.as_tensor(value, dtype=None if isinstance(value, Tensor) else torch.float32).detach()

        vars(self.member)["log"] = log
        try:
            returned: Any = self.member.training_step(*(batch, batch_idx)[: self.arguments])
        finally:
            del vars(self.member)["log"]
        loss = returned.get("loss") if isinstance(returned, Mapping) else returned
        if not isinstance(loss, Tensor):
            raise UnsupportedRunError(
                f"{type(self.member).__name__}.training_step returned {type(loss).__name__}; a group takes a loss, or "
                'a mapping with "loss".'
            )
        return loss, logged


class _Stack:
    """Members, by their numbers in the group, whose losses are computed at once, or else one after another."""

    def __init__(self, numbers: list[int], members: list[LightningModule], states: list[RandomState]) -> None:
        self.numbers, self.members, self.states = numbers, members, states
        self.steps = [_Step(member) for member in members]
        self.reason = "" if len(members) > 1 else "no other member is like it"
        self.template: _Step | None = None
        self.names: list[str] = []

    @property
    def options(self) -> dict[str, dict[str, Any]]:
        """How the training step logs what, by name."""
        return (self.template or self.steps[0]).options

    def losses(self, batch: Any, batch_idx: int) -> tuple[Tensor, dict[str, Tensor]]:
        """Return every member's loss, ``[members]``, and what was logged, of that shape by name."""
        batch = [part[self.numbers] if len(part) > len(self.numbers) else part for part in batch]
        if self.reason:
            return self._one_by_one(batch, batch_idx)
        before = [copy.copy(state) for state in self.states]
        try:
            return (
                self._at_once(batch, batch_idx) if self.template is not None else self._first_at_once(batch, batch_idx)
            )
        except Exception as error:  # noqa: BLE001 - what a user's step does not do under vmap, the loop does as alone
            self.template, self.reason = None, next(iter(str(error).strip().splitlines()), type(error).__name__)
            for state, earlier in zip(self.states, before, strict=True):
                vars(state).update(vars(earlier))
        return self._one_by_one(batch, batch_idx)

    def _first_at_once(self, batch: Any, batch_idx: int) -> tuple[Tensor, dict[str, Tensor]]:
        """Compute a first step at once, and look whether anything else than the losses came of it."""
        outside = RandomState.now()
        buffers = [(buffer, buffer.clone()) for member in self.members for buffer in member.buffers()]
        try:
            template = self._make_template()
            before = _contents(template)
            losses = self._at_once(batch, batch_idx)
            changed = [
                name
                for name, (value, size) in _contents(template).items()
                if name not in before or before[name][0] is not value or before[name][1] != size
            ]
            changed += ["buffers"] * any(not torch.equal(buffer, content) for buffer, content in buffers)
            changed += ["the global random numbers"] * (outside != RandomState.now())
            _refuse_if(bool(changed), f"the training step changes {', '.join(changed[:1])}")
        except Exception:
            outside.restore()
            with torch.no_grad():
                for buffer, content in buffers:
                    buffer.copy_(content)
            raise
        return losses

    def _make_template(self) -> _Step:
        """Return the code of all members: a copy of the first, in which layers that differ ask each member's own."""
        first, registry = self.members[0], getattr(self.members[0], "registry", default_registry)
        modules = [module for member in self.members for module in member.modules()]
        size = sum(parameter.numel() for parameter in first.parameters())
        is_on_cpu = all(parameter.device.type == "cpu" for parameter in first.parameters())
        _refuse_if(any(vars(module).get(name) for module in modules for name in _HOOKS), "a module has hooks")
        _refuse_if(
            any(isinstance(module, nn.modules.conv._ConvNd) for module in modules),
            "convolutions are no faster in a stack",
        )
        _refuse_if(is_on_cpu and size > _LARGE, f"more than {_LARGE} parameters take longer to stack than to use")
        template = copy.deepcopy(first)
        template.trainer = first._trainer
        for path in _separate_paths(self.members, registry):
            parts = [member.get_submodule(path) for member in self.members]
            _put(template, path, _EachMember(parts, self.states, registry))
        for path, module in list(template.named_modules()):
            if isinstance(module, Metric | MetricCollection):
                _put(template, path, _NoMetric())
        # A task reads its spec to see whether its activation is noisy, which members of a stack agree in.
        unread = _READ_BY_OPTIMIZERS | _ACTIVATION_NAMES - {
            "activation_spec" if isinstance(first, ActivationTask) else ""
        }
        for name in _differing([vars(member) for member in self.members], unread):
            del vars(template)[name]
        for name in _differing([member.hparams for member in self.members], first.hparams):
            del template.hparams[name]
        for name in ("optimizers", "lr_schedulers"):
            vars(template)[name] = partial(_refuse_if, True, f"the training step calls self.{name}()")
        getattr(template, "is_noisy", None)  # so that `ActivationTask` has noted it before changes are looked for
        self.template = _Step(template)
        self.names = [name for name, _ in [*template.named_parameters(), *template.named_buffers()]]
        every = [name for name, _ in template.named_parameters(remove_duplicate=False)]
        # For every name, the position of the first name that stands for the same tensor.
        ids_by_member = [[id(_tensor(member, name)) for name in every] for member in self.members]
        ties = [[ids.index(number) for number in ids] for ids in ids_by_member]
        _refuse_if(any(one != ties[0] for one in ties), "members share parameters in different ways")
        return self.template

    def _at_once(self, batch: Any, batch_idx: int) -> tuple[Tensor, dict[str, Tensor]]:
        step = self.template
        assert step is not None  # noqa: S101 - prepared
        stacked = {
            f"member.{name}": torch.stack([_tensor(member, name) for member in self.members]) for name in self.names
        }
        versions = {name: tensor._version for name, tensor in stacked.items()}

        def one(tensors: dict[str, Tensor], rows: Any) -> tuple[Tensor, dict[str, Tensor]]:
            held = dict(tensors)
            outputs: tuple[Tensor, dict[str, Tensor]] = torch.func.functional_call(step, held, (rows, batch_idx))
            replaced = any(held[name] is not tensor for name, tensor in tensors.items())
            _refuse_if(replaced, "the training step puts another tensor in the place of a buffer")
            return outputs

        losses, logged = torch.vmap(one, randomness="error")(stacked, batch)
        is_changed = any(stacked[name]._version != version for name, version in versions.items())
        _refuse_if(is_changed, "the training step changes buffers in place")
        return losses, logged

    def _one_by_one(self, batch: Any, batch_idx: int) -> tuple[Tensor, dict[str, Tensor]]:
        losses, logged = [], []
        for row, (step, state) in enumerate(zip(self.steps, self.states, strict=True)):
            with state.going_on():
                loss, figures = step([part[row] for part in batch], batch_idx)
            losses.append(loss)
            logged.append(figures)
        names = {name: value for figures in logged for name, value in figures.items()}
        missing = torch.tensor(torch.nan)
        return torch.stack(losses), {
            name: torch.stack([figures.get(name, missing.to(value)) for figures in logged])
            for name, value in names.items()
        }


def _stacks_of(members: Sequence[LightningModule], states: Sequence[RandomState]) -> list[_Stack]:
    """Return the members in stacks of those that are of one class and differ at most in their layers."""
    numbers: list[list[int]] = []
    for number, member in enumerate(members):
        for stack in numbers:
            if _alike(members[stack[0]], member, _READ_BY_OPTIMIZERS | _ACTIVATION_NAMES):
                stack.append(number)
                break
        else:
            numbers.append([number])
    return [_Stack(stack, [members[n] for n in stack], [states[n] for n in stack]) for stack in numbers]


def _separate_paths(parts: Sequence[nn.Module], registry: Any, path: str = "") -> list[str]:
    """Return the paths of layers that one member's code cannot compute for all: they differ, or draw numbers."""
    paths = []
    for name, child in parts[0]._modules.items():
        if child is None or isinstance(child, Metric | MetricCollection):
            continue
        inner, children = f"{path}.{name}".lstrip("."), [part.get_submodule(name) for part in parts]
        if any(adds_noise(each, registry) for each in children) or not all(_alike(child, each) for each in children):
            paths.append(inner)
        else:
            paths += _separate_paths(children, registry, inner)
    return paths


def _alike(one: nn.Module, other: nn.Module, but: frozenset[str] = frozenset()) -> bool:
    """Tell whether the code of one module, with the other's tensors, computes what the other does; children apart."""
    if type(one) is not type(other) or list(one._modules) != list(other._modules) or one.training != other.training:
        return False
    for mine, its in ((one._parameters, other._parameters), (one._buffers, other._buffers)):
        if list(mine) != list(its) or any(_kind(mine[name]) != _kind(its[name]) for name in mine):
            return False
    if any(getattr(vars(m).get("activation_spec"), "opaque", False) for m in (one, other)):
        but -= {"activation_spec"}
    names = (vars(one).keys() | vars(other).keys()) - _BOOKKEEPING - but
    return all(
        name in vars(one) and name in vars(other) and _equal(vars(one)[name], vars(other)[name]) for name in names
    )


def _kind(tensor: Tensor | None) -> tuple[Any, ...] | None:
    return None if tensor is None else (tensor.shape, tensor.dtype, tensor.device, tensor.requires_grad)


def _equal(one: Any, other: Any) -> bool:
    """Tell whether two attributes are the same for any code that reads them; in doubt they are not."""
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    match one:
        case Tensor():
            return _kind(one) == _kind(other) and torch.equal(one, other)
        case Mapping():
            return list(one) == list(other) and all(_equal(one[key], other[key]) for key in one)
        case list() | tuple():
            return len(one) == len(other) and all(map(_equal, one, other))
        case partial():
            return _equal((one.func, one.args, one.keywords), (other.func, other.args, other.keywords))
        case int() | float() | complex() | str() | bytes() | set() | frozenset() | torch.dtype() | torch.device():
            return bool(one == other)
    return dataclasses.is_dataclass(one) and bool(one == other)


def _contents(step: _Step) -> dict[str, tuple[Any, int]]:
    """Return every attribute of a template, and its size, so that what is put in its place or added to it is seen."""
    return {
        f"{path}.{name}": (value, len(value) if isinstance(value, list | dict | set) else 0)
        for path, module in step.member.named_modules()
        for name, value in vars(module).items()
    }


def _tensor(member: nn.Module, name: str) -> Tensor:
    path, _, last = name.rpartition(".")
    tensor: Tensor = getattr(member.get_submodule(path), last)
    return tensor


def _put(root: nn.Module, path: str, module: nn.Module) -> None:
    parent, _, name = path.rpartition(".")
    root.get_submodule(parent)._modules[name] = module


def _differing(each: Sequence[Mapping[str, Any]], names: Iterable[str]) -> list[str]:
    """Return which of some names stand for other values in other mappings."""
    first = each[0]
    present = [name for name in names if name in first]
    return [name for name in present if not all(name in one and _equal(first[name], one[name]) for one in each)]


def _refuse_if(is_so: bool, reason: str, *_: Any, **__: Any) -> None:
    if is_so:
        raise _NotStackableError(reason)


class _NoMetric(nn.Module):
    """Stands for a metric in a template, where nothing can be counted."""

    def forward(self, *_: Any, **__: Any) -> None:
        _refuse_if(True, "the training step uses a metric")

    update = forward


class _EachMember(nn.Module):
    """Stands for a layer in a template: every member's own computes its slice, with its own random numbers."""

    def __init__(self, parts: Sequence[nn.Module], states: Sequence[RandomState], registry: Any) -> None:
        super().__init__()
        self.parts, self.states = tuple(parts), states  # a tuple: their parameters are no part of the template
        self.draws = [any(adds_noise(module, registry) for module in part.modules()) for part in parts]
        self.adds_noise = any(self.draws)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = _Slices.apply(inputs, self)
        return outputs

    def of_slices(self, inputs: Tensor) -> Tensor:
        """Return the outputs of inputs ``[members, ...]``."""
        outputs = []
        for part, state, draws, member_inputs in zip(self.parts, self.states, self.draws, inputs.unbind(), strict=True):
            with (
                nullcontext() if self.training else evaluation_mode(part),
                state.going_on(in_torch_alone=True) if draws and self.training else nullcontext(),
            ):
                outputs.append(part(member_inputs))
        return torch.stack(outputs)


class _Slices(torch.autograd.Function):
    """A function with a rule for `torch.vmap` alone: within the rule, tensors hold all members."""

    @staticmethod
    def forward(inputs: Tensor, layer: _EachMember) -> Tensor:
        raise _NotStackableError(f"{layer.parts[0]} has inputs that are the same for all, {list(inputs.shape)}")

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def vmap(_: Any, in_dims: tuple[int | None, ...], inputs: Tensor, layer: _EachMember) -> tuple[Tensor, int]:
        return layer.of_slices(inputs.movedim(in_dims[0] or 0, 0)), 0


# Refusals


def shared_parts(one: nn.Module, other: nn.Module) -> list[str]:
    """Return the names of parameters that are trained, and of modules with buffers, that are another module's too."""
    theirs = _trained_parts(other)
    return [name for part, name in _trained_parts(one).items() if part in theirs]


def _trained_parts(module: nn.Module) -> dict[int, str]:
    parameters = {id(p): name for name, p in module.named_parameters() if p.requires_grad}
    return parameters | {id(part): name for name, part in module.named_modules() if list(part.buffers(recurse=False))}


def _check_hooks(member: LightningModule) -> None:
    """Refuse a module with hooks that a group does not call: what they do would be left out in silence."""
    name = type(member).__name__
    if not member.automatic_optimization:
        raise UnsupportedRunError(
            f"{name} has automatic_optimization=False, and a group steps all optimizers. Train it alone."
        )
    hooks = {
        hook
        for kind in (ModelHooks, DataHooks)
        for hook in vars(kind)
        if hook.startswith(("on_", "configure_", "transfer_"))
    }
    refused = (
        {*hooks, *_STEPS, "setup", "teardown", "prepare_data"}
        - _FORWARDED
        - {"on_save_checkpoint", "on_load_checkpoint"}
    )
    for hook in sorted(refused):
        if "predict" not in hook and is_overridden(hook, member, LightningModule):
            raise UnsupportedRunError(
                f"{name} has a hook {hook}, which a group does not call for its members. Move what it does into "
                "training_step, validation_step, configure_optimizers or a callback, or train this module alone."
            )


def check_data_hooks(data: LightningDataModule) -> None:
    """Refuse data with hooks that change batches, or a training loader of their own."""
    for hook in _BATCH_HOOKS:
        if is_overridden(hook, data, LightningDataModule):
            raise ArgumentError(
                f"{type(data).__name__} has a hook {hook}, which a group does not call for its members' batches. Do "
                "what it does in load_train_and_val, or train the modules alone."
            )
    if type(data).train_dataloader is not InMemoryDataModule.train_dataloader:
        raise ArgumentError(
            f"{type(data).__name__} has a train_dataloader of its own, and a group takes batches as InMemoryDataModule "
            "does. Leave it out, or train the modules alone."
        )


def _check_trainer(trainer: Any) -> None:
    """Refuse a Trainer that would mix members, or make other runs than each alone."""
    is_fit = trainer.state.fn == TrainerFn.FITTING
    refused = {
        "devices": (trainer.world_size > 1, "one process trains a group on one device"),
        "strategy": (isinstance(trainer.strategy, ParallelStrategy), "one process trains a group on one device"),
        "precision": (trainer.precision not in {"32-true", "64-true"}, 'accepted: "32-true" and "64-true"'),
        "overfit_batches": (
            is_fit and trainer.overfit_batches > 0,
            "each member has an order of its own; give less data",
        ),
    }
    for name, (is_asked, why) in refused.items():
        if is_asked:
            raise UnsupportedRunError(f"Trainer({name}=...) is not accepted for a group: {why}.")
    for callback in trainer.callbacks if is_fit else ():
        for kind, why in _REFUSED_CALLBACKS.items():
            if isinstance(callback, kind):
                raise UnsupportedRunError(f"The callback {type(callback).__name__} is not accepted for a group: {why}.")
    if is_fit and not isinstance(trainer.datamodule, ReplicaDataModule):
        raise UnsupportedRunError(
            "A group takes its batches from a ReplicaDataModule. Give Trainer.fit datamodule=ReplicaDataModule(data)."
        )
