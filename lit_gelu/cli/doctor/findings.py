"""What can be wrong with an installation: pure functions from facts to findings."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from lit_gelu.cli.doctor.facts import Facts
from lit_gelu.cuda_versions import mismatch, tensorrt_wheel

Level = Literal["ok", "note", "broken"]

# Compiled kernels in the wheels of onnxruntime-gpu, by its version (read with cuobjdump). They hold no PTX that a newer
# GPU's driver could translate. A number fits the same major version from its minor version on; with an a, only itself.
KERNELS: Mapping[str, tuple[str, ...]] = {"1.31": ("75", "80", "86", "89", "90a", "120a")}
_DISTRIBUTIONS = {  # by library: the distribution that brings it; {cuda} is the major version
    "libcublas": "nvidia-cublas",
    "libcublasLt": "nvidia-cublas",
    "libcudart": "nvidia-cuda-runtime",
    "libcurand": "nvidia-curand",
    "libcufft": "nvidia-cufft",
    "libcudnn": "nvidia-cudnn-cu{cuda}",
}


@dataclass(frozen=True)
class Finding:
    """What one check found."""

    level: Level  # what is broken must be mended; a note explains what will not be used
    check: str
    text: str
    remedy: str = ""  # empty if there is nothing to mend


def check_requirements(facts: Facts) -> Finding:
    """Are lit-gelu's own requirements met?"""
    if not facts.unmet:
        return Finding("ok", "requirements", "every distribution that lit-gelu needs is there, in a version that fits")
    names = " ".join(f"'{re.split(r'[ (]', text)[0]}'" for text in facts.unmet)
    return Finding("broken", "requirements", f"not met: {'; '.join(facts.unmet)}", f"pip install {names}")


def check_torch(facts: Facts) -> Finding:
    """Can torch be imported?"""
    if facts.torch_error:
        remedy = "pip uninstall -y torch && pip install torch"
        return Finding("broken", "torch", f"cannot be imported: {facts.torch_error}", remedy)
    built = f"for CUDA {facts.torch_cuda}" if facts.torch_cuda else "without CUDA"
    return Finding("ok", "torch", f"{facts.versions.get('torch', '?')}, built {built}")


def check_onnxruntime_wheels(facts: Facts) -> Finding:
    """Is exactly one distribution behind the import name ``onnxruntime``?"""
    # Two overwrite each other's files, the last one wins, and removing one leaves an empty package.
    names = facts.onnxruntime_distributions
    if len(names) == 1:
        version = facts.versions.get(names[0], "?")
        return Finding("ok", "onnxruntime wheels", f"one: {names[0]} {version}")
    wanted = "onnxruntime-gpu" if _has_gpu_wheels(facts) else "onnxruntime"
    if not names:
        return Finding("broken", "onnxruntime wheels", "none is installed", f"pip install {wanted}")
    text = f"{' and '.join(names)} are installed together; they have the same files, and the last one installed wins"
    return Finding("broken", "onnxruntime wheels", text, f"pip uninstall -y {' '.join(names)} && pip install {wanted}")


def check_onnxruntime(facts: Facts) -> Finding:
    """Can onnxruntime be imported, and does it run a model on the CPU?"""
    if not facts.onnxruntime_error:
        built = f"for CUDA {facts.onnxruntime_cuda}" if facts.onnxruntime_cuda else "without CUDA"
        return Finding("ok", "onnxruntime", f"runs a model on the CPU; built {built}")
    names = facts.onnxruntime_distributions or ("onnxruntime",)
    remedy = f"pip install --force-reinstall --no-deps {names[-1]}"
    if len(names) > 1:
        remedy = check_onnxruntime_wheels(facts).remedy
    return Finding("broken", "onnxruntime", f"does not work: {facts.onnxruntime_error}", remedy)


def _has_gpu_wheels(facts: Facts) -> bool:
    """Return whether onnxruntime-gpu has wheels for this platform."""
    words = facts.platform.lower()
    return ("linux" in words or "windows" in words) and ("x86_64" in words or "amd64" in words)


