"""Takes nodes out of a graph that compute sizes, where the graph's shapes tell what they compute.

torch writes ``view`` and ``expand`` with targets that are computed from sizes at every call, and attention with a key
whose sizes are taken apart and put together. Beside a GPU, onnxruntime
runs such nodes on the CPU. In the target of a Reshape, 0 copies the size at the same place of the input, and one -1 is
what is left; in that of an Expand, 1 leaves a size as it is. Sizes of one name are equal all over a graph (ONNX's IR,
"Static tensor shapes"), and torch gives equal sizes one name, or one expression. onnxscript's own rule
(``materialize_reshape_shape``) takes shapes with one open size alone.
"""

import re
from collections.abc import Collection, Sequence

import onnx_ir as ir
from onnx_ir import convenience
from onnx_ir.passes import common as common_passes

Size = int | str | None  # a number; a name or an expression; not known


def fold_shape_arithmetic(model: ir.Model, may_be_empty: Collection[str] = ()) -> None:
    """Write targets of Reshape and Expand that follow from shapes as constants, and drop what nobody reads then."""
    # A size that may be 0, as that of a batch, is never copied beside a -1: nothing follows from 0 values.
    constants: dict[tuple[int, ...], ir.Value] = {}
    for node in filter(_is_standard, model.graph):
        y = node.outputs[0]
        if not y.is_graph_output() and (same := _same(model.graph, node, constants)):
            convenience.replace_all_uses_with(y, same)
        elif node.op_type in {"Reshape", "Expand"} and (target := _target(node, may_be_empty)):
            node.replace_input_with(1, _constant(model.graph, target, constants))
            node.attributes.pop("allowzero", None)
    common_passes.RemoveUnusedNodesPass()(model)


def reshape_target(
    old_shape: Sequence[Size], new_shape: Sequence[Size], may_be_empty: Collection[str] = ()
) -> list[int]:
    """Return a constant target for a Reshape between two shapes; nothing where sizes have to be computed."""
    unknown = [place for place, size in enumerate(new_shape) if not isinstance(size, int)]
    copied = {
        place for place in unknown if new_shape[place] is not None and new_shape[place] in old_shape[place : place + 1]
    }
    if len(unknown) == 1:
        copied = set()  # -1 does
    left = set(unknown) - copied
    copied_names = {name for place in copied for name in re.findall(r"\w+", str(new_shape[place]))}
    if 0 in new_shape or len(left) > 1 or (left and copied_names & set(may_be_empty)):
        return []
    return [size if isinstance(size, int) else -1 if place in left else 0 for place, size in enumerate(new_shape)]


def expand_target(old_shape: Sequence[Size], new_shape: Sequence[Size]) -> list[int]:
    """Return a constant target for an Expand between two shapes; nothing where sizes have to be computed."""
    before = [1] * (len(new_shape) - len(old_shape)) + list(old_shape)
    sizes = [1 if old == new is not None else new for old, new in zip(before, new_shape, strict=True)]
    return _numbers(sizes)


def sizes_in(value: ir.Value | None) -> list[Size]:
    """Return what a vector of sizes holds, as far as shapes tell; nothing for what is no such vector."""
    node = None if value is None else value.producer()
    constant = None if value is None else convenience.get_const_tensor(value)
    if constant is not None:
        holds_sizes = constant.dtype == ir.DataType.INT64 and len(constant.shape) == 1
        return constant.numpy().tolist() if holds_sizes else []
    if node is None or not _is_standard(node):
        return []
    if node.op_type == "Shape":
        start, end = (node.attributes[key].as_int() if key in node.attributes else None for key in ("start", "end"))
        return _sizes_of(node.inputs[0])[start:end]
    parts = [sizes_in(each) for each in node.inputs] if node.op_type in {"Concat", "Slice"} else []
    if not parts or not all(parts):
        return []
    if node.op_type == "Concat":
        return [size for part in parts for size in part]
    vector, starts, ends, *others = parts
    bounds = _numbers([starts[0], ends[0]])
    return vector[slice(*bounds)] if bounds and others[1:] in ([], [[1]]) else []  # axis 0 of one, without a step


