"""Whether torch and onnxruntime can use CUDA in one process; nothing is imported here, for either may be broken."""


def mismatch(torch_cuda: str | None, onnxruntime_cuda: str | None) -> tuple[str, str] | None:
    """Return what is wrong with two builds, and the remedy; ``None`` for one major version, or one without CUDA."""
    # Both load cuBLAS and cuDNN. torch's libcudnn.so.9 has the same name for CUDA 12 and 13, and the first one stays.
    torch_major, ours = (str(version or "").split(".")[0] for version in (torch_cuda, onnxruntime_cuda))
    if not torch_major or not ours or torch_major == ours:
        return None
    text = f"torch is built for CUDA {torch_major}, onnxruntime for CUDA {ours}: it would get libraries of the other"
    return text, f"install the build of torch for CUDA {ours}, or a release of onnxruntime-gpu for CUDA {torch_major}"
