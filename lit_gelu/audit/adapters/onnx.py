"""ONNX files in onnxruntime."""

from pathlib import Path

import onnxruntime

from lit_gelu.audit.adapters.runtime_file import InputPort, RuntimeFile
from lit_gelu.export import OnnxPredictor, inspect_onnx


def opened(path: Path) -> RuntimeFile:
    """Open a ``.onnx`` file. An activation may be written out in several operators, so none has a name."""
    predictor = OnnxPredictor(path, providers=["CPUExecutionProvider"])
    ports = []
    for name, port in predictor.ports.items():
        sizes = tuple(size if isinstance(size, int) else None for size in port.shape)
        ports.append(InputPort(name, sizes, str(port.array_dtype or port.type_name)))
    return RuntimeFile(
        path,
        f"onnxruntime {onnxruntime.__version__}",
        tuple(ports),
        lambda arrays: list(predictor.session.run(None, dict(zip(predictor.ports, arrays, strict=True)))),
        lambda: [("", spec) for spec, count in inspect_onnx(path).activations.items() for _ in range(count)],
    )
