"""int8 files: onnxruntime's static quantisation, calibrated on data, and a check of what it costs on other data."""

import json
import os
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import torch
from onnxruntime.quantization import CalibrationDataReader, CalibrationMethod, QuantFormat, QuantType, quantize_static
from torch import Tensor, nn

from lit_gelu.activations import ActivationRegistry
from lit_gelu.activations.registry import registry_or_default
from lit_gelu.display import Displayed
from lit_gelu.errors import ArgumentError, ExportError, ModelFileError, ModelInputError, ParityError, message_of
from lit_gelu.export.copying import without_callers_autocast
from lit_gelu.export.inputs import as_array
from lit_gelu.export.metadata import PREFIX, metadata_of, read_metadata, save_model
from lit_gelu.export.parity.check import task_metrics
from lit_gelu.export.parity.input_families import data_batches, file_call, list_or_loader
from lit_gelu.export.parity.report import TaskMetric
from lit_gelu.export.parity.runs import References, file_inputs, open_predictor, output_faults, run_file
from lit_gelu.export.parity.structure import activation_faults
from lit_gelu.export.preprocessing import is_data_module, preprocessing_of_file
from lit_gelu.export.runtime import CPU, OnnxPredictor, Provider
from lit_gelu.export.runtime.model_file import INT8_RECORD, bind_names, read_model_file, require_fit
from lit_gelu.export.site_nodes import node_label, site_of
from lit_gelu.files import captured_stdout, is_file, parse_json, quiet, require_writable, without_nonfinite
from lit_gelu.surgery.sites import without_wrappers

MAX_DIFFERENCE = 0.01  # one row in a hundred
MIN_SQNR = 20.0  # decibels: an error of a tenth of the output, root of the mean square
_WEIGHTED = ("Conv", "Gemm", "MatMul")  # what onnxruntime has int8 kernels for
_PASSING = ("MaxPool", "Reshape", "Flatten", "Transpose", "Squeeze", "Unsqueeze")  # work on int8 without further error
_PREPROCESSING = "preprocessing."  # what names of its constants begin with: 8 bits do not hold a whitening matrix

Feed = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class QuantizationRecord:
    """How a file was quantised, as its metadata say it."""

    target: str
    rows: int  # that it was calibrated on
    activations: str  # of layers: uint8, or int8 with zero point 0
    layers: tuple[str, ...]  # in int8
    float_layers: tuple[str, ...]
    onnxruntime: str  # the version that quantised
    bounded: bool  # weights have 7 bits, so that processors without VNNI compute what others do

    def __str__(self) -> str:
        """Return one line for a person."""
        kept = f", {', '.join(self.float_layers)} in float32" if self.float_layers else ""
        return (
            f"{', '.join(self.layers)} in int8{kept}; {self.activations} activations, weights of "
            f"{7 if self.bounded else 8} bits; ranges of {self.rows} rows; target {self.target}"
        )


@dataclass(frozen=True, repr=False)
class QuantizationResult(Displayed):
    """What `quantize_onnx` wrote."""

    path: Path
    record: QuantizationRecord

    def __str__(self) -> str:
        """Return one line for the file and one for what was done."""
        return f"{self.path} (int8)\n  {self.record}"


@dataclass(frozen=True)
class OutputNoise:
    """What one output of the file is off by on the data, against PyTorch in float32."""

    output: str
    rows: int
    sqnr: float  # signal-to-quantisation-noise ratio, decibels; infinite for an output that is the same
    nonfinite: int  # entries that are NaN or infinite where PyTorch's are not
    changed: float | None  # share of rows with another largest logit, or of whole numbers that differ; else None


@dataclass(frozen=True)
class Criterion:
    """A figure that decides."""

    name: str
    value: float
    limit: float
    kind: Literal["at most", "at least"]

    @property
    def passed(self) -> bool:
        """Whether the figure is within its limit; NaN is not."""
        return self.value <= self.limit if self.kind == "at most" else self.value >= self.limit

    def __str__(self) -> str:
        """Return one line."""
        return f"{self.name}: {self.value:.4g}, {self.kind} {self.limit:g}: {'ok' if self.passed else 'FAILED'}"


