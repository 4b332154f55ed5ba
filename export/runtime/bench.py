"""An exported file beside the PyTorch model that it came from: latency, throughput and difference, in one run."""

import json
import os
import platform
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np
import onnxruntime
import torch
from torch import Tensor, nn

from lit_gelu.display import Displayed
from lit_gelu.export.copying import without_callers_autocast
from lit_gelu.export.runtime.model_file import Port, bind_names, made_inputs
from lit_gelu.export.runtime.module_call import answer, arguments_for, ends_with_softmax, float64_answer
from lit_gelu.export.runtime.predictor import OnnxPredictor
from lit_gelu.export.runtime.session import Provider, session_options
from lit_gelu.export.runtime.timing import arrays_of, interleaved, ratio, relative_error
from lit_gelu.export.runtime.tuning_file import processor
from lit_gelu.surgery.recognition import faithful_copy
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
    ratio: float  # time beside the first PyTorch variant's, or the first variant's if there is none
    error: float  # see `relative_error`; against the module in float64, without a module against the first variant


@dataclass(frozen=True, repr=False)
class BenchReport(Displayed):
    """What `bench` measured."""

    path: str
    baseline: str  # the variant that ratios are to
    device: str
    provider: str
    threads: int  # of PyTorch, and of onnxruntime where it is not tuned
    tuning: str  # what onnxruntime was tuned to, in words
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
    backend: str = "inductor",
) -> BenchReport:
    """Time a file, tuned if it was tuned, beside PyTorch: in one process, after warming up, in shuffled rounds.

    Inputs lie on the device that computes and are passed without copies. On CUDA, times are between events.

    Args:
        path: The file.
        model: The module that it came from; it is copied and run in evaluation mode, in the dtype of the file's inputs.
        batch_sizes: Rows of a call.
        inputs: What to run on, cut or repeated to the batch sizes; by default rows are made up in the file's shapes,
            unless a size beside the batch is open.
        providers: As `OnnxPredictor` takes them.
        threads: Of PyTorch and of the session, unless it is tuned; by default as many as PyTorch has.
        seconds: How long to measure, for each batch size.
        compiled: Whether torch.compile runs too.
        backend: Of torch.compile.

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
    options = session_options({"intra_op_num_threads": threads})
    plain, tuned = OnnxPredictor(path, providers, options, tuning=False), OnnxPredictor(path, providers)
    variants = [] if model is None else torch_variants(model, plain, compiled=compiled, backend=backend)
    if tuned.tuning is not None and tuned.tuning.settings:
        variants += [Variant("onnxruntime", tuned), Variant("onnxruntime, untuned", plain)]
    else:
        variants.append(Variant("onnxruntime", plain))
    first = next(iter(plain.ports.values())).shape[:1]
    fixed = [size for size in first if isinstance(size, int)]  # the batch, if the file has one alone
    rows: list[BenchRow] = []
    torch.set_num_threads(threads)
    try:
        with torch.inference_mode():
            for size in fixed or batch_sizes:
                values = made_inputs(plain.ports, size) if inputs is None else resized(inputs, plain.ports, size)
                values = {name: value.to(plain.device) for name, value in values.items()}
                softmax = ends_with_softmax(plain.metadata)
                exact = None if model is None else arrays_of(float64_answer(model, values, softmax=softmax))
                rows += measured(variants, values, size, plain.device, seconds, exact)
    finally:
        torch.set_num_threads(before)
    return BenchReport(
        path=os.fspath(path),
        baseline=variants[0].name,
        device=torch.cuda.get_device_name(plain.device) if plain.device.type == "cuda" else processor(),
        provider=plain.providers[0],
        threads=threads,
        tuning="" if tuned.tuning is None else str(tuned.tuning),
        versions={
            "torch": torch.__version__,
            "onnxruntime": onnxruntime.__version__,
            "python": platform.python_version(),
        },
        rows=tuple(rows),
    )


def torch_variants(
    model: nn.Module, predictor: OnnxPredictor, *, compiled: bool, backend: str = "inductor"
) -> list[Variant]:
    """Return the ways in which PyTorch runs a module, in evaluation mode, on the predictor's device."""
    dtypes = [
        port.dtype for port in predictor.ports.values() if port.dtype is not None and port.dtype.is_floating_point
    ]
    # Both are asked once: that would take as long as a small net.
    arguments = arguments_for(without_wrappers(model), predictor.input_names)
    called = partial(answer, arguments=arguments, softmax=ends_with_softmax(predictor.metadata))
    twin = faithful_copy(without_wrappers(model)).eval().to(predictor.device, dtypes[0] if dtypes else None)
    variants = [Variant("torch eager", partial(called, twin))]
    if compiled:
        fast: Any = torch.compile(faithful_copy(twin), backend=backend, dynamic=False)
        variants.append(Variant("torch.compile", partial(called, fast)))
    return variants


def resized(inputs: Mapping[str, Tensor], ports: Mapping[str, Port], size: int) -> dict[str, Tensor]:
    """Return inputs of a batch size, their rows cut or repeated; those without a batch stay."""
    batch = next((port.shape[0] for port in ports.values() if port.shape), None)
    values: dict[str, Tensor] = {}
    for name, value in bind_names(list(ports), (), inputs).items():
        values[name] = torch.as_tensor(value)
        for axis, length in enumerate(ports[name].shape):
            # A state has the batch on another axis than the first, and there it is called as the batch is.
            if not isinstance(length, int) and (axis == 0 or (length is not None and length == batch)):
                rows = torch.arange(size, device=values[name].device) % values[name].shape[axis]
                values[name] = values[name].index_select(axis, rows)
    return values


def measured(
    variants: Sequence[Variant],
    values: Mapping[str, Tensor],
    size: int,
    device: torch.device,
    seconds: float,
    exact: Sequence[np.ndarray] | None = None,
) -> list[BenchRow]:
    """Time variants on the same inputs: ratios are to the first, and so are errors if there are no exact outputs."""
    # A forward may overwrite its inputs, so each variant has its own.
    calls = {v.name: partial(v.call, {name: value.clone() for name, value in values.items()}) for v in variants}
    outputs = {name: arrays_of(call()) for name, call in calls.items()}
    samples = interleaved(calls, device, seconds=seconds)
    baseline, rows = variants[0].name, []
    for name, times in samples.items():
        error = relative_error(outputs[name], outputs[baseline] if exact is None else exact)
        median, p90 = (float(value) for value in np.percentile(times, [50, 90]))
        throughput = size / statistics.fmean(times)
        rows.append(BenchRow(size, name, median, p90, throughput, ratio(samples, name, baseline), error))
    return rows
