"""How a linear layer, dropout and activations are computed for all replicas at once, to the bit as for each alone."""

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.func import functional_call

from lit_gelu.activations.registry import ActivationRegistry
from lit_gelu.replicas.errors import NotReplicableError
from lit_gelu.replicas.forward.memory_order import joined_as_they_lie
from lit_gelu.replicas.forward.written_activations import Written, written_activation
from lit_gelu.replicas.membership.stacks import Stacks
from lit_gelu.replicas.randomness.streams import Streams

Rule = Callable[[Tensor], Tensor]

# Below this number of multiplications torch computes a batched product by a loop of its own, and a single one never.
_OWN_LOOP_BELOW = 400

# A vector register's elements, twice, of the longest registers and 16-bit numbers: what is left over at the end of a
# tensor is computed one by one, in some activations by another formula, and in a stack ends lie elsewhere.
WHOLE_VECTORS = 64
_LEFT_OUT = -100  # a label that torch's cross-entropy does not count


class _StackedLinear(torch.autograd.Function):
    """``x [R, B, I] @ weight [R, O, I]^T + bias [R, O]``: the products of ``F.linear`` and its gradients, batched."""

    # Only this orientation of each product gives the bits of the single one, so autograd must not choose another.

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(inputs, weight)
        ctx.has_bias = bias is not None
        return _product(inputs, weight.transpose(1, 2), bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        inputs, weight = ctx.saved_tensors
        gradient = gradients[0].contiguous()
        of_inputs = _product(gradient, weight) if ctx.needs_input_grad[0] else None
        of_weight = _product(gradient.transpose(1, 2), inputs) if ctx.needs_input_grad[1] else None
        # As it lies: what was expanded is added up in another order than its copy.
        of_bias = gradients[0].sum(1) if ctx.has_bias and ctx.needs_input_grad[2] else None
        return of_inputs, of_weight, of_bias


def _product(left: Tensor, right: Tensor, bias: Tensor | None = None) -> Tensor:
    if left[0].numel() * right.shape[2] < _OWN_LOOP_BELOW:
        singly = zip(left, right, strict=True)
        if bias is None:
            return torch.stack([one @ other for one, other in singly])
        return torch.stack([torch.addmm(b, one, other) for b, (one, other) in zip(bias, singly, strict=True)])
    if bias is None:
        return torch.bmm(left, right)
    return torch.baddbmm(bias.unsqueeze(1), left, right)


def linear(inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return the linear layer of every replica: inputs ``[R, ..., I]``, weight ``[R, O, I]``, bias ``[R, O]``."""
    if inputs.ndim == 3:
        return torch.as_tensor(_StackedLinear.apply(inputs, weight, bias))
    samples = inputs.shape[1:-1]
    flat = inputs.reshape(len(inputs), samples.numel(), inputs.shape[-1])
    outputs: Tensor = _StackedLinear.apply(flat, weight, bias)
    return outputs.reshape(len(inputs), *samples, weight.shape[1])


class LinearRule:
    """A linear layer of all replicas.

    Args:
        stack: Holds their weights and, if there are any, biases.
    """

    def __init__(self, stack: nn.Module) -> None:
        self.stack = stack

    @property
    def weight(self) -> Any:
        """``[replicas, outputs, inputs]``, a parameter."""
        return self.stack.weight

    @property
    def bias(self) -> Any:
        """``[replicas, outputs]``, or ``None``."""
        return getattr(self.stack, "bias", None)

    def __call__(self, inputs: Tensor, part: slice | Tensor | None = None) -> Tensor:
        """Return its outputs, of some replicas or of all."""
        weight, bias = self.weight, self.bias
        if part is not None:
            weight, bias = weight[part], None if bias is None else bias[part]
        return linear(inputs, weight, bias)

    def product(self, inputs: Tensor, part: slice | Tensor | None = None) -> Tensor:
        """Return its outputs before the bias is added; inputs ``[samples, I]`` are those of all replicas."""
        weight = self.weight if part is None else self.weight[part]
        if inputs.ndim == 3:
            return linear(inputs, weight, None)
        together: Tensor = inputs @ weight.flatten(0, 1).t()  # faster than a product for each replica
        return together.view(len(inputs), *weight.shape[:2]).transpose(0, 1)


class DropoutRule:
    """Dropout of all replicas, each with its own chance to drop and out of its own stream."""

    def __init__(self, chances: list[float], streams: Streams) -> None:
        self.chances, self.streams = chances, streams
        self.is_noisy = any(chance > 0 for chance in chances)

    def __call__(self, inputs: Tensor) -> Tensor:
        """Drop some of ``[replicas, ...]``."""
        return inputs * self.streams.dropout_factors(inputs, self.chances) if self.is_noisy else inputs


class _WrittenRuns(torch.autograd.Function):
    """Activations of neighbours, all into one tensor, and so their gradients: nothing is joined afterwards."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, lengths: list[int], written: list[Written]) -> Tensor:
        ctx.save_for_backward(inputs)
        ctx.lengths, ctx.written = lengths, written
        outputs = torch.empty_like(inputs)
        runs = (tensor.split_with_sizes(lengths) for tensor in (inputs, outputs))
        for (function, _), *tensors in zip(written, *runs, strict=True):
            function(*tensors)
        return outputs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (inputs,) = ctx.saved_tensors
        gradient, of_inputs = gradients[0].contiguous(), torch.empty_like(inputs)
        runs = (tensor.split_with_sizes(ctx.lengths) for tensor in (gradient, inputs, of_inputs))
        for (_, derivative), *tensors in zip(ctx.written, *runs, strict=True):
            derivative(*tensors)
        return of_inputs, None, None


class ActivationRule:
    """The activations of all replicas at one place: neighbours with the same one together, the others one by one.

    Args:
        path: Where the activations are in the members.
        modules: The activation of every member.
        stacks: Their parameters.
        streams: Their random numbers.
        registry: What is known of them.
    """

    def __init__(
        self, path: str, modules: list[nn.Module], stacks: Stacks, streams: Streams, registry: ActivationRegistry
    ) -> None:
        self.path, self.modules, self.stacks, self.streams = path, modules, stacks, streams
        names = [shared_function(module, registry) or replica for replica, module in enumerate(modules)]
        self.runs = [
            (name, [replica for _, replica in run])
            for name, run in groupby(zip(names, range(len(modules)), strict=True), key=lambda pair: pair[0])
        ]
        self.singly = [(name, [replica]) for replica, name in enumerate(names)]
        self.own = [stacks.names_in(replica, own) for replica, own in enumerate(modules)]
        self.written = self._written()

    def __call__(self, inputs: Tensor) -> Tensor:
        """Apply them to ``[replicas, ...]``."""
        whole = inputs[0].numel() % WHOLE_VECTORS == 0
        if len(self.runs) == 1 and whole and isinstance(self.runs[0][0], str):
            return torch.as_tensor(self.modules[0](inputs))
        if self.written and whole and inputs.is_cpu and inputs.is_contiguous() and inputs.is_floating_point():
            lengths = [len(replicas) for _, replicas in self.runs]
            return torch.as_tensor(_WrittenRuns.apply(inputs, lengths, self.written))
        runs = self.runs if whole else self.singly
        # The gradient of one split is one concatenation; each slice's own would be a tensor of all replicas.
        parts = torch.split(inputs, [len(replicas) for _, replicas in runs])
        overwrites = [getattr(self.modules[replicas[0]], "inplace", False) for _, replicas in runs]
        if any(overwrites):  # autograd forbids it in parts of a split
            parts = tuple(part.clone() for part in parts)
        outputs = [
            self.modules[replicas[0]](part)
            if isinstance(name, str)
            else self._alone(replicas[0], part.squeeze(0)).unsqueeze(0)
            for (name, replicas), part in zip(runs, parts, strict=True)
        ]
        for (_, replicas), output, is_in_place in zip(runs, outputs, overwrites, strict=True):
            if is_in_place:
                inputs[replicas[0] : replicas[-1] + 1].copy_(output)
        return outputs[0] if len(outputs) == 1 else joined_as_they_lie(outputs)

    def _written(self) -> list[Written]:
        """Return what is written out for every run; nothing if one of them is not."""
        found: list[Written] = []
        for name, replicas in self.runs:
            written = written_activation(self.modules[replicas[0]]) if isinstance(name, str) else None
            if written is None:
                return []
            found.append(written)
        return found

    def _alone(self, replica: int, inputs: Tensor) -> Tensor:
        """Apply a member's own module, whose buffers are parts of the stacks already, to its own parameters."""
        module = self.modules[replica]
        own = {name: self.stacks.slice(of_member, replica) for name, of_member in self.own[replica].items()}
        with self.streams.of(replica):
            outputs: Tensor = functional_call(module, own, (inputs,)) if own else module(inputs)
        return outputs


def shared_function(module: nn.Module, registry: ActivationRegistry) -> str | None:
    """Return the name of an activation that is a function of each element alone, or ``None``."""
    entry, spec = registry.entry_of(module), registry.spec_of(module)
    holds = any(True for _ in module.parameters()) or any(True for _ in module.buffers())
    if entry is None or spec.opaque or holds or module._forward_hooks or module._forward_pre_hooks:
        return None
    facts = entry.facts_for(spec.arguments)
    is_noisy = facts.stochastic or facts.stochastic_in_evaluation
    # Two ways to compute the same function may have different bits, and torch's class stands for one of them.
    kind = f"{type(module).__module__}.{type(module).__qualname__} {spec} {sorted(_plain(module).items())}"
    return kind if facts.elementwise and not facts.halves and not is_noisy else None


def _plain(module: nn.Module) -> dict[str, str]:
    return {name: repr(value) for name, value in vars(module).items() if not name.startswith("_")}


def _in_front(info: Any, tensor: Tensor, dim: int | None) -> Tensor:
    """Bring the replicas to the front; of what is the same for all, a view for each."""
    if dim is None:
        return tensor.expand(info.batch_size, *tensor.shape)
    return tensor.movedim(dim, 0) if dim else tensor


class LinearUnderVmap(torch.autograd.Function):
    """``F.linear`` that under `torch.vmap` is `linear`."""

    @staticmethod
    def forward(inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Compute it for tensors without replicas."""
        return nn.functional.linear(inputs, weight, bias)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Keep nothing: gradients are those of `linear`."""

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:  # noqa: ARG004 - torch's signature
        """Refuse: nothing asks for it where inputs have replicas."""
        raise NotReplicableError(
            "A gradient of a linear layer that no replica has parameters for was asked for. Give the group "
            'executor="loop".'
        )

    @staticmethod
    def vmap(info: Any, dims: tuple[int | None, ...], *tensors: Tensor | None) -> tuple[Tensor, int]:
        """Bring the replicas of all tensors to the front."""
        inputs, weight, bias = (
            None if tensor is None else _in_front(info, tensor, dim) for tensor, dim in zip(tensors, dims, strict=True)
        )
        assert inputs is not None and weight is not None  # noqa: S101, PT018 - of F.linear
        with torch._C.DisableTorchFunction():
            return linear(inputs, weight, bias), 0


def mean_cross_entropies(logits: Tensor, labels: Tensor) -> Tensor:
    """Return every replica's mean cross-entropy, ``[replicas]``, of logits ``[replicas, samples, classes]``."""
    each = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")
    return each.view(labels.shape).sum(1) / (labels != _LEFT_OUT).sum(1)


class CrossEntropyUnderVmap(torch.autograd.Function):
    """The mean cross-entropy of logits ``[samples, classes]``, for all replicas by one call of it."""

    # torch's own way to map it goes through a dozen operations; -100 stands for samples that are left out, as there.

    @staticmethod
    def forward(logits: Tensor, labels: Tensor) -> Tensor:
        """Compute it for tensors without replicas."""
        return nn.functional.cross_entropy(logits, labels)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Keep nothing: autograd sees what `vmap` does."""

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:  # noqa: ARG004 - torch's signature
        """Refuse: nothing asks for it where logits have replicas."""
        raise NotReplicableError(
            'A gradient of a loss that no replica has logits for was asked for. Give the group executor="loop".'
        )

    @staticmethod
    def vmap(info: Any, dims: tuple[int | None, int | None], logits: Tensor, labels: Tensor) -> tuple[Tensor, int]:
        """Compute it of all samples at once, and each replica's mean."""
        logits, labels = (_in_front(info, tensor, dim) for tensor, dim in zip((logits, labels), dims, strict=True))
        with torch._C.DisableTorchFunction():
            return mean_cross_entropies(logits, labels), 0


class EachUnderVmap(torch.autograd.Function):
    """A function that under `torch.vmap` is called replica by replica, with its parts of all tensors."""

    @staticmethod
    def forward(function: Callable[..., Tensor], *arguments: Any) -> Tensor:
        """Call it for tensors without replicas."""
        return function(*arguments)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Keep nothing: autograd sees what the function does."""

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:  # noqa: ARG004 - torch's signature
        """Refuse: nothing asks for it where tensors have replicas."""
        raise NotReplicableError(
            'A gradient of a function that no replica has a tensor for was asked for. Give the group executor="loop".'
        )

    @staticmethod
    def vmap(info: Any, dims: tuple[Any, ...], function: Callable[..., Tensor], *arguments: Any) -> tuple[Tensor, int]:
        """Call it once a replica; buffers that it changes in place are the stacks' parts."""
        pairs = list(zip(arguments, dims[1:], strict=True))
        with torch._C.DisableTorchFunction():
            outputs = [function(*_parts(pairs, replica)) for replica in range(info.batch_size)]
        return joined_as_they_lie([output.unsqueeze(0) for output in outputs]), 0


def _parts(pairs: Sequence[tuple[Any, Any]], replica: int) -> list[Any]:
    """Return a replica's parts of values; of what is there twice the very same one, so that gradients add up alike."""
    found = {id(value): value.select(dim, replica) for value, dim in pairs if isinstance(dim, int)}
    return [found.get(id(value), value) for value, _ in pairs]


class RuleUnderVmap(torch.autograd.Function):
    """A `Rule` that under `torch.vmap` is given all replicas at once."""

    @staticmethod
    def forward(inputs: Tensor, rule: Rule) -> Tensor:
        """Refuse what has no replicas."""
        raise NotReplicableError(
            f"{type(rule).__name__} was given a tensor of shape {list(inputs.shape)} that is the same for all "
            'replicas: it depends neither on parameters nor on the batch. Give the group executor="loop".'
        )

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Keep nothing: autograd sees what the rule does."""

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:  # noqa: ARG004 - torch's signature
        """Refuse: `forward` has."""
        raise NotReplicableError("A rule without replicas has no gradient.")

    @staticmethod
    def vmap(info: Any, dims: tuple[int | None, None], inputs: Tensor, rule: Rule) -> tuple[Tensor, int]:  # noqa: ARG004
        """Apply the rule to ``[replicas, ...]``, out of reach of what stands for torch's functions under vmap."""
        assert dims[0] is not None  # noqa: S101 - else `forward` is called
        with torch._C.DisableTorchFunction():
            return rule(inputs.movedim(dims[0], 0) if dims[0] else inputs), 0
