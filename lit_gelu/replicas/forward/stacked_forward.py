"""The training step of the tasks' fully connected nets, by the rules alone: without vmap's own work in each call."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from lit_gelu.replicas.forward.group_forward import Logged, is_task, modules_in_evaluation
from lit_gelu.replicas.forward.keyed_rules import KeyedDropoutRule
from lit_gelu.replicas.forward.rules import ActivationRule, DropoutRule, LinearRule, Rule, mean_cross_entropies
from lit_gelu.replicas.membership.alike import registry_of
from lit_gelu.replicas.membership.stacks import Stacks
from lit_gelu.replicas.randomness.streams import Streams
from lit_gelu.tasks import MNISTAutoencoder, MNISTClassifier, TIMITFrameClassifier, TweetTagger
from lit_gelu.tasks.keyed_dropout import KeyedDropout
from lit_gelu.tasks.layers import HiddenLayer

Loss = Callable[[Tensor, Tensor, Tensor], Tensor]


def cross_entropies(outputs: Tensor, inputs: Tensor, labels: Tensor) -> Tensor:  # noqa: ARG001 - as `Loss`
    """Return every replica's mean cross-entropy of its logits, ``[replicas]``."""
    return mean_cross_entropies(outputs, labels)


def squared_errors(outputs: Tensor, inputs: Tensor, labels: Tensor) -> Tensor:  # noqa: ARG001 - as `Loss`
    """Return every replica's mean squared error, ``[replicas]``, of reconstructions ``[replicas, batch, pixels]``."""
    return (outputs - inputs).square().flatten(1).mean(1)


# What the forward pass of each class runs through, behind flattened inputs; a subclass may have another one.
KNOWN: dict[type[nn.Module], tuple[tuple[str, ...], Loss]] = {
    MNISTClassifier: (("hidden", "output"), cross_entropies),
    TweetTagger: (("hidden", "output"), cross_entropies),
    TIMITFrameClassifier: (("hidden", "output"), cross_entropies),
    MNISTAutoencoder: (("encoder", "decoder", "output"), squared_errors),
}


def leaves_of(module: nn.Module) -> list[tuple[str, nn.Module]] | None:
    """Return the layers that a task's inputs go through, by path, or ``None`` if its net is not known to be these."""
    if type(module) not in KNOWN or not is_task(module):
        return None
    found = [leaf for path in KNOWN[type(module)][0] for leaf in _leaves(path, module.get_submodule(path))]
    return (
        None if any(leaf is None for _, leaf in found) else [(path, leaf) for path, leaf in found if leaf is not None]
    )


def loss_of(module: nn.Module) -> Loss:
    """Return the loss of a task of `KNOWN`."""
    return KNOWN[type(module)][1]


def _leaves(path: str, module: nn.Module) -> Iterator[tuple[str, nn.Module | None]]:
    if module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks:
        yield path, None
    elif type(module) is nn.Sequential:
        for name, child in module.named_children():
            yield from _leaves(f"{path}.{name}", child)
    elif type(module) is HiddenLayer:
        yield from _leaves(f"{path}.linear", module.linear)
        yield f"{path}.activation", module.activation
        yield from _leaves(f"{path}.dropout", module.dropout)
    else:
        is_frozen = isinstance(module, nn.Dropout) and not module.training
        yield path, module if type(module) in {nn.Linear, nn.Dropout, KeyedDropout} and not is_frozen else None


class StackedForward:
    """The forward pass of a task of `KNOWN` for all members; `leaves_of` says whether they are one.

    Args:
        stacks: Those of the members.
        streams: Their random numbers.
    """

    def __init__(self, stacks: Stacks, streams: Streams) -> None:
        self.stacks = stacks
        first = stacks.modules[0]
        self.loss = loss_of(first)
        self.own_activations = nn.ModuleList()
        self.rules = [self._rule(path, leaf, streams) for path, leaf in leaves_of(first) or []]
        self.with_modes = list(self.own_activations.modules())

    def losses(self, batch: Any, index: int) -> tuple[Tensor, Logged]:  # noqa: ARG002 - as every `GroupForward`
        """See `lit_gelu.replicas.forward.group_forward.GroupForward`."""
        return self._losses(batch, self.rules), {}

    @torch.no_grad()
    def noise_free_losses(self, batch: Any) -> Tensor:
        """See `lit_gelu.replicas.forward.group_forward.GroupForward`."""
        with modules_in_evaluation(self.with_modes):
            inputs, labels = batch
            flat = inputs.flatten(2)
            return self.loss(self.noise_free_outputs(flat), flat, labels)

    def noise_free_outputs(self, inputs: Tensor) -> Tensor:
        """Return the outputs of flat inputs, ``[replicas, samples, ...]``; the caller sees to evaluation mode."""
        for rule in self.rules:
            inputs = inputs if isinstance(rule, DropoutRule) else rule(inputs)
        return inputs

    def _losses(self, batch: tuple[Tensor, Tensor], rules: list[Rule]) -> Tensor:
        inputs, labels = batch
        flat = inputs.flatten(2)
        outputs = flat
        for rule in rules:
            outputs = rule(outputs)
        return self.loss(outputs, flat, labels)

    def _rule(self, path: str, leaf: nn.Module, streams: Streams) -> Rule:
        members = self.stacks.modules
        if type(leaf) is nn.Linear and not path.endswith(".activation"):
            return LinearRule(self.stacks.tree.get_submodule(path))
        own = [member.get_submodule(path) for member in members]
        if type(leaf) is nn.Dropout and not path.endswith(".activation"):
            return DropoutRule([float(module.p) for module in own], streams)  # type: ignore[arg-type]
        if type(leaf) is KeyedDropout and not path.endswith(".activation"):
            return KeyedDropoutRule(path, own, self.stacks, streams)  # type: ignore[arg-type] # all of one type
        self.own_activations.extend(own)
        return ActivationRule(path, own, self.stacks, streams, registry_of(members[0]))
