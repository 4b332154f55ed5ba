"""OpenVINO's intermediate representation on its CPU plugin."""

from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import numpy as np

from lit_gelu.audit.adapters.runtime_file import Array, InputPort, RuntimeFile, is_activation
from lit_gelu.extras import need


def opened(path: Path) -> RuntimeFile:
    """Open a ``.xml`` file at the precision that the plugin takes by default: bfloat16 where there is AMX."""
    openvino = need("openvino", extra="openvino", what=f"Opening {path.name}")
    core = openvino.Core()
    model = core.read_model(path)
    compiled = core.compile_model(model, "CPU")
    ports = []
    for port in compiled.inputs:
        sizes = tuple(None if size.is_dynamic else size.get_length() for size in port.get_partial_shape())
        dtype = np.dtype(port.get_element_type().to_dtype()).name
        ports.append(InputPort(port.get_any_name() if port.get_names() else "", sizes, dtype))

    def execute(arrays: Sequence[Array]) -> list[Array]:
        result = compiled(list(arrays))
        return [np.array(result[port]) for port in compiled.outputs]

    def activations() -> list[tuple[str, str]]:
        rows = []
        for operator in model.get_ordered_ops():
            if is_activation(operator.get_type_name()):
                attributes = [f"{name}={value}" for name, value in operator.get_attributes().items()]
                rows.append((operator.get_friendly_name(), " ".join([operator.get_type_name(), *attributes])))
        return rows

    return RuntimeFile(path, f"openvino {version('openvino')}", tuple(ports), execute, activations)
