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
from lit_gelu.replicas.device.padded_layers import PaddedLayer, padded
from lit_gelu.replicas.device.repeated_steps import RepeatedStep
from lit_gelu.replicas.errors import unknown_labels
from lit_gelu.replicas.forward.rules import LinearRule
from lit_gelu.replicas.forward.stacked_forward import StackedForward, cross_entropies
from lit_gelu.tasks.keyed_noise import DeviceKeys

# Passes through the net in a stretch of replicas at least, and how many stretches there are at most. On an H200, steps
# of the paper's nets take as long with three or four; without any division they take a tenth more.
FEWEST_PASSES, _MOST_STRETCHES = 15, 6
_BUFFERS = 2  # steps whose numbers are kept: the parameters of one are stepped beside the beginning of the next
# Priorities of CUDA streams: what the next kernel waits for comes before what none waits for yet, and both before
# measurements (`beside_steps`).
_FIRST, _LATER = -2, -1


class Stretch(NamedTuple):
    """Neighbouring replicas whose kernels run beside those of others.

    Args:
        own: Their numbers.
        passes: Theirs.
        stream: For their kernels; ``None`` where there are none.
        side: For steps of parameters, which the next kernels do not wait for.
        stepped: By layer, what says that its parameters are stepped.
    """

    own: range
    passes: Passes
    stream: torch.cuda.Stream | None
    side: torch.cuda.Stream | None
    stepped: dict[int, torch.cuda.Event]

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

    def note(self, layer: int) -> None:
        """Remember that a layer's parameters are stepped when the present stream has come here."""
        if self.stream is not None:
            self.stepped[layer] = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self.stepped[layer].record()

    def wait_for(self, layer: int) -> None:
        """Let the present stream go on when a layer's parameters are stepped."""
        if layer in self.stepped:
            torch.cuda.current_stream().wait_event(self.stepped.pop(layer))


class StepMemory(NamedTuple):
    """What the kernels of a step write for each other, by layer; the next step has others.

    Args:
        kept: Pre-activations, ``[replicas, batch, width]``.
        outputs: ``[passes, batch, width]``.
        gradients: By pre-activations, and by logits.
    """

    kept: list[Tensor]
    outputs: list[Tensor]
    gradients: list[Tensor]


