"""Files of onnxruntime and of other runtimes, opened, run and read in one way: `open_runtime_file`."""

import importlib
import os
from pathlib import Path

from lit_gelu.audit.adapters.runtime_file import InputPort, RuntimeFile
from lit_gelu.errors import LitGeluError, ModelFileError, message_of, shown
from lit_gelu.files import is_file

__all__ = ["SUFFIXES", "InputPort", "RuntimeFile", "open_runtime_file"]

# The module beside this one that opens files of a suffix. It imports its runtime when a file is opened.
SUFFIXES = {".onnx": "onnx", ".tflite": "litert", ".pte": "executorch", ".xml": "openvino", ".param": "ncnn"}


def open_runtime_file(path: str | os.PathLike[str]) -> RuntimeFile:
    """Open a model file in the runtime that its suffix names, on the CPU.

    Runtimes read files in native code, which a damaged file may crash: open strangers' files in another process.

    Args:
        path: ``.onnx`` (onnxruntime), ``.tflite`` (LiteRT), ``.pte`` (ExecuTorch), ``.xml`` with its ``.bin``
            (OpenVINO), or ``.param`` with its ``.bin`` (ncnn).

    Returns:
        What runs it, and says which activations it names.

    Raises:
        ModelFileError: If there is no such file, or its suffix is another one, or the runtime cannot read it.
        MissingExtraError: If the runtime is not installed.

    Example:
        >>> import pathlib, tempfile, numpy as np, torch
        >>> from lit_gelu.export import export_onnx
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "net.onnx"
        >>> _ = export_onnx(torch.nn.GELU("tanh"), path, torch.zeros(2))
        >>> file = open_runtime_file(path)
        >>> file.activations
        [('', "gelu(approximate='tanh')")]
        >>> file.run([np.ones(2, dtype=np.float32)])[0].round(4)
        array([0.8412, 0.8412], dtype=float32)
    """
    file = Path(path)
    if file.suffix not in SUFFIXES:
        raise ModelFileError(f"{shown(str(path))} has no suffix of a runtime. Give a file in {', '.join(SUFFIXES)}.")
    if not is_file(file):
        raise ModelFileError(f"There is no file {shown(str(path))}. Give the path of a model.")
    adapter = importlib.import_module(f"{__name__}.{SUFFIXES[file.suffix]}")
    try:
        opened: RuntimeFile = adapter.opened(file)
    except Exception as error:  # each runtime has errors of its own
        if isinstance(error, LitGeluError):
            raise
        reason = message_of(error)
        raise ModelFileError(f"{shown(str(path))} cannot be opened: {reason}. Copy or convert it again.") from error
    return opened
