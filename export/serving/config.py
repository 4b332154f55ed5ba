"""A model's configuration, ``ModelConfig`` of Triton's model_config.proto, from its tensors and how it is served."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from google.protobuf import text_encoding  # type: ignore[import-untyped]

from lit_gelu.export.errors import ExportOptionError
from lit_gelu.export.serving.backend import PROVIDERS, BackendSettings
from lit_gelu.export.serving.tensors import DYNAMIC, TritonTensor, batch_name, first_name, inner_places


class Word(str):
    """The name of an enumeration's value, which stands without quotation marks."""

    __slots__ = ()


LABELS_FILE = "labels.txt"
MAX_BATCH_SIZE = 128  # where none is given: the largest that `lit-gelu bench` times by default
_KINDS = {"cpu": Word("KIND_CPU"), "gpu": Word("KIND_GPU")}


@dataclass(frozen=True)
class ServingOptions:
    """How Triton serves a model; see `lit_gelu.export.serving.write_triton_repository`."""

    device: str  # cpu or gpu
    # Rows of the largest batch, 0 for no batches; None: `MAX_BATCH_SIZE` where the file has one.
    max_batch_size: int | None = None
    preferred_batch_sizes: tuple[int, ...] = ()  # sizes that the dynamic batcher tries to reach
    max_queue_delay_us: int = 0  # how long it waits for more requests, in microseconds
    instances: int = 1  # copies of the model, on each GPU
    warmup: tuple[int, ...] = ()  # batch sizes that run once before the model takes requests

    def __post_init__(self) -> None:
        """Refuse what Triton would refuse when it loads the model."""
        if self.device not in PROVIDERS:
            raise ExportOptionError(f"device={self.device!r} is not accepted. Give 'cpu' or 'gpu'.")
        for name in ("preferred_batch_sizes", "warmup", "instances"):
            given = getattr(self, name)
            if min(given if isinstance(given, tuple) else (given,), default=1) < 1:
                raise ExportOptionError(f"{name}={given!r} is not accepted. Give whole numbers from 1 on.")
        for name in ("max_batch_size", "max_queue_delay_us"):
            if (getattr(self, name) or 0) < 0:
                raise ExportOptionError(f"{name}={getattr(self, name)!r} is not accepted. Give a number from 0 on.")


def largest_batch(tensors: Sequence[TritonTensor], wanted: int | None, *, rows_depend: bool = False) -> int:
    """Return ``max_batch_size``: 0 but where every tensor begins with a batch, whose rows do not see each other."""
    if batch_name(tensors) and not rows_depend:
        return MAX_BATCH_SIZE if wanted is None else wanted
    if wanted and first_name(tensors):
        raise ExportOptionError(
            f"max_batch_size={wanted} needs rows that do not see each other; in the file {_shared_rows(tensors)}. "
            "Leave max_batch_size out, and requests are passed on one by one."
        )
    if wanted:
        raise ExportOptionError(
            f"max_batch_size={wanted} needs a dynamic batch as the first size of every input and output; the file has "
            f"{_first_sizes(tensors)}. Leave max_batch_size out, or export the file with a batch."
        )
    return 0


def no_batch_note(tensors: Sequence[TritonTensor], *, rows_depend: bool = False) -> str:
    """Say why Triton does not batch requests."""
    if batch_name(tensors) and not rows_depend:
        return ""
    if first_name(tensors):
        return f"Triton passes requests on one by one: {_shared_rows(tensors)}."
    return f"Triton passes requests on one by one: not all tensors begin with the batch ({_first_sizes(tensors)})."


def _shared_rows(tensors: Sequence[TritonTensor]) -> str:
    """Say where the batch is the size of something else, so that requests cannot be joined."""
    name = first_name(tensors)
    if not inner_places(tensors, name):
        return f"rows of {name!r} see each other, as the export found"
    return f"rows of a batch see each other, for {name!r} is also in {', '.join(inner_places(tensors, name))}"


def _first_sizes(tensors: Sequence[TritonTensor]) -> str:
    """Return the first size of each tensor as text."""
    first = {tensor.name: tensor.rows or (tensor.sizes[:1] or ("no sizes",))[0] for tensor in tensors}
    return ", ".join(f"{name}: {'dynamic, no name' if size == DYNAMIC else size}" for name, size in first.items())


