"""Which code computes an activation: a fused kernel, its formula under a compiler, or torch's own operations."""

import functools
import importlib.util
import sys
from typing import Literal, NamedTuple

import torch
from torch import Tensor, fx, nn
from torch.autograd import forward_ad

#: Elements from which on a kernel's start is short beside its work; an H200 copies so many 16-bit numbers in 4 us.
THRESHOLD = 2**22
SIXTEEN_BITS = (torch.float16, torch.bfloat16)
_OLDEST = (8, 0)  # compute capability: the first with bfloat16

_failure: list[str] = []  # why kernels are not tried again in this process


class Route(NamedTuple):
    """Which code runs, and why."""

    code: Literal["kernel", "formula", "torch"]
    why: str


def is_candidate(x: Tensor) -> bool:
    """Say whether a kernel or a formula may compute an activation of x: asked at every call, so it costs little."""
    return isinstance(x, Tensor) and x.is_cuda  # what `torch.fx` traces with is no tensor


def route(x: Tensor | fx.Proxy) -> Route:
    """Return which code computes an elementwise activation of x."""
    if isinstance(x, fx.Proxy):
        return Route("torch", f"{type(x).__name__} stands for a tensor in a trace")
    if torch.compiler.is_compiling():
        return _compiled_route(x)
    if not x.is_cuda:
        return Route("torch", f"the tensor lies on {x.device}, and kernels are for CUDA")
    if x.dtype not in SIXTEEN_BITS:
        return Route("torch", f"torch's own kernels are as fast as a copy in {x.dtype}; float16 and bfloat16 are not")
    if x.numel() < THRESHOLD:
        return Route("torch", f"{x.numel():,} elements are less than {THRESHOLD:,}: torch starts its kernels faster")
    if why := _transformed(x) or device_lacks(x.device.index or 0) or "".join(_failure):
        return Route("torch", why)
    return Route("kernel", f"{x.dtype} on {x.device}, {x.numel():,} elements")


def _compiled_route(x: Tensor) -> Route:
    """Return what a compiler or an exporter is given."""
    if torch.compiler.is_exporting():
        return Route("torch", "exported graphs have torch's own operator")
    if x.is_cuda and x.dtype in SIXTEEN_BITS:
        return Route("formula", "torch.compile fuses it with what is beside it")
    return Route("torch", "torch.compile's own code is as fast here")


def _transformed(x: Tensor) -> str:
    """Return why a tensor goes through torch's own derivatives and recordings; nothing for a plain one."""
    if torch._C._are_functorch_transforms_active():
        return "torch.func transforms what torch differentiates itself"
    if forward_ad._current_level >= 0:
        return "forward-mode derivatives are torch's own"
    if type(x) not in (Tensor, nn.Parameter):
        return f"{type(x).__name__} is no plain tensor"
    return "torch.jit records torch's own operators" if torch._C._get_tracing_state() is not None else ""


@functools.cache
def device_lacks(index: int) -> str:
    """Return what a CUDA device, or this machine, lacks for the kernels; nothing if they run."""
    if importlib.util.find_spec("triton") is None:
        return f"Triton is not installed, or has no build for {sys.platform}"
    if torch.version.hip is not None:
        return "the kernels are for NVIDIA's devices"
    capability = torch.cuda.get_device_capability(index)
    if capability < _OLDEST:
        return f"compute capability {capability[0]}.{capability[1]} is below {_OLDEST[0]}.{_OLDEST[1]}"
    return ""


def give_up(error: Exception) -> None:
    """Remember that a kernel failed, so that none is tried again in this process."""
    _failure[:] = [f"a kernel failed before: {type(error).__name__}: {error}"]
