"""The training step of all members: by `torch.vmap` over the first one's code, or one after the other."""

import copy
import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.utilities.signature_utils import is_param_in_hook_signature
from torch import Tensor, nn
from torch.utils._pytree import tree_map
from torchmetrics import Metric, MetricCollection

from lit_gelu.replicas.errors import NotReplicableError
from lit_gelu.replicas.forward.function_rules import RulesForFunctions, drop
from lit_gelu.replicas.forward.hidden import NO_VMAP, hide, hide_hyper_parameters, hide_metric
from lit_gelu.replicas.forward.keyed_rules import KeyedDropoutRule
from lit_gelu.replicas.forward.log_options import LogOptions, as_figure, keep
from lit_gelu.replicas.forward.ruled_modules import Ruled, become_ruled, without_own_parts
from lit_gelu.replicas.forward.rules import ActivationRule, DropoutRule
from lit_gelu.replicas.forward.under_vmap import TensorPlaces, part_of
from lit_gelu.replicas.membership.alike import activation_paths, registry_of
from lit_gelu.replicas.membership.changes import LOOKED_INTO, SeenModules
from lit_gelu.replicas.membership.stacks import Stacks
from lit_gelu.replicas.randomness.streams import Streams, others_as_they_were, without_other_draws
from lit_gelu.sandbox import evaluation_mode
from lit_gelu.tasks import ActivationTask
from lit_gelu.tasks.keyed_dropout import KeyedDropout

Logged = dict[str, Tensor]
Place = tuple[str, str]  # a module's path, and the name of an attribute


@contextmanager
def modules_in_evaluation(modules: Sequence[nn.Module]) -> Iterator[None]:
    """Do what `evaluation_mode` does of a net whose modules are known: without a look through them in each step."""
    modes = [(vars(module), module.training) for module in modules]
    for attributes, _ in modes:
        attributes["training"] = False  # a module's own way to set it takes as long as an operation
    try:
        yield
    finally:
        for attributes, training in modes:
            attributes["training"] = training


class GroupForward(Protocol):
    """What computes the losses of all replicas."""

    def losses(self, batch: Any, index: int) -> tuple[Tensor, Logged]:
        """Return the loss of every replica, ``[replicas]``, to be descended, and what was logged, of that shape too."""
        ...

    def noise_free_losses(self, batch: Any) -> Tensor:
        """Return the loss of every replica with noise off; of tasks."""
        ...


def is_task(module: nn.Module) -> bool:
    """Tell whether a member's training step is that of the tasks: ``mean_loss``, and its noise-free value logged."""
    return isinstance(module, ActivationTask) and type(module).training_step is ActivationTask.training_step


class _MemberStep(nn.Module):
    """A member's training step as a forward pass."""

    def __init__(self, member: LightningModule, logged_as: dict[str, LogOptions]) -> None:
        super().__init__()
        self.member, self.logged_as = member, logged_as
        # As Lightning tells: two arguments, of whatever names, are the batch and its number.
        self.takes_index = is_param_in_hook_signature(member.training_step, "batch_idx", min_args=2)

    def forward(self, batch: Any, index: int) -> tuple[Tensor, Logged]:
        if is_task(self.member):
            return self.member.mean_loss(*batch), {}  # type: ignore[operator] # of a task
        with _log_taken_over(self.member, self.logged_as) as logged:
            outputs = self.member.training_step(*(batch, index)[: 1 + self.takes_index])
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        if not isinstance(loss, Tensor):
            raise NotReplicableError(
                f"{type(self.member).__name__}.training_step returned {type(loss).__name__}; accepted: a loss, or a "
                'mapping with "loss".'
            )
        return loss, logged