def model_config(
    name: str,
    inputs: Sequence[TritonTensor],
    outputs: Sequence[TritonTensor],
    options: ServingOptions,
    backend: BackendSettings,
    *,
    labels: bool = False,
    rows_depend: bool = False,
) -> dict[str, Any]:
    """Return a model's configuration."""
    largest = largest_batch([*inputs, *outputs], options.max_batch_size, rows_depend=rows_depend)
    config: dict[str, Any] = {"name": name, "backend": "onnxruntime", "max_batch_size": largest}
    config["input"] = [_tensor(tensor, largest) for tensor in inputs]
    config["output"] = [_tensor(tensor, largest) for tensor in outputs]
    if labels:
        config["output"][0]["label_filename"] = LABELS_FILE
    config["instance_group"] = [{"kind": _KINDS[options.device], "count": options.instances}]
    if largest > 1:
        config["dynamic_batching"] = _batching(options, largest)
    optimization = _optimization(backend)
    if optimization:
        config["optimization"] = optimization
    if backend.parameters:
        config["parameters"] = [{"key": k, "value": {"string_value": v}} for k, v in backend.parameters.items()]
    if options.warmup:
        _require_at_most(largest, "warmup", options.warmup)
        config["model_warmup"] = [_warmup(inputs, rows, largest) for rows in options.warmup]
    return config


def _tensor(tensor: TritonTensor, largest: int) -> dict[str, Any]:
    """Return an input or output; Triton adds the batch in front, and takes no tensor without sizes."""
    entry: dict[str, Any] = {"name": tensor.name, "data_type": Word(tensor.data_type)}
    sizes = list(tensor.sizes[1:] if largest else tensor.sizes)
    return {**entry, "dims": sizes} if sizes else {**entry, "dims": [1], "reshape": {"shape": []}}


def _batching(options: ServingOptions, largest: int) -> dict[str, Any]:
    """Return how requests are joined."""
    batching: dict[str, Any] = {}
    if options.preferred_batch_sizes:
        _require_at_most(largest, "preferred_batch_sizes", options.preferred_batch_sizes)
        batching["preferred_batch_size"] = sorted(set(options.preferred_batch_sizes))
    if options.max_queue_delay_us:
        batching["max_queue_delay_microseconds"] = options.max_queue_delay_us
    return batching


def _require_at_most(largest: int, name: str, sizes: Sequence[int]) -> None:
    """Refuse batch sizes that Triton never makes."""
    if max(sizes, default=1) > max(largest, 1):
        raise ExportOptionError(
            f"{name}={list(sizes)} goes beyond the largest batch, max_batch_size={largest}. Give sizes up to that."
        )


def _optimization(backend: BackendSettings) -> dict[str, Any]:
    """Return what the backend is told of its graph optimisations and of CUDA."""
    optimization: dict[str, Any] = {}
    if backend.graph_level is not None:
        optimization["graph"] = {"level": backend.graph_level}
    if backend.cuda:
        parameters = [{"key": key, "value": value} for key, value in backend.cuda.items()]
        cuda = {"name": "cuda", "parameters": parameters}
        optimization["execution_accelerators"] = {"gpu_execution_accelerator": [cuda]}
    return optimization


def _warmup(inputs: Sequence[TritonTensor], rows: int, largest: int) -> dict[str, Any]:
    """Return one request of zeros, which every type has."""
    entries = []
    for tensor in inputs:
        dims = _tensor(tensor, largest)["dims"]
        if DYNAMIC in dims:
            raise ExportOptionError(
                f"warmup= needs sizes that are fixed, but for the batch; input {tensor.name!r} has "
                f"{list(tensor.sizes)}. Leave warmup= out, and write model_warmup into config.pbtxt by hand."
            )
        value = {"data_type": Word(tensor.data_type), "dims": dims, "zero_data": True}
        entries.append({"key": tensor.name, "value": value})
    return {"name": f"{rows} rows of zeros", "batch_size": rows, "inputs": entries}


def to_text(message: Mapping[str, Any]) -> str:
    """Write a message, values by field name, in protobuf's text format."""
    return "".join(f"{line}\n" for line in _lines(message))


def _lines(message: Mapping[str, Any]) -> Iterator[str]:
    """Yield a message's lines."""
    for name, value in message.items():
        if isinstance(value, (list, tuple)) and not any(isinstance(item, Mapping) for item in value):
            yield f"{name}: [ {', '.join(map(_scalar, value))} ]" if value else f"{name}: [ ]"
            continue
        for item in value if isinstance(value, (list, tuple)) else [value]:
            if isinstance(item, Mapping):
                yield f"{name} {{"
                yield from (f"  {line}" for line in _lines(item))
                yield "}"
            else:
                yield f"{name}: {_scalar(item)}"


def _scalar(value: bool | int | str) -> str:
    """Return a value that is no message."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, Word)):
        return str(value)
    return f'"{text_encoding.CEscape(value, as_utf8=True)}"'
