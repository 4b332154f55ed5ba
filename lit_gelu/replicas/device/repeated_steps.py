"""`RepeatedStep`: one step of all members that looks up on the device which samples it is for."""

from collections.abc import Sequence

import torch
from torch import Tensor

from lit_gelu.replicas.device.adam import DeviceAdam
from lit_gelu.replicas.device.fused_forward import FusedForward
from lit_gelu.replicas.forward.keyed_rules import KeyedDropoutRule
from lit_gelu.replicas.forward.stacked_forward import StackedForward

_ROOM = 64  # a multiple of so many steps have room: one more in the next epoch is no reason for another graph
WARM_UP = 3  # steps before a capture: libraries choose algorithms and kernels are compiled


class RepeatedStep:
    """One step of all members; where it is in the batch of the Trainer, counters on the device say.

    Args:
        forward: The members' forward pass.
        adam: Their optimizer.
        logs_noise_free: Whether each one's loss is to be logged with noise off.
        inputs: All samples' inputs.
        labels: Their labels.
        shape: Steps in a batch of the Trainer at most, replicas, samples in a batch.
        fused: The same forward pass with fewer kernels, if there is one.
    """

    together = 1  # steps in one CUDA graph, where so many are to be made

    def __init__(
        self,
        forward: StackedForward,
        adam: DeviceAdam,
        logs_noise_free: Sequence[bool],
        inputs: Tensor,
        labels: Tensor,
        shape: tuple[int, int, int],
        fused: FusedForward | None = None,
    ) -> None:
        self.forward, self.adam, self.any_noise_free = forward, adam, any(logs_noise_free)
        device = adam.device
        self.inputs, self.labels = inputs.to(device), labels.to(device)
        replicas, batch = shape[1:]
        steps = -(-max(shape[0], WARM_UP, self.together) // _ROOM) * _ROOM
        self.rows = torch.zeros(steps, replicas, batch, dtype=torch.int32, device=device)
        self.place = torch.zeros(1, dtype=torch.int64, device=device)
        self.losses = torch.zeros(steps, replicas, dtype=self.inputs.dtype, device=device)
        self.is_noise_free = torch.tensor(list(logs_noise_free), device=device)
        self.fused = fused
        self.keyed = [rule for rule in forward.rules if isinstance(rule, KeyedDropoutRule)]

    def __call__(self) -> None:
        """Make it."""
        stacks = self.forward.stacks.trained
        rows = self.rows.index_select(0, self.place)[0].long()
        batch = self.inputs[rows], self.labels[rows]
        with torch.enable_grad():
            losses, logged = self._losses(batch) if self.fused is None else self.fused.losses(batch)
            gradients = torch.autograd.grad(losses.sum(), list(stacks.values()), allow_unused=True)
        self.adam.update(dict(zip(stacks, gradients, strict=True)))
        self.losses.index_copy_(0, self.place, logged.unsqueeze(0))
        self.place.add_(1)

    def several(self, steps: int) -> None:
        """Make so many."""
        for _ in range(steps):
            self()

    def _losses(self, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Return the losses, and those that are logged."""
        noise_free = self.forward.noise_free_losses(batch) if self.any_noise_free else None
        losses, _ = self.forward.losses(batch, 0)
        logged = losses.detach()
        return losses, logged if noise_free is None else torch.where(self.is_noise_free, noise_free, logged)

    def start(self, rows: Tensor) -> None:
        """Take the samples, ``[steps, replicas, batch]``, of the steps that come, and what may have changed.

        Nothing is waited for where ``rows`` are on the device.
        """
        self.adam.begin_all()
        self.adam.refresh()
        for rule in self.keyed:
            rule.count_only(self.adam.is_active)
        self.rows[: len(rows)].copy_(rows.to(torch.int32), non_blocking=True)
        self.place.zero_()

    def put_back(self) -> None:
        """Let the members have what steps have made of parameters elsewhere, also where these were interrupted."""

    def end(self, steps: int) -> None:
        """Count steps that the device has been told to make, where they do not count themselves."""

    @property
    def state_tensors(self) -> list[Tensor]:
        """All that a step changes."""
        stacks = self.forward.stacks
        parameters = [stack.detach() for stack in stacks.parameters.values()]
        return [*parameters, *stacks.buffers.values(), *self.adam.state_tensors, self.place, self.losses]
