"""Adam of all members on a device: steps counted and learning rates read there, so that a CUDA graph can hold it."""

import math
import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lit_gelu.replicas.errors import NotReplicableError
from lit_gelu.replicas.membership.stacks import Stacks
from lit_gelu.replicas.optimizers.group_optimizers import Gradients, StackedAdam, stackable
from lit_gelu.replicas.optimizers.rate_schedules import Configured
from lit_gelu.tasks import keyed_dropout

BLOCK = 1024
_HELD = "betas", "eps", "maximize", "weight_decay"
_held_of = operator.itemgetter(*_HELD)


class DeviceAdam(StackedAdam):
    """Adam of all members without a look from the host at a tensor: a kernel for each stack on CUDA, else operations.

    What can change between steps lies in tensors that stay where they are: learning rates and who is active are put
    there by `refresh`. Graphs hold betas and eps as numbers: `refresh` refuses members in which they have changed.

    Args:
        stacks: Those of the members, on their device.
        configured: What every member configures.

    Raises:
        NotReplicableError: If an optimizer is not Adam, or has weight decay or ``maximize``.
    """

    def __init__(self, stacks: Stacks, configured: Sequence[Configured]) -> None:
        own = [one.optimizer for one in configured]
        groups = [optimizer.param_groups[0] for optimizer in own]
        if not stackable(stacks, own) or any(group["weight_decay"] or group["maximize"] for group in groups):
            raise NotReplicableError(
                f"{type(own[0]).__name__} of the members is not known on a device; accepted: torch.optim.Adam without "
                'weight decay and maximize, with the same betas and eps for all. Give the group executor="stacked".'
            )
        super().__init__(stacks, configured)
        self.betas, self.eps = groups[0]["betas"], groups[0]["eps"]
        self.device = next(iter(stacks.trained.values())).device
        self.made = torch.zeros((), device=self.device)  # steps, in float32 as torch counts them
        self._bases = torch.tensor(self.betas, dtype=torch.float64, device=self.device)
        self.rates = torch.zeros(len(own), dtype=torch.float64, device=self.device)
        self.is_active = torch.ones(len(own), dtype=torch.int32, device=self.device)
        self.sizes = torch.zeros(len(own), device=self.device)  # of a step of each
        self.root = torch.zeros((), device=self.device)  # of the second moment's correction
        self.places = {name: torch.tensor(rows, device=self.device) for name, rows in stacks.rows.items()}
        self.refresh()

    @property
    def state_tensors(self) -> list[Tensor]:
        """What a step changes, stacks excepted."""
        return [self.made, self.sizes, self.root, *(moment for pair in self.moments.values() for moment in pair)]

    def refresh(self) -> None:
        """Read learning rates and who is active.

        Raises:
            NotReplicableError: If a member that is active has other settings besides than it was given with.
        """
        self._check_settings()
        rates = [own.param_groups[0]["lr"] for own in self.own]
        is_active = [int(replica not in self.stopped) for replica in range(len(rates))]
        self.rates.copy_(torch.tensor(rates, dtype=torch.float64), non_blocking=True)
        self.is_active.copy_(torch.tensor(is_active, dtype=torch.int32), non_blocking=True)

    @torch.no_grad()
    def update(self, gradients: Gradients) -> None:
        """Make one step of all members with gradients ``[replicas, ...]`` by name; all stacks must have one."""
        self.begin_all()
        self.made.add_(1)
        corrections = 1 - self._bases.pow(self.made.double())
        self.sizes.copy_(self.rates / corrections[0])
        self.root.copy_(corrections[1].sqrt())
        for name, stack in self.stacks.trained.items():
            gradient = gradients[name]
            if gradient is None:
                raise NotReplicableError(
                    f"{name!r} has no gradient. On a device all parameters must have one in every step. Give the group "
                    'executor="stacked".'
                )
            update = self._by_kernel if has_kernel(stack) else self._by_operations
            update(name, stack.detach(), gradient.contiguous(), *self.moments[name])

    def _check_settings(self) -> None:
        held = self.betas, self.eps, False, 0
        found = [_held_of(own.param_groups[0]) for r, own in enumerate(self.own) if r not in self.stopped]
        if found.count(held) == len(found):  # a learning rate that changes at every step has them compared as often
            return
        for name, value, given in zip(_HELD, held, zip(*found, strict=True), strict=True):
            if given.count(value) < len(given):
                raise NotReplicableError(
                    f"Adam's {name} has become {', '.join(map(str, given))} in the active members, and steps on a "
                    f"device keep to {value}, with which they began. Leave it as it is, or give the group "
                    'executor="stacked" and the Trainer accelerator="cpu", where each member has its own.'
                )

    def stop(self, replica: int) -> None:
        """Leave a member as it is from now on."""
        super().stop(replica)
        self.refresh()

    def begin_all(self) -> None:
        """Make the moments that are not there yet."""
        for name in self.stacks.trained.keys() - self.moments.keys():
            self._begin(name)

    def member_state(self, replica: int) -> dict[str, Any]:
        """Return the state of a member's own optimizer, its count of steps on the CPU as torch has it."""
        state = super().member_state(replica)
        for entry in state["state"].values():
            entry["step"] = entry["step"].cpu()
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a saved state."""
        self.made.zero_()
        super().load_state_dict(state_dict)
        self.refresh()

    def _begin(self, name: str) -> None:
        super()._begin(name)
        alone, self.steps[name] = self.steps[name], self.made
        for replica in self.stacks.rows[name]:
            entry = self._entry(name, replica)
            if entry.get("step") is alone:
                entry["step"] = self.made

    def _by_operations(self, name: str, stack: Tensor, gradient: Tensor, first: Tensor, second: Tensor) -> None:
        shape = (-1, *[1] * (stack.ndim - 1))
        is_active, sizes = (part[self.places[name]].view(shape) for part in (self.is_active.bool(), self.sizes))
        new_first = first.lerp(gradient, 1 - self.betas[0])
        new_second = (second * self.betas[1]).addcmul_(gradient, gradient, value=1 - self.betas[1])
        denominators = (new_second.sqrt() / self.root.to(stack.dtype)).add_(self.eps)
        moved = stack.addcdiv(new_first * -sizes.to(stack.dtype), denominators)
        for old, new in ((first, new_first), (second, new_second), (stack, moved)):
            old.copy_(torch.where(is_active, new, old))

    def _by_kernel(self, name: str, stack: Tensor, gradient: Tensor, first: Tensor, second: Tensor) -> None:
        launch_adam(self, name, stack, gradient, first, second)


def has_kernel(stack: Tensor) -> bool:
    """Say whether a stack is updated by the kernel."""
    return keyed_dropout.has_kernel(stack) and stack.dtype == torch.float32


def launch_adam(adam: DeviceAdam, name: str, stack: Tensor, gradient: Tensor, first: Tensor, second: Tensor) -> None:
    """Start the kernel for one stack."""
    from lit_gelu.replicas.device import adam_kernel

    elements = math.prod(stack.shape[1:])
    grid = (-(-elements // BLOCK), len(stack))
    sources = (gradient, adam.sizes, adam.root, adam.is_active, adam.places[name])
    beta1, beta2 = adam.betas
    numbers = (1 - beta1, beta2, 1 - beta2, adam.eps)
    adam_kernel.adam_step[grid](stack, first, second, *sources, elements, *numbers, BLOCK=BLOCK)
