"""Several runs of one net at once: `ReplicaGroup` and its data.

A small net spends most of a training step outside of arithmetic. A group trains the runs of a grid (activations,
learning rates, seeds) by one `Trainer.fit`: the members' parameters are stacked for each step, `torch.vmap` computes
all losses at once, and each member's own optimizer steps its own parameters. What cannot be stacked is computed member
by member. Either way it is the mathematics of the runs alone: orders of samples, masks of dropout, schedules and all,
with other rounding.
"""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import combinations
from typing import Any, Self, cast

import torch
from lightning.pytorch import Callback, LightningDataModule, LightningModule, callbacks
from lightning.pytorch.core.hooks import DataHooks, ModelHooks

# Private in Lightning 2.6: what reads every form that `configure_optimizers` may return.
from lightning.pytorch.core.optimizer import _configure_optimizers, _configure_schedulers_automatic_opt
from lightning.pytorch.strategies import ParallelStrategy
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities.model_helpers import is_overridden
from lightning.pytorch.utilities.signature_utils import is_param_in_hook_signature
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, RandomSampler, SubsetRandomSampler, WeightedRandomSampler

from lit_gelu.callbacks import ActivationCurvatureMonitor, ActivationSwap, ExactResume, LossCurvatureMonitor, OnnxExport
from lit_gelu.data import InMemoryDataModule
from lit_gelu.data.in_memory import InMemorySamples
from lit_gelu.errors import ArgumentError, UnsupportedRunError
from lit_gelu.random_states import RandomState, seeded
from lit_gelu.replica_stacks import MemberOptimizers, MemberSchedulers, Stack, stacks_of

__all__ = ["ReplicaDataModule", "ReplicaGroup"]

_FORWARDED = frozenset({"on_fit_start", "on_validation_epoch_end", "on_test_epoch_end"})
_STEPS = (
    "optimizer_step", "optimizer_zero_grad", "backward", "lr_scheduler_step", "configure_gradient_clipping",
    "configure_callbacks",
)  # fmt: skip
_BATCH_HOOKS = ("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer")
_DRAWING_SAMPLERS = (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)
_REFUSED_CALLBACKS = (
    *(ActivationSwap, ActivationCurvatureMonitor, LossCurvatureMonitor, OnnxExport, ExactResume),
    *(callbacks.StochasticWeightAveraging, callbacks.LearningRateFinder, callbacks.BatchSizeFinder),
    *(callbacks.ModelPruning, callbacks.BaseFinetuning),
)


