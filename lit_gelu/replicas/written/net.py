"""A member's net as parts, forward and backward; all members' nets have the same tensors for what they compute."""

import functools
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lit_gelu.replicas.forward.rules import shared_function
from lit_gelu.replicas.forward.stacked_forward import cross_entropies, leaves_of, loss_of
from lit_gelu.replicas.forward.written_activations import Written, written_activation
from lit_gelu.replicas.membership.alike import registry_of
from lit_gelu.replicas.membership.stacks import Stacks
from lit_gelu.replicas.randomness.streams import Streams
from lit_gelu.replicas.written.factors import Factors, FactorsAhead, KeyedFactors, in_common
from lit_gelu.replicas.written.layers import (
    DropoutPart,
    LinearPart,
    OwnActivation,
    Part,
    WrittenActivation,
)
from lit_gelu.replicas.written.objectives import CrossEntropy, Loss, SquaredError
from lit_gelu.replicas.written.workspace import Workspace
from lit_gelu.sandbox import evaluation_mode
from lit_gelu.tasks.keyed_dropout import KeyedDropout
from lit_gelu.tasks.keyed_noise import SharedFactors

_FACTORS = 2**24  # elements that are held for other members
_AHEAD = 2**16  # random numbers that are drawn at once


class Dropping(NamedTuple):
    """A dropout that drops something, and the shape of what it is given."""

    path: str
    layer: Any
    shape: tuple[int, int]


class MemberNet:
    """A member's net as parts, and a step of it.

    Args:
        head: What noise does not reach.
        tail: The other parts; the last one is linear.
        own: The members' own modules among them.
        loss: What is measured and descended.
        logs_noise_free: Whether the loss is to be logged with noise off.
        sources: What dropout takes its factors from.
    """

    def __init__(
        self,
        head: Sequence[Part],
        tail: Sequence[Part],
        own: nn.ModuleList,
        loss: Loss,
        logs_noise_free: bool,
        sources: Sequence[Factors],
    ) -> None:
        self.head, self.tail, self.own, self.loss, self.sources = head, tail, own, loss, sources
        self.back = [*reversed(tail), *reversed(head)]
        self.logs_noise_free = logs_noise_free

    def begin(self, labels: Tensor) -> None:
        """Take the labels of the steps to come, ``[steps, batch]``."""
        for source in self.sources:
            source.begin(len(labels))
        self.loss.begin(labels)

    def descend(self, step: int, inputs: Tensor) -> None:
        """Compute all gradients of a batch; ``step`` counts from 0 at `begin`."""
        values = inputs
        for part in self.head:
            values = part.forward(values)
        if self.logs_noise_free and not len(self.own):
            values = self._with_noise_free(step, values, inputs)
        else:
            if self.logs_noise_free:
                self._log_noise_free(step, values, inputs)
            for part in self.tail:
                values = part.forward(values)
        gradient = self.loss.backward(step, values, inputs, not self.logs_noise_free)
        for part in self.back:
            gradient = part.backward(gradient)

    def logged(self) -> Tensor:
        """Return the losses that the run alone logs, of the steps since `begin`, ``[steps]``."""
        return self.loss.logged()

    def _with_noise_free(self, step: int, values: Tensor, inputs: Tensor) -> Tensor:
        noise_free = values
        for part in self.tail:
            values, noise_free = part.both(values, noise_free)
        self.loss.log(step, noise_free, inputs)
        return values

    def _log_noise_free(self, step: int, values: Tensor, inputs: Tensor) -> None:
        with evaluation_mode(self.own):
            for part in self.tail:
                values = part.noise_free(values)
        self.loss.log(step, values, inputs)


