"""ONNX files for the parity tests, made by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from lit_gelu.export.parity.runs import SessionSetup
from lit_gelu.export.runtime import CPU
from lit_gelu.export.site_nodes import site_nodes

ON_CPU = SessionSetup((CPU,))
SITE = "lit_gelu.site"


def node(operator: str, inputs: Sequence[str], output: str, site: str | None = "act", **attributes: object):
    """One node, as the exporter marks those of an activation."""
    domain, _, name = operator.rpartition("::")
    proto = helper.make_node(name, list(inputs), [output], domain=domain, name=f"node_{output}", **attributes)
    if site is not None:
        proto.metadata_props.add(key=SITE, value=site)
    return proto


def model(
    nodes: Sequence[onnx.NodeProto],
    constants: Mapping[str, np.ndarray] | None = None,
    element: int = TensorProto.FLOAT,
    opset: int = 20,
    outputs: Sequence[str] = ("y",),
    shape: Sequence[str | int] = ("n",),
) -> onnx.ModelProto:
    """A model from x to its outputs."""
    graph = helper.make_graph(
        list(nodes),
        "graph",
        [helper.make_tensor_value_info("x", element, list(shape))],
        [helper.make_tensor_value_info(name, element, None) for name in outputs],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in (constants or {}).items()],
    )
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def activation(operator: str, element: int = TensorProto.FLOAT, opset: int = 20, **attributes: object):
    """A model that is one activation of one node, and that node."""
    proto = model([node(operator, ["x"], "y", **attributes)], element=element, opset=opset)
    return proto, site_nodes(proto, {"act": 1})[0]
