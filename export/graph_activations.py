"""The activations of any ONNX file: where they are, what computes them, and each one's nodes as a function."""

import os
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import torch
from onnx import helper, numpy_helper

from lit_gelu.activations import ActivationRegistry, ActivationSpec
from lit_gelu.activations.registry import registry_or_default
from lit_gelu.errors import LitGeluError, ModelFileError
from lit_gelu.export.inputs import as_array
from lit_gelu.export.lowering.algebra import constant_of
from lit_gelu.export.lowering.spellings import recognitions
from lit_gelu.export.metadata import FileMetadata, recorded_metadata, strip_origin
from lit_gelu.export.runtime import CPU, OnnxPredictor
from lit_gelu.export.runtime.model_file import nodes_of
from lit_gelu.export.site_nodes import SiteNodes, cut_out, load_graph, node_label, site_nodes, site_of, valid_onnx

_SCOPES = "pkg.torch.onnx.name_scopes"  # where torch's exporter keeps the names of the modules that made a node
_QUOTED = re.compile(r"'([^']*)'")
_TELLING = ("Erf", "Tanh", "Sigmoid", "HardSigmoid", "Exp", "Softplus", "Log", "Clip", "Min")  # names a formula
WITH_BIAS = frozenset({"BiasGelu", "FastGelu"})
_ONNX_TYPES: Mapping[torch.dtype, int] = {
    torch.float64: onnx.TensorProto.DOUBLE, torch.float32: onnx.TensorProto.FLOAT,
    torch.float16: onnx.TensorProto.FLOAT16, torch.bfloat16: onnx.TensorProto.BFLOAT16,
}  # fmt: skip
# Operators that are an activation with some numbers only, or that others fuse in: its spec, with its numbers in it.
_PLAIN = frozenset({"Clip", "HardSigmoid", "PRelu", "Swish"})
_DEFAULTS: Mapping[str, tuple[float, ...]] = {"HardSigmoid": (0.2, 0.5), "LeakyRelu": (0.01,), "Swish": (1.0,)}
_SPECS: Mapping[str, str] = {
    "Clip(0, 6)": "relu6", "HardSigmoid(0.166667, 0.5)": "hard_sigmoid", "HardSwish()": "hard_swish",
    "Relu()": "relu", "Sigmoid()": "sigmoid", "Swish(1)": "silu", "Tanh()": "tanh",
}  # fmt: skip
_WITH_NUMBER: Mapping[str, str] = {
    "LeakyRelu": "leaky_relu(negative_slope={})", "PRelu": "prelu(num_parameters={})", "Swish": "swish(beta={})",
}  # fmt: skip


@dataclass(frozen=True)
class GraphActivation:
    """One elementwise activation of a graph.

    Args:
        scope: The fully qualified name of the module that computes it, as far as the file tells it; else empty.
        spec: Its canonical spec; ``None`` for a formula whose constants are those of no registered activation.
        operator: What computes it: ``Gelu(tanh)``, ``FastGelu``, ``Erf formula``, ``Relu in FusedConv``.
        x: The name of its input in the graph; empty where an operator computes it along with something else, or it is
            not known which nodes of the file it is.
        y: The name of its output.
        nodes: What computes it; of ``FusedConv`` and its like, a node that stands for the activation.
    """

    scope: str
    spec: str | None
    operator: str
    x: str
    y: str
    nodes: tuple[onnx.NodeProto, ...]


def graph_activations(
    path: str | os.PathLike[str], registry: ActivationRegistry | None = None
) -> list[GraphActivation]:
    """Return the elementwise activations of an ONNX file, whoever wrote it.

    In a file of `export_onnx` they are what it recorded. In others they are recognised: standard operators, those that
    onnxruntime fuses them into, and formulas, whose constants must be right up to rounding.

    Args:
        path: The file; nothing of it is run.
        registry: Whose activations are recognised beside this package's own.

    Returns:
        The activations, in the graph's order; those of branches and loops too.

    Raises:
        ModelFileError: If there is no such file, it is no valid ONNX model, or an entry of its metadata is damaged.

    Example:
        >>> import pathlib, tempfile, torch
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "net.onnx"
        >>> net = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.GELU(approximate="tanh")).eval()
        >>> _ = torch.onnx.export(net, (torch.zeros(1, 2),), path, dynamo=True, verbose=False)
        >>> [(each.scope, each.spec, each.operator) for each in graph_activations(path)]
        [('1', "gelu(approximate='tanh')", 'Gelu(tanh)')]
    """
    with valid_onnx(path):
        return activations_of(load_graph(path), recorded_metadata(path), registry)


