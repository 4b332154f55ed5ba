"""What makes the optimizer steps of a group: forward, backward and update of all members."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from lit_gelu.replicas.device.adam import DeviceAdam
from lit_gelu.replicas.device.stacked_values import measures_as_known, stacked_means
from lit_gelu.replicas.device.steps import DeviceSteps, check_for_devices
from lit_gelu.replicas.errors import NotReplicableError, ReplicaArgumentError
from lit_gelu.replicas.forward.group_forward import GroupForward, LoopForward, Place, VmapForward, explained, is_task
from lit_gelu.replicas.forward.log_options import LogOptions
from lit_gelu.replicas.forward.memory_order import joined_as_they_lie
from lit_gelu.replicas.forward.stacked_forward import StackedForward, leaves_of
from lit_gelu.replicas.membership.alike import check_alike
from lit_gelu.replicas.membership.building import Member
from lit_gelu.replicas.membership.changes import OF_LIGHTNING, SeenModules, names_of
from lit_gelu.replicas.membership.hooks import check_parameters
from lit_gelu.replicas.membership.stacks import Stacks
from lit_gelu.replicas.optimizers.group_optimizers import MemberOptimizers, group_optimizer
from lit_gelu.replicas.optimizers.rate_schedules import configured
from lit_gelu.replicas.randomness.streams import Streams
from lit_gelu.replicas.written.freed_memory import keep_freed_memory
from lit_gelu.replicas.written.steps import WrittenSteps, can_be_written
from lit_gelu.tasks import ActivationTask

if TYPE_CHECKING:
    from lit_gelu.replicas.device.fused_forward import FusedForward

KINDS = ("auto", "written", "stacked", "vmap", "loop", "graph", "device")
ON_DEVICES = ("graph", "device")
# What torch.vmap gains nothing for, cannot map, or computes in another order.
_LOOPED = (nn.modules.conv._ConvNd, nn.RNNBase, parametrizations._SpectralNorm, parametrizations._Orthogonal)


class EagerExecutor:
    """Makes the optimizer steps of all members, in the way that `kind` names.

    Args:
        members: The members; their parameters are parts of the group's from now on.
        kind: ``"written"`` (the tasks' fully connected nets with Adam on a CPU: several steps of one after the other,
            forward and backward written out), ``"stacked"`` (the same nets, all at once), ``"vmap"`` (any net without
            convolutions whose step can be mapped), ``"loop"`` (one after another: anything), or ``"auto"``, the first
            of them that fits. On a GPU ``"graph"`` (the nets of ``"stacked"`` with noise by key and Adam, steps
            captured as CUDA graphs), which ``"auto"`` is there, or ``"device"``, the same step operation by operation.
        differ: Names of attributes that may differ, because no training step reads them.

    Raises:
        MembersDifferError: If the members cannot share their code.
        ReplicaArgumentError: If a kind is not there, or does not fit.

    `active`, bool ``[replicas]``, is the caller's to set: an inactive replica is no longer updated.
    """

    def __init__(self, members: Sequence[Member], kind: str = "auto", differ: Collection[str] = ()) -> None:
        keep_freed_memory()
        modules = [member.module for member in members]
        for module in modules:
            check_parameters(module)
        self.differ = set(differ)
        differing = check_alike(modules, differ)
        self.streams = Streams([member.stream for member in members], [member.other_states() for member in members])
        self.stacks = Stacks(modules)
        self.asked, self.kind = kind, _chosen(kind, modules)
        self._kind_on_a_cpu = self.kind
        self.logged_as = dict[str, LogOptions]()
        self._seen = SeenModules(modules)
        self.active = torch.ones(len(modules), dtype=torch.bool)
        self.optimizer: MemberOptimizers | None = None
        self.device_steps: DeviceSteps | None = None
        self._measured: FusedForward | None = None
        self._make_forward(differing, {})

    def _make_forward(self, differing: Mapping[str, set[str]], left: Mapping[Place, Any]) -> None:
        """Make what computes the members as they are now."""
        self.forward: GroupForward
        if self.kind in {"stacked", "written", *ON_DEVICES}:
            self.forward = StackedForward(self.stacks, self.streams)
        elif self.kind == "vmap":
            self.forward = VmapForward(self.stacks, self.streams, self.logged_as, differing, left)
        else:
            self.forward = LoopForward(self.stacks, self.streams, self.logged_as)
        self.logs_noise_free = [
            isinstance(m, ActivationTask) and is_task(m) and m.logs_noise_free_training_loss and m.is_noisy
            for m in self.stacks.modules
        ]
        self.written = self._written()

    @contextmanager
    def following_members(self) -> Iterator[None]:
        """Make steps of members as they are now, and let them have what the steps set.

        Callbacks and members' own validation may have changed attributes, modes and layers since the last steps.

        Raises:
            MembersDifferError: If members were changed in different ways that a training step could see.
            NotReplicableError: If they were changed so that they cannot be computed together any more.
        """
        if self._seen.has_changed():
            self._seen.check_parameters()
            changed = self._seen.changed()
            if changed:
                self._follow(changed)
            self._seen.look()
        yield
        if isinstance(self.forward, VmapForward) and (given := self.forward.hand_back()):
            self.differ |= given
            self._seen.look()

    def _follow(self, changed: Sequence[tuple[str, str, Any]]) -> None:
        """Make anew what computes the members, in which these attributes may differ by now."""
        modules, names, before = self.stacks.modules, names_of(changed), self.forward
        if self.kind not in {"vmap", "loop"} and (self.device_steps or any(leaves_of(m) is None for m in modules)):
            raise NotReplicableError(
                f"Members were changed since the group was made ({', '.join(sorted(names)) or 'layers, modes or hooks'}"
                f'), which executor={self.kind!r} does not follow. Give executor="vmap" or "loop".'
            )
        self.differ |= names | OF_LIGHTNING
        differing = {} if self.kind == "loop" else check_alike(modules, self.differ)
        places, left = {(path, name) for path, name, _ in changed}, {}
        if isinstance(before, VmapForward):
            left = {place: one for place, one in before.left.items() if place not in places and place[0] in differing}
        self._make_forward(differing, left)
        if isinstance(before, VmapForward) and isinstance(self.forward, VmapForward):
            self.forward.stand_for(before)

    @contextmanager
    def measuring(self) -> Iterator[None]:
        """Let `means` be of the members as they are now, on a GPU beside steps that are started meanwhile.

        What is started in here is on a stream of its own there; nothing outside waits for it.
        """
        beside = None if self.device_steps is None else self.device_steps.beside
        with nullcontext() if beside is None else beside.as_now() as self._measured:
            try:
                yield
            finally:
                self._measured = None

    def means(self, inputs: Tensor, labels: Tensor, samples_at_once: int = 1000) -> dict[str, Tensor] | None:
        """Return the means of every task's ``sample_values`` over a set, on the device.

        ``None`` if members are to be asked singly.
        """
        known = all(measures_as_known(module) for module in self.stacks.modules)
        if self.device_steps is None or not known or not isinstance(self.forward, StackedForward):
            return None
        device = next(iter(self.stacks.parameters.values())).device
        fused = self._measured or self.device_steps.fused
        return stacked_means(self.forward, inputs.to(device), labels.to(device), samples_at_once, fused)

    def outputs(self, replicas: Sequence[int]) -> Callable[[Tensor], Tensor] | None:
        """Return what gives outputs ``[replicas, samples, ...]`` of inputs; ``None`` where members are asked singly."""
        fused = None if self.device_steps is None else self.device_steps.fused
        if fused is None:
            return None
        part = torch.tensor(list(replicas), device=next(iter(self.stacks.parameters.values())).device)
        return lambda inputs: fused.noise_free_outputs(inputs.flatten(1), part)

    @property
    def takes_several(self) -> bool:
        """Whether `steps` makes several at once."""
        return self.written is not None or self.device_steps is not None

    @property
    def refused_on_a_gpu(self) -> str:
        """Why steps cannot be made on CUDA; empty if they can."""
        if self.asked not in {"auto", *ON_DEVICES}:
            return f'executor={self.asked!r} is for a CPU; "auto" takes a GPU, too.'
        try:
            check_for_devices(self.stacks.modules, self.asked)
        except ReplicaArgumentError as error:
            return str(error)
        return ""

    def configure_optimizers(self) -> MemberOptimizers:
        """Return the group's optimizer, made of those that the members configure; again after a move to a device."""
        self.stacks.attach()
        device = next(iter(self.stacks.parameters.values())).device
        for module in self.stacks.modules:
            module._device = device  # type: ignore[assignment] # as Lightning's own `to` does
        is_on_gpu = device.type == "cuda"
        if self.asked == "auto":
            if is_on_gpu:
                check_for_devices(self.stacks.modules, self.asked)
            self.kind = "graph" if is_on_gpu else self._kind_on_a_cpu
        if self.kind == "graph" and not is_on_gpu:
            raise ReplicaArgumentError('executor="graph" was given for a group on a CPU. Give accelerator="cuda".')
        self.written = self._written()  # what it keeps has the type of the numbers
        self.device_steps = None
        if self.kind in ON_DEVICES and isinstance(self.forward, StackedForward):
            self.optimizer = adam = DeviceAdam(self.stacks, [configured(m) for m in self.stacks.modules])  # type: ignore[arg-type]
            self.device_steps = DeviceSteps(self.forward, adam, self.logs_noise_free, self.kind == "graph")
        else:
            # One after the other, a member's step may use a parameter that another's does not.
            self.optimizer = group_optimizer(self.stacks, stacked=not isinstance(self.forward, LoopForward))
        return self.optimizer

    def step(self, batch: Any, index: int = 0) -> dict[str, Tensor]:
        """Make one optimizer step of every member.

        Args:
            batch: What a member's training step takes, every tensor ``[replicas, ...]``.
            index: The number of the batch in the epoch.

        Returns:
            What the members log, ``[replicas]`` each; of tasks ``train_loss``, measured as they measure it.
        """
        optimizer = self.optimizer or self.configure_optimizers()
        self._stop(optimizer)
        if self.written is not None and self.written.takes(optimizer):
            inputs, labels = batch
            losses = self.written.make(1, lambda replica: (inputs[replica, None], labels[replica, None]), optimizer)
            return {"train_loss": losses[0]}
        with self._stopped_buffers_as_they_are():
            return self._step(optimizer, batch, index)

    def steps(self, inputs: Tensor, labels: Tensor, rows: Tensor, first: int = 0) -> dict[str, Tensor]:
        """Make several optimizer steps of every member.

        Args:
            inputs: All samples' inputs.
            labels: Their labels.
            rows: Which samples each member's batches are, ``[steps, replicas, batch]``.
            first: The number of the first batch in the epoch.

        Returns:
            What the members log, ``[steps, replicas]`` each, of those steps in which any has logged it; on a device
            that may not have made them yet.
        """
        optimizer = self.optimizer or self.configure_optimizers()
        self._stop(optimizer)
        if self.written is not None and self.written.takes(optimizer):
            return {"train_loss": self.written.make_of(inputs, labels, rows, optimizer)}
        if self.device_steps is not None:
            return {"train_loss": self.device_steps.make_of(inputs, labels, rows)}
        made = [self.step((_taken(inputs, own), _taken(labels, own)), first + index) for index, own in enumerate(rows)]
        return steps_by_name([{name: value.unsqueeze(0) for name, value in values.items()} for values in made])

    def _written(self) -> WrittenSteps | None:
        return WrittenSteps(self.stacks, self.streams, self.logs_noise_free) if self.kind == "written" else None

    def _step(self, optimizer: MemberOptimizers, batch: Any, index: int) -> dict[str, Tensor]:
        noise_free = self.forward.noise_free_losses(batch) if any(self.logs_noise_free) else None
        trained = self.stacks.trained
        with torch.enable_grad():
            losses, logged = self.forward.losses(batch, index)
            if isinstance(self.forward, LoopForward):
                optimizer.update_each(self.forward.gradients(losses))
            else:
                with explained():
                    gradients = torch.autograd.grad(losses.sum(), list(trained.values()), allow_unused=True)
                optimizer.update(dict(zip(trained, gradients, strict=True)))
        if is_task(self.stacks.modules[0]):
            logged = {"train_loss": self._logged(losses.detach(), noise_free)}
        return logged

    def _stop(self, optimizer: MemberOptimizers) -> None:
        """Let the optimizer know who is no longer active."""
        now = {replica for replica, is_active in enumerate(self.active.tolist()) if not is_active}
        if optimizer.stopped - now:
            raise ReplicaArgumentError(
                f"The replicas {sorted(optimizer.stopped - now)} were inactive and are active again: they have missed "
                "steps. Train those alone, from a checkpoint of the member."
            )
        for replica in now - optimizer.stopped:
            optimizer.stop(replica)

    @contextmanager
    def _stopped_buffers_as_they_are(self) -> Iterator[None]:
        """Put back what a step makes of the buffers of inactive replicas, such as running means."""
        held: list[tuple[Tensor, Tensor, Tensor]] = []
        if self.stacks.buffers and not self.active.all():
            for name, stack in self.stacks.buffers.items():
                places = (~self.active[self.stacks.rows[name]]).nonzero().flatten()
                held.append((stack, places, stack[places]))
        yield
        for stack, places, values in held:
            stack[places] = values

    def _logged(self, losses: Tensor, noise_free: Tensor | None) -> Tensor:
        if noise_free is None:
            return losses
        return torch.where(torch.tensor(self.logs_noise_free, device=losses.device), noise_free, losses)


