"""`quantize_onnx`: from a float32 file to an int8 one, by onnxruntime's own quantizer and calibration."""

import json
import logging
import os
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import torch
from onnxruntime.quantization import CalibrationDataReader, CalibrationMethod, QuantFormat, QuantType, quantize_static
from torch import Tensor

from lit_gelu.display import Displayed
from lit_gelu.errors import ArgumentError, ExportError, LitGeluError, ModelFileError, ModelInputError, message_of
from lit_gelu.export.lowering.kernels import TARGETS
from lit_gelu.export.metadata import PREFIX, read_metadata, save_model
from lit_gelu.export.parity.execution import as_array
from lit_gelu.export.parity.input_families import list_or_loader
from lit_gelu.export.parity.structure import node_label, site_of
from lit_gelu.export.preprocessing import is_data_module
from lit_gelu.export.runtime import CPU, OnnxPredictor
from lit_gelu.export.runtime.model_file import INT8_RECORD, read_model_file
from lit_gelu.export.runtime.ports import bind_names, require_fit
from lit_gelu.export.runtime.session import captured_stdout
from lit_gelu.files import is_file, parse_json, require_writable

METHODS = {
    "minmax": CalibrationMethod.MinMax,
    "entropy": CalibrationMethod.Entropy,
    "percentile": CalibrationMethod.Percentile,
}
_WEIGHTED = ("Conv", "Gemm", "MatMul")  # what onnxruntime has int8 kernels for
_PASSING = ("MaxPool", "Reshape", "Flatten", "Transpose", "Squeeze", "Unsqueeze")  # work on int8 without further error
_PREPROCESSING = "preprocessing."  # what names of its constants begin with: 8 bits do not hold a whitening matrix
_ROWS = 64  # at once, of raw training inputs

Feed = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class QuantizationRecord:
    """How a file was quantised, as its metadata say it.

    Args:
        target: For which runtime.
        method: How ranges were found.
        rows: Rows of data that it was calibrated on.
        seed: Of the order in which they were drawn.
        activations: ``uint8``, or ``int8`` with zero point 0.
        layers: The layers in int8.
        float_layers: The layers that were left in float32.
        float_bytes: Size of the float file.
        onnxruntime: The version that quantised.
        bounded: Whether weights have 7 bits, so that no sum of two products leaves 16 bits: processors without VNNI
            then compute what others do.
    """

    target: str
    method: str
    rows: int
    seed: int
    activations: str
    layers: tuple[str, ...]
    float_layers: tuple[str, ...]
    float_bytes: int
    onnxruntime: str
    bounded: bool

    def __str__(self) -> str:
        """Return one line for a person."""
        layers = f"{len(self.layers)} {'layer' if len(self.layers) == 1 else 'layers'} in int8"
        kept = f", {len(self.float_layers)} in float32 ({', '.join(self.float_layers)})" if self.float_layers else ""
        bits = 7 if self.bounded else 8
        return (
            f"{layers}{kept}; {self.activations} activations, weights of {bits} bits; {self.method} over {self.rows} "
            f"rows, seed {self.seed}; target {self.target}"
        )


@dataclass(frozen=True, repr=False)
class QuantizationResult(Displayed):
    """What `quantize_onnx` wrote.

    Args:
        path: The file.
        record: How it was quantised, as the file says it too.
        sqnr: Signal-to-quantisation-noise ratio of its first output on the calibration data, decibels.
        nbytes: Its size.
    """

    path: Path
    record: QuantizationRecord
    sqnr: float
    nbytes: int

    def __str__(self) -> str:
        """Return one line for the file and one for what was done."""
        share = f"{100 * self.nbytes / self.record.float_bytes:.0f} % of the float file"
        return f"{self.path} (int8, {self.nbytes:,} bytes, {share})\n  {self.record}\n  SQNR {self.sqnr:.1f} dB"


