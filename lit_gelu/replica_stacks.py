"""A training step of a group of runs: all losses by `torch.vmap` over stacked tensors, and each run's own optimizer."""

import copy
import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from operator import attrgetter
from typing import Any

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.utilities.signature_utils import is_param_in_hook_signature
from torch import Tensor, nn
from torch.optim import Optimizer
from torchmetrics import Metric, MetricCollection

from lit_gelu.activations.registry import registry as default_registry
from lit_gelu.errors import UnsupportedRunError
from lit_gelu.random_states import RandomState
from lit_gelu.sandbox import evaluation_mode
from lit_gelu.tasks.activation_task import ActivationTask, adds_noise

# What members of a stack may differ in. If a training step reads it, the template lacks it, and the members are looped.
_READ_BY_OPTIMIZERS = frozenset({"learning_rate", "lr", "momentum", "beta1", "weight_decay"})
_ACTIVATION_NAMES = frozenset({"activation", "activation_spec"})
# What torch, Lightning and `ActivationTask` note in a module, which says nothing of what it computes.
_BOOKKEEPING = frozenset(vars(LightningModule())) - {"training"} | {"_hparams", "_hparams_initial", "_modules_seen"}
_HOOKS = frozenset(name for name in vars(nn.Module()) if "_hooks" in name)

_LARGE = 1_000_000  # parameters: from about there on, `benchmarks/replicas.py` finds the loop to be faster on a CPU


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


class Stack:
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
            compute = self._first_at_once if self.template is None else self._at_once
            return compute(batch, batch_idx)
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
            parent, _, name = path.rpartition(".")
            template.get_submodule(parent)._modules[name] = _EachMember(parts, self.states, registry)
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
        ids_by_member = [[id(attrgetter(name)(member)) for name in every] for member in self.members]
        ties = [[ids.index(number) for number in ids] for ids in ids_by_member]
        _refuse_if(any(one != ties[0] for one in ties), "members share parameters in different ways")
        return self.template

    def _at_once(self, batch: Any, batch_idx: int) -> tuple[Tensor, dict[str, Tensor]]:
        step = self.template
        assert step is not None  # noqa: S101 - prepared
        stacked = {
            f"member.{name}": torch.stack([attrgetter(name)(member) for member in self.members]) for name in self.names
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


def stacks_of(members: Sequence[LightningModule], states: Sequence[RandomState]) -> list[Stack]:
    """Return the members in stacks of those that are of one class and differ at most in their layers."""
    numbers: list[list[int]] = []
    for number, member in enumerate(members):
        for stack in numbers:
            if _alike(members[stack[0]], member, _READ_BY_OPTIMIZERS | _ACTIVATION_NAMES):
                stack.append(number)
                break
        else:
            numbers.append([number])
    return [Stack(stack, [members[n] for n in stack], [states[n] for n in stack]) for stack in numbers]


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
    keys = (vars(one).keys() | vars(other).keys()) - _BOOKKEEPING - but
    return all(key in vars(one) and key in vars(other) and _equal(vars(one)[key], vars(other)[key]) for key in keys)


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


def _differing(each: Sequence[Mapping[str, Any]], names: Iterable[str]) -> list[str]:
    first = each[0]
    present = [name for name in names if name in first]
    return [name for name in present if not all(name in one and _equal(first[name], one[name]) for one in each)]


def _refuse_if(is_so: bool, reason: str, *_: Any, **__: Any) -> None:
    if is_so:
        raise UnsupportedRunError(reason)


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
        raise UnsupportedRunError(f"{layer.parts[0]} has inputs that are the same for all, {list(inputs.shape)}")

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def vmap(_: Any, in_dims: tuple[int | None, ...], inputs: Tensor, layer: _EachMember) -> tuple[Tensor, int]:
        return layer.of_slices(inputs.movedim(in_dims[0] or 0, 0)), 0


class MemberOptimizers(Optimizer):
    """Steps all members' own optimizers; its parameter groups are theirs."""

    def __init__(self, members: list[Optimizer]) -> None:
        groups = [group for optimizer in members for group in optimizer.param_groups]
        super().__init__([{"params": group["params"]} for group in groups], {})
        self.members, self.param_groups = members, groups
        # One kernel of torch's steps all parameters of a group, unless its options say something else.
        adams = [one for one in members if type(one) in {torch.optim.Adam, torch.optim.AdamW}]
        for group in (group for optimizer in adams for group in optimizer.param_groups):
            can = all(p.is_floating_point() and p.device.type in {"cpu", "cuda"} for p in group["params"])
            if can and group["fused"] is None and not any(map(group.get, ("foreach", "capturable", "differentiable"))):
                group["fused"] = True

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Compute all members' losses, and step every optimizer."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for optimizer in self.members:
            optimizer.step()
        return loss


class MemberSchedulers:
    """All members' schedulers of one kind, by the members' numbers."""

    def __init__(self, optimizer: Optimizer, monitor: str | None) -> None:
        self.optimizer, self.monitor = optimizer, monitor
        self.members: dict[int, Any] = {}

    def state_dict(self) -> dict[str, Any]:
        """Return nothing: no run goes on from a group's checkpoint."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take nothing over."""
