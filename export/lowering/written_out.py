"""Writes MaxPool and normalisations in other operators, where onnxruntime's CUDA provider has no kernel of them.

That is from opset 22 on, which bfloat16 convolutions need; of GroupNormalization it never has one. A largest value over
windows is taken dimension by dimension: one strided Slice for each place in a window, and the Max of them, which rounds
nothing and has kernels in every dtype. Two by two with a stride of two moves as many bytes so as between two Casts.
"""

import numpy as np
import onnx_ir as ir
from onnx_ir import convenience

from lit_gelu.export.lowering.lowering_table import Constants
from lit_gelu.export.lowering.policy import DTYPES, has_kernel

_FLOAT = ir.DataType.FLOAT
_NARROW = {DTYPES["fp16"], DTYPES["bf16"]}
_NAMES = {kind: name for name, kind in DTYPES.items()}
_OPEN = np.iinfo(np.int64).max  # the end of a Slice that goes to the end


def write_out(model: ir.Model, runtime: str, opset: int) -> None:
    """Replace these operators in place where a file for CUDA would have no kernel of them."""
    # A portable file of 32 or 16 bits may run on the CPU, which has these kernels; one in bfloat16 may not.
    constants = Constants(model.graph)
    for node in list(ir.traversal.RecursiveGraphIterator(model.graph)):
        write = _WRITERS.get(node.op_type)
        if write is None or node.domain not in {"", "ai.onnx"} or node.inputs[0] is None:
            continue
        origin = _before_cast(node.inputs[0])
        if runtime != "ort-cuda" and (runtime != "portable" or origin.dtype != DTYPES["bf16"]):
            continue
        dtype = node.inputs[0].dtype
        if dtype in _NAMES and not has_kernel("ort-cuda", node.op_type, _NAMES[dtype], opset):
            write(node, _Builder(node, constants))


class _Builder:
    """Makes nodes that take the place of one."""

    def __init__(self, place: ir.Node, constants: Constants) -> None:
        self.place, self.integers, self.nodes = place, constants.integers, list[ir.Node]()

    def node(self, operator: str, *inputs: ir.Value | None, like: ir.Value, **attributes: object) -> ir.Value:
        """Make a node whose output has the dtype of a value."""
        node = ir.node(operator, list(inputs), attributes=attributes or None)  # type: ignore[arg-type]
        node.outputs[0].dtype = like.dtype or _FLOAT
        node.metadata_props.update(self.place.metadata_props)
        self.nodes.append(node)
        return node.outputs[0]

    def cast(self, value: ir.Value, dtype: ir.DataType) -> ir.Value:
        """Give a value a dtype."""
        if value.dtype == dtype:
            return value
        result = self.node("Cast", value, like=value, to=int(dtype))
        result.dtype, result.shape = dtype, value.shape
        return result

    def number(self, number: float) -> ir.Value:
        """Return a constant of float32."""
        constant = ir.node("Constant", [], attributes={"value": ir.tensor(np.array(number, np.float32))})
        constant.outputs[0].dtype, constant.outputs[0].shape = _FLOAT, ir.Shape([])
        self.nodes.append(constant)
        return constant.outputs[0]

    def part(self, x: ir.Value, axis: int, start: int, end: int, step: int = 1) -> ir.Value:
        """Return a strided part of one dimension."""
        places = (self.integers(n) for n in (start, end, axis, step))
        return self.node("Slice", x, *places, like=x)

    def normalized(self, x: ir.Value, rank: int, epsilon: float) -> ir.Value:
        """Return what has mean 0 and variance 1 over all dimensions but two; squares of deviations do not cancel."""
        axes = self.integers(*range(2, rank))
        deviation = self.node("Sub", x, self.node("ReduceMean", x, axes, like=x), like=x)
        variance = self.node("ReduceMean", self.node("Mul", deviation, deviation, like=x), axes, like=x)
        spread = self.node("Sqrt", self.node("Add", variance, self.number(epsilon), like=x), like=x)
        return self.node("Div", deviation, spread, like=x)

    def replace(self, result: ir.Value) -> None:
        """Put the nodes in the place of the old one."""
        old, graph = self.place.outputs[0], self.place.graph
        if graph is None:
            raise ValueError(f"{self.place.op_type} is in no graph")
        result.shape = old.shape
        convenience.replace_nodes_and_values(graph, self.place, [self.place], self.nodes, [old], [result])


def _max_pool(node: ir.Node, build: _Builder) -> None:
    """Write a MaxPool as slices and their largest values, if that is the same."""
    x = node.inputs[0]
    windows = _windows(node)
    if x is None or windows is None:
        return
    y = origin = _before_cast(x)  # the largest value of a few is one of them, before a Cast as behind it
    for axis, window in enumerate(windows, 2):
        y = _largest(build, y, axis, *window)
    if y is origin:
        return
    for use in list(node.outputs[0].uses()):
        if use.node.op_type == "Cast" and use.node.outputs[0].dtype == y.dtype and use.node.graph is node.graph:
            _take_place(y, use.node.outputs[0])
    build.replace(build.cast(y, x.dtype or _FLOAT))