@dataclass(frozen=True, repr=False)
class QuantizationReport(Displayed):
    """What `check_quantized` measured."""

    path: str
    provider: str  # the execution provider that really ran the file
    record: QuantizationRecord
    outputs: tuple[OutputNoise, ...]  # each against PyTorch in float32
    criteria: tuple[Criterion, ...]  # what decides
    metrics: tuple[TaskMetric, ...] = ()  # the module's own, on a LightningDataModule
    faults: tuple[str, ...] = ()  # where file, record and module do not agree; one is enough to fail
    notes: tuple[str, ...] = ()  # what could not be compared, and why

    @property
    def passed(self) -> bool:
        """Whether every criterion passed, there is one, no output is NaN or infinite, and there is no fault."""
        finite = not any(output.nonfinite for output in self.outputs)
        return finite and not self.faults and bool(self.criteria) and all(one.passed for one in self.criteria)

    def summary(self) -> str:
        """Return one line: the verdict and what decides."""
        reasons = [*self.faults, *(f"NaN or infinity in {o.output}" for o in self.outputs if o.nonfinite)]
        verdict = "passed" if self.passed else " ".join(["FAILED", *reasons])
        sqnr = ", ".join(f"{output.output} {output.sqnr:.1f} dB" for output in self.outputs)
        return f"int8 {verdict} on {self.provider}: {'; '.join(map(str, self.criteria))}; SQNR {sqnr}"

    def to_json(self) -> str:
        """Return the report as JSON; numbers that are not finite stand as text."""
        verdicts = {"passed": self.passed, "criteria": [{**asdict(one), "passed": one.passed} for one in self.criteria]}
        return json.dumps(without_nonfinite({**asdict(self), **verdicts}, as_text=True), indent=2, allow_nan=False)

    def __str__(self) -> str:
        """Return the whole report; the last line is the verdict."""
        metrics = (f"{m.name}: {m.pytorch:.4g} in float32, {m.file:.4g} in int8" for m in self.metrics)
        return "\n".join([self.path, str(self.record), *metrics, *self.notes, self.summary()])