@contextmanager
def _log_taken_over(member: LightningModule, logged_as: dict[str, LogOptions]) -> Iterator[Logged]:
    """Collect what a training step logs, and how: there is no Trainer around a member."""
    logged: Logged = {}

    def log(name: str, value: Any, *given: Any, **named: Any) -> None:
        if isinstance(value, Metric | MetricCollection):
            raise NotReplicableError(
                f"The training step logs the metric {name!r} itself, which counts through an epoch, and a group "
                "keeps what each step found. Log its value: self.log(name, self.metric(outputs, labels)). In "
                "validation and test steps metrics are logged as ever."
            )
        keep(logged_as, name, LogOptions.of(name, *given, **named))
        logged[name] = as_figure(value)

    def log_dict(dictionary: Mapping[str, Any], *given: Any, **named: Any) -> None:
        for name, value in dictionary.items():
            log(name, value, *given, **named)

    own = vars(member)
    own["log"], own["log_dict"] = log, log_dict
    try:
        yield logged
    finally:
        del own["log"], own["log_dict"]


class LoopForward:
    """The members one after another, each with its own code and random numbers; everything can be computed so."""

    def __init__(self, stacks: Stacks, streams: Streams, logged_as: dict[str, LogOptions]) -> None:
        self.stacks, self.streams, self.logged_as = stacks, streams, logged_as
        self.steps = [_MemberStep(module, self.logged_as) for module in stacks.modules]  # type: ignore[arg-type] # of a group
        self.own: list[dict[str, Tensor]] = []  # each member's parts of the trained stacks, of the last `losses`
        self.places = [TensorPlaces(module, " in torch.no_grad()", stacks.trained) for module in stacks.modules]

    def losses(self, batch: Any, index: int) -> tuple[Tensor, Logged]:
        """See `GroupForward`."""
        own = self.stacks.slices({name: stack.detach() for name, stack in self.stacks.trained.items()})
        self.own = [{name: part.requires_grad_() for name, part in parts.items()} for parts in own]
        for module, parts in zip(self.stacks.modules, self.own, strict=True):
            for name, parameter in module.named_parameters():
                if name in parts:
                    parts[name].grad = parameter.grad  # of the last step, which a run alone has until its backward pass
        found = []
        with others_as_they_were():
            for replica, (step, places) in enumerate(zip(self.steps, self.places, strict=True)):
                tensors = [self.own[replica][name] for name in places.names]
                addresses = [tensor.data_ptr() for tensor in tensors]
                with self.streams.within_others(replica), places.holding(tensors):
                    found.append(step(_row(batch, replica), index))
                places.check_addresses(tensors, addresses)
        self.stacks.take_back()
        return torch.stack([loss for loss, _ in found]), _by_name([logged for _, logged in found])

    def gradients(self, losses: Tensor) -> list[dict[str, Tensor]]:
        """Return each member's gradients of the last `losses`, by name; none of what its step has not used."""
        for module, own in zip(self.stacks.modules, self.own, strict=True):
            _forget_gradients([*module.parameters(), *own.values()])
        losses.sum().backward()  # type: ignore[no-untyped-call] # as alone: what runs code again finds no other way
        given = [{name: one.grad for name, one in own.items() if one.grad is not None} for own in self.own]
        self.own = []
        for module in self.stacks.modules:
            _check_no_gradients(module)
        return given

    @torch.no_grad()
    def noise_free_losses(self, batch: Any) -> Tensor:
        """See `GroupForward`."""
        losses = []
        with others_as_they_were():  # an activation may be stochastic in evaluation mode, too
            for replica, step in enumerate(self.steps):
                with self.streams.within_others(replica), evaluation_mode(step):
                    losses.append(step(_row(batch, replica), 0)[0])
        return torch.stack(losses)


def _forget_gradients(parameters: Iterable[Tensor]) -> None:
    """Leave no gradient of an earlier pass, which may be a callback's, as ``zero_grad`` does for the run alone."""
    for parameter in parameters:
        if parameter.requires_grad:
            parameter.grad = None


