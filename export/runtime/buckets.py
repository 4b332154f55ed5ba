"""Calls of any batch size through sessions of few, fixed ones."""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnxruntime
import torch
from torch import Tensor

from lit_gelu.export.errors import ModelInputError
from lit_gelu.export.runtime.binding import TensorRunner, run_options
from lit_gelu.export.runtime.ports import Port


@dataclass(frozen=True)
class Span:
    """Rows of a call that run together."""

    start: int
    stop: int
    bucket: int  # the batch size that they run in


def spans(rows: int, buckets: Sequence[int]) -> list[Span]:
    """Divide a call into as few runs as the ascending buckets allow, the last one padded."""
    found, start, largest = [], 0, buckets[-1]
    while rows - start > largest:
        found.append(Span(start, start + largest, largest))
        start += largest
    bucket = next(bucket for bucket in buckets if bucket >= rows - start)
    return [*found, Span(start, rows, bucket)]


def batch_name(inputs: Mapping[str, Port], outputs: Mapping[str, Port]) -> str:
    """Return the name of the batch, the first size of every output, in a file whose other sizes are fixed."""
    first = next(iter(inputs.values()))
    name = first.shape[0] if first.shape else None
    shapes = {port.name: port.shape for port in [*inputs.values(), *outputs.values()]}
    wrong = {key: shape for key, shape in shapes.items() if any(not isinstance(size, int) for size in shape[1:])}
    wrong |= {key: shape for key, shape in shapes.items() if shape and shape[0] != name and isinstance(shape[0], str)}
    wrong |= {port.name: port.shape for port in outputs.values() if not port.shape or port.shape[0] != name}
    if not isinstance(name, str) or wrong:
        named = ", ".join(f"{key} {shape}" for key, shape in (wrong or {first.name: first.shape}).items())
        raise ModelInputError(
            f"Batch buckets need a batch as the first size of the first input and of every output, and all other sizes "
            f"fixed; here: {named}. Export the file with fixed sizes, or leave batch_buckets out."
        )
    return name


class BucketRunner:
    """Runs a session at a few batch sizes, each with buffers of its own; on CUDA as one CUDA graph each.

    Rows are copied into the bucket's buffers, and the outputs' rows out of them. What stands in the rows beyond is of
    an earlier call, or zero: rows of a network in evaluation mode do not see each other.
    Every bucket runs once here, which is when onnxruntime captures its graph.
    """

    def __init__(self, runner: TensorRunner, buckets: tuple[int, ...]) -> None:
        self.runner = runner
        self.buckets = buckets
        self._batch = batch_name(runner.inputs, runner.outputs)
        self._lock = threading.Lock()  # two threads must not use the same buffers at once
        with torch.inference_mode(mode=False):  # its tensors could not be written outside of it
            self._buffers = {
                bucket: _Buffers(runner, {self._batch: bucket}, number) for number, bucket in enumerate(buckets, 1)
            }
        self.capture()

    def capture(self) -> None:
        """Run every bucket once: onnxruntime captures the graphs of the calling thread."""
        for buffers in self._buffers.values():
            buffers.run(self.runner.session)

    def __call__(self, tensors: Mapping[str, Tensor]) -> list[Tensor]:
        """Run the session, and return as many rows as the inputs have."""
        rows = next(iter(tensors.values())).shape[0]
        parts = [self._run(tensors, span) for span in spans(rows, self.buckets)]
        return parts[0] if len(parts) == 1 else [torch.cat(outputs) for outputs in zip(*parts, strict=True)]

    def holds(self, tensors: Mapping[str, Tensor]) -> bool:
        """Return whether a call has exactly a bucket's batch size, and needs no padding."""
        return next(iter(tensors.values())).shape[0] in self.buckets

    def _run(self, tensors: Mapping[str, Tensor], span: Span) -> list[Tensor]:
        """Run some rows."""
        count = span.stop - span.start
        buffers = self._buffers[span.bucket]
        with self._lock:
            for name, tensor in tensors.items():
                if self.runner.inputs[name].shape[:1] == (self._batch,):
                    buffers.inputs[name][:count].copy_(tensor[span.start : span.stop])
                else:
                    buffers.inputs[name].copy_(tensor)
            buffers.run(self.runner.session)
            return [tensor[:count].clone() for tensor in buffers.outputs]


class _Buffers:
    """The memory of one bucket and its binding."""

    def __init__(self, runner: TensorRunner, sizes: Mapping[str, int], graph_id: int) -> None:
        def made(port: Port) -> Tensor:
            return torch.zeros(port.sized(sizes) or (), dtype=port.dtype, device=runner.device)

        self.inputs = {name: made(port) for name, port in runner.inputs.items()}
        self.outputs = [made(port) for port in runner.outputs.values()]
        self._binding: onnxruntime.IOBinding = runner.session.io_binding()
        for name, port in runner.inputs.items():
            runner.bind(self._binding, port, self.inputs[name], is_output=False)
        for port, tensor in zip(runner.outputs.values(), self.outputs, strict=True):
            runner.bind(self._binding, port, tensor, is_output=True)
        self._options = run_options(runner.device, graph_id)

    def run(self, session: onnxruntime.InferenceSession) -> None:
        """Compute the outputs."""
        session.run_with_iobinding(self._binding, self._options)