def quantize_onnx(
    path: str | os.PathLike[str],
    output: str | os.PathLike[str],
    data: Any,
    *,
    samples: int = 512,
    float_layers: Sequence[str] = (),
) -> QuantizationResult:
    """Write an int8 copy of a float32 file of `export_onnx`: static quantisation in the QDQ format.

    Layers with weights (Conv, Gemm, MatMul) get int8 weights, with a scale for each channel, and 8-bit inputs, over the
    range from the least number to the largest; all else stays in float32. Weights have 7 bits, so that sums of two
    products hold in the 16 bits of processors without VNNI; 8 for TensorRT, which adds in 32. Inputs are uint8, and for
    ``"ort-cuda"`` and ``"tensorrt"`` int8 about 0.

    Args:
        path: The float file.
        output: The file to write; never ``path``, which stays as it is.
        data: What to calibrate on: a LightningDataModule (its training data), a tensor, or batches that begin with the
            file's inputs. For a file that takes raw pixels, raw pixels.
        samples: Rows to calibrate on; whole batches are taken until there are so many, one at least.
        float_layers: Layers that stay in float32: patterns over names of modules (``"head.*"``) or nodes.

    Returns:
        What was written.

    Raises:
        ArgumentError: If ``float_layers`` are no layers, ``output`` is ``path``, or the file is in 16 bit, quantised
            already, or has no layer to quantise.
        ModelFileError: If the file is missing, damaged, not of `export_onnx`, or keeps its weights beside it.
        ModelInputError: If there are no data, or they do not fit or are not finite.
        ExportError: If onnxruntime's quantizer fails, or changes an activation, or its file does not run.
        UnwritablePathError: If the file cannot be written.

    Example:
        >>> from lit_gelu.export import export_onnx
        >>> folder = Path(tempfile.mkdtemp())
        >>> net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.Linear(64, 2))
        >>> _ = export_onnx(net, folder / "net.onnx", torch.zeros(2, 64))
        >>> result = quantize_onnx(folder / "net.onnx", folder / "net-int8.onnx", torch.randn(100, 64))
        >>> result.record.layers, result.record.activations, result.record.rows
        (('0', '2'), 'uint8', 100)
    """
    path = Path(path)
    metadata, file = metadata_of(path), read_model_file(path)
    if file.sixteen_bit or metadata.dtype != "fp32" or any("QuantizeLinear" in operator for operator in file.operators):
        raise ArgumentError(f"{str(path)!r} is in {metadata.dtype}; int8 files are made of those with dtype='fp32'.")
    if file.external:
        raise ModelFileError(f"{str(path)!r} has weights in {', '.join(file.external)}: save it with them inside.")
    source, target = onnx.load(path), metadata.target
    if is_file(output) and path.samefile(output):
        raise ArgumentError(f"output={os.fspath(output)!r} is the float32 file itself.")
    layers = _layers_of(source)
    chosen = _chosen(layers, float_layers)
    weights = Counter(node.input[1] for node in source.graph.node if node.name in chosen)
    if target == "tensorrt" and max(weights.values()) > 1:  # onnxruntime 1.31 makes the same constant twice, and fails
        raise ArgumentError(f"{weights.most_common(1)[0][0]!r} is of several layers: name them in float_layers=.")
    require_writable(output)
    feeds = [f for f in _calibration_feeds(data, OnnxPredictor(path, [CPU]), samples) if len(next(iter(f.values())))]
    if not feeds:
        raise ModelInputError("The data hold no row to calibrate on. Give data with at least one batch.")
    symmetric = target in {"ort-cuda", "tensorrt"}  # whose int8 is about 0, of activations too
    record = QuantizationRecord(
        target=target,
        rows=sum(len(next(iter(feed.values()))) for feed in feeds),
        activations="int8" if symmetric else "uint8",
        layers=tuple(layers[node] for node in chosen),
        float_layers=tuple(name for node, name in layers.items() if node not in chosen),
        onnxruntime=onnxruntime.__version__,
        bounded=target != "tensorrt",
    )
    int8 = _quantized(path, feeds, chosen, record)
    # It keeps the float file's metadata, but for dtypes and proof, which was of other numbers.
    changed = {"dtype": "int8", "io_dtype": "fp32", "target": target, "parity": "{}"}
    properties = {entry.key: entry.value for entry in source.metadata_props}
    properties |= {PREFIX + key: value for key, value in changed.items()}
    onnx.helper.set_model_props(int8, {**properties, INT8_RECORD: json.dumps(asdict(record), sort_keys=True)})
    int8.producer_name, int8.producer_version = source.producer_name, source.producer_version
    del int8.graph.value_info[:]  # shapes of values that are gone; the checker infers its own
    save_model(ir.from_proto(int8), output)
    return QuantizationResult(Path(output), record)


