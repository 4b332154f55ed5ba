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
        values: On the host, once they have arrived.
        arrival: Marks the arrival; ``None`` where nothing had to be waited for.
    """

    values: Tensor
    arrival: torch.cuda.Event | None = None

    @classmethod
    def start(cls, values: Tensor) -> "Readout":
        """Begin to copy.

        Args:
            values: On the device; not to be changed before they have arrived.

        Returns:
            The readout.

        Example:
            >>> readout = Readout.start(torch.ones(2))
            >>> readout.ready, readout.wait().tolist()
            (True, [1.0, 1.0])
        """
        if values.device.type != "cuda":
            return cls(values.cpu())
        host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
        host.copy_(values, non_blocking=True)
        arrival = torch.cuda.Event()  # type: ignore[no-untyped-call]
        arrival.record(torch.cuda.current_stream(values.device))
        return cls(host, arrival)

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
