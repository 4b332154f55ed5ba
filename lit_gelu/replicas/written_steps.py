"""The steps of the tasks' fully connected nets on a CPU: member by member, forward and backward written out."""

import functools
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from lit_gelu.replicas.alike import registry_of
from lit_gelu.replicas.desk import Desk
from lit_gelu.replicas.keyed_rules import KeyedDropoutPart, in_common
from lit_gelu.replicas.optimizers import StackedAdam
from lit_gelu.replicas.rules import shared_function
from lit_gelu.replicas.stacked_forward import cross_entropies, leaves_of, loss_of
from lit_gelu.replicas.stacks import Stacks
from lit_gelu.replicas.streams import Streams
from lit_gelu.replicas.written_layers import (
    CrossEntropy,
    DropoutPart,
    LinearPart,
    OwnActivation,
    Part,
    SquaredError,
    WrittenActivation,
    written_activation,
)
from lit_gelu.sandbox import evaluation_mode
from lit_gelu.tasks.keyed_dropout import KeyedDropout
from lit_gelu.tasks.keyed_noise import Masks

_MASKS = 2**25  # elements of a byte that are held for other members
Batches = Iterable[tuple[Tensor, Tensor]]


class MemberNet:
    """A member's net as parts, and a step of it.

    Args:
        head: What noise does not reach.
        tail: The other parts; the last one is linear.
        own: The members' own modules among them.
        loss: What is measured and descended.
        logs_noise_free: Whether the loss is to be logged with noise off.
    """

    def __init__(
        self,
        head: Sequence[Part],
        tail: Sequence[Part],
        own: nn.ModuleList,
        loss: CrossEntropy | SquaredError,
        logs_noise_free: bool,
    ) -> None:
        self.head, self.tail, self.own, self.loss = head, tail, own, loss
        self.back = [*reversed(tail), *reversed(head)]
        self.logs_noise_free = logs_noise_free
        self._noisy_loss = torch.empty(())

    def descend(self, inputs: Tensor, labels: Tensor, logged: Tensor) -> None:
        """Compute all gradients of a batch, and write into ``logged`` the loss that the run alone logs."""
        values = inputs
        for part in self.head:
            values = part.forward(values)
        if self.logs_noise_free:
            self._measure_noise_free(values, inputs, labels, logged)
            logged = self._noisy_loss
        for part in self.tail:
            values = part.forward(values)
        self.loss.measure(values, inputs, labels, logged)
        gradient = self.loss.backward(values, inputs, labels)
        for part in self.back:
            gradient = part.backward(gradient)

    def _measure_noise_free(self, values: Tensor, inputs: Tensor, labels: Tensor, logged: Tensor) -> None:
        with evaluation_mode(self.own) if len(self.own) else nullcontext():
            for part in self.tail:
                values = part.noise_free(values)
        self.loss.measure(values, inputs, labels, logged)


