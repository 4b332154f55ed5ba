"""What an installation is like, and what a check says of it: facts and findings."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Level = Literal["ok", "note", "broken"]


@dataclass(frozen=True)
class Gpu:
    """One GPU.

    Args:
        name: Its name.
        capability: Its compute capability.
    """

    name: str
    capability: tuple[int, int]


@dataclass(frozen=True)
class Facts:
    """What was gathered of an installation; nothing here is judged.

    Args:
        platform: Operating system and machine.
        versions: Version by distribution, of those that matter.
        unmet: Requirements of lit-gelu that are not met, as text.
        onnxruntime_distributions: Distributions that bring the import name ``onnxruntime``.
        onnxruntime_error: Why it cannot be imported or cannot run a model on the CPU; empty if it can.
        onnxruntime_cuda: The CUDA version that it was built for; empty for a build without CUDA.
        onnxruntime_providers: Execution providers of the build.
        torch_error: Why torch cannot be imported; empty if it can.
        torch_cuda: The CUDA version that torch was built for; empty for a build without CUDA.
        torch_sees_gpu: Whether torch can use a GPU.
        gpu_devices: Whether the system shows NVIDIA devices, drivers working or not.
        gpus: The GPUs that torch can use.
        driver_cuda: The newest CUDA version that the driver runs, ``None`` if there is no driver.
        libraries: Whether a library that onnxruntime's CUDA provider needs was found, by its name.
        cuda_error: Why onnxruntime cannot run a model on CUDA; empty if it can; ``None`` if that was not tried.
    """

    platform: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    unmet: tuple[str, ...] = ()
    onnxruntime_distributions: tuple[str, ...] = ()
    onnxruntime_error: str = ""
    onnxruntime_cuda: str = ""
    onnxruntime_providers: tuple[str, ...] = ()
    torch_error: str = ""
    torch_cuda: str = ""
    torch_sees_gpu: bool = False
    gpu_devices: bool = False
    gpus: tuple[Gpu, ...] = ()
    driver_cuda: tuple[int, int] | None = None
    libraries: Mapping[str, bool] = field(default_factory=dict)
    cuda_error: str | None = None


@dataclass(frozen=True)
class Finding:
    """What one check found.

    Args:
        level: ``broken`` must be mended; a ``note`` explains what will not be used.
        check: What was looked at.
        text: What is so.
        remedy: How to mend it; empty if there is nothing to mend.
    """

    level: Level
    check: str
    text: str
    remedy: str = ""