def usual_stretches(passes: int) -> int:
    """Return how many stretches there are for so many passes."""
    return min(max(1, passes // FEWEST_PASSES), _MOST_STRETCHES)


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
        flat = self.inputs.flatten(1).contiguous()
        self.flat = padded(flat) if adam.eps > 0 else flat  # else Adam would divide 0 by 0 there
        if self.labels.min() < 0 or self.labels.max() >= self.output.weight.shape[1]:
            raise unknown_labels(self.labels, self.output.weight.shape[1])
        replicas = self.rows.shape[1]
        self.sizes = torch.zeros(len(self.rows), replicas, device=adam.device)  # of Adam's steps
        self.roots = torch.zeros(len(self.rows), device=adam.device)  # of the second moment's corrections
        self.free = range(replicas)[self.split] if self.split is not None else range(0)
        # Two numbers each: Triton would compile kernels again for addresses that are no multiples of 16.
        self.place = torch.zeros(replicas, 2, dtype=torch.int64, device=adam.device)
        self.divide(usual_stretches(replicas + len(self.free)))
        self.names = {id(stack): name for name, stack in forward.stacks.trained.items()}
        adam.begin_all()
        first = self._stacks(0)
        self.padded = PaddedLayer(first) if self.flat.shape[1] > first[0].shape[2] else None
        self.buffers = [self._buffers() for _ in range(_BUFFERS)]

    @property
    def state_tensors(self) -> list[Tensor]:
        """All that a step changes."""
        return [*super().state_tensors, *([] if self.padded is None else self.padded.stacks)]

    @torch.no_grad()
    def start(self, rows: Tensor) -> None:
        """Take the samples of the steps that come, and what may have changed."""
        super().start(rows)
        made = torch.arange(1, len(rows) + 1, dtype=torch.float64, device=self.adam.device) + self.adam.made
        first, second = (1 - beta**made for beta in self.adam.betas)
        self.sizes[: len(rows)].copy_(self.adam.rates / first.unsqueeze(1))
        self.roots[: len(rows)].copy_(second.sqrt())
        if self.padded is not None:
            self.padded.take(self._stacks(0))

    @torch.no_grad()
    def put_back(self) -> None:
        """Let the members have what the steps have made of the first layer."""
        if self.padded is not None:
            self.padded.put_back(self._stacks(0))

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
                for ahead in range(steps):
                    self._make(stretch, ahead)
                wait_for(stretch.side)
                stretch.stepped.clear()
                stretch.place.add_(steps)
        for stretch in self.stretches:
            wait_for(stretch.stream)

    def divide(self, count: int) -> None:
        """Let kernels of so many stretches of replicas run side by side, in graphs that are captured from now on."""
        owns = stretches(self.rows.shape[1], self.free, count)
        self.stretches = [self._stretch(number, own) for number, own in enumerate(owns)]

    def _make(self, stretch: Stretch, ahead: int) -> None:
        """Make the step of some replicas, so many behind their place.

        Parameters of a layer are stepped beside all that does not read them: kernels of the layers before it, and of
        the next step. Those of the first layer are what that begins with.
        """
        buffers, inputs = self.buffers[ahead % _BUFFERS], self.flat
        for layer, end in enumerate(self.ends):
            stretch.wait_for(layer)
            inputs = launch_layer(
                end, inputs, buffers.outputs[layer], stretch.passes, kept=buffers.kept[layer],
                split=self.split if layer == 0 and stretch.has_free else None, keys=self._keys(end, stretch),
                weight=self._stacks_read(layer)[0], ahead=ahead,
            )  # fmt: skip
        stretch.wait_for(len(self.ends))
        self._output(stretch, ahead)
        for layer in reversed(range(len(self.ends))):
            self._backward(layer, stretch, ahead)
            fork(stretch.side)
            with on(stretch.side):
                self._update(layer + 1, stretch, ahead)
                stretch.note(layer + 1)
        self._update(0, stretch, ahead)

    def _stretch(self, number: int, own: range) -> Stretch:
        """Return what belongs to some neighbours."""
        (replicas, batch), device = self.rows.shape[1:], self.adam.device
        also = [replica for replica in own if replica in self.free]
        slots = [*own, *(replicas + self.free.index(replica) for replica in also)]
        members, places = (torch.tensor(n, dtype=torch.int32, device=device) for n in ([*own, *also], slots))
        passes = Passes(members, places, len(own), replicas, batch, self.rows, self.place[number, :1])
        is_cuda = device.type == "cuda"
        stream, side = (torch.cuda.Stream(device, priority) if is_cuda else None for priority in (_FIRST, _LATER))  # type: ignore[no-untyped-call]
        return Stretch(own, passes, stream, side, {})

    def _buffers(self) -> StepMemory:
        """Return memory for a step."""
        replicas, batch = self.rows.shape[1:]
        widths, new = [end.linear.weight.shape[1] for end in self.ends], self.flat.new_empty
        return StepMemory(
            [new(replicas, batch, width) for width in widths],
            [new(replicas + len(self.free), batch, width) for width in widths],
            [new(replicas, batch, width) for width in [*widths, self.output.weight.shape[1]]],
        )

    def _keys(self, end: LayerEnd, stretch: Stretch) -> DeviceKeys | None:
        """Return what dropout draws by, if any of the stretch has some."""
        rule = end.dropout
        is_noisy = rule is not None and any(rule.chances[replica] > 0 for replica in stretch.own)
        return rule.keys(self.adam.device) if rule is not None and is_noisy else None

    def _adam(self, parameter: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return a stack and its moments."""
        return parameter, *self.adam.moments[self.names[id(parameter)]]

    def _stacks(self, layer: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return a layer's weights and their moments."""
        return self._adam(self._linear(layer).weight)

    def _stacks_read(self, layer: int) -> Sequence[Tensor]:
        """Return those that kernels read and write."""
        return self.padded.stacks if layer == 0 and self.padded is not None else self._stacks(layer)

    def _linear(self, layer: int) -> LinearRule:
        return self.output if layer == len(self.ends) else self.ends[layer].linear

    def _output(self, stretch: Stretch, ahead: int) -> None:
        """Compute losses, and their gradients by logits."""
        from lit_gelu.replicas.device import net_kernels

        weight, buffers = self.output.weight, self.buffers[ahead % _BUFFERS]
        classes, width = weight.shape[1:]
        members, slots, _, replicas, batch, *_ = stretch.passes
        constants = kernel_tiles.tiles_of("output", batch, classes, width).constants()
        constants["CLASSES"] = constants.pop("COLUMNS")
        net_kernels.output_layer[(len(members),)](
            buffers.outputs[-1], weight, self.output.bias, buffers.gradients[-1], self.losses, self.labels,
            self.is_noise_free, members, slots, self.rows, stretch.place, ahead, replicas, batch, width, classes,
            **constants,
        )  # fmt: skip

    def _backward(self, layer: int, stretch: Stretch, ahead: int) -> None:
        """Compute gradients by a hidden layer's pre-activations."""
        from lit_gelu.replicas.device import net_kernels

        end, following, buffers = self.ends[layer], self._linear(layer + 1).weight, self.buffers[ahead % _BUFFERS]
        outputs, width = following.shape[1:]
        batch = stretch.passes.batch
        tiles = kernel_tiles.tiles_of("backward", batch, width, outputs)
        keys = self._keys(end, stretch)
        addresses = (stretch.place,) * len(DeviceKeys._fields) if keys is None else keys
        net_kernels.layer_backward[(-(-width // tiles.columns), -(-batch // tiles.rows), len(stretch.own))](
            buffers.gradients[layer + 1], following, buffers.kept[layer], buffers.gradients[layer],
            *end.readings(self.adam.device), *addresses, stretch.place, ahead, stretch.own.start, batch, width, outputs,
            0 if end.dropout is None else end.dropout.site, DROPS=keys is not None, **tiles.constants(),
        )  # fmt: skip

    def _update(self, layer: int, stretch: Stretch, ahead: int) -> None:
        """Compute the gradients of a layer's parameters, and step them."""
        from lit_gelu.replicas.device import net_kernels

        stacks, bias, buffers = self._stacks_read(layer), self._linear(layer).bias, self.buffers[ahead % _BUFFERS]
        width, features = stacks[0].shape[1:]
        replicas, batch = stretch.passes.replicas, stretch.passes.batch
        tiles = kernel_tiles.tiles_of("parameters", width, features, batch)
        unit = kernel_tiles.unit_of(features)
        grid = (-(-features // tiles.columns), -(-width // tiles.rows), len(stretch.own))
        inputs = buffers.outputs[layer - 1] if layer else self.flat
        beta1, beta2 = self.adam.betas
        net_kernels.parameter_step[grid](
            buffers.gradients[layer], inputs, *stacks, *self._adam(bias), self.rows,
            stretch.place, self.sizes, self.roots, self.adam.is_active, ahead, stretch.own.start, replicas, batch,
            features // unit, width, 1 - beta1, beta2, 1 - beta2, self.adam.eps,
            GATHERS=layer == 0, UNIT=unit, **tiles.constants(),
        )  # fmt: skip
