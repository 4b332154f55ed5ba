"""The optimizers of all members: Adam on the stacks where all have it, else every member's own."""

import copy
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Adam, AdamW, Optimizer
from torch.optim import optimizer as of_optimizers

from lit_gelu.errors import message_of
from lit_gelu.replicas.errors import DamagedGroupError
from lit_gelu.replicas.membership.stacks import Stacks
from lit_gelu.replicas.optimizers.adam_arithmetic import AdamPiece, AdamSettings, ends_are_as_the_rest
from lit_gelu.replicas.optimizers.rate_schedules import Configured, configured, step_on_plateau, step_schedulers

Gradients = Mapping[str, Tensor | None]
_IN_CACHE = 2**18  # numbers of a stack that are updated at once: all of a large one would go through memory each time
_MOMENTS = ("exp_avg", "exp_avg_sq")
# What must be equal for one arithmetic; of the learning rate and the decay each member has its own.
_FLAGS = ("betas", "eps", "maximize", "fused", "decoupled_weight_decay")
# What one arithmetic takes of the first member, read anew at every step: a callback or a schedule may change it.
_COMMON = operator.itemgetter("betas", "eps", "maximize", "decoupled_weight_decay")
_UNKNOWN = ("amsgrad", "capturable", "differentiable", "foreach")


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Let new tensors have a type, as they have where a run alone makes its optimizer's step."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


class MemberOptimizers(Optimizer):
    """Every member's own optimizer, given its parts of the gradients; exact for any optimizer.

    Args:
        stacks: Those of the members, which hold parts of them.
        configured: What every member configures.
    """

    def __init__(self, stacks: Stacks, configured: Sequence[Configured]) -> None:
        super().__init__(stacks.parameters.values(), {})
        self.stacks, self.configured = stacks, list(configured)
        self.own = [one.optimizer for one in configured]
        self.stopped: set[int] = set()
        self.default = torch.get_default_dtype()  # of counts; a step in float64 has another one

    def stop(self, replica: int) -> None:
        """Leave a member as it is from now on."""
        self.stopped.add(replica)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Call ``closure``, which calls `update` as often as it makes steps: a Trainer sees one call."""
        return None if closure is None else closure()

    def update(self, gradients: Gradients) -> None:
        """Make one step of all members with gradients ``[replicas, ...]`` by name."""
        self.update_each(self.stacks.slices(gradients))
        for module in self.stacks.modules:
            for parameter in module.parameters():
                parameter.grad = None  # parts of large tensors, which no member's code reads

    def update_each(self, parts_of: Sequence[Mapping[str, Tensor]]) -> None:
        """Make one step of all members with gradients of each by name; what is not there is left as it is.

        The members' parameters hold these gradients from then on, as behind a step of a run alone.
        """
        for replica, (module, own, parts) in enumerate(zip(self.stacks.modules, self.own, parts_of, strict=True)):
            if replica in self.stopped:
                continue
            for name, parameter in module.named_parameters():
                parameter.grad = parts.get(name)
            with _default_dtype(self.default):
                own.step()

    def state_dict(self) -> dict[str, Any]:
        """Return the states of the members' own optimizers, of which none holds a stack, and of their schedulers."""
        return {
            "members": [self.member_state(replica) for replica in range(len(self.own))],
            "schedulers": [copy.deepcopy(one.states()) for one in self.configured],
        }

    def member_state(self, replica: int) -> dict[str, Any]:
        """Return the state of a member's own optimizer, as it would be after the run alone."""
        return _copied(self.own[replica].state_dict())

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a saved state."""
        with _damage_said():
            for own, state in zip(self.own, state_dict["members"], strict=True):
                own.load_state_dict(state)
            for one, states in zip(self.configured, state_dict["schedulers"], strict=True):
                one.load_states(states)

    @property
    def has_schedulers(self) -> bool:
        """Whether a member has configured one."""
        return any(one.schedulers for one in self.configured)

    def step_schedulers(self, step: int, epoch: int) -> None:
        """Step the active members' schedulers behind a batch; see `rate_schedules`."""
        for replica, (module, one) in enumerate(zip(self.stacks.modules, self.configured, strict=True)):
            if one.schedulers and replica not in self.stopped:
                step_schedulers(module, one.schedulers, step, epoch)  # type: ignore[arg-type] # a LightningModule

    def step_on_plateau(self, epoch: int, values: Mapping[str, Tensor]) -> None:
        """Step behind an epoch what looks at values, ``[replicas]`` by name."""
        for replica, (module, one) in enumerate(zip(self.stacks.modules, self.configured, strict=True)):
            own = {name: of_all[replica] for name, of_all in values.items()}
            if replica not in self.stopped:
                step_on_plateau(module, one.schedulers, epoch, own.get)  # type: ignore[arg-type] # a LightningModule