def _check_no_gradients(member: nn.Module) -> None:
    """Refuse a backward pass that ran the member's code again: with its parameters, not with what stood for them."""
    for name, parameter in member.named_parameters():
        if parameter.requires_grad and parameter.grad is not None:
            raise NotReplicableError(
                f"The backward pass has left a gradient in {name!r} of a member, as torch.utils.checkpoint does with "
                "use_reentrant=True, and a group would lose it. Give use_reentrant=False, or train the module alone."
            )


def _by_name(logged: Sequence[Logged]) -> Logged:
    """Return what members logged, ``[replicas]`` by name, and NaN for those that logged no such figure."""
    kinds = {name: value for values in logged for name, value in values.items()}
    return {
        name: torch.stack([values[name] if name in values else torch.full(kind.shape, torch.nan) for values in logged])
        for name, kind in kinds.items()
    }


def _row(batch: Any, replica: int) -> Any:
    return tree_map(lambda part: part[replica] if isinstance(part, Tensor) else part, batch)


class VmapForward:
    """`torch.vmap` over the first member's code, with rules of our own for linear layers, dropout and activations.

    What members may differ in besides cannot be read by the code: it raises an error that says so.

    Args:
        stacks: Those of the members.
        streams: Their random numbers.
        logged_as: How steps have logged what, which they write into.
        differing: The attributes by module's path in which members differ, as `check_alike` returns them.
        left: What steps have set in the module that stood for all before, by path and name: they go on from there.
    """

    def __init__(
        self,
        stacks: Stacks,
        streams: Streams,
        logged_as: dict[str, LogOptions],
        differing: Mapping[str, set[str]],
        left: Mapping[Place, Any],
    ) -> None:
        self.stacks, self.logged_as, self.left = stacks, logged_as, dict(left)
        members = stacks.modules
        template = copy.deepcopy(members[0])
        self.own_activations = nn.ModuleList()  # in members, not in the template: their modes are changed with its own
        for path in activation_paths(members):
            rule = ActivationRule(
                path, [m.get_submodule(path) for m in members], stacks, streams, registry_of(template)
            )
            self.own_activations.extend(rule.modules)
            become_ruled(template.get_submodule(path), rule)
        for path, module in template.named_modules():
            layers: Any = [member.get_submodule(path) for member in members]
            if type(module) is nn.Dropout:
                rule_of = DropoutRule([layer.p for layer in layers], streams)
                vars(module)["forward"] = functools.partial(_dropped, module, rule_of)
            elif type(module) is KeyedDropout:
                module._buffers.clear()  # which the rule takes from the stacks
                vars(module)["forward"] = functools.partial(
                    _dropped, module, KeyedDropoutRule(path, layers, stacks, streams)
                )
            elif isinstance(module, Metric):
                hide_metric(path, module)
        for (path, name), value in self.left.items():
            vars(template.get_submodule(path))[name] = value
        for path, names in differing.items():
            hidden = {name for name in names if (path, name) not in self.left}
            if hidden and not isinstance(template.get_submodule(path), Metric):
                hide(template.get_submodule(path), hidden)
        hide_hyper_parameters(template, members)
        self.streams, self.step = streams, _MemberStep(template, self.logged_as)  # type: ignore[arg-type] # of a group
        self.places = TensorPlaces(template, ', or give the group executor="loop"')
        self.with_modes = [*self.step.modules(), *self.own_activations.modules()]
        self.ruled = [module for module in template.modules() if type(module) is Ruled]
        self._seen = SeenModules([template])

    def losses(self, batch: Any, index: int) -> tuple[Tensor, Logged]:
        """See `GroupForward`."""
        found = {**self.stacks.parameters, **self.stacks.buffers}
        tensors = [found[name] for name in self.places.names]

        def one(sample: Any, *own: Tensor) -> tuple[Tensor, Logged]:
            with self.places.holding(own), without_own_parts(self.ruled):
                outputs: tuple[Tensor, Logged] = self.step(sample, index)
            return outputs

        with RulesForFunctions(self.streams), explained(), without_other_draws(f"{_OTHER_DRAWS} {NO_VMAP}"):
            return torch.vmap(one, randomness="error")(batch, *tensors)

    @torch.no_grad()
    def noise_free_losses(self, batch: Any) -> Tensor:
        """See `GroupForward`."""
        with modules_in_evaluation(self.with_modes):
            return self.losses(batch, 0)[0]

    def stand_for(self, other: "VmapForward") -> None:
        """Take the place of another one in a Trainer's run."""
        trainer: Any = other.step.member._trainer
        if trainer is not None:
            trainer.lightning_module = self.step.member
            self.step.member.trainer = trainer

    def hand_back(self) -> set[str]:
        """Let every member have what steps have set in the module that stands for all.

        Returns:
            The names of what they have set.

        Raises:
            NotReplicableError: If they have changed its layers or hooks.
        """
        changed = self._seen.changed() if self._seen.has_changed() else []
        for path, name, value in changed:
            if name in LOOKED_INTO:
                raise NotReplicableError(
                    f"The training step changes {name!r} of {path or 'the module'}, which members would not see: "
                    f"change layers and hooks where members are built. {NO_VMAP}"
                )
            for replica, member in enumerate(self.stacks.modules):
                vars(member.get_submodule(path))[name] = tree_map(functools.partial(_left_to, replica), value)
            self.left[path, name] = value
        if changed:
            self._seen.look()
        return {name for _, name, _ in changed}


