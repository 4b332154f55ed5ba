"""The CUDA stream that a session works on, and its order with the caller's."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch


class ComputeStream:
    """The stream of a session's kernels.

    onnxruntime takes its stream when a session is made and knows no other. Here it takes the stream that is current
    then; calls on that stream are queued there and cost no synchronisation. A call on another stream makes each of the
    two wait for the other by an event: the host never waits. torch's default stream cannot be handed over, because its
    handle is 0, which onnxruntime reads as "none" (it then makes a stream that is in no order with torch's), and
    because CUDA graphs cannot be captured on it: with it current, the session gets a stream of its own, one of the 32
    that torch hands out in turns; so CUDA graphs are captured when the file is opened, not later beside other work.

    Args:
        device: The CUDA device.
        handle: The stream that the caller chose with ``user_compute_stream``; ``None`` for the rule above.
    """

    def __init__(self, device: torch.device, handle: int | None = None) -> None:
        self.device = device
        current = torch.cuda.current_stream(device)
        if handle:
            self.stream: torch.cuda.Stream = torch.cuda.ExternalStream(handle, device=device)  # type: ignore[no-untyped-call]
        else:
            self.stream = current if current.cuda_stream else torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def provider_options(self) -> Mapping[str, str]:
        """Return what hands the stream to onnxruntime."""
        return {"user_compute_stream": str(self.stream.cuda_stream)}

    @contextmanager
    def in_order(self) -> Iterator[torch.cuda.Stream]:
        """Put the session's work in order with the current stream: after what is queued, before what follows."""
        current = torch.cuda.current_stream(self.device)
        if current.cuda_stream == self.stream.cuda_stream:  # by handle: one stream may have several objects
            yield current
            return
        self.stream.wait_stream(current)
        try:
            yield current
        finally:
            current.wait_stream(self.stream)
