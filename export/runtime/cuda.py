"""A session on torch tensors where they lie: bound without copies, in order with torch's streams, as CUDA graphs."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import onnxruntime
import torch
import torch.utils.dlpack
from torch import Tensor

from lit_gelu.errors import ModelInputError, ProviderError
from lit_gelu.export.runtime.model_file import Array, Port, named_sizes, session_ports

ROWS_DEPEND = "lit_gelu.rows_depend"  # an entry of a file's metadata


def run_options(device: torch.device, graph_id: int = -1) -> onnxruntime.RunOptions | None:
    """Return the options of a run; ``graph_id`` -1 means no CUDA graph. On CUDA a run only queues its work."""
    # onnxruntime looks the CUDA graph's number up in every bound run with options, and throws and catches an exception
    # where it is missing (30 microseconds, more than a small net takes), so it is always there.
    if device.type != "cuda":
        return None
    options = onnxruntime.RunOptions()
    options.add_run_config_entry("disable_synchronize_execution_providers", "1")
    options.add_run_config_entry("gpu_graph_id", str(graph_id))
    return options


class TensorRunner:
    """Runs a session on torch tensors that lie on its device, without copies."""

    # Outputs are written into memory of torch's own allocator where the file tells their shape by the inputs'; others
    # are allocated by onnxruntime, and on CUDA copied, since its memory does not outlive the session. Each call has its
    # own binding, so that threads do not meet.

    def __init__(self, session: onnxruntime.InferenceSession, device: torch.device) -> None:
        self.session, self.device = session, device
        self.inputs, self.outputs = session_ports(session)
        self._options = run_options(device)
        self._nothing = torch.zeros(1, device=device)  # an address for tensors without elements: theirs is 0

    def __call__(self, tensors: Mapping[str, Tensor]) -> list[Tensor]:
        """Run the session on contiguous tensors of the file's dtypes, by name, on its device."""
        sizes = named_sizes(self.inputs, {name: tensor.shape for name, tensor in tensors.items()})
        shapes = {name: port.sized(sizes) for name, port in self.outputs.items()}
        ours = {
            name: torch.empty(shape, dtype=self.outputs[name].dtype, device=self.device)
            for name, shape in shapes.items()
            if shape is not None and 0 not in shape and self.outputs[name].dtype is not None
        }
        binding = self.binding(tensors, ours)
        for name in shapes.keys() - ours.keys():
            binding.bind_output(name, self.device.type, self.device.index or 0)
        self.session.run_with_iobinding(binding, self._options)
        if len(ours) == len(shapes):
            return list(ours.values())
        values = dict(zip(self.outputs, binding.get_outputs(), strict=True))
        return [ours[name] if name in ours else self._taken(port, values[name]) for name, port in self.outputs.items()]

    def binding(self, inputs: Mapping[str, Tensor], outputs: Mapping[str, Tensor]) -> onnxruntime.IOBinding:
        """Bind the memory of contiguous tensors, which the caller keeps alive until the run is over."""
        binding, place = self.session.io_binding(), (self.device.type, self.device.index or 0)
        for ports, tensors, bind in (
            (self.inputs, inputs, binding.bind_input),
            (self.outputs, outputs, binding.bind_output),
        ):
            for name, tensor in tensors.items():
                address = tensor.data_ptr() or self._nothing.data_ptr()
                bind(name, *place, ports[name].onnx_number, tuple(tensor.shape), address)
        return binding

    def _taken(self, port: Port, value: onnxruntime.OrtValue) -> Tensor:
        tensor: Tensor = torch.utils.dlpack.from_dlpack(value)
        if port.dtype == torch.bool:
            tensor = tensor.view(torch.bool)  # onnxruntime hands Booleans over as bytes
        return tensor.clone() if self.device.type == "cuda" else tensor


def as_tensor_on(device: torch.device, value: Array) -> Tensor:
    """Return a contiguous tensor on a device, without gradients; the value's own memory where that can be."""
    if isinstance(value, np.ndarray):
        in_place = value.flags.writeable and all(stride >= 0 for stride in value.strides)
        value = torch.from_numpy(value if in_place else value.copy())
    return value.detach().to(device).resolve_neg().contiguous()


class ComputeStream:
    """The stream of a session's kernels."""

    # onnxruntime takes its stream when a session is made and knows no other: here the one that is current then. A call
    # on another stream makes each of the two wait for the other by an event: the host never waits. torch's default
    # stream cannot be handed over, because its handle is 0, which onnxruntime reads as "none", and because CUDA graphs
    # cannot be captured on it: with it current, the session gets a stream of its own, one of the 32 that torch hands
    # out in turns; so CUDA graphs are captured when the file is opened, not later beside other work.

    def __init__(self, device: torch.device, handle: int = 0) -> None:  # of a stream that the caller chose; 0 if none
        self.device = device
        current = torch.cuda.current_stream(device)
        if handle:
            self.stream: torch.cuda.Stream = torch.cuda.ExternalStream(handle, device=device)  # type: ignore[no-untyped-call]
        else:
            self.stream = current if current.cuda_stream else torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

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


