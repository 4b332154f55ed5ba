"""An exported file beside the PyTorch model that it came from: latency, throughput and difference, in one run."""

import contextlib
import inspect
import json
import os
import platform
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
from torch import Tensor, nn

from lit_gelu.display import Displayed
from lit_gelu.export.copying import relative_difference, without_callers_autocast
from lit_gelu.export.inputs import as_array, named_outputs, probabilities_first
from lit_gelu.export.runtime.model_file import Port, bind_names, random_inputs
from lit_gelu.export.runtime.predictor import OnnxPredictor
from lit_gelu.export.runtime.session import Provider
from lit_gelu.sandbox import faithful_copy
from lit_gelu.surgery.sites import without_wrappers


@dataclass(frozen=True)
class Variant:
    """One way to compute the outputs."""

    name: str
    call: Callable[[Mapping[str, Tensor]], Any]


@dataclass(frozen=True)
class BenchRow:
    """One way to compute the outputs, at one batch size."""

    batch_size: int
    variant: str  # "onnxruntime", "torch eager" and so on
    median: float  # seconds of a call
    p90: float  # nine of ten calls take at most this
    throughput: float  # rows a second
    ratio: float  # time beside the first variant's, PyTorch's where there is a model
    error: float  # see `relative_error`, against the first variant


@dataclass(frozen=True, repr=False)
class BenchReport(Displayed):
    """What `bench` measured."""

    path: str
    baseline: str  # the variant that ratios are to
    device: str
    provider: str
    threads: int  # of PyTorch and of onnxruntime
    versions: Mapping[str, str]  # of torch, onnxruntime and Python
    rows: tuple[BenchRow, ...]

    def to_json(self) -> str:
        """Return the report as JSON; times in seconds."""
        return json.dumps(asdict(self), indent=2)

    def _summary(self) -> str:
        rows = ", ".join(f"{row.variant} x {row.batch_size} {row.ratio:.3g}" for row in self.rows)
        return f"{self.path!r}, {self.provider}, time beside {self.baseline}: {rows}"


@without_callers_autocast()
def bench(
    path: str | os.PathLike[str],
    model: nn.Module | None = None,
    *,
    batch_sizes: Sequence[int] = (1, 128),
    inputs: Mapping[str, Tensor] | None = None,
    providers: Sequence[Provider] | None = None,
    threads: int | None = None,
    seconds: float = 5.0,
    compiled: bool = True,
) -> BenchReport:
    """Time a file beside PyTorch: in one process, after warming up, in shuffled rounds.

    Outputs are compared with the first variant's, PyTorch's, so that a wrong file shows. Inputs lie on the device that
    computes. On CUDA, times are between events.

    Args:
        path: The file.
        model: The module that it came from; it is copied and run in evaluation mode, in the dtype of the file's inputs.
        batch_sizes: Rows of a call.
        inputs: What to run on, cut or repeated to the batch sizes; by default rows are made up in the file's shapes,
            unless a size beside the batch is open.
        providers: As `OnnxPredictor` takes them.
        threads: Of PyTorch and of the session; by default as many as PyTorch has.
        seconds: How long to measure, for each batch size.
        compiled: Whether torch.compile runs too.

    Returns:
        Medians, throughput, ratios and differences.

    Raises:
        ModelFileError: See `OnnxPredictor`.
        ModelInputError: If inputs do not fit, or cannot be made up.
        ProviderError: See `OnnxPredictor`.

    Example:
        >>> import pathlib, tempfile
        >>> from lit_gelu.export import export_onnx
        >>> net = nn.Sequential(nn.Linear(4, 8), nn.GELU())
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "net.onnx"
        >>> _ = export_onnx(net, path, torch.zeros(2, 4))
        >>> report = bench(path, net, batch_sizes=[2], seconds=0.0, compiled=False)
        >>> [row.variant for row in report.rows], max(row.error for row in report.rows) < 1e-5
        (['torch eager', 'onnxruntime'], True)
    """
    before = torch.get_num_threads()
    threads = before if threads is None else threads
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    predictor = OnnxPredictor(path, providers, options)
    variants = [] if model is None else torch_variants(model, predictor, compiled=compiled)
    variants.append(Variant("onnxruntime", predictor))
    ports, device = predictor.ports, predictor.device
    first = next(iter(ports.values())).shape[:1]
    fixed = [size for size in first if isinstance(size, int)]  # the batch, if the file has one alone
    rows: list[BenchRow] = []
    torch.set_num_threads(threads)
    try:
        with torch.inference_mode():
            for size in fixed or batch_sizes:
                values = random_inputs(ports, size) if inputs is None else resized(inputs, ports, size)
                values = {name: value.to(device) for name, value in values.items()}
                rows += measured(variants, values, size, device, seconds)
    finally:
        torch.set_num_threads(before)
    return BenchReport(
        path=os.fspath(path),
        baseline=variants[0].name,
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else processor(),
        provider=predictor.providers[0],
        threads=threads,
        versions={
            "torch": torch.__version__,
            "onnxruntime": onnxruntime.__version__,
            "python": platform.python_version(),
        },
        rows=tuple(rows),
    )


