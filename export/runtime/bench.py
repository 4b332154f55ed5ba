"""An exported file beside the PyTorch model that it came from: latency, throughput and difference, in one run."""

import json
import os
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, cast

import numpy as np
import onnxruntime
import torch
from torch import Tensor, nn

from lit_gelu.display import Displayed, HtmlTable
from lit_gelu.export.copying import without_callers_autocast
from lit_gelu.export.inputs import named_outputs
from lit_gelu.export.runtime.module_call import answer, arguments_for, ends_with_softmax, float64_answer
from lit_gelu.export.runtime.ports import Port, bind_names, made_inputs
from lit_gelu.export.runtime.predictor import OnnxPredictor
from lit_gelu.export.runtime.providers import Provider
from lit_gelu.export.runtime.settings import session_options
from lit_gelu.export.runtime.timing import IN_A_ROW, Latency, interleaved, latency, ratio
from lit_gelu.export.runtime.tuning import relative_error
from lit_gelu.export.runtime.tuning_file import processor
from lit_gelu.surgery.recognition import faithful_copy
from lit_gelu.surgery.sites import without_wrappers

EAGER = "torch eager"

Compute = Callable[[Mapping[str, Tensor]], Any]


@dataclass(frozen=True)
class Variant:
    """One way to compute the outputs."""

    name: str
    call: Compute


def torch_variants(
    model: nn.Module, predictor: OnnxPredictor, *, compiled: bool, channels_last: bool, backend: str
) -> list[Variant]:
    """Return the ways in which PyTorch runs a module, in evaluation mode, on the predictor's device."""
    dtypes = [
        port.dtype for port in predictor.ports.values() if port.dtype is not None and port.dtype.is_floating_point
    ]
    # Both are asked once: that would take as long as a small net.
    arguments, softmax = (
        arguments_for(without_wrappers(model), predictor.input_names),
        ends_with_softmax(predictor.metadata),
    )
    called = partial(answer, arguments=arguments, softmax=softmax)
    twin = faithful_copy(without_wrappers(model)).eval().to(predictor.device, dtypes[0] if dtypes else None)
    variants = [Variant(EAGER, partial(called, twin))]
    if channels_last:
        other: nn.Module = faithful_copy(twin).to(memory_format=torch.channels_last)
        variants.append(Variant("torch channels_last", lambda values: called(other, _channels_last(values))))
    if compiled:
        fast: Any = torch.compile(faithful_copy(twin), backend=backend, dynamic=False)
        variants.append(Variant("torch.compile", partial(called, fast)))
    return variants


def float64_outputs(model: nn.Module, values: Mapping[str, Tensor], *, softmax: bool = False) -> list[np.ndarray]:
    """Return a copied module's outputs in float64, where its inputs lie."""
    return arrays_of(float64_answer(model, values, softmax=softmax))


def resized(inputs: Mapping[str, Tensor], ports: Mapping[str, Port], size: int) -> dict[str, Tensor]:
    """Return inputs of a batch size, their rows cut or repeated; those without a batch stay."""
    given = cast("dict[str, Tensor]", bind_names(list(ports), (), inputs))
    batch = next((port.shape[0] for port in ports.values() if port.shape), None)
    found = {}
    for name, value in given.items():
        for axis, length in enumerate(ports[name].shape):
            # A state has the batch on another axis than the first, and there it is called as the batch is.
            if not isinstance(length, int) and (axis == 0 or (length is not None and length == batch)):
                rows = torch.arange(size, device=value.device) % value.shape[axis]
                value = value.index_select(axis, rows)
        found[name] = value
    return found


