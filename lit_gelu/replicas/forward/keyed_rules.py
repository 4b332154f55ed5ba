"""Dropout by key (`KeyedDropout`) of all members at once."""

from collections.abc import Sequence

import torch
from torch import Tensor

from lit_gelu.replicas.forward.rules import DropoutRule
from lit_gelu.replicas.membership.stacks import Stacks
from lit_gelu.replicas.randomness.streams import Streams
from lit_gelu.tasks.keyed_dropout import KeyedDropout, has_kernel
from lit_gelu.tasks.keyed_noise import DeviceKeys, KernelDropout, Key, dropout_factors, readings


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
        if has_kernel(inputs):
            outputs: Tensor = KernelDropout.apply(inputs, self.device_keys(inputs.device), self.site, 0)
            return outputs
        seeds, steps = (numbers.tolist() for numbers in self.count())
        own = [Key(seed, self.site, step - 1) for seed, step in zip(seeds, steps, strict=True)]
        return inputs * dropout_factors(inputs.shape, own, self.chances).to(inputs)

    def device_keys(self, device: torch.device) -> DeviceKeys:
        """Count a step, and return what kernels draw its masks by."""
        self.count()
        return self.keys(device)

    def keys(self, device: torch.device) -> DeviceKeys:
        """Return what kernels draw masks by: seeds, how many steps there were, and how words are read."""
        if self._readings is None:  # held here, because a CUDA graph reads where they are
            self._readings = readings(tuple(self.chances), device)
        return DeviceKeys(self.buffers.seed, self.buffers.step, *self._readings)  # type: ignore[arg-type] # buffers

    def count(self, steps: int = 1) -> tuple[Tensor, Tensor]:
        """Count steps of those that have noise; return all seeds and steps."""
        made: Tensor = self.buffers.step  # type: ignore[assignment]
        self.noisy = self.noisy.to(made.device)
        return self.buffers.seed, made.add_(self.noisy, alpha=steps)  # type: ignore[return-value] # buffers

    def count_only(self, is_active: Tensor) -> None:
        """Count steps of active replicas alone from now on."""
        noisy = torch.tensor([int(chance > 0) for chance in self.chances])
        self.noisy = self.noisy.to(is_active.device)
        self.noisy.copy_(noisy, non_blocking=True).mul_(is_active)