def _sizes_of(value: ir.Value | None) -> list[Size]:
    shape = None if value is None else value.shape
    return [dim if isinstance(dim, int) else dim.value for dim in shape or ()]


def _numbers(sizes: Sequence[Size]) -> list[int]:
    numbers = [size for size in sizes if isinstance(size, int)]
    return numbers if len(numbers) == len(sizes) else []


def _new_shape(node: ir.Node) -> list[Size]:
    """Return the shape that a Reshape or Expand makes: the one that is noted, and what its target tells beside it."""
    inferred, vector_sizes = _sizes_of(node.outputs[0]), sizes_in(node.inputs[1])
    if len(inferred) != len(vector_sizes):
        return inferred
    vector_sizes = [
        size if isinstance(size, str) or (isinstance(size, int) and size > 0) else None for size in vector_sizes
    ]
    return [new if old is None else old for old, new in zip(inferred, vector_sizes, strict=True)]


def _same(graph: ir.Graph, node: ir.Node, constants: dict[tuple[int, ...], ir.Value]) -> ir.Value | None:
    """Return what a node's output is without it: numbers, a Reshape's own input, a key that is transposed."""
    if node.op_type in {"Shape", "Slice", "Concat"} and (numbers := _numbers(sizes_in(node.outputs[0]))):
        return _constant(graph, numbers, constants)
    if node.op_type != "Reshape":
        return None
    new_shape = _new_shape(node)
    if new_shape and None not in new_shape and new_shape == _sizes_of(node.inputs[0]):
        return node.inputs[0]
    return _transposed(node, new_shape)


def _transposed(node: ir.Node, new_shape: Sequence[Size]) -> ir.Value | None:
    """Return the transpose of the last two sizes that is written as Reshape to three sizes, Transpose, Reshape."""
    # torch's attention transposes keys so, whatever their rank.
    transpose = _made_by(node.inputs[0], "Transpose")
    first = None if transpose is None else _made_by(transpose.inputs[0], "Reshape")
    perm = None if transpose is None else transpose.attributes.get("perm")
    if transpose is None or first is None or perm is None or list(perm.as_ints()) != [0, 2, 1]:
        return None
    sizes = _sizes_of(first.inputs[0])
    swapped = [*sizes[:-2], *sizes[:-3:-1]]
    if None in sizes or _new_shape(first)[1:] != sizes[-2:] or new_shape != swapped:
        return None
    places = list(range(len(sizes)))
    transpose.replace_input_with(0, first.inputs[0])
    transpose.attributes["perm"] = ir.AttrInt64s("perm", [*places[:-2], *places[:-3:-1]])
    transpose.outputs[0].shape = ir.Shape(new_shape)
    return transpose.outputs[0]


def _made_by(value: ir.Value | None, operator: str) -> ir.Node | None:
    node = None if value is None else value.producer()
    alone = value is not None and len(value.uses()) == 1 and not value.is_graph_output()
    return node if node is not None and alone and node.op_type == operator and _is_standard(node) else None


def _is_standard(node: ir.Node) -> bool:
    return node.domain in {"", "ai.onnx"}


def _target(node: ir.Node, may_be_empty: Collection[str]) -> list[int]:
    """Return the constant target of a Reshape or Expand that computes its own; nothing if there is none."""
    # So for one that copies a size beside a -1, which torch writes for GroupNorm: of an empty batch nothing follows.
    old_shape, new_shape = _sizes_of(node.inputs[0]), _new_shape(node)
    target = node.inputs[1]
    is_constant = target is not None and convenience.get_const_tensor(target) is not None
    if target is None or not new_shape or (is_constant and not {0, -1}.issubset(sizes_in(target))):
        return []
    return (
        expand_target(old_shape, new_shape)
        if node.op_type == "Expand"
        else reshape_target(old_shape, new_shape, may_be_empty)
    )


def _constant(graph: ir.Graph, numbers: Sequence[int], constants: dict[tuple[int, ...], ir.Value]) -> ir.Value:
    key, name = tuple(numbers), f"lit_gelu.sizes_{len(constants)}"
    if key not in constants:
        constants[key] = ir.val(name, const_value=ir.tensor(key, dtype=ir.DataType.INT64, name=name))
        graph.register_initializer(constants[key])
    return constants[key]