def processor() -> str:
    """Return the processor's name."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def torch_variants(model: nn.Module, predictor: OnnxPredictor, *, compiled: bool) -> list[Variant]:
    """Return the ways in which PyTorch runs a module, in evaluation mode, on the predictor's device."""
    ports = predictor.ports.values()
    dtypes = [port.dtype for port in ports if port.dtype is not None and port.dtype.is_floating_point]
    softmax = predictor.metadata.get("lit_gelu.softmax") == "true"
    try:  # nested inputs are no arguments of forward
        inspect.signature(without_wrappers(model).forward).bind(**dict.fromkeys(predictor.input_names))
        by_name = True
    except TypeError:
        by_name = False

    def called(module: nn.Module, inputs: Mapping[str, Tensor]) -> Any:
        output = module(**inputs) if by_name else module(*inputs.values())
        return probabilities_first(output) if softmax else output

    twin = faithful_copy(without_wrappers(model)).eval().to(predictor.device, dtypes[0] if dtypes else None)
    variants = [Variant("torch eager", partial(called, twin))]
    if compiled:
        fast: Any = torch.compile(faithful_copy(twin), dynamic=False)
        variants.append(Variant("torch.compile", partial(called, fast)))
    return variants


def resized(inputs: Mapping[str, Tensor], ports: Mapping[str, Port], size: int) -> dict[str, Tensor]:
    """Return inputs of a batch size, their rows cut or repeated; those without a batch stay."""
    batch = next((port.shape[0] for port in ports.values() if port.shape), None)
    values: dict[str, Tensor] = {}
    for name, value in bind_names(list(ports), (), inputs).items():
        values[name] = torch.as_tensor(value)
        for axis, length in enumerate(ports[name].shape):
            if not isinstance(length, int) and (axis == 0 or (length is not None and length == batch)):
                rows = torch.arange(size, device=values[name].device) % values[name].shape[axis]
                values[name] = values[name].index_select(axis, rows)
    return values


def measured(
    variants: Sequence[Variant], values: Mapping[str, Tensor], size: int, device: torch.device, seconds: float
) -> list[BenchRow]:
    """Time variants on the same inputs: ratios and errors are to the first."""
    # A forward may overwrite its inputs, so each variant has its own.
    calls = {v.name: partial(v.call, {name: value.clone() for name, value in values.items()}) for v in variants}
    outputs = {name: arrays_of(call()) for name, call in calls.items()}
    samples = interleaved(calls, device, seconds=seconds)
    baseline, rows = variants[0].name, []
    for name, times in samples.items():
        error = relative_error(outputs[name], outputs[baseline])
        median, p90 = (float(value) for value in np.percentile(times, [50, 90]))
        throughput = size / statistics.fmean(times)
        rows.append(BenchRow(size, name, median, p90, throughput, ratio(samples, name, baseline), error))
    return rows


def ratio(samples: Mapping[str, Sequence[float]], of: str, to: str) -> float:
    """Return how long one way takes beside another: the median of the rounds' ratios."""
    # A slow spell of the machine, which meets both in the same rounds, shifts it less than a ratio of medians.
    return statistics.median(a / b for a, b in zip(samples[of], samples[to], strict=True))


def interleaved(
    calls: Mapping[str, Callable[[], Any]],
    device: torch.device,
    *,
    seconds: float,
    rounds: tuple[int, int] = (5, 1000),
    warm_up: int = 3,
) -> dict[str, list[float]]:
    """Time calls in rounds, each of which runs all of them, in shuffled order; return seconds, one a round."""
    # After `seconds` no round begins; there are at least and at most as many as `rounds` says.
    for call in calls.values():
        for _ in range(warm_up):
            call()
    on_cuda = device.type == "cuda"
    order, names = random.Random(0), list(calls)  # noqa: S311 - the order of measurements is no secret
    samples: dict[str, list[float]] = {name: [] for name in names}
    end = time.perf_counter() + seconds
    with torch.cuda.device(device) if on_cuda else contextlib.nullcontext():
        for done in range(rounds[1]):
            if done >= rounds[0] and time.perf_counter() > end:
                break
            order.shuffle(names)
            for name in names:
                samples[name].append(_timed_cuda(calls[name]) if on_cuda else _timed(calls[name]))
    return samples


def _timed(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _timed_cuda(call: Callable[[], Any]) -> float:
    """Return seconds between two events, the device being idle before."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    torch.cuda.synchronize()
    start.record()
    call()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / 1000


def relative_error(outputs: Sequence[np.ndarray], reference: Sequence[np.ndarray]) -> float:
    """Return the largest error, each output's as a share of its largest reference value; infinite for another shape."""
    if len(outputs) != len(reference):
        return float("inf")
    largest = 0.0
    for y, exact in zip(outputs, reference, strict=True):
        finite = np.isfinite(exact)
        if y.shape != exact.shape or not np.array_equal(y[~finite], exact[~finite], equal_nan=True):
            return float("inf")
        largest = max(largest, relative_difference(y, exact) if np.isfinite(y[finite]).all() else float("inf"))
    return largest


def arrays_of(outputs: Any) -> list[np.ndarray]:
    """Return a tensor, or several in a sequence or mapping, as arrays in float64."""
    return [as_array(output).astype(np.float64) for _, output in named_outputs(outputs)]
