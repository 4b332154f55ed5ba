"""The steps of the tasks' fully connected nets on a CPU: member by member, forward and backward written out."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from itertools import groupby
from typing import Any, TypeGuard

import numpy as np
import torch
from torch import Tensor, nn

from lit_gelu.replicas.forward.stacked_forward import leaves_of
from lit_gelu.replicas.membership.stacks import Stacks
from lit_gelu.replicas.optimizers.group_optimizers import StackedAdam
from lit_gelu.replicas.randomness.streams import Streams
from lit_gelu.replicas.written.gathered import gathered
from lit_gelu.replicas.written.net import NetBuilder
from lit_gelu.replicas.written.workspace import Workspace

Batches = tuple[Iterable[Tensor], Tensor]  # the inputs of each step, [batch, ...], and all labels, [steps, batch]


class WrittenSteps:
    """Makes steps of members by the very operations of each alone, on tensors of the same sizes.

    A member goes through all steps that are asked for before the next one begins: what it works with stays in the
    processor's cache. Equality does not depend on how a library computes batched products: where a step also needs
    outputs with noise off, these are computed by the same products only if that was seen to leave the others' bits.

    Args:
        stacks: Those of the members; `can_be_written` says whether their nets are known.
        streams: Their random numbers.
        logs_noise_free: Whether each one's loss is to be logged with noise off.
    """

    def __init__(self, stacks: Stacks, streams: Streams, logs_noise_free: Sequence[bool]) -> None:
        self.stacks, self.streams, self.nets = stacks, streams, NetBuilder(stacks, streams, logs_noise_free)
        self._workspaces: dict[tuple[str, ...], Workspace] = {}
        self._parameters = [
            {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}
            for module in stacks.modules
        ]

    def takes(self, optimizer: Any) -> TypeGuard[StackedAdam]:
        """Tell whether steps can be made with the group's optimizer; its counts are those of all tensors."""
        if not isinstance(optimizer, StackedAdam) or not all(stack.is_cpu for stack in self.stacks.parameters.values()):
            return False
        counts = {float(step) for step in optimizer.steps.values()}
        return not counts or (len(counts) == 1 and optimizer.steps.keys() == self.stacks.trained.keys())

    @torch.no_grad()
    def make(self, count: int, batches: Callable[[int], Batches], optimizer: StackedAdam) -> Tensor:
        """Make steps of every member that is not stopped.

        Args:
            count: How many.
            batches: Returns those of a member.
            optimizer: What `takes` accepts.

        Returns:
            The losses that the runs alone log, ``[count, replicas]``; NaN of members that are stopped.
        """
        before = optimizer.begin()
        logged = torch.full((len(self._parameters), count), torch.nan, dtype=self.nets.dtype)
        seed = self.streams.seed
        for _, replicas in groupby(sorted(range(len(self._parameters)), key=seed), seed):
            self.nets.shared.clear()  # members of one seed have random numbers by key in common
            for replica in replicas:
                if replica not in optimizer.stopped:
                    logged[replica] = self._make(replica, batches(replica), optimizer, before)
        optimizer.count(count)
        return logged.t()

    def make_of(self, inputs: Tensor, labels: Tensor, rows: Tensor, optimizer: StackedAdam) -> Tensor:
        """Make the steps for samples, of which ``rows``, ``[steps, replicas, batch]``, says whose they are."""
        samples = inputs.flatten(1)

        def batches(replica: int) -> Batches:
            own = rows[:, replica]
            return gathered(samples, own, self.nets.kept), labels[own]

        return self.make(len(rows), batches, optimizer)

    def _make(self, replica: int, batches: Batches, optimizer: StackedAdam, before: int) -> Tensor:
        parameters, own = self._parameters[replica], optimizer.own[replica]
        workspace, tensors = self._workspace(replica), list(parameters.values())
        states, settings = [own.state[tensor] for tensor in tensors], own.param_groups[0]
        inputs, labels = batches
        net = self.nets.net(replica, labels.shape[1], workspace)
        workspace.take(tensors, states)
        net.begin(labels)
        # What autograd asks of each call takes a twentieth of a small net's time; modules' own gradients need it.
        with nullcontext() if len(net.own) else torch.inference_mode(), np.errstate(all="ignore"):  # as torch is silent
            for made, few in enumerate(inputs):
                net.descend(made, few.flatten(1))
                workspace.adam(settings, before + made + 1)
        workspace.put_back(tensors, states)
        return net.logged()

    def _workspace(self, replica: int) -> Workspace:
        parameters = self._parameters[replica]
        names = tuple(parameters)
        if names not in self._workspaces:
            self._workspaces[names] = Workspace(parameters)
        return self._workspaces[names]


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
