"""`KernelStep`: the step of the tasks' classifiers on CUDA by two kernels a layer, what is between products in them."""

from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from lit_gelu.replicas.device import kernel_tiles
from lit_gelu.replicas.device.adam import DeviceAdam
from lit_gelu.replicas.device.fused_forward import FusedForward
from lit_gelu.replicas.device.kernel_launches import Passes, computes, launch_layer
from lit_gelu.replicas.device.layer_ends import PER_BLOCK, LayerEnd
from lit_gelu.replicas.device.repeated_steps import RepeatedStep
from lit_gelu.replicas.errors import unknown_labels
from lit_gelu.replicas.forward.rules import LinearRule
from lit_gelu.replicas.forward.stacked_forward import StackedForward, cross_entropies
from lit_gelu.tasks.keyed_noise import DeviceKeys

PASSES = 45  # through the net in a stretch of replicas, before other numbers are timed
_STRETCHES = (1, 2, 3, 4, 6)  # so many are tried before a CUDA graph is made
_FEWEST_PASSES = 15  # in one of several that are tried


class Stretch(NamedTuple):
    """Neighbouring replicas whose kernels run beside those of others.

    Args:
        own: Their numbers.
        passes: Theirs.
        stream: For their kernels; ``None`` where there are none.
        side: For what they do not wait for.
    """

    own: range
    passes: Passes
    stream: torch.cuda.Stream | None
    side: torch.cuda.Stream | None

    @property
    def place(self) -> Tensor:
        """The number of their step in the batch of the Trainer."""
        place = self.passes.place
        assert place is not None  # noqa: S101 - of steps that are trained
        return place

    @property
    def has_free(self) -> bool:
        """Whether any has a pass without dropout, too."""
        return len(self.passes.members) > len(self.own)


