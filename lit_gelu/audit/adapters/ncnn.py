"""ncnn's text files on the CPU."""

from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import numpy as np

from lit_gelu.audit.adapters.runtime_file import Array, InputPort, RuntimeFile, is_activation
from lit_gelu.errors import ModelFileError, shown
from lit_gelu.extras import need


def opened(path: Path) -> RuntimeFile:
    """Open a ``.param`` file, which knows no shapes. Arrays have no batch dimension."""
    # A layer is a line: type, name, numbers of inputs and outputs, their names, and parameters as number=value.
    lines = [line.split() for line in path.read_text("utf-8", errors="replace").splitlines() if line.strip()]
    if lines[:1] != [["7767517"]] or [row[0] for row in lines[1:2]] != [str(len(lines) - 2)]:
        raise ModelFileError(
            f"{shown(str(path))} is no whole ncnn file: 7767517 and the number of layers come first. Convert it again."
        )
    ncnn = need("ncnn", extra="ncnn", what=f"Opening {path.name}")
    net = ncnn.Net()
    if net.load_param(str(path)) or net.load_model(str(path.with_suffix(".bin"))):
        raise ModelFileError(
            f"ncnn does not read {shown(str(path))} with its .bin; it printed why. Copy both files, "
            "convert the model again, or install a newer ncnn."
        )
    ports = tuple(InputPort(name, None, "float32") for name in net.input_names())

    def execute(arrays: Sequence[Array]) -> list[Array]:
        extractor = net.create_extractor()
        for port, array in zip(ports, arrays, strict=True):
            if not array.size:  # ncnn would end the process
                raise ValueError("an empty array")
            dtype = np.int32 if array.dtype in (np.int32, np.int64) else np.float32  # words of an Embed; pixels
            extractor.input(port.name, ncnn.Mat(np.ascontiguousarray(array, dtype=dtype)).clone())
        results = [extractor.extract(name) for name in net.output_names()]
        if any(status for status, _ in results):
            raise ValueError("a layer fails")
        return [np.array(value) for _, value in results]

    def activations() -> list[tuple[str, str]]:
        rows = []
        for kind, name, inputs, outputs, *rest in lines[2:]:
            parameters = rest[int(inputs) + int(outputs) :]
            form = ["fast_gelu, the tanh form" if "0=1" in parameters else "exact"] if kind == "GELU" else []
            rows.append((name, " ".join([kind, *(form or parameters)])))
        return [row for row in rows if is_activation(row[1].split()[0])]

    return RuntimeFile(path, f"ncnn {version('ncnn')}", ports, execute, activations)
