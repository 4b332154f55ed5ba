"""How a session runs on a CUDA device: in order with torch's streams, and as CUDA graphs."""

import threading
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np
import onnxruntime
import torch
from torch import Tensor

from lit_gelu.export.errors import ProviderError
from lit_gelu.export.runtime.binding import TensorRunner, as_tensor_on
from lit_gelu.export.runtime.buckets import BucketRunner
from lit_gelu.export.runtime.ports import Array
from lit_gelu.export.runtime.settings import Buckets
from lit_gelu.export.runtime.streams import ComputeStream


class OtherDeviceWarning(UserWarning):
    """Tensors lie on another CUDA device than the predictor's, and travel at every call."""


class CudaRunner:
    """Runs a session on tensors of its device; without padding, calls of other sizes than a bucket's have no graph."""

    # Copies into the memory of a CUDA graph, and out of onnxruntime's, belong on the session's stream; so outputs are
    # allocated there, and torch is told that the caller's stream uses them too.
    # onnxruntime keeps the CUDA graphs of each thread apart, and captures in the mode in which no other thread may
    # touch CUDA meanwhile. So all graphs are captured here, once for the thread that opens the file and once for a
    # worker that runs the calls of all others, and one lock is around the whole of a run.

    def __init__(
        self,
        session: onnxruntime.InferenceSession,
        device: torch.device,
        stream: ComputeStream,
        buckets: Buckets | None = None,
        padding: Mapping[str, float] | None = None,  # without it, only calls of a bucket's own sizes are graphs
    ) -> None:
        self.device, self.stream, self.padding = device, stream, padding
        self.runner = TensorRunner(session, device)
        self.bucketed: BucketRunner | None = None
        if buckets:
            self._lock = threading.Lock()
            self._opener = threading.local()
            self._opener.here = True
            self._worker = ThreadPoolExecutor(1, thread_name_prefix="lit_gelu_cuda_graphs")
            with stream.in_order(), torch.cuda.stream(stream.stream):
                self.bucketed = BucketRunner(self.runner, buckets, padding)
            torch.cuda.synchronize(device)  # the worker captures on the same stream
            self._worker.submit(_under, stream.stream, self.bucketed.capture).result()

    def run_arrays(self, given: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Run on arrays; the thread's current device, which onnxruntime sets, stays as it was."""
        if self.bucketed is not None:  # a session for CUDA graphs takes bound memory alone
            return [output.cpu().numpy() for output in self(given)]
        require_no_capture()
        with torch.cuda.device(self.device):
            found: list[np.ndarray] = self.runner.session.run(self.runner.output_names, given)
        return found

    def __call__(self, given: Mapping[str, Array]) -> list[Tensor]:
        """Run on tensors, moved to the device if need be; outputs lie there, in the order of the current stream."""
        require_no_capture()
        for value in given.values():
            if isinstance(value, Tensor) and value.is_cuda and value.device != self.device:
                _warn_of_device(value.device, self.device)
        tensors = {name: as_tensor_on(self.device, value) for name, value in given.items()}
        if self.bucketed is None:
            return self._ordered(self.runner, tensors)
        run = self.bucketed if self.padding is not None or self.bucketed.holds(tensors) else self.runner
        with self._lock:
            if hasattr(self._opener, "here"):
                return self._ordered(run, tensors)
            current = torch.cuda.current_stream(self.device)
            outputs: list[Tensor] = self._worker.submit(_under, current, self._ordered, run, tensors).result()
            return outputs

    def _ordered(
        self, run: Callable[[Mapping[str, Tensor]], list[Tensor]], tensors: Mapping[str, Tensor]
    ) -> list[Tensor]:
        """Run in the order of this thread's current stream, on the session's."""
        with self.stream.in_order() as current, torch.cuda.stream(self.stream.stream):
            outputs = run(tensors)
            for output in outputs:
                output.record_stream(current)
            return outputs


def _under(stream: torch.cuda.Stream, call: Callable[..., Any], *arguments: Any) -> Any:
    """Call with a stream, and so its device, as the current one."""
    with torch.cuda.stream(stream):
        return call(*arguments)


def require_no_capture() -> None:
    """Refuse a run while torch captures a CUDA graph, which onnxruntime's would end with the whole process."""
    if torch.cuda.is_current_stream_capturing():
        raise ProviderError(
            "An OnnxPredictor was called under torch.cuda.graph: onnxruntime's work cannot be a part of torch's CUDA "
            "graph. Call it outside; OnnxPredictor(..., batch_buckets=[N]) makes CUDA graphs of its own."
        )


@cache  # once for each pair
def _warn_of_device(given: torch.device, wanted: torch.device) -> None:
    """Say that a tensor travels between two CUDA devices."""
    warnings.warn(
        f"A tensor on {given} was given to an OnnxPredictor on {wanted}: it and the outputs are copied between both at "
        f"every call. Open the predictor there: providers=[('CUDAExecutionProvider', {{'device_id': {given.index}}})].",
        OtherDeviceWarning,
        stacklevel=5,
    )