def _take_place(new: ir.Value, old: ir.Value) -> None:
    """Let all readers of a value read another one, which takes its name over if it is an output of the graph."""
    name, is_output = old.name, old.is_graph_output()
    old.replace_all_uses_with(new, replace_graph_outputs=True)
    new.shape = old.shape
    if is_output:
        old.name, new.name = f"{name}_again", name


def _windows(node: ir.Node) -> list[tuple[int, int, int, int, int]] | None:
    """Return size, stride, dilation and padding before and behind of each dimension; ``None`` for what is not known."""
    kernel = list(node.attributes["kernel_shape"].as_ints())
    ones, zeros = [1] * len(kernel), [0] * 2 * len(kernel)
    strides, dilations, pads = (
        list(node.attributes[name].as_ints()) if name in node.attributes else default
        for name, default in (("strides", ones), ("dilations", ones), ("pads", zeros))
    )
    automatic = node.attributes.get("auto_pad")
    if len(node.outputs) > 1 or (automatic is not None and automatic.as_string() != "NOTSET"):
        return None
    ceil = "ceil_mode" in node.attributes and node.attributes["ceil_mode"].as_int() == 1
    windows = []
    for i, (size, stride, dilation) in enumerate(zip(kernel, strides, dilations, strict=True)):
        before, behind = pads[i], pads[len(kernel) + i]
        if ceil:  # rounded up: as if there were so many more, unless a window would begin behind the last value
            if behind + stride > size:
                return None
            behind += stride - 1
        if max(before, behind) >= size or (before + behind and dilation > 1):
            return None
        windows.append((size, stride, dilation, before, behind))
    return windows


def _largest(
    build: _Builder, x: ir.Value, axis: int, size: int, stride: int, dilation: int, before: int, behind: int
) -> ir.Value:
    """Return the largest value of each window along one dimension."""
    # A window that reaches over an edge holds the value at the edge too, and that again changes nothing. (With gaps it
    # may not.) So the edges are repeated: Pad has no kernel in bfloat16.
    if before or behind:
        edges = [build.part(x, axis, 0, 1)] * before, [build.part(x, axis, -1, _OPEN)] * behind
        x = build.node("Concat", *edges[0], x, *edges[1], like=x, axis=axis)
    reach = dilation * (size - 1)
    parts = [build.part(x, axis, i, i - reach or _OPEN, stride) for i in range(0, reach + 1, dilation)]
    if size == 1:
        return x if stride == 1 else parts[0]
    return build.node("Max", *parts, like=x)


def _instance_normalization(node: ir.Node, build: _Builder) -> None:
    x = node.inputs[0]
    if x is not None and x.shape is not None:
        normalized = build.normalized(build.cast(x, _FLOAT), len(x.shape), _epsilon(node))
        _scale_and_shift(node, build, x, normalized)


def _group_normalization(node: ir.Node, build: _Builder) -> None:
    """Write a GroupNormalization in float32; as onnxruntime takes it apart, parts of it run on the CPU."""
    x, scale = node.inputs[:2]
    if x is not None and x.shape is not None and scale is not None and scale.shape == [x.shape[1]]:  # from opset 21 on
        groups = build.integers(0, node.attributes["num_groups"].as_int(), -1)
        wide = build.cast(x, _FLOAT)
        normalized = build.normalized(build.node("Reshape", wide, groups, like=wide), 3, _epsilon(node))
        shape = build.node("Shape", x, like=groups)
        _scale_and_shift(node, build, x, build.node("Reshape", normalized, shape, like=wide))


def _epsilon(node: ir.Node) -> float:
    return node.attributes["epsilon"].as_float() if "epsilon" in node.attributes else 1e-5


def _scale_and_shift(node: ir.Node, build: _Builder, x: ir.Value, y: ir.Value) -> None:
    """Multiply by a normalisation's scale and add its bias, one a channel, and put the result in its place."""
    others = range(1, len(x.shape or ()) - 1)
    for operator, value, neutral in zip(("Mul", "Add"), node.inputs[1:], (1.0, 0.0), strict=True):
        if value is None or (value.const_value is not None and np.all(value.const_value.numpy() == neutral)):
            continue
        channels = build.cast(value, _FLOAT)
        if others:
            channels = build.node("Unsqueeze", channels, build.integers(*others), like=y)
        y = build.node(operator, y, channels, like=y)
    build.replace(build.cast(y, x.dtype or _FLOAT))


_WRITERS = {
    "MaxPool": _max_pool,
    "InstanceNormalization": _instance_normalization,
    "GroupNormalization": _group_normalization,
}


def _before_cast(value: ir.Value) -> ir.Value:
    """Return what a Cast to float32 made of 16 bits, or the value itself."""
    node = value.producer()
    origin = None if node is None or node.op_type != "Cast" else node.inputs[0]
    return origin if value.dtype == _FLOAT and origin is not None and origin.dtype in _NARROW else value
