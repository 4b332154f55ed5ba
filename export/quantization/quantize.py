"""`quantize_onnx`: from a float32 file to an int8 one."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
import onnxruntime

from lit_gelu.display import Displayed
from lit_gelu.export.errors import ExportOptionError, ModelFileError
from lit_gelu.export.metadata import PREFIX, census, read_metadata, save_model
from lit_gelu.export.quantization.calibration import calibration_feeds, find_ranges
from lit_gelu.export.quantization.graph import quantized, with_shapes
from lit_gelu.export.quantization.int8_metadata import DTYPE, KEY, QuantizationRecord
from lit_gelu.export.quantization.layers import NetLayer, chosen, find_layers
from lit_gelu.export.quantization.saturation import saturating_layers
from lit_gelu.export.quantization.sensitivity import LayerCost, first_outputs, layers_within, noise_of
from lit_gelu.export.quantization.settings import QuantizationSettings
from lit_gelu.export.runtime import CPU, OnnxPredictor
from lit_gelu.export.runtime.model_file import ModelFile, read_model_file
from lit_gelu.files import is_file, require_writable

# What operators on int8 are called.
_INTEGER = ("Quantize", "Dequantize", "QLinear", "QGemm", "Integer", "DynamicQuant")


@dataclass(frozen=True, repr=False)
class QuantizationResult(Displayed):
    """What `quantize_onnx` wrote.

    Args:
        path: The file.
        record: How it was quantised, as the file says it too.
        costs: The cost of each layer, the costliest first; empty if it was not asked for, or all layers are in int8.
        census: How often each operator occurs in the float file.
        quantized_census: The same in the int8 file.
        nbytes: Size of the int8 file.
    """

    path: Path
    record: QuantizationRecord
    costs: tuple[LayerCost, ...]
    census: Mapping[str, int]
    quantized_census: Mapping[str, int]
    nbytes: int

    def __str__(self) -> str:
        """Return one line for the file and one for what was done."""
        share = 100 * self.nbytes / self.record.float_bytes
        said = [f"{self.path} (int8, {self.nbytes:,} bytes, {share:.0f} % of the float file)", f"  {self.record}"]
        said.append(f"  difference from the float file on the calibration data: {self.record.difference:.3g}")
        if self.costs:
            worst = ", ".join(f"{cost.layer} {cost.sqnr:.1f} dB" for cost in self.costs[:3])
            said.append(f"  costliest layers, each alone in int8: {worst}")
        return "\n".join(said)

    def _summary(self) -> str:
        return str(self)


def quantize_onnx(
    path: str | os.PathLike[str],
    output: str | os.PathLike[str],
    data: Any,
    *,
    target: str | None = None,
    method: str = "minmax",
    samples: int = 512,
    seed: int = 0,
    per_channel: bool = True,
    reduce_range: bool = False,
    float_layers: Sequence[str] = (),
    max_difference: float | None = None,
) -> QuantizationResult:
    """Write an int8 copy of a float32 file of `export_onnx`: static quantisation in the QDQ format.

    Layers with weights (Conv, ConvTranspose, Gemm, MatMul) get int8 weights and inputs; what only moves or chooses
    numbers between them (pooling, reshaping, Relu, Clip) works on int8 too. All else stays in float32: activations,
    for which onnxruntime has no int8 operator anyway, normalisation, softmax, sums, products of two computed values,
    and the file's preprocessing. Inputs, outputs, dynamic batch, labels and activations are those of the float file.

    Args:
        path: The float file.
        output: The file to write; never ``path``, which stays as it is.
        data: What to calibrate on: a LightningDataModule (its training data), a tensor, or batches that begin with the
            file's inputs. For a file that takes raw pixels, raw pixels.
        target: For which runtime: ``"portable"`` and ``"ort-cpu"`` store activations as uint8, ``"ort-cuda"`` and
            ``"tensorrt"`` as int8 about 0. ``None`` is what the file was exported for.
        method: How ranges are found: ``"minmax"``, ``"entropy"`` or ``"percentile"`` (99.999 %).
        samples: Rows to calibrate on.
        seed: Of the order in which a data module's rows are drawn.
        per_channel: Whether weights have a scale for each output channel.
        reduce_range: Whether weights take 7 bits. Sums of their products then hold in 16 bits in whatever order a
            runtime adds them; without it they do in onnxruntime's (not for ``"tensorrt"``, which has 32 bits), see
            `lit_gelu.export.quantization.saturation`.
        float_layers: Layers that stay in float32: patterns over names of modules (``"head.*"``), nodes, operators
            (``"Gemm"``) or the activation that takes their result.
        max_difference: Leave layers in float32, the costliest first, until the file differs at most this much from the
            float file on the calibration data: in the share of rows whose class changes, or, for outputs that are no
            logits, in the root of the noise's share of the energy. ``None`` quantises all layers.

    Returns:
        What was written.

    Raises:
        ExportOptionError: If an option is not accepted, ``output`` is ``path``, the file is in 16 bit or quantised
            already, has no layer to quantise, or ``max_difference`` cannot be met.
        ModelFileError: If the file is missing, damaged, not of `export_onnx`, or keeps its weights beside it.
        ModelInputError: If there are no data, or they do not fit or are not finite.
        ExportError: If onnx's checker refuses the result.
        UnwritablePathError: If the file cannot be written.

    Example:
        >>> import tempfile, torch
        >>> from lit_gelu.export import export_onnx
        >>> folder = Path(tempfile.mkdtemp())
        >>> net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.Linear(64, 2))
        >>> _ = export_onnx(net, folder / "net.onnx", torch.zeros(2, 64))
        >>> result = quantize_onnx(folder / "net.onnx", folder / "net-int8.onnx", torch.randn(100, 64))
        >>> result.record.layers, result.record.activations, result.record.rows
        (('0', '2'), 'uint8', 100)
        >>> result.quantized_census["Gelu"], result.quantized_census["QuantizeLinear"]
        (1, 2)
    """
    path = Path(path)
    recorded = _require_float(read_model_file(path))
    settings = QuantizationSettings(
        recorded if target is None else target,
        method,
        samples,
        seed,
        per_channel=per_channel,
        reduce_range=reduce_range,
        float_layers=float_layers,
        max_difference=max_difference,
    )
    model = with_shapes(path)
    layers = find_layers(model)
    wanted = chosen(layers, settings.float_layers)
    _require_other(path, output)
    require_writable(output)
    feeds = calibration_feeds(data, OnnxPredictor(path, [CPU], tuning=False), samples, seed)
    references = first_outputs(model, feeds)
    quantize = partial(quantized, model, find_ranges(model, feeds, settings), settings=settings)
    costs: list[LayerCost] = []
    if settings.max_difference is not None:
        wanted, costs = layers_within(wanted, quantize, feeds, references, settings.max_difference)
    result = quantize(wanted)
    difference = noise_of(first_outputs(result, feeds), references).difference
    rows = sum(len(next(iter(feed.values()))) for feed in feeds)
    record = _record(
        settings, layers, wanted, rows, difference, path.stat().st_size, bounded=not saturating_layers(result)
    )
    _describe(result, onnx.load(path, load_external_data=False), record)
    save_model(ir.from_proto(result), output)
    return QuantizationResult(
        Path(output), record, tuple(costs), dict(census(model)), dict(census(result)), Path(output).stat().st_size
    )


def _require_other(path: Path, output: str | os.PathLike[str]) -> None:
    """Refuse to write in the place of the float file, by whatever name: nothing could be compared or made anew."""
    if is_file(output) and path.samefile(output):
        raise ExportOptionError(
            f"output={os.fspath(output)!r} is the float32 file itself, which would be lost. Give another name, such as "
            f"{path.stem + '-int8.onnx'!r}."
        )


def _require_float(file: ModelFile) -> str:
    """Refuse what is no float32 file of `export_onnx`; return the target that it was exported for."""
    name = repr(str(file.path))
    model = onnx.load(file.path, load_external_data=False)
    metadata = read_metadata({entry.key: entry.value for entry in model.metadata_props}, name)
    integer = [operator for operator in file.operators if any(word in operator for word in _INTEGER)]
    if integer or metadata.dtype == DTYPE:
        raise ExportOptionError(
            f"{name} is quantised already ({', '.join(integer)}). Give the float32 file that it was made of."
        )
    if file.sixteen_bit or metadata.dtype != "fp32":
        raise ExportOptionError(
            f"{name} is in {metadata.dtype}. int8 files are made of float32 ones: export with dtype='fp32'."
        )
    if file.external:
        raise ModelFileError(
            f"{name} keeps its weights in {', '.join(file.external)}, and only files that hold theirs are quantised. "
            "Save it with its weights inside, such as onnx.save(onnx.load(path), path). A model above 2 GB cannot be "
            "saved so: quantise parts of it."
        )
    return metadata.target


def _record(
    settings: QuantizationSettings,
    layers: Sequence[NetLayer],
    wanted: Sequence[NetLayer],
    rows: int,
    difference: float,
    float_bytes: int,
    *,
    bounded: bool,
) -> QuantizationRecord:
    """Say how the file was quantised."""
    in_int8 = {layer.node for layer in wanted}
    return QuantizationRecord(
        target=settings.target,
        method=settings.method,
        rows=rows,
        seed=settings.seed,
        activations="int8" if settings.symmetric else "uint8",
        per_channel=settings.per_channel,
        reduce_range=settings.reduce_range,
        layers=tuple(layer.name for layer in wanted),
        float_layers=tuple(layer.name for layer in layers if layer.node not in in_int8),
        difference=difference,
        float_bytes=float_bytes,
        onnxruntime=onnxruntime.__version__,
        bounded=bounded,
    )


def _describe(model: onnx.ModelProto, source: onnx.ModelProto, record: QuantizationRecord) -> None:
    """Give a model the float file's metadata, but for dtypes and proof: that was of other numbers."""
    properties = {entry.key: entry.value for entry in source.metadata_props}
    changed = {"dtype": DTYPE, "io_dtype": "fp32", "target": record.target, "parity": "{}"}
    onnx.helper.set_model_props(
        model, {**properties, **{PREFIX + key: value for key, value in changed.items()}, KEY: record.to_text()}
    )
    model.producer_name, model.producer_version = source.producer_name, source.producer_version
    del model.graph.value_info[:]  # shapes of values that are gone; the checker infers its own
