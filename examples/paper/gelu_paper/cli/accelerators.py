"""``--accelerator`` of ``lit-gelu paper run``: its values, and what the Trainer of each run is given."""

import ctypes
import os
import sys

from gelu_paper.errors import PaperArgumentError

ACCELERATORS = ("auto", "cpu", "cuda", "gpu", "mps")


def accelerator_of(given: str, engine: str) -> str:
    """Return the Trainer's accelerator; refuse one that this machine lacks, unless Ray's nodes may have it."""
    if given == "cpu" or (given == "auto" and not _may_have_gpu()):
        return "cpu"
    import torch  # a second that --help does without

    has_cuda, has_mps = torch.cuda.is_available(), torch.backends.mps.is_available()
    if given == "auto":
        return "cuda" if has_cuda else "cpu"
    is_here = {"cuda": has_cuda, "gpu": has_cuda or has_mps, "mps": has_mps}[given]
    if not is_here and engine != "ray":
        raise PaperArgumentError(
            f"--accelerator {given} given, but torch sees none here. Leave it out to take what there is, or run where "
            "there is one; lit-gelu doctor says what torch sees."
        )
    return "cuda" if given == "gpu" and has_cuda else given


def _may_have_gpu() -> bool:
    """Tell whether torch may see a GPU, without torch: on Linux it needs NVIDIA's library, or a device of AMD's."""
    if not sys.platform.startswith("linux") or any(map(os.path.exists, ("/dev/kfd", "/dev/dxg"))):
        return True
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True