class WrittenSteps:
    """Makes steps of members by the very operations of each alone, on tensors of the same sizes.

    A member goes through all steps that are asked for before the next one begins: what it works with stays in the
    processor's cache. So equality does not depend on how a library computes batched products.

    Args:
        stacks: Those of the members; `can_be_written` says whether their nets are known.
        streams: Their random numbers.
        logs_noise_free: Whether each one's loss is to be logged with noise off.
    """

    def __init__(self, stacks: Stacks, streams: Streams, logs_noise_free: Sequence[bool]) -> None:
        self.stacks, self.streams, self.logs_noise_free = stacks, streams, logs_noise_free
        self._name = next(iter(stacks.rows))
        self._dtype = stacks.tree.get_parameter(self._name).dtype
        self._kept: dict[tuple[str | int, ...], Tensor] = {}
        self._desks: dict[tuple[str, ...], Desk] = {}
        self._nets: dict[tuple[int, int], MemberNet] = {}
        self._masks = Masks(_MASKS)
        self._parameters = [
            {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}
            for module in stacks.modules
        ]

    def takes(self, optimizer: Any) -> bool:
        """Tell whether steps can be made with the group's optimizer; its counts are those of all tensors."""
        if not isinstance(optimizer, StackedAdam) or not self.stacks.tree.get_parameter(self._name).is_cpu:
            return False
        counts = {float(step) for step in optimizer.steps.values()}
        return not counts or (len(counts) == 1 and optimizer.steps.keys() == self.stacks.trained.keys())

    @torch.no_grad()
    def make(self, count: int, batches: Callable[[int], Batches], optimizer: StackedAdam) -> Tensor:
        """Make steps of every member that is not stopped.

        Args:
            count: How many.
            batches: Returns the batches of a member, one after the other, ``[batch, ...]``.
            optimizer: What `takes` accepts.

        Returns:
            The losses that the runs alone log, ``[count, replicas]``; NaN of members that are stopped.
        """
        before = optimizer.begin()
        self._masks.clear()
        logged = torch.full((len(self._parameters), count), torch.nan, dtype=self._dtype)
        for replica in range(len(self._parameters)):
            if replica not in optimizer.stopped:
                self._make(replica, batches(replica), optimizer, before, logged[replica])
        optimizer.count(count)
        return logged.t()

    def make_of(self, inputs: Tensor, labels: Tensor, rows: Tensor, optimizer: StackedAdam) -> Tensor:
        """Make the steps for samples, of which ``rows``, ``[steps, replicas, batch]``, says whose they are."""
        flat = inputs.flatten(1)
        taken = self.kept("inputs", rows.shape[2], flat.shape[1])

        def batches(replica: int) -> Batches:
            for own in rows[:, replica].unbind():
                yield torch.index_select(flat, 0, own, out=taken), torch.index_select(labels, 0, own)

        return self.make(len(rows), batches, optimizer)

    def _make(self, replica: int, batches: Batches, optimizer: StackedAdam, before: int, logged: Tensor) -> None:
        parameters, own = self._parameters[replica], optimizer.own[replica]
        desk, tensors = self._desk(replica), list(parameters.values())
        states, settings = [own.state[tensor] for tensor in tensors], own.param_groups[0]
        desk.take(tensors, states)
        for made, ((inputs, labels), loss) in enumerate(zip(batches, logged.unbind(), strict=True), 1):
            self._net(replica, len(inputs)).descend(inputs.flatten(1), labels, loss)
            desk.adam(settings, before + made)
        desk.put_back(tensors, states)

    def _desk(self, replica: int) -> Desk:
        parameters = self._parameters[replica]
        names = tuple(parameters)
        if names not in self._desks:
            self._desks[names] = Desk(parameters)
        return self._desks[names]

    def kept(self, name: str, *sizes: int) -> Tensor:
        """Return the tensor of a name, the same one for all members."""
        key = (name, *sizes)
        if key not in self._kept:
            self._kept[key] = torch.empty(sizes, dtype=self._dtype)
        return self._kept[key]

    def _net(self, replica: int, batch: int) -> MemberNet:
        if (replica, batch) not in self._nets:
            self._nets[replica, batch] = self._built(replica, lambda name, width: self.kept(name, batch, width))
        return self._nets[replica, batch]

    def _built(self, replica: int, kept: Callable[[str, int], Tensor]) -> MemberNet:
        module, desk = self.stacks.modules[replica], self._desk(replica)
        registry, parts, own, noisy_from, width = registry_of(module), list[Part](), nn.ModuleList(), None, 0
        for path, leaf in leaves_of(module) or []:
            stays = True
            if type(leaf) is nn.Linear and not path.endswith(".activation"):
                width = leaf.out_features
                parts.append(LinearPart(path, desk.values, desk.gradients, kept, not parts))
            elif type(leaf) is nn.Dropout and not path.endswith(".activation"):
                if not leaf.p:
                    continue
                stays = False
                parts.append(DropoutPart(path, leaf.p, self.streams.generators[replica], kept, width))
            elif type(leaf) is KeyedDropout and not path.endswith(".activation"):
                if not leaf.p:
                    continue
                stays = False
                parts.append(KeyedDropoutPart(path, leaf, kept, width, self._masks_of(path, leaf)))
            else:
                stays = shared_function(leaf, registry) is not None
                written = written_activation(leaf) if stays else None
                if written is not None:
                    parts.append(WrittenActivation(path, written, kept, width))
                else:
                    own.append(leaf)
                    stream = ExitStack if stays else functools.partial(self.streams.of, replica)
                    parts.append(OwnActivation(path, leaf, desk.values, desk.gradients, stream))
            if not stays and noisy_from is None:
                noisy_from = len(parts) - 1
        place = len(parts) if noisy_from is None else noisy_from
        loss = CrossEntropy if loss_of(module) is cross_entropies else SquaredError
        return MemberNet(parts[:place], parts[place:], own, loss(kept("outputs", width)), self.logs_noise_free[replica])

    def _masks_of(self, path: str, leaf: KeyedDropout) -> Masks | None:
        """Return where masks are held until other members with the same seed have had them."""
        layers: Any = [module.get_submodule(path) for module in self.stacks.modules]
        return self._masks if int(leaf.seed) in in_common(layers) else None


def can_be_written(modules: Sequence[nn.Module]) -> bool:
    """Tell whether `WrittenSteps` knows members' nets: those of tasks, all parameters trained, and of one dtype."""
    parameters = [parameter for module in modules for parameter in module.parameters()]
    dtypes = {parameter.dtype for parameter in parameters}
    return (
        all(leaves_of(module) is not None for module in modules)
        and all(parameter.requires_grad for parameter in parameters)
        and len(dtypes) == 1
        and dtypes <= {torch.float32, torch.float64}
    )
