"""Measuring members beside the steps that come: on a GPU these leave most of its processors idle."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from lit_gelu.replicas.device.fused_forward import FusedForward

# Of CUDA streams: kernels of steps (`kernel_steps`) come before those of measurements, which are read late.
_LAST = 0


class BesideSteps:
    """What measures members as they are now, while steps that are started later change them.

    Args:
        fused: The members' forward pass on a device.
    """

    def __init__(self, fused: FusedForward) -> None:
        self.fused = fused
        self._stream: torch.cuda.Stream | None = None

    @contextmanager
    def as_now(self) -> Iterator[FusedForward]:
        """Give the pass with the parameters of now; on a GPU what is started meanwhile is on a stream of its own."""
        frozen, device = self.fused.frozen(), self.fused.output.weight.device
        if device.type != "cuda":
            yield frozen
            return
        if self._stream is None:
            self._stream = torch.cuda.Stream(device, _LAST)  # type: ignore[no-untyped-call]
        self._stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(self._stream):
            yield frozen
        for parameter in frozen.parameters():  # their memory is another's when they are measured, not before
            parameter.record_stream(self._stream)