class BatchGraphs:
    """A CUDA graph with its own buffers for each of ``sizes``, ascending; calls of fewer rows are padded."""

    def __init__(self, runner: TensorRunner, sizes: Sequence[int]) -> None:
        self._runner, self.sizes = runner, sizes
        self._pad = runner.session.get_modelmeta().custom_metadata_map.get(ROWS_DEPEND) != "true"
        ports = [*runner.inputs.values(), *runner.outputs.values()]
        self._batch = next(iter(runner.inputs.values())).shape[:1]
        named = {(axis, size) for port in ports for axis, size in enumerate(port.shape) if not isinstance(size, int)}
        everywhere = all(port.shape[:1] == self._batch for port in runner.outputs.values())
        is_open = any(isinstance(size, str) for size in self._batch)
        if not everywhere or not is_open or named != {(0, size) for size in self._batch}:
            shapes = ", ".join(f"{port.name} {port.shape}" for port in ports)
            raise ModelInputError(
                "batch_buckets= is for files with one open size, the first of the first input and of every output; "
                f"here: {shapes}. Export the file with its other sizes fixed, or leave batch_buckets out."
            )
        with torch.inference_mode(mode=False):  # its tensors could not be written outside of it
            self._graphs = {size: self._graph(size, number) for number, size in enumerate(sizes, 1)}
            for _, _, binding, options in self._graphs.values():  # captured in the first run
                runner.session.run_with_iobinding(binding, options)

    def _graph(self, rows: int, number: int) -> tuple[dict[str, Tensor], dict[str, Tensor], Any, Any]:
        device = self._runner.device
        buffers: list[dict[str, Tensor]] = []
        for ports in (self._runner.inputs, self._runner.outputs):
            shapes = {name: [n if isinstance(n, int) else rows for n in port.shape] for name, port in ports.items()}
            buffers.append({n: torch.zeros(shapes[n], dtype=port.dtype, device=device) for n, port in ports.items()})
        return buffers[0], buffers[1], self._runner.binding(*buffers), run_options(device, number)

    def size_for(self, tensors: Mapping[str, Tensor]) -> int | None:
        """Return the size of the graph that takes a call; ``None`` if none does."""
        rows = next(iter(tensors.values())).shape[0]
        padded = next((size for size in self.sizes if size > rows), None) if self._pad else None
        return rows if rows in self._graphs else padded

    def run(self, size: int, tensors: Mapping[str, Tensor]) -> list[Tensor]:
        """Run the graph of a size, whose further rows are zeros."""
        inputs, outputs, binding, options = self._graphs[size]
        rows = next(iter(tensors.values())).shape[0]
        for name, tensor in tensors.items():
            if self._runner.inputs[name].shape[:1] == self._batch:
                inputs[name][:rows].copy_(tensor)
                inputs[name][rows:].zero_()
            else:
                inputs[name].copy_(tensor)
        self._runner.session.run_with_iobinding(binding, options)
        return [output[:rows].clone() for output in outputs.values()]


class CudaRunner:
    """Runs a session on a CUDA device, in order with torch's streams, a call of a graph's size as that graph."""

    # Outputs are allocated on the session's stream, and torch is told that the caller's stream uses them too.
    # onnxruntime keeps CUDA graphs for each thread, and while it captures no other thread may touch CUDA. So all graphs
    # are captured here, for the thread that opens the file (marked in the thread-local `_opener`); calls of others run
    # without them. A session with graphs takes one run at a time.

    def __init__(
        self,
        session: onnxruntime.InferenceSession,
        device: torch.device,
        stream: ComputeStream,
        sizes: Sequence[int] = (),
    ) -> None:
        self.device, self.stream = device, stream
        self.runner = TensorRunner(session, device)
        self.graphs: BatchGraphs | None = None
        if sizes:
            self._lock, self._opener = threading.Lock(), threading.local()
            self._opener.here = True
            with stream.in_order(), torch.cuda.stream(stream.stream):
                self.graphs = BatchGraphs(self.runner, sizes)

    def run_arrays(self, arrays: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Run on arrays; the thread's current device, which onnxruntime sets, stays as it was."""
        if self.graphs is not None:  # a session for CUDA graphs takes bound memory alone
            return [output.cpu().numpy() for output in self(arrays)]
        require_no_capture()
        with torch.cuda.device(self.device):
            outputs: list[np.ndarray] = self.runner.session.run(list(self.runner.outputs), arrays)
        return outputs

    def __call__(self, values: Mapping[str, Array]) -> list[Tensor]:
        """Run on tensors, moved to the device if need be; outputs lie there, in the order of the current stream."""
        require_no_capture()
        tensors = {name: as_tensor_on(self.device, value) for name, value in values.items()}
        if self.graphs is None:
            return self._ordered(self.runner, tensors)
        size = self.graphs.size_for(tensors) if hasattr(self._opener, "here") else None
        with self._lock:
            return self._ordered(self.runner if size is None else partial(self.graphs.run, size), tensors)

    def _ordered(self, run: Callable[[Mapping[str, Tensor]], list[Tensor]], fed: Mapping[str, Tensor]) -> list[Tensor]:
        with self.stream.in_order() as current, torch.cuda.stream(self.stream.stream):
            outputs = run(fed)
            for tensor in outputs:
                tensor.record_stream(current)
            return outputs


def require_no_capture() -> None:
    """Refuse a run while torch captures a CUDA graph: onnxruntime would abort the whole process."""
    if torch.cuda.is_current_stream_capturing():
        raise ProviderError(
            "An OnnxPredictor was called under torch.cuda.graph: onnxruntime's work cannot be a part of torch's CUDA "
            "graph. Call it outside; OnnxPredictor(..., batch_buckets=[N]) makes CUDA graphs of its own."
        )