def _left_to(replica: int, value: Any) -> Any:
    return part_of(value, replica) if isinstance(value, Tensor) else copy.deepcopy(value)


def _dropped(module: nn.Module, rule: DropoutRule, inputs: Tensor) -> Tensor:
    """Be the forward pass of a dropout, whose mode may change in each step."""
    return drop(inputs, rule, bool(getattr(module, "inplace", False))) if module.training else inputs


@contextmanager
def explained() -> Iterator[None]:
    """Say what a training step may not do, where torch's error speaks of vmap."""
    try:
        yield
    except NotReplicableError:
        raise
    except RuntimeError as error:
        text = str(error)
        for sign, remedy in _SIGNS.items():
            if sign in text:
                raise NotReplicableError(f"{remedy} {NO_VMAP} torch says: {text.strip().splitlines()[0]}") from error
        raise


_OTHER_DRAWS = (
    "The training step draws from the random numbers of Python or NumPy, which would be the same for all replicas: "
    "only nn.Dropout, F.dropout and registered activations draw for each."
)
_SIGNS: Mapping[str, str] = {
    ".item()": "The training step makes a Python number of a tensor, which stands for all replicas: log plain tensors.",
    "data-dependent control flow": "The training step branches on a tensor: replicas may go different ways.",
    "random operation": "The training step draws random numbers of which a group does not know how a run alone draws "
    "them: only nn.Dropout, F.dropout and registered activations are known.",
    "data pointer": "The training step takes a tensor, which stands for all replicas, to NumPy or into a list.",
    "setup_context": "The training step calls a function with a gradient of its own that torch.vmap does not know, as "
    "torch.distributions do.",
    "register a hook": "The training step gives a tensor a hook for its gradient, which torch.vmap does not call.",
    "modified by an inplace operation": "The training step changes a tensor in place that the gradient of all replicas "
    "is computed from.",
    "does not have a grad_fn": "The training step asks for a gradient itself, as by torch.autograd.grad, which "
    "torch.vmap does not keep, or its loss depends on no parameter that is trained.",
    "implement the jvp function": "The training step asks for a derivative by torch.func.jvp, which layers under "
    "torch.vmap do not have.",
    "Batching rule": "The training step does what torch.vmap cannot.",
    "vmap": "The training step does what torch.vmap cannot.",
    "functorch": "The training step does what torch.vmap cannot.",
}