@contextmanager
def _damage_said() -> Iterator[None]:
    """Say of an error that a saved state is the cause."""
    try:
        yield
    except (AttributeError, KeyError, RuntimeError, TypeError, ValueError) as error:
        raise DamagedGroupError(
            f"The state of the optimizers in the checkpoint is damaged, or of others ({type(error).__name__}: "
            f"{message_of(error)}). Resume with the members that it was saved with, or give another checkpoint."
        ) from error


def _copied(state: dict[str, Any]) -> dict[str, Any]:
    """Return a state without the storage of stacks: a part, saved as it is, would take all of its stack along."""
    entries = {
        index: {
            name: value.clone() if isinstance(value, Tensor) else copy.deepcopy(value) for name, value in entry.items()
        }
        for index, entry in state["state"].items()
    }
    return {**state, "state": entries, "param_groups": copy.deepcopy(state["param_groups"])}


class StackedAdam(MemberOptimizers):
    """Adam of all members with a few operations over the stacks, to the bit as `torch.optim.Adam` of each alone.

    The members' own optimizers hold parts of the stacked moments: their states are always the present ones, and their
    settings are read at every step: members whose betas, eps, ``maximize`` or coupled decay have come to differ are
    updated one by one. `stackable` says whether optimizers can be treated so.

    Args:
        stacks: Those of the members, which hold parts of them.
        configured: What every member configures.
    """

    def __init__(self, stacks: Stacks, configured: Sequence[Configured]) -> None:
        super().__init__(stacks, configured)
        self.steps: dict[str, Tensor] = {}  # by name as torch counts them: only where there was a gradient
        self.moments: dict[str, tuple[Tensor, Tensor]] = {}
        self._parts: dict[str, tuple[tuple[Tensor, Tensor], int, list[_SomeRows]]] = {}
        self._scratch = torch.empty(0)

    def stop(self, replica: int) -> None:
        """Leave a member as it is from now on; its own optimizer counts no further steps."""
        super().stop(replica)
        for name, count in self.steps.items():
            entry = self._entry(name, replica) if replica in self.stacks.rows[name] else {}
            if entry.get("step") is count:
                entry["step"] = count.clone()

    def begin(self) -> int:
        """Make the moments that are not there yet, and return how many steps were made."""
        for name in self.stacks.trained.keys() - self.moments.keys():
            self._begin(name)
        return int(max(self.steps.values()))

    def count(self, steps: int) -> None:
        """Count steps that were made by `WrittenSteps`."""
        for count in self.steps.values():
            count += steps

    @torch.no_grad()
    def update(self, gradients: Gradients) -> None:
        """Make one step of all members with gradients ``[replicas, ...]`` by name."""
        for own in self.own:
            own._opt_called = True  # type: ignore[attr-defined] # schedulers look at it, and warn
        present = {name: gradient for name, gradient in gradients.items() if gradient is not None}
        for name in present:
            if name not in self.moments:
                self._begin(name)
            self.steps[name] += 1
        with self._stopped_as_they_are(present):
            if self.own[0].param_groups[0]["fused"]:
                self._fused(present)
            else:
                self._singly(present)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a saved state, in moments of the stacks' shapes again."""
        super().load_state_dict(state_dict)
        self.moments.clear()
        self.steps.clear()
        with _damage_said():
            self._take_moments()

    def _take_moments(self) -> None:
        """Put into the stacks what the members' own optimizers have loaded."""
        for name in self.stacks.trained:
            rows = self.stacks.rows[name]
            loaded = {place: dict(entry) for place, r in enumerate(rows) if (entry := self._entry(name, r))}
            if not loaded:
                continue
            self._begin(name)
            for place, entry in loaded.items():
                for moment, key in zip(self.moments[name], _MOMENTS, strict=True):
                    moment[place].copy_(entry[key])
            self.steps[name].copy_(torch.stack([entry["step"] for entry in loaded.values()]).max())
            for place, replica in enumerate(rows):
                if place not in loaded:  # of a member that was stopped before its first step
                    self.own[replica].state.pop(self._parameter(name, replica), None)
                elif loaded[place]["step"] < self.steps[name]:  # or later
                    self._entry(name, replica)["step"] = loaded[place]["step"].clone()

    @contextmanager
    def _stopped_as_they_are(self, names: Iterable[str]) -> Iterator[None]:
        """Put back what a step makes of the members that are stopped."""
        held: list[tuple[Tensor, Tensor, Tensor]] = []
        for name in names if self.stopped else ():
            places = torch.tensor([place for place, r in enumerate(self.stacks.rows[name]) if r in self.stopped])
            tensors = (self.stacks.parameters[name].detach(), *self.moments[name]) if len(places) else ()
            held.extend((tensor, places, tensor[places]) for tensor in tensors)
        yield
        for tensor, places, values in held:
            tensor[places] = values

    def _parameter(self, name: str, replica: int) -> nn.Parameter:
        return self.stacks.modules[replica].get_parameter(name)

    def _entry(self, name: str, replica: int) -> dict[str, Any]:
        """Return what a member's own optimizer holds of a parameter; nothing before its first step."""
        entry: dict[str, Any] = self.own[replica].state.get(self._parameter(name, replica), {})
        return entry

    def _begin(self, name: str) -> None:
        """Make the moments of a stack, and let the members' own optimizers hold their parts."""
        stack = self.stacks.parameters[name].detach()
        self.moments[name] = torch.zeros_like(stack), torch.zeros_like(stack)
        self.steps[name] = torch.zeros((), dtype=self.default)
        for place, replica in enumerate(self.stacks.rows[name]):
            if replica in self.stopped:
                continue
            entry = {key: moment[place] for key, moment in zip(_MOMENTS, self.moments[name], strict=True)}
            self.own[replica].state[self._parameter(name, replica)] = {"step": self.steps[name], **entry}

    def _fused(self, gradients: Mapping[str, Tensor]) -> None:
        """Call torch's kernel member by member: the bits at the ends of tensors are those of each alone."""
        parts = self.stacks.slices(gradients)
        for replica, (own, member) in enumerate(zip(self.own, parts, strict=True)):
            if replica in self.stopped:
                continue
            group = own.param_groups[0]
            parameters: list[Tensor] = [self._parameter(name, replica) for name in member]
            states = [own.state[parameter] for parameter in parameters]
            kernel = torch._fused_adamw_ if group["decoupled_weight_decay"] else torch._fused_adam_
            kernel(
                parameters,
                list(member.values()),
                [state["exp_avg"] for state in states],
                [state["exp_avg_sq"] for state in states],
                [],
                [self.steps[name] for name in member],
                lr=group["lr"],
                beta1=group["betas"][0],
                beta2=group["betas"][1],
                weight_decay=group["weight_decay"],
                eps=group["eps"],
                amsgrad=False,
                maximize=group["maximize"],
            )

    def _singly(self, gradients: Mapping[str, Tensor]) -> None:
        """Compute what `torch.optim.Adam` computes of single tensors, in its order, with a learning rate a replica."""
        is_one = _have_one_arithmetic([own.param_groups[0] for own in self.own])
        for name, gradient in gradients.items():
            groups = [self.own[replica].param_groups[0] for replica in self.stacks.rows[name]]
            step, leaves_gradients = self.steps[name].item(), not groups[0]["maximize"]
            for part in self._parts_of(name):
                few, own = groups[part.rows], gradient[part.rows]
                if not is_one:
                    for one in (slice(row, row + 1) for row in range(len(few))):
                        _adam_step(part.value[one], own[one], part.mean[one], part.square[one], few[one], step)
                elif part.piece is not None and leaves_gradients and _have_one_rate(few):
                    part.piece.adam(own, AdamSettings.of(few[0], int(step)))
                else:
                    _adam_step(part.value, own, part.mean, part.square, few, step)

    def _parts_of(self, name: str) -> list["_SomeRows"]:
        """Return the parts of a stack that are updated at once; to make them takes as long as a small layer."""
        stack, moments = self.stacks.parameters[name].detach(), self.moments[name]
        held = self._parts.get(name)
        if held is None or held[0] is not moments or held[1] != stack.data_ptr():
            self._parts[name] = held = (moments, stack.data_ptr(), self._made_of(stack, *moments))
        return held[2]

    def _made_of(self, stack: Tensor, means: Tensor, squares: Tensor) -> list["_SomeRows"]:
        together = max(1, _IN_CACHE // max(1, stack[0].numel()))
        is_known = stack.is_cpu and stack.dtype in {torch.float32, torch.float64} and ends_are_as_the_rest(stack.dtype)
        parts = []
        for first in range(0, len(stack), together):
            rows = slice(first, first + together)
            tensors = stack[rows], means[rows], squares[rows]
            piece = AdamPiece(*tensors, self._scratch_of(tensors[0])) if is_known else None
            parts.append(_SomeRows(rows, *tensors, piece))
        return parts

    def _scratch_of(self, tensor: Tensor) -> Tensor:
        """Return a tensor of a shape to compute in, of one memory for all: the system clears fresh memory first."""
        if self._scratch.dtype != tensor.dtype or self._scratch.numel() < tensor.numel():
            self._scratch = torch.empty(max(_IN_CACHE, tensor.numel()), dtype=tensor.dtype)
        return self._scratch[: tensor.numel()].view(tensor.shape)


class _SomeRows(NamedTuple):
    """Some replicas of one stack and of its moments."""

    rows: slice
    value: Tensor
    mean: Tensor
    square: Tensor
    piece: AdamPiece | None  # ``None`` if torch's operations are to make the step


def _have_one_arithmetic(groups: Sequence[Mapping[str, Any]]) -> bool:
    """Tell whether a step may take from the first member all but the learning rate and decoupled decay."""
    if list(map(_COMMON, groups)).count(_COMMON(groups[0])) < len(groups):
        return False
    decay = groups[0]["weight_decay"]
    return groups[0]["decoupled_weight_decay"] or all(group["weight_decay"] == decay for group in groups)


def _have_one_rate(groups: Sequence[Mapping[str, Any]]) -> bool:
    """Tell whether `AdamPiece` makes the step: with one learning rate and no decay."""
    rate = groups[0]["lr"]
    return not any(group["weight_decay"] or group["lr"] != rate for group in groups)


def _adam_step(
    stack: Tensor, gradient: Tensor, first: Tensor, second: Tensor, groups: list[dict[str, Any]], step: float
) -> None:
    """Make one step of some replicas of one stack, in place."""
    (beta1, beta2), eps = groups[0]["betas"], groups[0]["eps"]
    gradient = _decayed(stack, -gradient if groups[0]["maximize"] else gradient, groups)
    first.lerp_(gradient, 1 - beta1)
    second.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
    sizes = [-(group["lr"] / (1 - beta1**step)) for group in groups]
    denominators = (second.sqrt() / (1 - beta2**step) ** 0.5).add_(eps)
    if len(sizes) == 1:
        stack.addcdiv_(first, denominators, value=sizes[0])
    else:
        stack.addcdiv_(first * _each(sizes, stack), denominators)


def _decayed(stack: Tensor, gradient: Tensor, groups: list[dict[str, Any]]) -> Tensor:
    if not any(group["weight_decay"] for group in groups):
        return gradient
    if groups[0]["decoupled_weight_decay"]:
        stack.mul_(_each([1 - group["lr"] * group["weight_decay"] for group in groups], stack))
        return gradient
    return gradient.add(stack, alpha=groups[0]["weight_decay"])  # multiplied and added in one rounding


def _each(numbers: list[float], stack: Tensor) -> Tensor:
    """Return a number a replica, to be multiplied with a stack."""
    return torch.tensor(numbers, dtype=stack.dtype, device=stack.device).view(-1, *[1] * (stack.ndim - 1))


def _has_hooks(optimizer: Optimizer) -> bool:
    """Tell whether something is called around each step of an optimizer."""
    # torch has no public names for these; `tests/replicas/optimizers` fails where they have moved.
    of_all = of_optimizers._global_optimizer_pre_hooks, of_optimizers._global_optimizer_post_hooks
    return any((optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks, *of_all))


def stackable(stacks: Stacks, own: Sequence[Optimizer]) -> bool:
    """Tell whether `StackedAdam` computes what the members' own optimizers would."""
    if any(type(optimizer) not in {Adam, AdamW} or len(optimizer.param_groups) != 1 for optimizer in own):
        return False
    if any(map(_has_hooks, own)):
        return False
    groups = [optimizer.param_groups[0] for optimizer in own]
    if any(group.get(flag) for group in groups for flag in _UNKNOWN) or any(o.state for o in own):
        return False
    if any(not g["decoupled_weight_decay"] and g["weight_decay"] != groups[0]["weight_decay"] for g in groups):
        return False
    if any(isinstance(group["lr"], Tensor) for group in groups) or any(s.is_complex() for s in stacks.trained.values()):
        return False
    if any(group.get(flag) != groups[0].get(flag) for group in groups for flag in _FLAGS):
        return False
    held = [{id(parameter) for parameter in group["params"]} for group in groups]
    wanted = [{id(p) for p in module.parameters() if p.requires_grad} for module in stacks.modules]
    return all(needed <= ids for needed, ids in zip(wanted, held, strict=True))


def group_optimizer(stacks: Stacks, stacked: bool = True) -> MemberOptimizers:
    """Return the optimizer of a group, as its members configure theirs; call it with the members on their device.

    Args:
        stacks: Those of the members.
        stacked: Whether a parameter has a gradient in all members, or in none, at every step.
    """
    given = [configured(module) for module in stacks.modules]  # type: ignore[arg-type] # LightningModules, in a group
    fits = stacked and stackable(stacks, [one.optimizer for one in given])
    stacks_them = fits and all(one.changes_rates_alone for one in given)
    return StackedAdam(stacks, given) if stacks_them else MemberOptimizers(stacks, given)
