"""Calls of any size through sessions of few, fixed ones."""

import itertools
import threading
from collections.abc import Iterable, Mapping

import onnxruntime
import torch
from torch import Tensor

from lit_gelu.export.errors import ModelInputError
from lit_gelu.export.runtime.binding import TensorRunner, run_options
from lit_gelu.export.runtime.ports import Port, named_sizes
from lit_gelu.export.runtime.settings import BATCH, Buckets

ROWS_DEPEND = "lit_gelu.rows_depend"  # an entry of a file's metadata
_WHOLE = ("tensor(int", "tensor(uint", "tensor(bool")


def pieces(rows: int, largest: int) -> list[slice]:
    """Divide a call into as few runs as the largest bucket allows; no rows are one run too."""
    return [slice(start, min(start + largest, rows)) for start in range(0, max(rows, 1), largest)]


def bucket_axes(
    inputs: Mapping[str, Port], outputs: Mapping[str, Port], buckets: Buckets
) -> tuple[str | None, dict[str, tuple[int, ...]]]:
    """Return the name of the batch, if there is one, and the sizes of every open axis of a file by its name."""
    ports = [*inputs.values(), *outputs.values()]
    first = {port.shape[:1] for port in (ports[0], *outputs.values())}  # the batch
    name = next(iter(first.pop()), None) if len(first) == 1 else None
    batch = name if isinstance(name, str) and not any(name in port.shape[1:] for port in ports) else None
    axes = {batch if name == BATCH and batch else name: tuple(sizes) for name, sizes in buckets.items()}
    needed = {size for port in ports for size in port.shape if not isinstance(size, int)}
    if needed != axes.keys() or any(not _with_size(inputs, name) for name in axes):
        raise ModelInputError(
            "Buckets need every open size of the inputs by its name, and outputs of these sizes alone; batch_buckets= "
            "is for files with one open size, the first of the first input and of every output, and all other sizes "
            f"fixed; here: {_shown(ports)}. Give buckets={{'batch': (1, 8), 'sequence': (64, 128)}} with the file's "
            "own names, export the file with fixed sizes, or leave buckets out."
        )
    return batch, axes


def require_harmless(inputs: Mapping[str, Port], padded: Iterable[str], padding: Mapping[str, float]) -> None:
    """Refuse to pad a size, but where a mask says what is padding, or the caller what stands in all inputs with it."""
    if unknown := padding.keys() - inputs.keys():
        raise ModelInputError(f"padding= names {', '.join(sorted(unknown))}. The inputs are {', '.join(inputs)}.")
    for name in padded:
        ports = _with_size(inputs, name)
        masked = any(port.name.endswith("attention_mask") and port.type_name.startswith(_WHOLE) for port in ports)
        if not masked and any(port.name not in padding for port in ports):
            values = ", ".join(f"{port.name!r}: 0" for port in ports)
            raise ModelInputError(
                f"Padding {name!r} can change what the file computes: no input with that size is a mask (named "
                "...attention_mask, of whole numbers or Booleans, 0 for padding); here: "
                f"{_shown(ports)}. If it cannot, say what stands there: padding={{{values}}}. Or export the file with "
                "that size fixed."
            )


def _with_size(inputs: Mapping[str, Port], name: str | None) -> list[Port]:
    """Return the inputs that have an open size."""
    return [port for port in inputs.values() if name in port.shape]


def _shown(ports: Iterable[Port]) -> str:
    return ", ".join(f"{port.name} {port.shape}" for port in ports)