def _taken(samples: Tensor, rows: Tensor) -> Tensor:
    """Return every replica's ``samples[rows]``, as its elements lie in memory in the run alone."""
    if not samples.is_contiguous():
        return joined_as_they_lie([samples[own].unsqueeze(0) for own in rows])
    # ``samples[rows]`` takes several times longer.
    return torch.index_select(samples, 0, rows.flatten()).view(*rows.shape, *samples.shape[1:])


def steps_by_name(made: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Join what steps logged, ``[steps, replicas]`` each, by name: a step may have logged what others have not."""
    names = dict.fromkeys(name for values in made for name in values)
    return {name: torch.cat([values[name] for values in made if name in values]) for name in names}


def _chosen(kind: str, modules: Sequence[nn.Module]) -> str:
    if kind not in KINDS:
        raise ReplicaArgumentError(f"executor={kind!r} is not accepted. Give one of {', '.join(KINDS)}.")
    fits = all(leaves_of(module) is not None for module in modules)
    if kind == "written" and not can_be_written(modules):
        raise ReplicaArgumentError(
            f'executor="written" does not know the training step of {type(modules[0]).__name__}, or not all of its '
            'parameters are trained and of one dtype. Give "auto".'
        )
    if kind in ON_DEVICES:
        check_for_devices(modules, kind)
    if kind == "graph" and not torch.cuda.is_available():
        raise ReplicaArgumentError(
            'executor="graph" needs CUDA, and torch sees no device (lit-gelu doctor says why). Give executor="auto" '
            'and accelerator="cpu".'
        )
    if kind == "stacked" and not fits:
        raise ReplicaArgumentError(
            f'executor="stacked" does not know the forward pass of {type(modules[0]).__name__}. Give "vmap" or "auto".'
        )
    if kind != "auto":
        return kind
    is_looped = any(isinstance(part, _LOOPED) for part in modules[0].modules())
    if fits:
        return "written" if can_be_written(modules) else "stacked"
    if is_looped:
        rank_zero_info(
            "A group of nets with convolutions, recurrent layers, or spectral or orthogonal weights is computed "
            "one net after the other on a CPU: expect the time of the runs alone, less what a Trainer adds to a step."
        )
    return "loop" if is_looped or len(modules) == 1 else "vmap"  # which gains nothing for one