@without_callers_autocast()
def check_quantized(
    model: nn.Module,
    path: str | os.PathLike[str],
    data: Any,
    input_sample: Any = None,
    *,
    max_difference: float = MAX_DIFFERENCE,
    providers: Sequence[Provider] | None = None,
    strict: bool = True,
    registry: ActivationRegistry | None = None,
    preprocessing: nn.Module | None = None,
) -> QuantizationReport:
    """Compare a file of `quantize_onnx` with the module in float32, as trained, on data that it was not calibrated on.

    int8 has no tolerance that rounding would give: what counts is what becomes of the task. Its error rate
    (``test_error``, else ``test_loss`` in units of PyTorch's) may rise by ``max_difference``. Where the module logs
    neither, at most that share of rows may change its largest logit, which bounds what an accuracy can lose, and of
    whole numbers that share of entries; every other output needs ``10 log10(sum y^2 / sum (y - y')^2)`` of 20 dB.
    NaN and infinities fail.

    Args:
        model: The module that was exported; it stays as it is.
        path: The int8 file.
        data: As `lit_gelu.export.check_parity` takes them.
        input_sample: As `lit_gelu.export.check_parity` takes it.
        max_difference: How much worse it may be.
        providers: As ``onnxruntime.InferenceSession`` takes them.
        strict: Whether a failure raises; else read ``report.passed``.
        registry: Which registry names the module's activations; ``None`` is the default one.
        preprocessing: The module that a file with preprocessing was exported with; ``None`` takes the data module's.

    Returns:
        Every figure.

    Raises:
        ParityError: If the file costs more than it may and ``strict`` is true.
        ModelFileError: If the file is missing, damaged, or `quantize_onnx` did not write it.
        ModelInputError: If sample or data do not fit module and file, or there are none.
        ProviderError: If a provider does not exist or did not take the file.

    Example:
        >>> from lit_gelu.export import export_onnx
        >>> folder, generator = Path(tempfile.mkdtemp()), torch.Generator().manual_seed(0)
        >>> _ = torch.manual_seed(0)
        >>> net = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 8))
        >>> _ = export_onnx(net, folder / "net.onnx", torch.zeros(2, 64))
        >>> rows = torch.randn(400, 64, generator=generator)
        >>> _ = quantize_onnx(folder / "net.onnx", folder / "net-int8.onnx", rows[:200])
        >>> report = check_quantized(net, folder / "net-int8.onnx", rows[200:], rows[:2], max_difference=0.05)
        >>> report.passed, report.outputs[0].sqnr > 30
        (True, True)
    """
    if data is None:
        raise ModelInputError("int8 is compared on data only. Give a data module, such as DigitsData().")
    name = repr(os.fspath(path))
    predictor, _, notes = open_predictor(Path(path), providers, {}, torch.float32)
    record, metadata = read_record(predictor.metadata, name), read_metadata(predictor.metadata, name)
    model, registry = without_wrappers(model), registry_or_default(registry)
    preprocessing, batches, unread = preprocessing_of_file(metadata.preprocessing, name, preprocessing, data)
    call = file_call(model, preprocessing, input_sample, predictor)
    references = References(model, call, "as_trained", registry, preprocessing, softmax=metadata.softmax)
    pairs = []
    for batch in data_batches(batches, model, call):
        fed = file_inputs(predictor, batch)
        pairs.append((run_file(predictor, fed), references.run(references.float32, fed, torch.float32)))
    if len(pairs[0][0]) != len(pairs[0][1]):
        raise ModelInputError(f"{name} has {len(pairs[0][0])} outputs, and another module {len(pairs[0][1])}.")
    outputs = tuple(
        _noise(output, [y[i] for y, _ in pairs], [exact[i] for _, exact in pairs])
        for i, output in enumerate(predictor.output_names)
    )
    measurable = preprocessing is None and not metadata.softmax
    metrics, unmeasured = task_metrics(model, data, predictor) if measurable else ([], [])
    report = QuantizationReport(
        path=os.fspath(path),
        provider=predictor.providers[0],
        record=record,
        outputs=outputs,
        criteria=tuple(criteria(metrics, outputs, max_difference)),
        metrics=tuple(metrics),
        faults=(
            *output_faults(references.signatures, predictor.output_ports, metadata),
            *activation_faults(onnx.load(path), references.float32, metadata, registry, rewritable=False),
        ),
        notes=(*notes, *unread, *references.notes, *unmeasured),
    )
    if strict and not report.passed:
        raise ParityError(
            f"{name} is not accepted. {report.summary()}. Leave layers in float32 (quantize_onnx: float_layers=), or "
            "calibrate on more rows; export again if the module was changed since.",
            report,
        )
    return report


def criteria(metrics: Sequence[TaskMetric], outputs: Sequence[OutputNoise], max_difference: float) -> list[Criterion]:
    """Return what decides: the error rate, else the loss, else for each output what it can be judged by."""
    by_name = {metric.name: metric for metric in metrics}
    for name in ("test_error", "test_loss"):
        if name in by_name:
            worse, unit = by_name[name].difference, abs(by_name[name].pytorch) if name == "test_loss" else 1.0
            worse = worse / unit if unit else np.inf * worse if worse else 0.0  # a loss has no scale that all share
            return [Criterion(f"{name}, how much worse", worse, max_difference, "at most")]
    decisive = []
    for output in outputs:
        if output.changed is not None:
            name = f"{output.output}, rows of another class or numbers that differ"
            decisive.append(Criterion(name, output.changed, max_difference, "at most"))
        else:
            decisive.append(Criterion(f"SQNR of {output.output}, dB", output.sqnr, MIN_SQNR, "at least"))
    return decisive