class ReplicaGroup(LightningModule):
    """Runs of one net that differ in activation, learning rate, seed or other arguments, trained as one module.

    Every member ends with the weights of its run alone (``seed_everything``, build, `Trainer.fit`) but for rounding.
    A batch of the Trainer is one optimizer step of every member. What members log in validation is logged as
    ``val_loss_0``, ``val_loss_1``, ... and their mean as ``val_loss``; `measured` has the values of the last pass.

    Members of one class are stacked; layers in which they differ, and dropout, are computed member by member within
    the stack. Members whose training step cannot be stacked (it branches on tensors, draws numbers in other ways,
    changes buffers or the module, has hooks) are computed one after another: `looped` says why.

    Args:
        members: The modules. Their runs begin where the process is now in its random numbers; see `of` for seeds.

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

    def __init__(self, members: Sequence[LightningModule]) -> None:
        super().__init__()
        if not members:
            raise ArgumentError("A group without members was asked for. Give at least one.")
        # The names of parameters that are trained, and of modules with buffers, by their identity.
        parts = [
            {id(p): name for name, p in member.named_parameters() if p.requires_grad}
            | {id(part): name for name, part in member.named_modules() if list(part.buffers(recurse=False))}
            for member in members
        ]
        for (first, one), (second, other) in combinations(enumerate(parts), 2):
            if shared := [name for part, name in one.items() if part in other]:
                raise ArgumentError(
                    f"Members {first} and {second} have {', '.join(map(repr, shared[:3]))} in common, which their runs "
                    "would train together. Build or copy it for each member."
                )
        for member in members:
            _check_hooks(member)
        self.replicas = nn.ModuleList(members)
        self.random_states = [RandomState.now() for _ in members]
        self.measured: dict[str, Tensor] = {}
        self.looped: dict[int, str] = {}
        self._latest: dict[str, Tensor] = {}  # what training steps logged last, [members] by name
        self._validated: set[str] = set()  # names that members log in the present pass
        self._stacks: list[Stack] = []
        self._optimizers: list[Optimizer] = []
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
        if len(seeds) != len(cells):
            raise ArgumentError(f"{len(cells)} cells and {len(seeds)} seeds given. Give a seed for each cell, or None.")
        members, states = [], []
        for cell, seed in zip(cells, seeds, strict=True):
            with seeded(seed):
                members.append(build(**cell))
                states.append(RandomState.now())
        group = cls(members)
        group.random_states = states
        return group

    @property
    def members(self) -> list[LightningModule]:
        """The modules of the runs; after the fit, ordinary trained modules."""
        return cast("list[LightningModule]", list(self.replicas))

    # Setting up

    def configure_callbacks(self) -> list[Callback]:
        """Refuse a Trainer that would mix members, before anything is trained; there are no callbacks."""
        trainer: Any = self.trainer
        is_fit = trainer.state.fn == TrainerFn.FITTING
        refused = {
            "strategy": isinstance(trainer.strategy, ParallelStrategy),  # any of several devices
            "precision": trainer.precision not in {"32-true", "64-true"},
            "overfit_batches": is_fit and trainer.overfit_batches > 0,
        }
        for name, is_asked in refused.items():
            if is_asked:
                raise UnsupportedRunError(
                    f"Trainer({name}=...) is not accepted for a group: one process trains it on one device, in 32-true "
                    "or 64-true, each member with an order of batches of its own."
                )
        for callback in trainer.callbacks if is_fit else ():
            if isinstance(callback, _REFUSED_CALLBACKS):
                raise UnsupportedRunError(
                    f"The callback {type(callback).__name__} is not accepted for a group: it works on one net and its "
                    "steps. Leave it out, call it on group.members after the fit, or train the modules alone."
                )
        if is_fit and not isinstance(trainer.datamodule, ReplicaDataModule):
            raise UnsupportedRunError(
                "A group takes its batches from a ReplicaDataModule. Give datamodule=ReplicaDataModule(data)."
            )
        return []

    def setup(self, stage: str) -> None:  # noqa: ARG002 - Lightning's name
        """Let the members see the Trainer."""
        self.looped = {}
        for member in self.members:
            member.trainer = self.trainer

    def teardown(self, stage: str) -> None:  # noqa: ARG002 - Lightning's name
        """Leave ordinary modules."""
        self._stacks = []
        for member in self.members:
            member.trainer = None

    def configure_optimizers(self) -> Any:
        """Return one optimizer that steps all members' own, and their schedulers."""
        self._optimizers, schedulers = [], []
        for replica, member in enumerate(self.members):
            with self._running(replica):
                returned: Any = member.configure_optimizers()
                optimizers, configs, monitor = ([], [], None) if returned is None else _configure_optimizers(returned)
                if len(optimizers) != 1 or isinstance(optimizers[0], torch.optim.LBFGS):
                    kinds = ", ".join(type(optimizer).__name__ for optimizer in optimizers) or "no optimizer"
                    raise UnsupportedRunError(
                        f"{type(member).__name__}.configure_optimizers returned {kinds}; a group takes one optimizer "
                        "for each member, whose step computes no loss. Train this module alone."
                    )
                schedulers.append(_configure_schedulers_automatic_opt(configs, monitor))
            self._optimizers.append(optimizers[0])
        group_optimizer = MemberOptimizers(self._optimizers)
        settings: dict[tuple[Any, ...], dict[str, Any]] = {}
        for replica, configs in enumerate(schedulers):
            for number, config in enumerate(configs):
                options = {**vars(config), "scheduler": None}
                alike = settings.setdefault((number, *options.values()), options)
                alike["scheduler"] = alike["scheduler"] or MemberSchedulers(group_optimizer, config.monitor)
                alike["scheduler"].members[replica] = config.scheduler
        return [group_optimizer], list(settings.values())

    def configure_gradient_clipping(
        self, optimizer: Optimizer, gradient_clip_val: float | None = None, gradient_clip_algorithm: str | None = None
    ) -> None:
        """Clip each member's gradients by their own norm."""
        for member_optimizer in cast("MemberOptimizers", optimizer).members:
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
        self._stacks = stacks_of(self.members, self.random_states)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """Return the sum of all members' losses, each of its own part of ``batch``, ``[members, batch, ...]``."""
        sums: list[Tensor] = []
        figures: dict[str, dict[int, Tensor]] = {}
        options: dict[str, dict[str, Any]] = {}
        for stack in self._stacks:
            losses, logged = stack.losses(batch, batch_idx)
            sums.append(losses.sum())
            options |= stack.options
            for name, values in logged.items():
                figures.setdefault(name, {}).update(zip(stack.numbers, values.unbind(), strict=True))
            self.looped |= dict.fromkeys(stack.numbers, stack.reason) if stack.reason else {}
        for name, by_member in figures.items():
            missing = torch.full_like(next(iter(by_member.values())), torch.nan)
            values = torch.stack([by_member.get(replica, missing) for replica in range(len(self.replicas))])
            self._latest[name] = values
            self.log(name, values.nanmean(), **options[name])
            if options[name].get("on_epoch"):
                for replica, value in enumerate(values):
                    self.log(f"{name}_{replica}", value, **{**options[name], "prog_bar": False})
            elif (
                options[name].get("logger") is not False
                and (self.global_step + 1) % self.trainer.log_every_n_steps == 0  # type: ignore[attr-defined] # a connector's
            ):
                by_replica = {f"{name}_{replica}": float(value) for replica, value in enumerate(values)}
                for logger in self.loggers:
                    logger.log_metrics(by_replica, self.global_step)
        return torch.stack(sums).sum()

    # Validation and test: the members one by one

    def on_validation_start(self) -> None:
        """Begin a pass."""
        if self.trainer.sanity_checking:
            self._before_sanity_check = copy.deepcopy(self.random_states)
        self._draw_for_loader(self.trainer.val_dataloaders)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """Call the members' step."""
        self._evaluate("validation_step", batch, batch_idx)

    def on_validation_epoch_end(self) -> None:
        """Call the members' hook, and log the mean of what they logged."""
        self._end_pass("on_validation_epoch_end")

    def on_validation_end(self) -> None:
        """Let a Trainer's sanity check leave no trace in the random numbers."""
        if self.trainer.sanity_checking:
            self.random_states[:] = self._before_sanity_check

    def on_test_start(self) -> None:
        """Begin a pass."""
        self._draw_for_loader(self.trainer.test_dataloaders)

    def test_step(self, batch: Any, batch_idx: int) -> None:
        """Call the members' step."""
        self._evaluate("test_step", batch, batch_idx)

    def on_test_epoch_end(self) -> None:
        """Call the members' hook, and log the mean of what they logged."""
        self._end_pass("on_test_epoch_end")

    def _draw_for_loader(self, loader: Any) -> None:
        """Draw, in each member's run, the seed for workers that torch draws as a pass through a loader begins."""
        if isinstance(loader, DataLoader) and loader.generator is None:
            for state in self.random_states:
                with state.going_on(in_torch_alone=True):
                    torch.empty((), dtype=torch.int64).random_()

    def _evaluate(self, step: str, *arguments: Any) -> None:
        for replica, member in enumerate(self.members):
            taken = 1 + is_param_in_hook_signature(getattr(member, step), "batch_idx", min_args=2)
            with self._running(replica):
                getattr(member, step)(*arguments[:taken])

    def _call(self, hook: str) -> None:
        for replica, member in enumerate(self.members):
            if is_overridden(hook, member, LightningModule):
                with self._running(replica):
                    getattr(member, hook)()

    def _end_pass(self, hook: str) -> None:
        self._call(hook)
        logged = (name for name in sorted(self._validated) if f"{name}_0" in self.trainer.callback_metrics)
        measured = {name: self._values(name) for name in logged}
        self._validated = set()
        for name, values in measured.items():
            self.log(name, values.nanmean(), prog_bar=True)
        if not self.trainer.sanity_checking:
            self.measured = measured

    def _values(self, name: str) -> Tensor:
        metrics = self.trainer.callback_metrics
        if f"{name}_0" in metrics:
            values = [metrics.get(f"{name}_{replica}") for replica in range(len(self.replicas))]
            return torch.stack([torch.tensor(torch.nan) if value is None else value.cpu() for value in values])
        if name not in self._latest:
            raise UnsupportedRunError(
                f"A scheduler monitors {name!r}, which the members do not log themselves. Let it monitor a name that "
                "training_step or validation_step logs."
            )
        return self._latest[name].cpu()

    @contextmanager
    def _running(self, replica: int) -> Iterator[None]:
        """Let a member's code run outside of training steps: with its random numbers, figures and optimizer."""

        def log(name: str, value: Any, prog_bar: bool = False, **options: Any) -> None:  # noqa: ARG001 - Lightning's name; the mean is in the bar
            self._validated.add(name)
            options.pop("metric_attribute", None)  # Lightning finds the members' metrics by itself
            self.log(f"{name}_{replica}", value, **options)

        attributes = vars(self.members[replica])
        replaced: dict[str, Any] = {"log": log}
        if len(self._optimizers) == len(self.replicas):
            replaced["optimizers"] = lambda use_pl_optimizer=True: self._optimizers[replica]  # noqa: ARG005 - its name
        attributes.update(replaced)
        try:
            with self.random_states[replica].going_on():
                yield
        finally:
            for name in replaced:
                del attributes[name]


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
        for hook in (*_BATCH_HOOKS, "train_dataloader"):
            if is_overridden(hook, data, InMemoryDataModule):
                raise ArgumentError(
                    f"{type(data).__name__} has a {hook} of its own, which a group does not call for its members' "
                    "batches. Do what it does in load_train_and_val, or train the modules alone."
                )
        self.data = data

    def prepare_data(self) -> None:
        """Do what the data do."""
        self.data.prepare_data()

    def setup(self, stage: str) -> None:
        """Read what the stage needs; refuse to where that draws numbers, of which each run alone has its own."""
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

    def _refusing_draws(self, loader: Any) -> Any:
        loader = loader[0] if isinstance(loader, list | tuple) and len(loader) == 1 else loader
        sampler = getattr(loader, "sampler", None)
        if isinstance(sampler, _DRAWING_SAMPLERS) and sampler.generator is None:
            raise ArgumentError(
                f"{type(self.data).__name__} shuffles what is evaluated, with the numbers of each run alone, and a "
                "group goes through one order for all. Leave shuffle=True out, or give the loader a generator."
            )
        return loader


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
        return self.length

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        orders = []
        for state, loader in zip(self.states, self.numbers, strict=True):
            with state.going_on():
                orders.append(torch.stack(list(loader)))
        for rows in torch.stack(orders, dim=1):  # [members, batch] of every step
            yield tuple(tensor[rows.to(tensor.device)] for tensor in self.samples.tensors)


def _check_hooks(member: LightningModule) -> None:
    """Refuse a module with hooks that a group does not call: what they do would be left out in silence."""
    name = type(member).__name__
    if not member.automatic_optimization:
        raise UnsupportedRunError(
            f"{name} has automatic_optimization=False, and a group steps all optimizers. Train it alone."
        )
    hooks = [hook for kind in (ModelHooks, DataHooks) for hook in vars(kind)]
    refused = {hook for hook in hooks if hook.startswith(("on_", "configure_", "transfer_"))}
    refused |= {*_STEPS, "setup", "teardown", "prepare_data"}
    refused -= {*_FORWARDED, "on_save_checkpoint", "on_load_checkpoint"}
    for hook in sorted(refused):
        if "predict" not in hook and is_overridden(hook, member, LightningModule):
            raise UnsupportedRunError(
                f"{name} has a hook {hook}, which a group does not call for its members. Move what it does into "
                "training_step, validation_step, configure_optimizers or a callback, or train this module alone."
            )