def ways_to_divide(passes: int) -> list[int]:
    """Return how many stretches there may be for so many passes, first the number that is taken untimed."""
    usual = max(1, round(passes / PASSES))
    return [usual, *(n for n in _STRETCHES if n != usual and (n == 1 or passes // n >= _FEWEST_PASSES))]


def stretches(replicas: int, free: Collection[int], count: int) -> list[range]:
    """Cut replicas into so many stretches, or fewer, of about as many passes; those in ``free`` have two each."""
    total = replicas + len(free)
    ends, passed = [0], 0
    for replica in range(replicas):
        passed += 2 if replica in free else 1
        if passed * count >= total * len(ends):
            ends.append(replica + 1)
    return [range(first, last) for first, last in pairwise(ends)]


def fork(stream: torch.cuda.Stream | None) -> None:
    """Let a stream go on behind what was started on the present one."""
    if stream is not None:
        stream.wait_stream(torch.cuda.current_stream())


def on(stream: torch.cuda.Stream | None) -> AbstractContextManager[object]:
    """Start kernels on a stream; without, on the present one."""
    return nullcontext() if stream is None else torch.cuda.stream(stream)


def wait_for(stream: torch.cuda.Stream | None) -> None:
    """Let the present stream go on behind another."""
    if stream is not None:
        torch.cuda.current_stream().wait_stream(stream)


def fits(fused: FusedForward, inputs: Tensor) -> bool:
    """Say whether `KernelStep` computes the step of these nets with these inputs."""
    if fused.forward.loss is not cross_entropies or inputs.dtype != torch.float32:
        return False
    noisy = [end for end in fused.ends if end.dropout is not None]
    splits_blocks = any(end.linear.weight.shape[1] % PER_BLOCK for end in noisy)
    layers = [*(end.linear for end in fused.ends), fused.output]
    is_whole = all(linear.bias is not None and _is_trained(linear) for linear in layers)
    is_known = computes(fused.output.weight) and is_whole and not splits_blocks
    return is_known and fused.output.weight.shape[1] <= kernel_tiles.MOST_CLASSES


def _is_trained(linear: LinearRule) -> bool:
    return bool(linear.weight.requires_grad and linear.bias.requires_grad)


class KernelStep(RepeatedStep):
    """A `RepeatedStep` whose gradients no one sees: a kernel computes those of a layer and makes Adam's step of it.

    Args:
        forward: The members' forward pass.
        adam: Their optimizer.
        logs_noise_free: Whether each one's loss is to be logged with noise off.
        inputs: All samples' inputs.
        labels: Their labels.
        shape: Steps in a batch of the Trainer at most, replicas, samples in a batch.
        fused: The forward pass by layers; `fits` says whether they are such that this class knows.

    Raises:
        ReplicaArgumentError: If a label is none of the classes.
    """

    together = 8

    def __init__(
        self,
        forward: StackedForward,
        adam: DeviceAdam,
        logs_noise_free: Sequence[bool],
        inputs: Tensor,
        labels: Tensor,
        shape: tuple[int, int, int],
        fused: FusedForward,
    ) -> None:
        super().__init__(forward, adam, logs_noise_free, inputs, labels, shape, fused)
        self.ends, self.output, self.split = fused.ends, fused.output, fused.part
        self.flat = self.inputs.flatten(1).contiguous()
        if self.labels.min() < 0 or self.labels.max() >= self.output.weight.shape[1]:
            raise unknown_labels(self.labels, self.output.weight.shape[1])
        replicas, batch = self.rows.shape[1:]
        self.sizes = torch.zeros(len(self.rows), replicas, device=adam.device)  # of Adam's steps
        self.roots = torch.zeros(len(self.rows), device=adam.device)  # of the second moment's corrections
        self.free = range(replicas)[self.split] if self.split is not None else range(0)
        self.ways = ways_to_divide(replicas + len(self.free))
        # Two numbers each: Triton would compile kernels again for addresses that are no multiples of 16.
        self.place = torch.zeros(replicas, 2, dtype=torch.int64, device=adam.device)
        is_cuda = adam.device.type == "cuda"
        self.streams = [torch.cuda.Stream(adam.device) if is_cuda else None for _ in range(2 * max(self.ways))]  # type: ignore[no-untyped-call]
        self._divided: dict[int, list[Stretch]] = {}
        self.divide(self.ways[0])
        self.names = {id(stack): name for name, stack in forward.stacks.trained.items()}
        widths = [end.linear.weight.shape[1] for end in self.ends]
        new = self.flat.new_empty
        self.kept = [new(replicas, batch, width) for width in widths]
        self.outputs = [new(replicas + len(self.free), batch, width) for width in widths]
        self.gradients = [new(replicas, batch, width) for width in [*widths, self.output.weight.shape[1]]]

    def start(self, rows: Tensor) -> None:
        """Take the samples of the steps that come, and what may have changed."""
        super().start(rows)
        made = torch.arange(1, len(rows) + 1, dtype=torch.float64, device=self.adam.device) + self.adam.made
        first, second = (1 - beta**made for beta in self.adam.betas)
        self.sizes[: len(rows)].copy_(self.adam.rates / first.unsqueeze(1))
        self.roots[: len(rows)].copy_(second.sqrt())

    def end(self, steps: int) -> None:
        """Count the steps."""
        self.adam.made.add_(steps)
        for rule in self.keyed:
            rule.count(steps)

    def __call__(self) -> None:
        """Make a step."""
        self.several(1)

    @torch.no_grad()
    def several(self, steps: int) -> None:
        """Make several, of a stretch without a look at the others: what one waits for, another uses."""
        for stretch in self.stretches:  # before any has kernels: torch has 32 streams, of which two may be one
            fork(stretch.stream)
        for stretch in self.stretches:
            with on(stretch.stream):
                for _ in range(steps):
                    self._make(stretch)
        for stretch in self.stretches:
            wait_for(stretch.stream)

    def divide(self, count: int) -> None:
        """Let kernels of so many stretches of replicas run side by side."""
        if count not in self._divided:  # kept, because CUDA graphs read from where their tensors are
            owns = stretches(self.rows.shape[1], self.free, count)
            self._divided[count] = [self._stretch(number, own) for number, own in enumerate(owns)]
        self.stretches = self._divided[count]

    def _make(self, stretch: Stretch) -> None:
        """Make the step of some replicas, parameters of a layer beside what comes next: nothing reads them any more."""
        inputs = self.flat
        for layer, end in enumerate(self.ends):
            split = self.split if layer == 0 and stretch.has_free else None
            kept, outputs, keys = self.kept[layer], self.outputs[layer], self._keys(end, stretch)
            inputs = launch_layer(end, inputs, outputs, stretch.passes, kept=kept, split=split, keys=keys)
        self._output(stretch)
        for layer in reversed(range(len(self.ends))):
            self._backward(layer, stretch)
            fork(stretch.side)
            with on(stretch.side):
                self._update(layer + 1, stretch)
        with on(stretch.side):
            self._update(0, stretch)
        wait_for(stretch.side)
        stretch.place.add_(1)

    def _stretch(self, number: int, own: range) -> Stretch:
        """Return what belongs to some neighbours; streams are those of the same number in other divisions."""
        replicas, batch = self.rows.shape[1:]
        also = [replica for replica in own if replica in self.free]
        slots = [*own, *(replicas + self.free.index(replica) for replica in also)]
        members, places = (torch.tensor(n, dtype=torch.int32, device=self.adam.device) for n in ([*own, *also], slots))
        passes = Passes(members, places, len(own), replicas, batch, self.rows, self.place[number, :1])
        first = 2 * number % len(self.streams)
        return Stretch(own, passes, *self.streams[first : first + 2])

    def _keys(self, end: LayerEnd, stretch: Stretch) -> DeviceKeys | None:
        """Return what dropout draws by, if any of the stretch has some."""
        rule = end.dropout
        is_noisy = rule is not None and any(rule.chances[replica] > 0 for replica in stretch.own)
        return rule.keys(self.adam.device) if rule is not None and is_noisy else None

    def _adam(self, parameter: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return a stack and its moments."""
        return parameter, *self.adam.moments[self.names[id(parameter)]]

    def _linear(self, layer: int) -> LinearRule:
        return self.output if layer == len(self.ends) else self.ends[layer].linear

    def _output(self, stretch: Stretch) -> None:
        """Compute losses, and their gradients by logits."""
        from lit_gelu.replicas.device import net_kernels

        weight = self.output.weight
        classes, width = weight.shape[1:]
        members, slots, _, replicas, batch, *_ = stretch.passes
        constants = kernel_tiles.tiles_of("output", batch, classes, width).constants()
        constants["CLASSES"] = constants.pop("COLUMNS")
        net_kernels.output_layer[(len(members),)](
            self.outputs[-1], weight, self.output.bias, self.gradients[-1], self.losses, self.labels,
            self.is_noise_free, members, slots, self.rows, stretch.place, replicas, batch, width, classes, **constants,
        )  # fmt: skip

    def _backward(self, layer: int, stretch: Stretch) -> None:
        """Compute gradients by a hidden layer's pre-activations."""
        from lit_gelu.replicas.device import net_kernels

        end, following = self.ends[layer], self._linear(layer + 1).weight
        outputs, width = following.shape[1:]
        batch = stretch.passes.batch
        tiles = kernel_tiles.tiles_of("backward", batch, width, outputs)
        keys = self._keys(end, stretch)
        addresses = (stretch.place,) * len(DeviceKeys._fields) if keys is None else keys
        net_kernels.layer_backward[(-(-width // tiles.columns), -(-batch // tiles.rows), len(stretch.own))](
            self.gradients[layer + 1], following, self.kept[layer], self.gradients[layer],
            *end.readings(self.adam.device), *addresses, stretch.place, stretch.own.start, batch, width, outputs,
            0 if end.dropout is None else end.dropout.site, DROPS=keys is not None, **tiles.constants(),
        )  # fmt: skip

    def _update(self, layer: int, stretch: Stretch) -> None:
        """Compute the gradients of a layer's parameters, and step them."""
        from lit_gelu.replicas.device import net_kernels

        linear = self._linear(layer)
        width, features = linear.weight.shape[1:]
        replicas, batch = stretch.passes.replicas, stretch.passes.batch
        tiles = kernel_tiles.tiles_of("parameters", width, features, batch)
        unit = kernel_tiles.unit_of(features)
        grid = (-(-features // tiles.columns), -(-width // tiles.rows), len(stretch.own))
        inputs = self.outputs[layer - 1] if layer else self.flat
        beta1, beta2 = self.adam.betas
        net_kernels.parameter_step[grid](
            self.gradients[layer], inputs, *self._adam(linear.weight), *self._adam(linear.bias), self.rows,
            stretch.place, self.sizes, self.roots, self.adam.is_active, stretch.own.start, replicas, batch,
            features // unit, width, 1 - beta1, beta2, 1 - beta2, self.adam.eps,
            GATHERS=layer == 0, UNIT=unit, **tiles.constants(),
        )  # fmt: skip
