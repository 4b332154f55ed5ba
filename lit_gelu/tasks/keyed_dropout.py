"""`KeyedDropout`: dropout whose masks are functions of seed, layer and step."""

import importlib.util

import torch
from torch import Tensor, nn

from lit_gelu.tasks.errors import TaskArgumentError
from lit_gelu.tasks.keyed_noise import DeviceKeys, KernelDropout, Key, dropout_factors, readings

NOISES = ("global", "keys")  # where a task's dropout has its random numbers from


class KeyedDropout(nn.Dropout):
    """Dropout as ``nn.Dropout``, with random numbers by key, see `lit_gelu.tasks.keyed_noise`.

    The seed is that of torch's global generator when the layer is made (``seed_everything``). It and the number of
    the step are buffers: a run that goes on from a checkpoint, on whatever device, has the masks of one that was not
    interrupted.

    Args:
        p: The chance to drop an element.
        site: The number of the layer in its net.
    """

    seed: Tensor
    step: Tensor

    def __init__(self, p: float, site: int) -> None:
        super().__init__(p)
        self.site = site
        seed = torch.initial_seed() % 2**64
        self.register_buffer("seed", torch.tensor(seed - 2**64 if seed >= 2**63 else seed))
        self.register_buffer("step", torch.tensor(0))

    def forward(self, inputs: Tensor) -> Tensor:
        """Drop elements in training."""
        if not self.training or self.p == 0:
            return inputs
        if torch._C._current_graph_task_id() != -1:
            raise TaskArgumentError(
                'noise="keys" does not go with activation checkpointing: a forward pass that is made again in the '
                'backward pass would have the next step\'s masks. Give noise="global", or leave checkpointing out.'
            )
        step = self.step.add_(1)
        rank = torch.distributed.get_rank() if torch.distributed.is_initialized() else 0
        if has_kernel(inputs):
            rows = DeviceKeys(self.seed.view(1), step.clone().view(1), *readings((self.p,), inputs.device))
            outputs: Tensor = KernelDropout.apply(inputs.unsqueeze(0), rows, self.site, rank)
            return outputs.squeeze(0)
        key = Key(int(self.seed), self.site, int(step) - 1, rank)
        factors = dropout_factors((1, *inputs.shape), [key], [self.p])[0]
        return inputs * (
            factors if inputs.dtype == torch.float32 and inputs.device.type == "cpu" else factors.to(inputs)
        )

    def extra_repr(self) -> str:
        """Return chance and site, for ``print``."""
        return f"{super().extra_repr()}, site={self.site}"


def has_kernel(inputs: Tensor) -> bool:
    """Say whether masks are drawn on the tensor's own device, not on the CPU."""
    return inputs.is_cuda and torch.version.hip is None and importlib.util.find_spec("triton") is not None