def activations_of(
    model: onnx.ModelProto, metadata: FileMetadata | None, registry: ActivationRegistry | None = None
) -> list[GraphActivation]:
    """Return the activations of a graph with shapes and without functions; see `graph_activations`."""
    if metadata is not None and any(site_of(node) is not None for node in nodes_of(model.graph)):
        return _recorded(model, metadata)
    graph = ir.from_proto(model)
    strip_origin(graph)  # names of modules in a file from elsewhere are text that nobody should read as code
    nodes = {name: node for node in nodes_of(model.graph) for name in node.output if name}
    order = {name: i for i, name in enumerate(nodes)}
    activations: dict[str, GraphActivation] = {}
    inside: set[str] = set()  # values that an activation makes on its way
    for entry in recognitions(graph, registry):
        y = str(entry.node.outputs[0].name)
        names = sorted((str(node.outputs[0].name) for node in entry.nodes), key=order.__getitem__)
        parts = tuple(nodes[name] for name in names)
        kinds = [node.op_type for node in parts if node.op_type != "Constant"]
        telling = next((kind for kind in _TELLING if kind in kinds), kinds[-1])
        operator = node_label(nodes[y]) if len(kinds) == 1 else f"{telling} formula"
        operator = operator if entry.spec is not None else f"unknown formula like {entry.name}"
        activations[y] = GraphActivation(_scope(nodes[y]), entry.spec, operator, str(entry.x.name), y, parts)
        inside.update(names)
    for node in ir.traversal.RecursiveGraphIterator(graph.graph):
        y = str(node.outputs[0].name)
        if y not in inside and (other := _other(node, nodes, registry_or_default(registry))) is not None:
            activations[y] = other
    return sorted(activations.values(), key=lambda each: order[each.y])


def activation_function(
    path: str | os.PathLike[str], activation: GraphActivation, dtype: torch.dtype | None = None
) -> Callable[[np.ndarray], np.ndarray]:
    """Return what one activation's nodes compute, cut out of the file and run by onnxruntime alone on the CPU.

    Of a bias that its operator adds the function has zeros, of one value a channel the first.

    Args:
        path: The file.
        activation: One of its `graph_activations`.
        dtype: What its nodes take; by default what the file says. Where onnxruntime has no kernels for a 16-bit dtype,
            the nodes run in float32 between two roundings to it.

    Returns:
        A function from an array of any shape to one of the same shape, in float32, or in float64 if the nodes are.

    Raises:
        ModelFileError: If it is not known which nodes of the file it is, or onnxruntime does not run them.

    Example:
        >>> import pathlib, tempfile, torch
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "net.onnx"
        >>> net = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.GELU(approximate="tanh")).eval()
        >>> _ = torch.onnx.export(net, (torch.zeros(1, 2),), path, dynamo=True, verbose=False)
        >>> [tanh] = graph_activations(path)
        >>> activation_function(path, tanh)(np.array([1.0])).round(6)  # exact GELU is 0.841345 there
        array([0.841192], dtype=float32)
    """
    if not activation.nodes:
        raise ModelFileError(
            f"{os.fspath(path)!r} does not tell the nodes of {activation.spec} at {activation.scope or 'no module'!r}: "
            "they are in a branch or a loop. Export the file without, or ask for another activation."
        )
    x, y = activation.x or "x", activation.nodes[-1].output[0]
    zeros = [node.input[1] for node in activation.nodes if node.op_type in WITH_BIAS and len(node.input) > 1]
    cut = cut_out(load_graph(path), SiteNodes(activation.scope, 0, activation.nodes, x, y))
    element = cut.graph.input[0].type.tensor_type
    element.elem_type = element.elem_type if dtype is None else _ONNX_TYPES[dtype]
    kind = next((each for each, number in _ONNX_TYPES.items() if number == element.elem_type), torch.float32)
    for tensor in cut.graph.initializer:
        if tensor.name in zeros:
            tensor.CopyFrom(numpy_helper.from_array(np.zeros_like(numpy_helper.to_array(tensor)), tensor.name))
    element.shape.dim.add().dim_value = 1  # a bias is one of the last axis
    try:
        predictor = _opened(cut)
    except ModelFileError:
        if kind not in {torch.float16, torch.bfloat16}:
            raise
        predictor = _opened(_in_float32(cut))
    takes = next(iter(predictor.ports.values())).dtype

    def function(values: np.ndarray) -> np.ndarray:
        rounded = torch.from_numpy(np.asarray(values, dtype=np.float64).reshape(-1, 1)).to(kind)
        output = predictor(rounded.to(takes))
        result = (output[0] if isinstance(output, tuple) else output).to(kind)
        return as_array(result.double() if kind == torch.float64 else result.float()).reshape(np.shape(values))

    return function


