"""`PassStep`: the step of small nets in small batches, a kernel for each pass and one for each layer's parameters."""

import torch
from torch import Tensor

from lit_gelu.replicas.device import kernel_tiles
from lit_gelu.replicas.device.fused_forward import FusedForward
from lit_gelu.replicas.device.kernel_steps import Buffers, KernelStep, Stretch, fits, fork, on, wait_for
from lit_gelu.replicas.device.padded_layers import ROW

MOST_ROWS, WIDEST = 32, 256  # samples in a batch, and outputs of a layer, that one program computes by itself


def passes_fit(fused: FusedForward, inputs: Tensor, batch: int) -> bool:
    """Say whether `PassStep` computes the step of these nets with batches of so many of these inputs."""
    widths = [end.linear.weight.shape[1] for end in fused.ends]
    are_small = batch <= MOST_ROWS and all(width <= WIDEST and width % ROW == 0 for width in widths)
    return are_small and fits(fused, inputs)


class PassStep(KernelStep):
    """A `KernelStep` whose passes are computed by a program each, from the first layer to the last gradient.

    Between layers such a program waits for its own threads alone, where kernels would wait for all programs of the one
    before. A net has no more than one multiprocessor that way, which is enough for nets and batches that are small.
    """

    fewest_passes = 45
    most_stretches = 2

    @torch.no_grad()
    def start(self, rows: Tensor) -> None:
        """Take the samples of the steps that come, and what may have changed."""
        super().start(rows)
        addresses = [self._table(buffers) for buffers in self.buffers]
        if addresses != self._addresses:
            self._addresses = addresses
            self.table.copy_(torch.tensor(addresses))

    def _prepare(self) -> None:
        """Make the tables of what the kernel reads, one for each of the buffers."""
        super()._prepare()
        from lit_gelu.replicas.device import pass_kernels

        shape = (len(self.buffers), len(self.ends) + 1, int(pass_kernels.FIELDS.value))
        self.table = torch.zeros(shape, dtype=torch.int64, device=self.adam.device)
        self._addresses: list[list[list[int]]] = []

    def _table(self, buffers: Buffers) -> list[list[int]]:
        """Return the numbers of all layers, as `pass_kernels` names their places."""
        found = []
        for layer in range(len(self.ends) + 1):
            stacks, bias = self._stacks_read(layer), self._linear(layer).bias
            width, features = stacks[0].shape[1:]
            inputs = buffers.outputs[layer - 1] if layer else self.flat
            is_last = layer == len(self.ends)
            written = [bias] * 2 if is_last else [buffers.kept[layer], buffers.outputs[layer]]
            end = self.ends[min(layer, len(self.ends) - 1)]
            rule, device = None if is_last else end.dropout, self.adam.device
            keys: tuple[Tensor, ...] = (bias,) * 4 if rule is None else rule.keys(device)
            tensors = [inputs, stacks[0], bias, *written, buffers.gradients[layer], *keys]
            numbers = [features, width, 0 if rule is None else rule.site, int(rule is not None)]
            activations = [tensor.data_ptr() for tensor in end.readings(device)]
            found.append([*(tensor.data_ptr() for tensor in tensors), *numbers, *activations])
        return found

    def _make(self, stretch: Stretch, ahead: int) -> None:
        """Make the step of some replicas, so many behind their place."""
        self._pass(stretch, ahead)
        layers = range(len(self.ends) + 1)
        fork(stretch.side)
        with on(stretch.side):
            for layer in layers[1::2]:
                self._update(layer, stretch, ahead)
        for layer in layers[::2]:
            self._update(layer, stretch, ahead)
        wait_for(stretch.side)

    def _pass(self, stretch: Stretch, ahead: int) -> None:
        """Compute losses and all gradients by pre-activations."""
        from lit_gelu.replicas.device import pass_kernels

        members, slots, _, replicas, batch, *_ = stretch.passes
        widest = max(end.linear.weight.shape[1] for end in self.ends)
        classes = self.output.weight.shape[1]
        tiles = kernel_tiles.tiles_of("pass", batch, widest, widest)
        pass_kernels.whole_pass[(1, 1, len(members))](
            self.table[ahead % len(self.buffers)], self.losses, self.labels, self.is_noise_free, members, slots,
            self.rows, stretch.place, ahead, replicas, batch, len(self.ends), classes,
            CLASSES=kernel_tiles.power_of_two(classes, 16, kernel_tiles.MOST_CLASSES), **tiles.constants(),
        )  # fmt: skip
