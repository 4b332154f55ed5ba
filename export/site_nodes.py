"""The nodes of activations in an ONNX graph: which are a site's, and one call of them as a model of its own."""

import itertools
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.external_data_helper import uses_external_data
from onnx.inliner import inline_local_functions

from lit_gelu.errors import LitGeluError, ModelFileError, message_of
from lit_gelu.export.runtime.model_file import graphs_of, load_tensor, nodes_of, read_model_file, tensors_of

_LOADED_BELOW = 256 * 1024**2  # bytes of a file and of the weights beside it
_SMALL = 2**16  # numbers of a tensor that is loaded all the same: slopes and the like
SITE_PROPERTY = "lit_gelu.site"


@dataclass(frozen=True)
class SiteNodes:
    """The nodes of one call of an activation site."""

    site: str
    call: int  # number of the call, from 0
    nodes: tuple[onnx.NodeProto, ...]
    x: str  # name of its input
    y: str  # name of its output


def site_of(node: onnx.NodeProto) -> str | None:
    """Return the site that a node belongs to."""
    return next((entry.value for entry in node.metadata_props if entry.key == SITE_PROPERTY), None)


def node_label(node: onnx.NodeProto) -> str:
    """Return an operator with what tells its variants apart, such as ``Gelu(tanh)`` or ``QuickGelu(alpha=1.702)``."""
    attributes = {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}
    if node.op_type == "Gelu" and node.domain == "":
        return f"Gelu({attributes.get('approximate', b'none').decode()})"
    if node.op_type in {"QuickGelu", "ScaledSiLU"} and "alpha" in attributes:
        return f"{node.op_type}(alpha={attributes['alpha']:.6g})"
    return node.op_type


@contextmanager
def valid_onnx(path: str | os.PathLike[str]) -> Iterator[None]:
    """Let reading a graph fail with `ModelFileError` alone."""
    try:
        yield
    except LitGeluError:
        raise
    except Exception as error:  # onnx_ir and onnx's shape inference each have errors of their own
        raise ModelFileError(
            f"{os.fspath(path)!r} is no valid ONNX model: {message_of(error.__cause__ or error)}. "
            "onnx.checker.check_model says more. Copy it again from where it was made, or export the model again."
        ) from error


def load_graph(path: str | os.PathLike[str]) -> onnx.ModelProto:
    """Return a file's graph with types and shapes, its functions written out; of many weights beside it, the small."""
    file = read_model_file(path)
    parts = [file.path, *(file.path.parent / name for name in file.external)]
    model = onnx.load(file.path, load_external_data=False)
    is_small = sum(part.stat().st_size for part in parts) < _LOADED_BELOW
    for tensor in tensors_of(model):
        if uses_external_data(tensor) and (is_small or math.prod(tensor.dims) <= _SMALL):
            load_tensor(tensor, file.path.parent)
    return onnx.shape_inference.infer_shapes(inline_local_functions(model) if model.functions else model)


def sites_in_subgraphs(model: onnx.ModelProto) -> set[str]:
    """Return the sites that are called within a branch or a loop."""
    inner = itertools.islice(nodes_of(model.graph), len(model.graph.node), None)
    return {site for node in inner if (site := site_of(node)) is not None}


def site_nodes(model: onnx.ModelProto, calls: Mapping[str, int]) -> list[SiteNodes]:
    """Find every call of every site in a graph, in the graph's order."""
    # Left out: a call whose nodes have several inputs or outputs, a site whose nodes its calls do not divide evenly,
    # and one that is called within a branch or loop too.
    inner = sites_in_subgraphs(model)
    members: dict[str, list[int]] = {}
    fixed = {tensor.name for tensor in model.graph.initializer}
    readers: dict[str, set[int]] = {value.name: {-1} for value in model.graph.output}
    for i, node in enumerate(model.graph.node):
        for name in node.input:
            readers.setdefault(name, set()).add(i)
        site = site_of(node)
        if site is not None and site not in inner:
            members.setdefault(site, []).append(i)
    entries: list[SiteNodes] = []
    for site, places in members.items():
        count = calls.get(site, 0)
        size, rest = divmod(len(places), count) if count else (0, 1)
        for call in range(0 if rest else count):
            inside = places[call * size : (call + 1) * size]
            nodes = [model.graph.node[i] for i in inside]
            produced = {name for node in nodes for name in node.output if name}
            inputs = {name for node in nodes for name in node.input if name} - produced - fixed
            outputs = {name for name in produced if readers.get(name, set()).difference(inside)}
            if len(inputs) == len(outputs) == 1:
                entries.append(SiteNodes(site, call, tuple(nodes), *inputs, *outputs))
    order = {name: i for i, node in enumerate(model.graph.node) for name in node.output}
    return sorted(entries, key=lambda entry: order[entry.y])


def cut_out(model: onnx.ModelProto, entry: SiteNodes) -> onnx.ModelProto:
    """Return one call of an activation as a model of its own, from a vector ``x`` to a vector ``y``."""
    # Of constants with one value a channel the first is taken.
    nodes, names = list(entry.nodes), {name for node in entry.nodes for name in node.input}
    constants = []
    for tensor in (tensor for graph in graphs_of(model.graph) for tensor in graph.initializer):
        if tensor.name in names:
            array = numpy_helper.to_array(tensor)
            first = np.ravel(array)[:1].copy()
            constants.append(tensor if array.size <= 1 else numpy_helper.from_array(first, tensor.name))
    ports = [onnx.helper.make_tensor_value_info(entry.x, element_type(model, entry), ["n"])]
    results = [onnx.ValueInfoProto(name=entry.y)]
    graph = onnx.helper.make_graph(nodes, "activation", ports, results, initializer=constants)
    cut = onnx.helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)
    cut.functions.extend(model.functions)
    return cut


def element_type(model: onnx.ModelProto, entry: SiteNodes) -> int:
    """Return the element type of an activation's input, as onnx numbers them; float where the file does not say."""
    graphs = graphs_of(model.graph)
    values = (value for graph in graphs for value in (*graph.input, *graph.value_info, *graph.output))
    types = {value.name: int(value.type.tensor_type.elem_type) for value in values}
    element_types = [types[name] for name in (entry.x, entry.y) if types.get(name)]
    return element_types[0] if element_types else int(onnx.TensorProto.FLOAT)