def _noise(output: str, y: Sequence[np.ndarray], exact: Sequence[np.ndarray]) -> OutputNoise:
    """Compare one output with PyTorch's, batch by batch; what is not finite in PyTorch is left out."""
    rows = sum(len(batch) if batch.ndim else 1 for batch in exact)
    if any(ours.shape != theirs.shape for ours, theirs in zip(y, exact, strict=True)):
        return OutputNoise(output, rows, -np.inf, 0, None)
    is_logits = exact[0].ndim == 2 and exact[0].shape[1] > 1 and exact[0].dtype.kind == "f"
    changed, nonfinite, signal, noise = [], 0, 0.0, 0.0
    for ours, theirs in zip(y, exact, strict=True):
        finite = np.isfinite(theirs)
        right = theirs[finite].astype(np.float64)
        error = np.abs(ours[finite].astype(np.float64) - right)
        is_number = np.isfinite(error)
        nonfinite += int(np.count_nonzero(~is_number))
        signal += float(np.sum(right[is_number] ** 2))
        noise += float(np.sum(error[is_number] ** 2))
        if theirs.dtype.kind in "iub":
            changed.append((ours != theirs).ravel())
        elif is_logits:
            changed.append(ours.argmax(1) != theirs.argmax(1))
    sqnr = np.inf if noise == 0 else float(10 * np.log10(signal / noise)) if signal else -np.inf
    share = float(np.concatenate(changed).mean()) if changed else None
    return OutputNoise(output, rows, sqnr, nonfinite, share)


def read_record(properties: Mapping[str, str], file: str) -> QuantizationRecord:
    """Return what a file says of its quantisation."""
    try:
        plain = parse_json(properties[INT8_RECORD])
        return QuantizationRecord(**plain | {name: tuple(plain[name]) for name in ("layers", "float_layers")})
    except (KeyError, TypeError, ValueError) as error:
        raise ModelFileError(
            f"{file} does not say how it was quantised. Write it with lit_gelu.export.quantization.quantize_onnx; a "
            "float file is compared by lit_gelu.export.check_parity."
        ) from error


def _layers_of(model: onnx.ModelProto) -> dict[str, str]:
    """Return the layers with constant weights: by the node's name the module's, or again the node's."""
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    layers = {}
    for node in model.graph.node:
        if node.op_type not in _WEIGHTED or node.domain or node.input[1] not in constants:
            continue
        # onnxruntime's product of integers refuses stacks of matrices with a scale for each channel.
        is_stack = node.op_type == "MatMul" and len(constants[node.input[1]].dims) != 2
        if is_stack or node.input[1].startswith(_PREPROCESSING):
            continue
        biases = (
            v for user in model.graph.node if user.op_type == "Add" and node.output[0] in user.input for v in user.input
        )
        owners = (value.rpartition(".") for value in [node.input[1], *biases])  # a transposed weight has lost its name
        layers[node.name] = next((o for o, _, kind in owners if o and kind in {"weight", "bias"}), node.name)
    return layers


def _chosen(layers: Mapping[str, str], float_layers: Sequence[str]) -> list[str]:
    if isinstance(float_layers, str):
        raise ArgumentError(f"float_layers={float_layers!r}: give a list of patterns, such as ['head'].")
    for pattern in float_layers:
        if not any(fnmatchcase(name, pattern) for both in layers.items() for name in both):
            raise ArgumentError(f"float_layers: {pattern!r} fits no layer. The file has: {', '.join(layers.values())}.")
    kept = {node for node, name in layers.items() for p in float_layers if fnmatchcase(name, p) or fnmatchcase(node, p)}
    if len(kept) == len(layers):
        raise ArgumentError(f"There is no {', '.join(_WEIGHTED)} with constant weights left to quantise.")
    return [node for node in layers if node not in kept]


