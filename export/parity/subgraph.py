"""The nodes of activation sites in a file: where they are, and one of them cut out as a model of its own."""

import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.external_data_helper import load_external_data_for_tensor, uses_external_data

from lit_gelu.export.runtime.model_file import read_model_file

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


def all_nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """Yield the nodes of a graph, then those of its subgraphs."""
    yield from graph.node
    for node in graph.node:
        for attribute in node.attribute:
            for inner in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                yield from all_nodes(inner)


def node_label(node: onnx.NodeProto) -> str:
    """Return an operator with what tells its variants apart, such as ``Gelu(tanh)`` or ``QuickGelu(alpha=1.702)``."""
    attributes = {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}
    if node.op_type == "Gelu" and node.domain == "":
        return f"Gelu({attributes.get('approximate', b'none').decode()})"
    if node.op_type in {"QuickGelu", "ScaledSiLU"} and "alpha" in attributes:
        return f"{node.op_type}(alpha={attributes['alpha']:.6g})"
    return node.op_type


def full_name(node: onnx.NodeProto) -> str:
    """Return an operator with its domain, as files record it."""
    return f"{node.domain}::{node.op_type}" if node.domain else node.op_type


def load_structure(path: str | os.PathLike[str]) -> onnx.ModelProto:
    """Return a file's graph; of weights that are kept beside it, only those of activations."""
    model = onnx.load(path, load_external_data=False)
    read = {name for node in all_nodes(model.graph) if site_of(node) is not None for name in node.input}
    for tensor in model.graph.initializer:
        if tensor.name in read and uses_external_data(tensor):
            load_external_data_for_tensor(tensor, str(read_model_file(path).path.parent))
    return model


def has_weights_beside(model: onnx.ModelProto) -> bool:
    """Return whether some of a file's weights are in another file."""
    return any(uses_external_data(tensor) for tensor in model.graph.initializer)


def sites_in_subgraphs(model: onnx.ModelProto) -> set[str]:
    """Return the sites that are called within a branch or a loop."""
    inner = itertools.islice(all_nodes(model.graph), len(model.graph.node), None)
    return {site for node in inner if (site := site_of(node)) is not None}


def site_nodes(model: onnx.ModelProto, calls: Mapping[str, int]) -> list[SiteNodes]:
    """Find every call of every site in a graph, in the graph's order."""
    # Left out: a call whose nodes have several inputs or outputs, a site whose nodes its calls do not divide evenly,
    # and one that is called within a branch or loop too.
    inner = sites_in_subgraphs(model)
    members: dict[str, list[int]] = {}
    for i, node in enumerate(model.graph.node):
        site = site_of(node)
        if site is not None and site not in inner:
            members.setdefault(site, []).append(i)
    entries: list[SiteNodes] = []
    for site, places in members.items():
        count = calls.get(site, 0)
        size, rest = divmod(len(places), count) if count else (0, 1)
        if rest == 0:
            parts = [places[i : i + size] for i in range(0, len(places), size)]
            entries += [entry for call, part in enumerate(parts) if (entry := _one_call(model, site, call, part))]
    order = {name: i for i, node in enumerate(model.graph.node) for name in node.output}
    return sorted(entries, key=lambda entry: order[entry.y])


def _one_call(model: onnx.ModelProto, site: str, call: int, places: Sequence[int]) -> SiteNodes | None:
    """Return the nodes at some places as one call, if they have one input and one output."""
    nodes = [model.graph.node[i] for i in places]
    inside, produced = set(places), {name for node in nodes for name in node.output if name}
    fixed = {tensor.name for tensor in model.graph.initializer}
    inputs = {name for node in nodes for name in node.input if name} - produced - fixed
    read = {value.name for value in model.graph.output}
    read.update(name for i, node in enumerate(model.graph.node) if i not in inside for name in node.input)
    outputs = produced & read
    return SiteNodes(site, call, tuple(nodes), *inputs, *outputs) if len(inputs) == len(outputs) == 1 else None


def cut_out(model: onnx.ModelProto, entry: SiteNodes) -> onnx.ModelProto:
    """Return one call of an activation as a model of its own, from a vector ``x`` to a vector ``y``."""
    # Of constants with one value a channel the first is taken.
    nodes, names = list(entry.nodes), {name for node in entry.nodes for name in node.input}
    constants = []
    for tensor in model.graph.initializer:
        if tensor.name in names:
            array = numpy_helper.to_array(tensor)
            first = np.ravel(array)[:1].copy()
            constants.append(tensor if array.size <= 1 else numpy_helper.from_array(first, tensor.name))
    if nodes[0].op_type == "BiasGelu":  # a layer's bias and activation in one node: rows of one value, and a bias of 0
        (x, bias), (y,) = nodes[0].input, nodes[0].output
        inner = onnx.NodeProto()
        inner.CopyFrom(nodes[0])
        inner.input[0], inner.output[0] = f"{x}_rows", f"{y}_rows"
        axis = numpy_helper.from_array(np.array([1]), "axis_of_rows")
        nodes = [
            onnx.helper.make_node("Unsqueeze", [x, axis.name], [inner.input[0]]),
            inner,
            onnx.helper.make_node("Squeeze", [inner.output[0], axis.name], [y]),
        ]
        constants = [numpy_helper.from_array(np.zeros_like(numpy_helper.to_array(constants[0])), bias), axis]
    ports = [onnx.helper.make_tensor_value_info(entry.x, element_type(model, entry), ["n"])]
    results = [onnx.ValueInfoProto(name=entry.y)]
    graph = onnx.helper.make_graph(nodes, "activation", ports, results, initializer=constants)
    cut = onnx.helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)
    cut.functions.extend(model.functions)
    return cut


def element_type(model: onnx.ModelProto, entry: SiteNodes) -> int:
    """Return the element type of an activation's input, as onnx numbers them; float where the file does not say."""
    values = (*model.graph.input, *model.graph.value_info, *model.graph.output)
    types = {value.name: int(value.type.tensor_type.elem_type) for value in values}
    known = [types[name] for name in (entry.x, entry.y) if types.get(name)]
    return known[0] if known else int(onnx.TensorProto.FLOAT)