def check_gpu(facts: Facts) -> Finding:
    """Is there a GPU, and does torch see it?"""
    if facts.torch_sees_gpu:
        names = ", ".join(f"{gpu.name} (sm_{gpu.capability[0]}{gpu.capability[1]})" for gpu in facts.gpus)
        return Finding("ok", "GPU", names)
    if not facts.gpu_devices:
        return Finding("note", "GPU", "no NVIDIA GPU here: exported files run on the CPU")
    if facts.driver_cuda is None:
        return Finding("broken", "GPU", "there is an NVIDIA GPU, but no working driver", "install NVIDIA's driver")
    if not facts.torch_cuda:
        remedy = f"install the build of torch for CUDA {_major(facts.onnxruntime_cuda) or facts.driver_cuda[0]}"
        return Finding("broken", "GPU", "there is an NVIDIA GPU, but torch is built without CUDA", remedy)
    text = f"there is an NVIDIA GPU, but torch (for CUDA {facts.torch_cuda}) cannot use it"
    return Finding("broken", "GPU", text, "python -c 'import torch; torch.zeros(1, device=\"cuda\")' says why")


def check_cuda_versions(facts: Facts) -> Finding:
    """Are torch and onnxruntime built for the same major version of CUDA?"""
    torch_major, ours = _major(facts.torch_cuda), _major(facts.onnxruntime_cuda)
    level: Level = "broken" if facts.gpu_devices else "note"
    if not ours:
        if not facts.gpu_devices or not facts.onnxruntime_distributions:
            return Finding("note", "CUDA versions", "onnxruntime is built without CUDA: it runs on the CPU")
        remedy = f"pip uninstall -y {' '.join(facts.onnxruntime_distributions)} && pip install onnxruntime-gpu"
        return Finding("broken", "CUDA versions", "there is a GPU, but onnxruntime is built without CUDA", remedy)
    if not torch_major:
        return Finding("note", "CUDA versions", f"onnxruntime is built for CUDA {ours}, torch without CUDA")
    if wrong := mismatch(facts.torch_cuda, facts.onnxruntime_cuda):
        return Finding(level, "CUDA versions", *wrong)
    return Finding("ok", "CUDA versions", f"torch and onnxruntime are both built for CUDA {ours}")


def check_driver(facts: Facts) -> Finding:
    """Is the driver new enough for onnxruntime's CUDA?"""
    # A driver runs every minor version of the major version that it was made for, and older ones.
    if facts.driver_cuda is None or not facts.onnxruntime_cuda:
        return Finding("note", "driver", "no NVIDIA driver" if facts.driver_cuda is None else "onnxruntime needs none")
    newest = ".".join(map(str, facts.driver_cuda))
    if facts.driver_cuda[0] >= int(_major(facts.onnxruntime_cuda)):
        return Finding("ok", "driver", f"runs CUDA up to {newest}")
    text = f"the driver runs CUDA up to {newest}, onnxruntime is built for {facts.onnxruntime_cuda}"
    remedy = "install a newer NVIDIA driver (CUDA 13 needs 580 or newer), or a release of onnxruntime-gpu for "
    return Finding("broken", "driver", text, f"{remedy}CUDA {facts.driver_cuda[0]}")


def check_libraries(facts: Facts) -> Finding:
    """Are the libraries there that onnxruntime's CUDA provider loads?"""
    if not facts.onnxruntime_cuda:
        return Finding("note", "CUDA libraries", "onnxruntime needs none")
    missing = [name for name, found in facts.libraries.items() if not found]
    if not missing:
        return Finding("ok", "CUDA libraries", f"found: {', '.join(facts.libraries) or 'none needed'}")
    cuda = _major(facts.onnxruntime_cuda)
    stems = [name.split(".")[0].split("64_")[0] for name in missing]
    names = [_DISTRIBUTIONS[stem].format(cuda=cuda) for stem in stems if stem in _DISTRIBUTIONS]
    suffix = "" if int(cuda) >= 13 else f"-cu{cuda}"
    names = [name if name.endswith(f"-cu{cuda}") else name + suffix for name in dict.fromkeys(names)]
    level: Level = "broken" if facts.gpu_devices else "note"
    remedy = f"pip install {' '.join(names)}" if names else f"install CUDA {cuda}"
    return Finding(level, "CUDA libraries", f"missing: {', '.join(missing)}", remedy)