def quantize_onnx(
    path: str | os.PathLike[str],
    output: str | os.PathLike[str],
    data: Any,
    *,
    target: str | None = None,
    method: str = "minmax",
    samples: int = 512,
    seed: int = 0,
    reduce_range: bool | None = None,
    float_layers: Sequence[str] = (),
) -> QuantizationResult:
    """Write an int8 copy of a float32 file of `export_onnx`: static quantisation in the QDQ format.

    Layers with weights (Conv, Gemm, MatMul) get int8 weights, with a scale for each channel, and int8 inputs. All else
    stays in float32: activations, normalisation, sums, products of two computed values, the file's preprocessing.
    Inputs, outputs, dynamic batch, labels and activations are those of the float file.

    Args:
        path: The float file.
        output: The file to write; never ``path``, which stays as it is.
        data: What to calibrate on: a LightningDataModule (its training data), a tensor, or batches that begin with the
            file's inputs. For a file that takes raw pixels, raw pixels.
        target: For which runtime: ``"portable"`` and ``"ort-cpu"`` store activations as uint8, ``"ort-cuda"`` and
            ``"tensorrt"`` as int8 about 0. ``None`` is what the file was exported for.
        method: How onnxruntime finds ranges: ``"minmax"``, ``"entropy"`` or ``"percentile"`` (99.999 %).
        samples: Rows to calibrate on; whole batches are taken until there are so many.
        seed: Of the order in which a data module's rows are drawn.
        reduce_range: Whether weights take 7 bits, so that sums of two products hold in the 16 bits of processors
            without VNNI. ``None``: for all targets but ``"tensorrt"``, which adds in 32.
        float_layers: Layers that stay in float32: patterns over names of modules (``"head.*"``) or nodes.

    Returns:
        What was written.

    Raises:
        ArgumentError: If an option is not accepted, ``output`` is ``path``, or the file is in 16 bit, quantised
            already, or has no layer to quantise.
        ModelFileError: If the file is missing, damaged, not of `export_onnx`, or keeps its weights beside it.
        ModelInputError: If there are no data, or they do not fit or are not finite.
        ExportError: If onnxruntime's quantizer fails, or changes an activation, or what it made does not run.
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
    source, recorded = _float_model(path)
    target = recorded if target is None else target
    for option, value, accepted in (("target", target, TARGETS), ("method", method, METHODS)):
        if value not in accepted:
            raise ArgumentError(f"{option}={value!r} is not accepted. Give one of {', '.join(map(repr, accepted))}.")
    if samples < 1:
        raise ArgumentError(
            f"samples={samples!r} is not accepted. Give the number of rows to calibrate on, such as 512."
        )
    if is_file(output) and path.samefile(output):
        raise ArgumentError(f"output={os.fspath(output)!r} is the float32 file itself, which would be lost.")
    layers = layers_of(source)
    chosen = _chosen(layers, float_layers)
    require_writable(output)
    feeds = list(_calibration_feeds(data, OnnxPredictor(path, [CPU], tuning=False), samples, seed))
    rows = sum(len(next(iter(feed.values()))) for feed in feeds)
    if not rows:
        raise ModelInputError("The data hold no row to calibrate on. Give data with at least one batch.")

    bounded = target != "tensorrt" if reduce_range is None else reduce_range
    symmetric = target in {"ort-cuda", "tensorrt"}  # whose int8 is about 0, of activations too
    result = _quantized(path, feeds, chosen, METHODS[method], target, reduce_range=bounded, symmetric=symmetric)
    _require_same_activations(source, result)
    record = QuantizationRecord(
        target=target,
        method=method,
        rows=rows,
        seed=seed,
        activations="int8" if symmetric else "uint8",
        layers=tuple(layers[node] for node in chosen),
        float_layers=tuple(name for node, name in layers.items() if node not in chosen),
        float_bytes=path.stat().st_size,
        onnxruntime=onnxruntime.__version__,
        bounded=bounded,
    )
    _describe(result, source, record)
    sqnr = _sqnr(path, result, feeds)
    save_model(ir.from_proto(result), output)
    return QuantizationResult(Path(output), record, sqnr, Path(output).stat().st_size)


def read_record(properties: Mapping[str, str], file: str) -> QuantizationRecord:
    """Return what a file says of its quantisation."""
    try:
        plain = parse_json(properties[INT8_RECORD])
        lists = {name: tuple(plain[name]) for name in ("layers", "float_layers")}
        return QuantizationRecord(**{**plain, **lists})
    except (KeyError, TypeError, ValueError) as error:
        raise ModelFileError(
            f"{file} does not say how it was quantised. Write it with lit_gelu.export.quantization.quantize_onnx; a "
            "float file is compared by lit_gelu.export.check_parity."
        ) from error


def is_quantized(path: str | os.PathLike[str]) -> bool:
    """Return whether `quantize_onnx` wrote a file.

    Args:
        path: The file.

    Returns:
        Whether its metadata say so; not for what is missing, damaged or no model: whoever opens it says that.

    Example:
        >>> is_quantized("there is no such file.onnx")
        False
    """
    try:
        properties = onnx.load(path, load_external_data=False).metadata_props
    except Exception:  # noqa: BLE001 - missing, unreadable, damaged, foreign: opening it says which
        return False
    return any((entry.key, entry.value) == (f"{PREFIX}dtype", "int8") for entry in properties)


def signal_to_noise(y: Iterable[np.ndarray], reference: Iterable[np.ndarray]) -> float:
    """Return ``10 log10(sum y^2 / sum (y - y')^2)`` over batches, decibels; what is not finite in both is left out.

    Example:
        >>> round(signal_to_noise([np.array([1.0, 0.9])], [np.array([1.0, 1.0])]), 2)
        23.01
    """
    signal = noise = 0.0
    for one, exact in zip(y, reference, strict=True):
        if one.shape != exact.shape:
            return -np.inf
        wide, error = exact.astype(np.float64), one.astype(np.float64) - exact.astype(np.float64)
        finite = np.isfinite(error)
        signal, noise = signal + float(np.sum(wide[finite] ** 2)), noise + float(np.sum(error[finite] ** 2))
    return np.inf if noise == 0 else float(10 * np.log10(signal / noise)) if signal else -np.inf


def _float_model(path: Path) -> tuple[onnx.ModelProto, str]:
    """Return the model and the target that it was exported for; refuse what is no float32 file of `export_onnx`."""
    file, name = read_model_file(path), repr(str(path))
    model = onnx.load(path, load_external_data=False)
    metadata = read_metadata({entry.key: entry.value for entry in model.metadata_props}, name)
    if file.sixteen_bit or metadata.dtype != "fp32" or any("QuantizeLinear" in operator for operator in file.operators):
        raise ArgumentError(f"{name} is in {metadata.dtype}. int8 files are made of float32 ones: export dtype='fp32'.")
    if file.external:
        raise ModelFileError(
            f"{name} keeps its weights in {', '.join(file.external)}. Save it with its weights inside."
        )
    return model, metadata.target


def layers_of(model: onnx.ModelProto) -> dict[str, str]:
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
    """Return the nodes of the layers that are quantised."""
    if isinstance(float_layers, str):
        raise ArgumentError(
            f"float_layers={float_layers!r} is not accepted: give a list of patterns, such as ['head']."
        )
    if not layers:
        raise ArgumentError(
            f"The file has no {', '.join(_WEIGHTED)} with constant weights: there is nothing to quantise."
        )
    for pattern in float_layers:
        if not any(fnmatchcase(name, pattern) for both in layers.items() for name in both):
            raise ArgumentError(f"float_layers: {pattern!r} fits no layer. The file has: {', '.join(layers.values())}.")
    kept = {node for node, name in layers.items() for p in float_layers if fnmatchcase(name, p) or fnmatchcase(node, p)}
    if len(kept) == len(layers):
        raise ArgumentError("float_layers leaves all layers in float32, so there is nothing to quantise.")
    return [node for node in layers if node not in kept]


def _calibration_feeds(data: Any, predictor: OnnxPredictor, samples: int, seed: int) -> Iterator[Feed]:
    """Yield batches: a data module's training rows shuffled by ``seed``, else the data as they are."""
    raw, names, rows = bool(predictor.metadata.get("lit_gelu.preprocessing")), predictor.input_names, 0
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for batch in _training_batches(data, samples, raw=raw) if is_data_module(data) else list_or_loader(data):
            if isinstance(batch, Mapping):
                bound = bind_names(names, (), {name: batch[name] for name in names if name in batch})
            else:
                parts = [batch] if isinstance(batch, Tensor | np.ndarray) else list(batch)[: len(names)]
                bound = bind_names(names, parts, {})
            feed = {}
            for name, value in bound.items():
                require_fit(predictor.ports[name], value, raw=raw)
                feed[name] = as_array(value) if isinstance(value, Tensor) else value
                if feed[name].dtype.kind == "f" and not np.isfinite(feed[name]).all():
                    raise ModelInputError(f"The data have NaN or infinite values in {name!r}: no range holds them.")
            rows += len(next(iter(feed.values())))
            yield feed
            if rows >= samples:
                return


def _training_batches(data: Any, samples: int, *, raw: bool) -> Iterable[Any]:
    """Return the training data of a data module, as raw pixels if the file takes them."""
    data.prepare_data()
    data.setup("fit")
    if not raw:
        loader: Iterable[Any] = data.train_dataloader()
        return loader
    if not callable(getattr(data, "raw_train_inputs", None)):
        raise ModelInputError(f"The file takes raw pixels, and {type(data).__name__} has no raw_train_inputs().")
    pixels: Any = data.raw_train_inputs()
    drawn: Iterable[Any] = pixels[torch.randperm(len(pixels))[:samples]].split(_ROWS)
    return drawn


class _Reader(CalibrationDataReader):  # type: ignore[misc]
    """Hands batches to onnxruntime's calibration."""

    def __init__(self, feeds: Iterable[Feed]) -> None:
        self._left = iter(feeds)

    def get_next(self) -> dict[str, np.ndarray] | None:
        """Return the next batch; ``None`` after the last one."""
        feed = next(self._left, None)
        return None if feed is None else dict(feed)


def _quantized(
    path: Path,
    feeds: Sequence[Feed],
    layers: Sequence[str],
    method: CalibrationMethod,
    target: str,
    *,
    reduce_range: bool,
    symmetric: bool,
) -> onnx.ModelProto:
    """Have onnxruntime quantise a file; of its activations nothing is, for it would round inside of them."""
    model = _with_weights_of_their_own(onnx.load(path), layers)
    passing = [node.name for node in model.graph.node if node.op_type in _PASSING and site_of(node) is None]
    # Results of matrix products stay in float32: onnxruntime's int8 kernels give that at no cost, and neither an
    # activation's input nor logits, whose ties would change classes, lose bits. Its int8 convolution on the CPU gives
    # int8 only. TensorRT wants no int8 results and no int32 biases.
    in_float = ["Gemm", "MatMul", *(["Conv"] if symmetric else [])]
    with tempfile.TemporaryDirectory() as folder, captured_stdout(), _quiet():  # it prints what it does
        onnx.save(model, Path(folder) / "float.onnx")
        try:
            quantize_static(
                Path(folder) / "float.onnx",
                Path(folder) / "int8.onnx",
                _Reader(feeds),
                quant_format=QuantFormat.QDQ,
                op_types_to_quantize=[*_WEIGHTED, *_PASSING],
                nodes_to_quantize=[*layers, *passing],
                per_channel=True,
                reduce_range=reduce_range,
                activation_type=QuantType.QInt8 if symmetric else QuantType.QUInt8,
                weight_type=QuantType.QInt8,
                calibrate_method=method,
                extra_options={
                    "ActivationSymmetric": symmetric,
                    "CalibTensorRangeSymmetric": symmetric,
                    "QuantizeBias": target != "tensorrt",
                    "OpTypesToExcludeOutputQuantization": in_float,
                },
            )
            return onnx.load(Path(folder) / "int8.onnx")
        except Exception as error:
            raise ExportError(f"onnxruntime cannot quantise {str(path)!r}: {message_of(error)}") from error


def _with_weights_of_their_own(model: onnx.ModelProto, layers: Sequence[str]) -> onnx.ModelProto:
    """Let no two layers share a weight or a bias, as the calls of one module do."""
    # onnxruntime, 1.31 at least, opens no such file for TensorRT: its optimiser makes the same constant twice.
    tensors, taken = {tensor.name: tensor for tensor in model.graph.initializer}, set[str]()
    for node in model.graph.node:
        for place, name in list(enumerate(node.input))[1:] if node.name in layers else []:
            if name in taken and name in tensors:
                twin = model.graph.initializer.add()
                twin.CopyFrom(tensors[name])
                twin.name = node.input[place] = f"{name}_of_{node.name}"
            taken.add(name)
    return model


def _require_same_activations(before: onnx.ModelProto, after: onnx.ModelProto) -> None:
    """Refuse a model whose activations are not the float file's."""
    expected, there = (
        Counter(node_label(node) for node in model.graph.node if site_of(node) is not None or "Gelu" in node.op_type)
        for model in (before, after)
    )
    if expected != there:
        raise ExportError(f"onnxruntime's quantizer changed the activations ({dict(expected)} became {dict(there)}).")


def _describe(model: onnx.ModelProto, source: onnx.ModelProto, record: QuantizationRecord) -> None:
    """Give a model the float file's metadata, but for dtypes and proof: that was of other numbers."""
    changed = {"dtype": "int8", "io_dtype": "fp32", "target": record.target, "parity": "{}"}
    properties = {entry.key: entry.value for entry in source.metadata_props}
    properties |= {PREFIX + key: value for key, value in changed.items()}
    onnx.helper.set_model_props(model, {**properties, INT8_RECORD: json.dumps(asdict(record), sort_keys=True)})
    model.producer_name, model.producer_version = source.producer_name, source.producer_version
    del model.graph.value_info[:]  # shapes of values that are gone; the checker infers its own


def _sqnr(path: Path, model: onnx.ModelProto, feeds: Sequence[Feed]) -> float:
    """Run both files on the calibration data, and compare their first outputs."""
    with tempfile.TemporaryDirectory() as folder:
        onnx.save(model, Path(folder) / "int8.onnx")
        try:
            predictors = [OnnxPredictor(file, [CPU], tuning=False) for file in (Path(folder) / "int8.onnx", path)]
        except LitGeluError as error:
            raise ExportError(f"onnxruntime cannot open what its quantizer made of {str(path)!r}: {error}") from error
        y, exact = ([np.asarray(p.session.run(None, dict(feed))[0]) for feed in feeds] for p in predictors)
        return signal_to_noise(y, exact)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep onnxruntime's Python tools from logging to the root logger."""
    logger = logging.getLogger()
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
