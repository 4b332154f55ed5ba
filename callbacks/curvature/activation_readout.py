"""Bringing figures from the device to the host without waiting for them."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class Readout:
    """Numbers that are on their way to the host.

    On CUDA they are copied into pinned memory while the device goes on; `ready` asks, without waiting, whether they
    have arrived. Elsewhere they are there at once.

    Args:
        step: The step that was measured.
        values: On the host, once they have arrived.
        arrival: Marks the arrival; ``None`` where nothing had to be waited for.
    """

    step: int
    values: Tensor
    arrival: torch.cuda.Event | None = None

    @classmethod
    def start(cls, step: int, values: Tensor) -> "Readout":
        """Begin to copy.

        Args:
            step: The step that was measured.
            values: On the device; not to be changed before they have arrived.

        Returns:
            The readout.

        Example:
            >>> readout = Readout.start(7, torch.ones(2))
            >>> readout.ready, readout.wait().tolist()
            (True, [1.0, 1.0])
        """
        if values.device.type != "cuda":
            return cls(step, values.cpu())
        host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
        host.copy_(values, non_blocking=True)
        arrival = torch.cuda.Event()  # type: ignore[no-untyped-call]
        arrival.record(torch.cuda.current_stream(values.device))
        return cls(step, host, arrival)

    @property
    def ready(self) -> bool:
        """Whether the numbers have arrived."""
        return self.arrival is None or bool(self.arrival.query())  # type: ignore[no-untyped-call]

    def wait(self) -> Tensor:
        """Return the numbers, as soon as they have arrived.

        Returns:
            A tensor on the CPU.
        """
        if self.arrival is not None:
            self.arrival.synchronize()
        return self.values