class BucketRunner:
    """Runs a session at a few sizes, each with buffers of its own; on CUDA as one CUDA graph each.

    Inputs are copied into the bucket's buffers, and the outputs' parts out of them. Beyond a call's own sizes stands
    what ``padding`` has by input, or 0. If the file says that the rows of its first axis see each other, that axis is
    no batch: without ``padding`` for it, it must have a bucket's own size. Every bucket runs once here, which is when
    onnxruntime captures its graph.
    """

    def __init__(self, runner: TensorRunner, buckets: Buckets, padding: Mapping[str, float] | None = None) -> None:
        self.runner, self._padding = runner, padding or {}
        self._batch, self.buckets = bucket_axes(runner.inputs, runner.outputs, buckets)
        self._fixed: str | None = None
        if self._batch and runner.session.get_modelmeta().custom_metadata_map.get(ROWS_DEPEND) == "true":
            known = all(port.name in self._padding for port in _with_size(runner.inputs, self._batch))
            self._batch, self._fixed = None, None if known else self._batch
        require_harmless(runner.inputs, self.buckets.keys() - {self._batch, self._fixed}, self._padding)
        self._lock = threading.Lock()  # two threads must not use the same buffers at once
        combined = [dict(zip(self.buckets, sizes, strict=True)) for sizes in itertools.product(*self.buckets.values())]
        with torch.inference_mode(mode=False):  # its tensors could not be written outside of it
            self._buffers = {tuple(s.values()): _Buffers(runner, s, number) for number, s in enumerate(combined, 1)}
        self.capture()

    def capture(self) -> None:
        """Run every bucket once: onnxruntime captures the graphs of the calling thread."""
        for buffers in self._buffers.values():
            buffers.run(self.runner.session)

    def __call__(self, tensors: Mapping[str, Tensor]) -> list[Tensor]:
        """Run the session, and return outputs of the inputs' sizes."""
        sizes = self._sizes(tensors)
        if self._fixed and sizes[self._fixed] not in self.buckets[self._fixed]:
            raise self._other_rows(self._fixed, sizes[self._fixed])
        if self._batch is None:
            return self._run(tensors, sizes)
        first, parts = (self._batch,), []
        for piece in pieces(sizes[self._batch], self.buckets[self._batch][-1]):
            rows = {name: t[piece] if self.runner.inputs[name].shape[:1] == first else t for name, t in tensors.items()}
            parts.append(self._run(rows, {**sizes, self._batch: piece.stop - piece.start}))
        return parts[0] if len(parts) == 1 else [torch.cat(outputs) for outputs in zip(*parts, strict=True)]

    def _other_rows(self, name: str, rows: int) -> ModelInputError:
        """Return the error for a size that no bucket has, where rows see each other."""
        ports = ", ".join(f"{port.name!r}: 0" for port in _with_size(self.runner.inputs, name))
        return ModelInputError(
            f"The call has {rows} rows, and the buckets of {name!r} are {list(self.buckets[name])}. Rows of this file "
            "see each other, so that it can be neither padded nor divided. Give a bucket of that size, leave buckets "
            f"out, or, if the file computes the same with padding behind the rows, say what it is: padding={{{ports}}}."
        )

    def holds(self, tensors: Mapping[str, Tensor]) -> bool:
        """Return whether a call has exactly a bucket's sizes, and needs no padding."""
        return tuple(self._sizes(tensors).values()) in self._buffers

    def _sizes(self, tensors: Mapping[str, Tensor]) -> dict[str, int]:
        """Return the sizes of a call by name."""
        shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        found = named_sizes(self.runner.inputs, shapes)
        for name, buckets in self.buckets.items():
            if name not in found or (found[name] > buckets[-1] and name not in {self._batch, self._fixed}):
                raise ModelInputError(
                    f"The size {name!r} has to be the same in all inputs, and at most {buckets[-1]}, its largest "
                    f"bucket; here: {', '.join(f'{key} {shape}' for key, shape in shapes.items())}."
                )
        return {name: found[name] for name in self.buckets}

    def _run(self, tensors: Mapping[str, Tensor], sizes: Mapping[str, int]) -> list[Tensor]:
        """Run what fits into a bucket: into the smallest."""
        buckets = {name: next(b for b in self.buckets[name] if b >= size) for name, size in sizes.items()}
        padded = {name for name, size in sizes.items() if size < buckets[name]}
        buffers = self._buffers[tuple(buckets.values())]
        with self._lock:
            for name, tensor in tensors.items():
                if padded & set(self.runner.inputs[name].shape):
                    buffers.inputs[name].fill_(self._padding.get(name, 0))
                buffers.inputs[name][_part(self.runner.inputs[name], sizes)].copy_(tensor)
            buffers.run(self.runner.session)
            ports = self.runner.outputs.values()
            return [y[_part(port, sizes)].clone() for port, y in zip(ports, buffers.outputs, strict=True)]


def _part(port: Port, sizes: Mapping[str, int]) -> tuple[slice, ...]:
    """Return where a call's values stand in a bucket's buffer."""
    return tuple(slice(sizes.get(str(size))) for size in port.shape)


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
