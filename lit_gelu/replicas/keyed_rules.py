"""Dropout by key (`KeyedDropout`) of the members: all of them at once, or one of them in a written step."""

from collections import Counter
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from lit_gelu.replicas.rules import DropoutRule
from lit_gelu.replicas.stacks import Stacks
from lit_gelu.replicas.streams import Streams
from lit_gelu.tasks.keyed_dropout import KeyedDropout, has_kernel
from lit_gelu.tasks.keyed_noise import DeviceKeys, KernelDropout, Key, SharedMasks, dropout_factors, readings


class KeyedDropoutRule(DropoutRule):
    """Dropout of all replicas, each by its own seed and number of the step, which are its buffers.

    Args:
        path: Where the layers are in the members.
        layers: They.
        stacks: Their seeds and steps.
        streams: What they do not draw from.
    """

    def __init__(self, path: str, layers: Sequence[KeyedDropout], stacks: Stacks, streams: Streams) -> None:
        super().__init__([float(layer.p) for layer in layers], streams)
        self.site = layers[0].site
        self.buffers = stacks.tree.get_submodule(path)
        self.noisy = torch.tensor([int(chance > 0) for chance in self.chances])
        self._readings: tuple[Tensor, Tensor] | None = None

    def __call__(self, inputs: Tensor) -> Tensor:
        """Drop some of ``[replicas, ...]``."""
        if not self.is_noisy:
            return inputs
        seeds: Tensor = self.buffers.seed  # type: ignore[assignment]
        steps: Tensor = self.buffers.step  # type: ignore[assignment]
        self.noisy = self.noisy.to(steps.device)
        steps.add_(self.noisy)
        if has_kernel(inputs):
            if self._readings is None:  # held here, because a CUDA graph reads where they are
                self._readings = readings(tuple(self.chances), inputs.device)
            keys = DeviceKeys(seeds, steps, *self._readings)
            outputs: Tensor = KernelDropout.apply(inputs, keys, self.site, 0)
            return outputs
        own = [Key(seed, self.site, step - 1) for seed, step in zip(seeds.tolist(), steps.tolist(), strict=True)]
        return inputs * dropout_factors(inputs.shape, own, self.chances).to(inputs)

    def count_only(self, is_active: Tensor) -> None:
        """Count steps of active replicas alone from now on."""
        noisy = torch.tensor([chance > 0 for chance in self.chances], device=is_active.device)
        self.noisy = self.noisy.to(is_active.device)
        self.noisy.copy_(noisy & is_active.bool())


class KeyedDropoutPart:
    """A member's `KeyedDropout` at a chance above 0, see `lit_gelu.replicas.written_layers.Part`.

    Args:
        path: Where it is in the net.
        layer: It.
        kept: Where factors go.
        outputs: Where outputs go.
        masks: Those that members have in common.
    """

    def __init__(
        self,
        path: str,
        layer: KeyedDropout,
        kept: Callable[[str, int], Tensor],
        outputs: Tensor,
        masks: SharedMasks | None,
    ) -> None:
        self.layer, self.masks, self.outputs = layer, masks, outputs
        self.factors = kept(f"{path}: factors", outputs.shape[1])
        self._numbers = self.factors.numpy()

    def forward(self, inputs: Tensor) -> Tensor:
        """Drop some of the inputs; the layer counts the step."""
        step = int(self.layer.step.add_(1))
        key = Key(int(self.layer.seed), self.layer.site, step - 1)
        (self.masks or SharedMasks(0)).write_factors(self._numbers, key, float(self.layer.p))
        return torch.mul(inputs, self.factors, out=self.outputs)

    def noise_free(self, inputs: Tensor) -> Tensor:
        """Return the inputs."""
        return inputs

    def both(self, inputs: Tensor, noise_free: Tensor) -> tuple[Tensor, Tensor]:
        """Drop some of the inputs, and return the others."""
        return self.forward(inputs), noise_free

    def backward(self, gradient: Tensor) -> Tensor:
        """Drop the same of a gradient."""
        return gradient.mul_(self.factors)


def in_common(layers: Sequence[KeyedDropout]) -> set[int]:
    """Return the seeds that several layers with a chance above 0 have."""
    counts = Counter(int(layer.seed) for layer in layers if layer.p > 0)
    return {seed for seed, count in counts.items() if count > 1}