def _channels_last(values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {
        name: value.contiguous(memory_format=torch.channels_last) if value.ndim == 4 else value
        for name, value in values.items()
    }


def arrays_of(outputs: Any) -> list[np.ndarray]:
    """Return a tensor, or several in a sequence or mapping, as arrays in float64."""
    return [output.double().cpu().numpy() for _, output in named_outputs(outputs)]


ONNX = "onnxruntime"


@dataclass(frozen=True)
class BenchRow:
    """One way to compute the outputs, at one batch size."""

    batch_size: int
    variant: str  # "onnxruntime", "torch eager" and so on
    latency: Latency
    in_a_row: float  # mean seconds of a call among calls that follow each other without a wait, as CUDA allows
    throughput: float  # rows a second, of such calls
    ratio: float  # time beside the first PyTorch variant's, or the first variant's if there is none
    error: float  # see `relative_error`; against the module in float64, without a module against the first variant


@dataclass(frozen=True, repr=False)
class BenchReport(Displayed):
    """What `bench` measured.

    Args:
        path: The file.
        baseline: The variant that ratios are to.
        device: What it ran on.
        provider: onnxruntime's execution provider.
        threads: Threads of PyTorch, and of onnxruntime where it is not tuned.
        tuning: What onnxruntime was tuned to, in words; empty if it is not tuned.
        versions: Of torch and onnxruntime.
        rows: The measurements.
    """

    path: str
    baseline: str
    device: str
    provider: str
    threads: int
    tuning: str
    versions: Mapping[str, str]
    rows: tuple[BenchRow, ...]

    def to_json(self) -> str:
        """Return the report as JSON; times in seconds.

        Returns:
            The text.
        """
        return json.dumps(asdict(self), indent=2)

    def _summary(self) -> str:
        rows = ", ".join(f"{row.variant} x {row.batch_size} {row.ratio:.3g}" for row in self.rows)
        return f"{self.path!r}, {self.provider}, time beside {self.baseline}: {rows}"

    def _html_table(self) -> HtmlTable:
        rows = [
            (row.batch_size, row.variant, f"{1e6 * row.latency.p50:.4g}", row.throughput, row.ratio, row.error)
            for row in self.rows
        ]
        head = ("batch size", "variant", "median, microseconds", "rows a second", f"time / {self.baseline}", "error")
        return HtmlTable(head, rows, f"{self.path} on {self.device}, {self.provider}")


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
    channels_last: bool = False,
    backend: str = "inductor",
    batch_buckets: Sequence[int] = (),
) -> BenchReport:
    """Time a file, tuned if it was tuned, beside PyTorch: in one process, after warming up, in shuffled rounds.

    Inputs lie on the device that computes and are passed without copies. On CUDA, times are between events, of
    single calls and of calls in a row.

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
        channels_last: Whether eager PyTorch runs in that memory format too.
        backend: Of torch.compile.
        batch_buckets: As `OnnxPredictor` takes them.

    Returns:
        Percentiles, throughput, ratios and differences.

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
    threads = torch.get_num_threads() if threads is None else threads
    predictors = _predictors(path, providers, threads, batch_buckets)
    first = predictors[ONNX]
    variants = (
        []
        if model is None
        else torch_variants(model, first, compiled=compiled, channels_last=channels_last, backend=backend)
    )
    variants += [Variant(name, _of_predictor(predictor)) for name, predictor in predictors.items()]
    rows: list[BenchRow] = []
    with _threads(threads), torch.inference_mode():
        for size in batch_sizes:
            values = made_inputs(first.ports, size) if inputs is None else resized(inputs, first.ports, size)
            values = {name: value.to(first.device) for name, value in values.items()}
            softmax = ends_with_softmax(first.metadata)
            exact = None if model is None else float64_outputs(model, values, softmax=softmax)
            rows += measured(variants, values, size, first.device, seconds, exact)
    return BenchReport(
        path=os.fspath(path),
        baseline=variants[0].name,
        device=torch.cuda.get_device_name(first.device) if first.device.type == "cuda" else processor(),
        provider=first.providers[0],
        threads=threads,
        tuning="" if first.tuning is None else str(first.tuning),
        versions={
            "torch": torch.__version__,
            "onnxruntime": onnxruntime.__version__,
            "python": platform.python_version(),
        },
        rows=tuple(rows),
    )


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
    inputs = {variant.name: {name: value.clone() for name, value in values.items()} for variant in variants}
    outputs = {variant.name: arrays_of(variant.call(inputs[variant.name])) for variant in variants}
    calls = {variant.name: partial(variant.call, inputs[variant.name]) for variant in variants}
    queued = device.type == "cuda"  # elsewhere a call ends with its work, and there is nothing to overlap
    samples = interleaved(calls, device, seconds=seconds / 2 if queued else seconds)
    together = interleaved(calls, device, seconds=seconds / 2, in_a_row=IN_A_ROW) if queued else samples
    baseline = variants[0].name
    rows = []
    for variant in variants:
        times = latency(samples[variant.name])
        error = relative_error(outputs[variant.name], outputs[baseline] if exact is None else exact)
        beside = ratio(samples, variant.name, baseline)
        mean = latency(together[variant.name]).mean
        rows.append(BenchRow(size, variant.name, times, mean, size / mean, beside, error))
    return rows


def _predictors(
    path: str | os.PathLike[str], providers: Sequence[Provider] | None, threads: int, buckets: Sequence[int]
) -> dict[str, OnnxPredictor]:
    """Return the tuned session and the untuned one, or the untuned one alone."""
    tuned = OnnxPredictor(path, providers, batch_buckets=buckets)
    options = session_options({"intra_op_num_threads": threads})
    plain = OnnxPredictor(path, providers, options, tuning=False)
    if tuned.tuning is not None and tuned.tuning.settings:
        return {ONNX: tuned, f"{ONNX}, untuned": plain}
    if buckets:
        return {ONNX: tuned, f"{ONNX}, no graph": plain}
    return {ONNX: plain}


def _of_predictor(predictor: OnnxPredictor) -> Compute:
    return lambda values: predictor(*values.values())


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """Let PyTorch use a number of threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
