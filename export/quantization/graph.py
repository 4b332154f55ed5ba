"""The graph with QuantizeLinear and DequantizeLinear in it."""

import copy
import logging
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
from onnxruntime.quantization import QDQQuantizer, QuantType, quant_pre_process
from onnxruntime.quantization.calibrate import TensorsData

from lit_gelu.export.errors import ExportError
from lit_gelu.export.quantization.layers import PASSING, REPLACED, WEIGHTED, NetLayer, activation_labels, passing_nodes
from lit_gelu.export.quantization.saturation import one_scale_overrides, range_overrides, saturating_layers
from lit_gelu.export.quantization.settings import QuantizationSettings


def with_shapes(path: Path) -> onnx.ModelProto:
    """Return a file with the shape of every value, which a range cannot be found without."""
    # onnxruntime's quant_pre_process without its graph optimisation: that would turn an activation that is spelt out
    # into another operator, and drop which node belongs to which activation. The shapes are those of the exporter and
    # of onnx: onnxruntime's own inference, up to 1.28 at least, reads Shape with a start and an end as the whole shape.
    with tempfile.TemporaryDirectory() as folder, _quiet():
        target = Path(folder) / "shaped.onnx"
        try:
            quant_pre_process(path, target, skip_optimization=True, skip_symbolic_shape=True)
        except Exception as error:
            raise ExportError(f"onnx cannot infer the shapes of {str(path)!r}: {error}") from error
        model = onnx.load(target)
    weights = {weight.name for weight in model.graph.initializer}
    computed = [info for info in model.graph.value_info if info.name not in weights]  # weights are replaced later on
    del model.graph.value_info[:]
    model.graph.value_info.extend(computed)
    _require_shapes(model, path)
    return model


def _require_shapes(model: onnx.ModelProto, path: Path) -> None:
    """Refuse a model with a value whose type or number of dimensions is unknown."""
    known = {
        info.name
        for info in (*model.graph.value_info, *model.graph.output)
        if not info.type.HasField("tensor_type") or info.type.tensor_type.HasField("shape")
    }
    unknown = [name for node in model.graph.node for name in node.output if name and name not in known]
    if unknown:
        raise ExportError(f"onnx cannot infer the shapes of {str(path)!r}: {', '.join(unknown[:5])}")


def quantized(
    model: onnx.ModelProto, ranges: TensorsData, layers: Sequence[NetLayer], settings: QuantizationSettings
) -> onnx.ModelProto:
    """Return a model of `with_shapes` with some of its layers in int8; it stays as it is."""
    twin = _with_weights_of_their_own(model, layers)
    # Ranges of weights that are wider than the weights; with 7 bits any sum of two holds.
    wider = settings.bounded and not settings.reduce_range
    overrides = one_scale_overrides(twin, layers)
    overrides.update(range_overrides(twin, layers, per_channel=settings.per_channel) if wider else {})
    quantizer = QDQQuantizer(
        twin,
        settings.per_channel,
        settings.reduce_range,
        QuantType.QInt8,
        settings.activation_type,
        copy.deepcopy(ranges),  # the quantizer narrows them where a Relu or Clip goes
        [*(layer.node for layer in layers), *passing_nodes(model, _of_0_alone(ranges))],
        [],
        [*WEIGHTED, *PASSING],
        {**settings.quantizer_options(), "TensorQuantOverrides": overrides},
    )
    with _quiet():
        quantizer.quantize_model()
    unsorted = ir.from_proto(quantizer.model.model)
    unsorted.graph.sort()  # stable, unlike the quantizer's own: the nodes of an activation's calls stay in their order
    result: onnx.ModelProto = ir.to_proto(unsorted)
    _require_same_activations(model, result)
    _require_bounded(result, settings)
    return result


def _of_0_alone(ranges: TensorsData) -> list[str]:
    """Return the values whose range has no step that float32 holds: the quantizer takes 1 for it."""
    ends = {name: np.append(0.0, np.ravel(found.range_value)) for name, found in ranges.items()}
    return [name for name, numbers in ends.items() if np.ptp(numbers) / 255 < np.finfo(np.float32).tiny]


def _with_weights_of_their_own(model: onnx.ModelProto, layers: Sequence[NetLayer]) -> onnx.ModelProto:
    """Return a copy in which no two layers share a weight or a bias, as the calls of one module do."""
    # Where int8 layers share one, onnxruntime's own optimisation makes the same constant twice and gives up.
    twin = onnx.ModelProto()
    twin.CopyFrom(model)
    weights = {tensor.name: tensor for tensor in twin.graph.initializer}
    wanted, taken = {layer.node for layer in layers}, set[str]()
    for node in twin.graph.node:
        for place in range(1, len(node.input) if node.name in wanted else 0):
            name = node.input[place]
            if name in taken and name in weights:
                copied = twin.graph.initializer.add()
                copied.CopyFrom(weights[name])
                copied.name = node.input[place] = f"{name}_of_{node.name}"
            taken.add(name)
    return twin


def _require_bounded(model: onnx.ModelProto, settings: QuantizationSettings) -> None:
    """Refuse a model whose sums would be wrong on processors without VNNI."""
    wrong = saturating_layers(model) if settings.bounded else []
    if wrong:
        raise ExportError(
            f"onnxruntime's quantizer did not keep to the ranges in which 16-bit sums hold ({', '.join(wrong)}); "
            "nothing was written. Use reduce_range=True."
        )


def _require_same_activations(before: onnx.ModelProto, after: onnx.ModelProto) -> None:
    """Refuse a model whose activations are not the float file's, but for those whose work a range does."""
    expected, found = activation_labels(before), activation_labels(after)
    changed = [
        f"{expected.get(label, 0)} {label} became {found.get(label, 0)}"
        for label in sorted({*expected, *found})
        if found.get(label, 0) != expected.get(label, 0)
        and not (label in REPLACED and found.get(label, 0) < expected.get(label, 0))
    ]
    if changed:
        raise ExportError(
            f"onnxruntime's quantizer changed the activations ({'; '.join(changed)}); nothing was written."
        )


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
