"""Whether torch and onnxruntime can use CUDA in one process, and which TensorRT; nothing here imports one of them."""

import re
from pathlib import Path


def mismatch(torch_cuda: str | None, onnxruntime_cuda: str | None) -> tuple[str, str] | None:
    """Return what is wrong with two builds, and the remedy; ``None`` for one major version, or one without CUDA."""
    # Both load cuBLAS and cuDNN. torch's libcudnn.so.9 has the same name for CUDA 12 and 13, and the first one stays.
    torch_major, ours = (str(version or "").split(".")[0] for version in (torch_cuda, onnxruntime_cuda))
    if not torch_major or not ours or torch_major == ours:
        return None
    text = f"torch is built for CUDA {torch_major}, onnxruntime for CUDA {ours}: it would get libraries of the other"
    return text, f"install the build of torch for CUDA {ours}, or a release of onnxruntime-gpu for CUDA {torch_major}"


def tensorrt_library(capi: Path) -> str:
    """Return the file of TensorRT that onnxruntime's provider in a folder loads; empty if there is no provider."""
    for library in capi.glob("*onnxruntime_providers_tensorrt.*"):
        if match := re.search(rb"\0(libnvinfer\.so\.\d+|nvinfer_\d+\.dll)\0", library.read_bytes()):
            return match[1].decode()
    return ""


def tensorrt_wheel(library: str, cuda: str) -> str:
    """Return what brings it: pip's newest may be of a major version that onnxruntime cannot load."""
    major = int("0" + "".join(filter(str.isdigit, library)))
    return f"pip install 'tensorrt-cu{cuda.split('.')[0]}<{major + 1}'"