def _calibration_feeds(data: Any, predictor: OnnxPredictor, samples: int) -> Iterator[Feed]:
    """Yield batches: a data module's training rows in an order of their own, else the data as they are."""
    raw, names, rows = bool(predictor.metadata.get("lit_gelu.preprocessing")), predictor.input_names, 0
    if is_data_module(data):
        if raw:
            raise ModelInputError("The file takes raw pixels: give data.raw_train_inputs().split(64) or its like.")
        data.prepare_data()
        data.setup("fit")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for batch in data.train_dataloader() if is_data_module(data) else list_or_loader(data):
            if isinstance(batch, Mapping):
                parts: list[Any] = [{name: batch[name] for name in names if name in batch}]
            else:
                parts = [batch] if isinstance(batch, Tensor | np.ndarray) else list(batch)[: len(names)]
            feed = {}
            for name, value in bind_names(names, parts, {}).items():
                require_fit(predictor.ports[name], value, raw=raw)
                feed[name] = as_array(value) if isinstance(value, Tensor) else value
                if feed[name].dtype.kind == "f" and not np.isfinite(feed[name]).all():
                    raise ModelInputError(f"The data have NaN or infinite values in {name!r}: no range holds them.")
            rows += len(next(iter(feed.values())))
            yield feed
            if rows >= samples:
                return


class _Reader(CalibrationDataReader):  # type: ignore[misc]
    def __init__(self, feeds: Iterable[Feed]) -> None:
        self._left = iter(feeds)

    def get_next(self) -> dict[str, np.ndarray] | None:
        feed = next(self._left, None)
        return None if feed is None else dict(feed)


def _quantized(path: Path, feeds: Sequence[Feed], layers: Sequence[str], record: QuantizationRecord) -> onnx.ModelProto:
    """Have onnxruntime quantise a file; of its activations nothing is, for it would round inside of them."""
    source, symmetric = onnx.load(path), record.activations == "int8"
    activations = _activations_of(source)
    passing = [node.name for node in source.graph.node if node.op_type in _PASSING and site_of(node) is None]
    # Results of matrix products stay in float32: onnxruntime's int8 kernels give that at no cost, and neither an
    # activation's input nor logits, whose ties would change classes, lose bits. Its int8 convolution on the CPU gives
    # int8 only. TensorRT wants no int8 results and no int32 biases.
    in_float = ["Gemm", "MatMul", *(["Conv"] if symmetric else [])]
    with tempfile.TemporaryDirectory() as folder, captured_stdout(), quiet():  # it prints what it does
        onnx.save(source, Path(folder) / "float.onnx")
        try:
            quantize_static(
                Path(folder) / "float.onnx",
                Path(folder) / "int8.onnx",
                _Reader(feeds),
                quant_format=QuantFormat.QDQ,
                op_types_to_quantize=[*_WEIGHTED, *_PASSING],
                nodes_to_quantize=[*layers, *passing],
                per_channel=True,
                reduce_range=record.bounded,
                activation_type=QuantType.QInt8 if symmetric else QuantType.QUInt8,
                weight_type=QuantType.QInt8,
                calibrate_method=CalibrationMethod.MinMax,
                extra_options={
                    "ActivationSymmetric": symmetric,
                    "CalibTensorRangeSymmetric": symmetric,
                    "QuantizeBias": record.target != "tensorrt",
                    "OpTypesToExcludeOutputQuantization": in_float,
                },
            )
            int8 = onnx.load(Path(folder) / "int8.onnx")
        except Exception as error:
            raise ExportError(f"onnxruntime cannot quantise {str(path)!r}: {message_of(error)}") from error
    if _activations_of(int8) != activations:
        raise ExportError(f"onnxruntime's quantizer changed the activations of {str(path)!r}, and nothing is written.")
    return int8


def _activations_of(model: onnx.ModelProto) -> Counter[str]:
    return Counter(node_label(n) for n in model.graph.node if site_of(n) is not None or "Gelu" in n.op_type)