def _opened(model: onnx.ModelProto) -> OnnxPredictor:
    """Open a model that is in no file."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # errors are raised
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "activation.onnx"
        onnx.save(model, path)
        return OnnxPredictor(path, [CPU], options)


def _in_float32(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a cut-out in 16 bit as one in float32."""
    wide = onnx.ModelProto()
    wide.CopyFrom(model)
    constants = [entry.t for node in wide.graph.node for entry in node.attribute if entry.HasField("t")]
    for tensor in (*wide.graph.initializer, *constants):
        if tensor.data_type in {onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16}:
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float32), tensor.name))
    wide.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    return wide


def _recorded(model: onnx.ModelProto, metadata: FileMetadata) -> list[GraphActivation]:
    """Return what `export_onnx` recorded: first what its nodes are known of, in the graph's order."""
    records = {record.site: record for record in metadata.sites}
    entries = site_nodes(model, {site: record.calls for site, record in records.items()})
    missing = Counter({site: record.calls if record.row else 1 for site, record in records.items()})
    missing.subtract(entry.site for entry in entries)
    return [
        *(
            GraphActivation(
                entry.site,
                records[entry.site].spec,
                " ".join(map(node_label, entry.nodes)),
                entry.x,
                entry.y,
                entry.nodes,
            )
            for entry in entries
        ),
        *(
            GraphActivation(site, records[site].spec, " ".join(records[site].operators), "", "", ())
            for site in missing.elements()  # in a branch or loop, or decomposed by torch, which counted no calls
        ),
    ]


def _scope(node: onnx.NodeProto) -> str:
    """Return the module that made a node: by torch's exporter, or by the paths of TorchScript's in names."""
    scopes = next((entry.value for entry in node.metadata_props if entry.key == _SCOPES), "")
    if names := _QUOTED.findall(scopes):
        return str(names[-2]) if len(names) > 1 else ""
    path = next((name for name in (node.output[0], node.name) if name.startswith("/")), "/")
    parts: list[str] = []
    for part in path.split("/")[1:-1]:
        if parts and part.startswith(f"{parts[-1]}."):  # a container that is called: /layer1/layer1.0
            parts.pop()
        parts.append(part)
    return ".".join(parts)


def _other(node: ir.Node, nodes: Mapping[str, onnx.NodeProto], registry: ActivationRegistry) -> GraphActivation | None:
    """Return the activation that an operator is with its numbers, or that onnxruntime has fused into it."""
    y = str(node.outputs[0].name)
    values = {name: attribute.value for name, attribute in node.attributes.items()}
    kind, standard = str(values.get("activation", "")), node.domain in {"", "ai.onnx"}
    if not standard and kind and ("Fused" in node.op_type or node.domain == "com.microsoft.nchwc"):
        names: tuple[str, ...] = ("activation_params", "activation_alpha", "activation_beta")
        operator, x = f"{kind} in {node.op_type}", ""
    elif standard and node.op_type in _PLAIN and node.inputs[0] is not None:
        names, kind, operator, x = ("alpha", "beta", "min", "max"), node.op_type, node.op_type, str(node.inputs[0].name)
    else:
        return None
    arrays = [np.asarray(values[name]) for name in names if name in values]
    arrays += [c for value in (node.inputs[1:] if x else ()) if value and (c := constant_of(value)) is not None]
    numbers = [float(n) for array in arrays for n in array.ravel()]
    numbers += _DEFAULTS.get(kind, ())[len(numbers) :]
    numbers = [arrays[0].size] if kind == "PRelu" and arrays else numbers
    text = [f"{number:.6g}" for number in numbers]
    spelled = _SPECS.get(f"{kind}({', '.join(text)})") or (_WITH_NUMBER.get(kind, "").format(text[0]) if text else "")
    spec = None
    with suppress(LitGeluError):  # a registry without it
        spec = str(registry.resolve(ActivationSpec.parse(spelled))) if spelled else None
    if x and spec is None:  # a Clip to other bounds is none
        return None
    constants = [nodes[str(value.name)] for value in node.inputs[1:] if value and value.producer()]
    parts = (*constants, nodes[y]) if x else _unfused(kind, numbers)
    return GraphActivation(_scope(nodes[y]), spec, operator, x, y, parts)


def _unfused(kind: str, numbers: Sequence[float]) -> tuple[onnx.NodeProto, ...]:
    """Return an activation that another operator fuses in, as nodes of its own from ``x`` to ``y``."""
    if kind == "Clip":
        names = ["low", "high"][: len(numbers)]
        bounds = zip(names, numbers, strict=False)
        constants = [helper.make_node("Constant", [], [name], value_float=number) for name, number in bounds]
        return (*constants, helper.make_node("Clip", ["x", *names], ["y"]))
    attributes: dict[str, Any] = dict(zip(("alpha", "beta"), numbers, strict=False))
    return (helper.make_node(kind, ["x"], ["y"], **attributes),)