class NetBuilder:
    """The nets of all members.

    Args:
        stacks: Those of the members.
        streams: Their random numbers.
        logs_noise_free: Whether each one's loss is to be logged with noise off.
    """

    def __init__(self, stacks: Stacks, streams: Streams, logs_noise_free: Sequence[bool]) -> None:
        self.stacks, self.streams, self.logs_noise_free = stacks, streams, logs_noise_free
        self.dtype = next(iter(stacks.parameters.values())).dtype
        self.shared = SharedFactors(_FACTORS)
        self._kept: dict[tuple[Any, ...], Tensor] = {}
        self._nets: dict[tuple[int, int], MemberNet] = {}

    def kept(self, name: str, *sizes: int, dtype: torch.dtype | None = None) -> Tensor:
        """Return the tensor of a name, the same one for all members."""
        key = (name, *sizes, dtype)
        if key not in self._kept:
            with torch.inference_mode(False):  # members with gradients of their own use it too
                self._kept[key] = torch.empty(sizes, dtype=dtype or self.dtype)
        return self._kept[key]

    def net(self, replica: int, batch: int, workspace: Workspace) -> MemberNet:
        """Return a member's, for batches of a size, with its parameters in a workspace."""
        if (replica, batch) not in self._nets:
            self._nets[replica, batch] = self._built(replica, batch, workspace)
        return self._nets[replica, batch]

    def _built(self, replica: int, batch: int, workspace: Workspace) -> MemberNet:
        module, width, own = self.stacks.modules[replica], 0, nn.ModuleList()
        leaves, head, tail = leaves_of(module) or [], list[Part](), list[Part]()
        drawn = self._factors(replica, batch, leaves)

        def kept(name: str, width: int) -> Tensor:
            return self.kept(name, batch, width)

        def pair(name: str, width: int) -> tuple[Tensor, Tensor]:
            return self.kept(name, 2, batch, width).unbind()  # type: ignore[return-value] # of two

        for number, (path, leaf) in enumerate(leaves):
            part: Part | None
            if _is(nn.Linear, path, leaf):
                width = leaf.out_features  # type: ignore[assignment]
                part = LinearPart(
                    path, workspace.values, workspace.gradients, kept, pair(path, width), is_first=not head
                )
            elif _is(nn.Dropout, path, leaf) or _is(KeyedDropout, path, leaf):
                part = DropoutPart(*drawn[path], kept, pair(path, width)[0]) if path in drawn else None
            elif (written := self._written(replica, leaf)) is not None:
                # Without noise its outputs lie behind those of the dropout that follows.
                following = [to for to, layer in leaves[number + 1 : number + 2] if _drops(to, layer)]
                noise_free = pair(following[0], width)[1] if following else kept("activation, noise-free", width)
                outputs = kept(path, width) if tail or not following else noise_free
                part = WrittenActivation(written, kept, (outputs, noise_free))
            else:
                part = self._own_activation(replica, path, leaf, workspace)
            if isinstance(part, OwnActivation):
                own.append(leaf)
            if part is not None:
                (tail if tail or self._is_noisy(replica, part) else head).append(part)
        loss = CrossEntropy if loss_of(module) is cross_entropies else SquaredError
        sources = {id(source): source for _, source in drawn.values()}
        measured = loss(lambda name, steps: self.kept(name, steps, batch, width))
        return MemberNet(head, tail, own, measured, self.logs_noise_free[replica], [*sources.values()])

    def _is_noisy(self, replica: int, part: Part) -> bool:
        """Tell whether a part may have other outputs with noise off."""
        if isinstance(part, OwnActivation):
            return shared_function(part.module, registry_of(self.stacks.modules[replica])) is None
        return isinstance(part, DropoutPart)

    def _written(self, replica: int, leaf: nn.Module) -> Written | None:
        is_function = shared_function(leaf, registry_of(self.stacks.modules[replica])) is not None
        return written_activation(leaf) if is_function else None

    def _own_activation(self, replica: int, path: str, leaf: nn.Module, workspace: Workspace) -> OwnActivation:
        is_function = shared_function(leaf, registry_of(self.stacks.modules[replica])) is not None
        stream: Any = nullcontext if is_function else functools.partial(self.streams.of, replica)
        return OwnActivation(path, leaf, workspace.values, workspace.gradients, stream)

    def _factors(
        self, replica: int, batch: int, leaves: Sequence[tuple[str, nn.Module]]
    ) -> dict[str, tuple[int, Factors]]:
        """Return for every dropout that drops something its source of factors, and its number among those of it."""
        width, dropping = 0, list[Dropping]()
        for path, leaf in leaves:
            if _is(nn.Linear, path, leaf):
                width = leaf.out_features  # type: ignore[assignment]
            elif _drops(path, leaf):
                dropping.append(Dropping(path, leaf, (batch, width)))
        keyed = [one for one in dropping if isinstance(one.layer, KeyedDropout)]
        others = [one for one in dropping if not isinstance(one.layer, KeyedDropout)]
        found = self._ahead(replica, others, self._draws_else(replica, leaves)) if others else []
        found += [(keyed, self._keyed(keyed))] if keyed else []
        return {one.path: (number, source) for those, source in found for number, one in enumerate(those)}

    def _draws_else(self, replica: int, leaves: Sequence[tuple[str, nn.Module]]) -> bool:
        """Tell whether an activation may draw random numbers between the dropouts."""
        registry = registry_of(self.stacks.modules[replica])
        known = (nn.Linear, nn.Dropout, KeyedDropout)
        activations = [leaf for path, leaf in leaves if not any(_is(kind, path, leaf) for kind in known)]
        return any(shared_function(leaf, registry) is None for leaf in activations)

    def _keyed(self, dropping: Sequence[Dropping]) -> KeyedFactors:
        places = [self.kept(f"{path}: factors", *shape) for path, _, shape in dropping]
        in_all: Any = [[module.get_submodule(path) for module in self.stacks.modules] for path, *_ in dropping]
        is_shared = any(int(one.layer.seed) in in_common(layers) for one, layers in zip(dropping, in_all, strict=True))
        return KeyedFactors([one.layer for one in dropping], places, self.shared if is_shared else SharedFactors(0))

    def _ahead(
        self, replica: int, dropping: Sequence[Dropping], draws_between: bool
    ) -> list[tuple[Sequence[Dropping], Factors]]:
        chances = {one.layer.p for one in dropping}
        if draws_between or len(chances) > 1:
            return [([one], self._source(replica, one.path, one.layer.p, [one.shape], 1)) for one in dropping]
        return [(dropping, self._source(replica, "all", chances.pop(), [one.shape for one in dropping], _AHEAD))]

    def _source(self, replica: int, of: str, chance: float, shapes: list[tuple[int, int]], most: int) -> FactorsAhead:
        """Return a source of factors for as many steps as ``most`` numbers are."""
        elements = sum(batch * width for batch, width in shapes)
        steps = max(1, most // elements)
        factors = self.kept(f"{of}: factors", steps, elements)
        words = self.kept(f"{of}: words", steps, elements, dtype=torch.int64)
        return FactorsAhead(chance, self.streams.generators[replica], shapes, factors, words)


def _is(kind: type[nn.Module], path: str, leaf: nn.Module) -> bool:
    """Tell whether a layer is of a kind, and not an activation that is of it too."""
    return type(leaf) is kind and not path.endswith(".activation")


def _drops(path: str, leaf: Any) -> bool:
    """Tell whether a layer is a dropout that drops something."""
    return (_is(nn.Dropout, path, leaf) or _is(KeyedDropout, path, leaf)) and leaf.p > 0