def check_tensorrt(facts: Facts) -> Finding:
    """Is the TensorRT there that onnxruntime's provider loads? Nothing else needs it."""
    if facts.tensorrt_found or not facts.tensorrt:
        text = f"found: {facts.tensorrt}" if facts.tensorrt else "onnxruntime is built without it"
        return Finding("ok" if facts.tensorrt else "note", "TensorRT", text)
    wheels = [f"{name} {version}" for name, version in facts.versions.items() if name.startswith("tensorrt")]
    level: Level = "broken" if wheels and facts.gpu_devices else "note"
    why = f"{', '.join(wheels)} has another" if wheels else "TensorrtExecutionProvider, which is optional, needs it"
    remedy = tensorrt_wheel(facts.tensorrt, facts.onnxruntime_cuda)
    return Finding(level, "TensorRT", f"missing: {facts.tensorrt}; {why}", remedy)


def check_kernels(facts: Facts) -> Finding:
    """Has onnxruntime kernels for these GPUs?"""
    version = facts.versions.get("onnxruntime-gpu", "")
    kernels = KERNELS.get(".".join(version.split(".")[:2]))
    if not facts.gpus or not facts.onnxruntime_cuda:
        return Finding("note", "GPU kernels", "nothing to check")
    if kernels is None:
        text = f"it is not known here which GPUs onnxruntime-gpu {version or '(built elsewhere)'} has kernels for"
        return Finding("note", "GPU kernels", text)
    without = [gpu for gpu in facts.gpus if not any(_fits(kernel, gpu.capability) for kernel in kernels)]
    if not without:
        return Finding("ok", "GPU kernels", f"onnxruntime-gpu {version} has kernels for every GPU here")
    names = ", ".join(f"{gpu.name} (sm_{gpu.capability[0]}{gpu.capability[1]})" for gpu in without)
    text = f"onnxruntime-gpu {version} has no kernels for {names}: only for sm_{', sm_'.join(kernels)}, without PTX"
    return Finding("broken", "GPU kernels", text, "build onnxruntime for this GPU, use another release, or TensorRT")


def check_cuda_run(facts: Facts) -> Finding:
    """Does onnxruntime run a model on CUDA?"""
    if facts.cuda_error is None:
        return Finding("note", "a model on CUDA", "not tried: torch sees no GPU or onnxruntime is built without CUDA")
    if not facts.cuda_error:
        return Finding("ok", "a model on CUDA", "runs there, and nowhere else")
    remedy = "mend what is said above; else `python -c 'import onnxruntime; onnxruntime.print_debug_info()'` says more"
    return Finding("broken", "a model on CUDA", f"does not run: {facts.cuda_error}", remedy)


def _major(version: str) -> str:
    return version.split(".")[0]


def _fits(kernel: str, capability: tuple[int, int]) -> bool:
    """Return whether a compiled kernel runs on a GPU."""
    exact = kernel.endswith("a")
    number = int(kernel.rstrip("a"))
    major, minor = divmod(number, 10)
    return (major, minor) == capability if exact else major == capability[0] and minor <= capability[1]


CHECKS: tuple[Callable[[Facts], Finding], ...] = (
    check_requirements,
    check_torch,
    check_onnxruntime_wheels,
    check_onnxruntime,
    check_gpu,
    check_driver,
    check_cuda_versions,
    check_libraries,
    check_tensorrt,
    check_kernels,
    check_cuda_run,
)


def examine(facts: Facts) -> list[Finding]:
    """Run every check."""
    return [check(facts) for check in CHECKS]
