"""What torch.compile makes of activations for GPUs that are not here, in a process where CUDA is replaced.

    python inductor_kernels.py OUT [CAPABILITY ...] [--only NAME ...]

writes JSON: for each name in `CASES`, pass and capability a list of kernels, of which those without sums are counted.

torch.compile traces on the CPU, since autograd's engine asks the CUDA driver for a device, and divides the work between
the forward and the backward pass; both graphs are moved to a fake CUDA device, where Inductor writes its kernels.
"""

import argparse
import copy
import importlib.util
import json
import re
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).resolve().parent))  # with python -P it is not there

import torch
import triton
from compiled_kernels import BLOCK, compile_kernel, machine_code
from functorch.compile import make_boxed_func, min_cut_rematerialization_partition
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.device_interface import CudaInterface
from torch._inductor import config
from torch._inductor.debug import DebugContext
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.graph import GraphLowering
from torch._inductor.runtime import hints
from torch._inductor.virtualized import V
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from triton.backends.compiler import GPUTarget

from lit_gelu.activations import create
from lit_gelu.activations.gpu import routes
from lit_gelu.kernels import fuse

SHAPE = (512, 4096)
HOPPER = 90
_MULTIPROCESSORS, _THREADS, _REGISTERS, _SHARED = 132, 2048, 65536, 232448
_HEAD = """import triton
import triton.language as tl
from torch._inductor.runtime import triton_helpers
from torch._inductor.runtime.triton_helpers import libdevice, math as tl_math
"""
_KERNEL = re.compile(r"async_compile\.triton\('(\w+)', '{3}(.*?)'{3}, device_str='cuda'\)", re.DOTALL)

_MODULES = {
    "gelu": nn.GELU(),
    "gelu_tanh": nn.GELU("tanh"),
    "silu": nn.SiLU(),
    "mish": nn.Mish(),
    "elu": nn.ELU(),
    "hard_swish": nn.Hardswish(),
}
_FUSED = {name: fuse(copy.deepcopy(module)) for name, module in _MODULES.items()}
_OWN = {"geglu": "geglu", "swiglu": "swiglu", "learned gaussian_gelu": "gaussian_gelu(mu=0.5, learnable=True)"}

#: Functions by name, with the shapes of their inputs.
CASES: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]]]] = {
    **{f"torch {name}": (module, [SHAPE]) for name, module in _MODULES.items()},
    **{f"fused {name}": (module, [SHAPE]) for name, module in _FUSED.items()},
    **{f"torch {name}": (create(spec, kernels="off"), [SHAPE]) for name, spec in _OWN.items()},
    **{f"fused {name}": (create(spec), [SHAPE]) for name, spec in _OWN.items()},
    "torch bias and gelu": (lambda x, bias: _MODULES["gelu"](x + bias), [SHAPE, SHAPE[1:]]),
    "fused bias and gelu": (lambda x, bias: _FUSED["gelu"](x + bias), [SHAPE, SHAPE[1:]]),
}


class Driver:
    """Takes the place of Triton's for CUDA: says what Inductor asks before it writes code."""

    launcher_cls = None
    utils = SimpleNamespace(get_device_properties=lambda _: {
        "max_shared_mem": _SHARED, "multiprocessor_count": _MULTIPROCESSORS, "sm_clock_rate": 1980000,
        "mem_clock_rate": 3201000, "mem_bus_width": 6144, "max_num_regs": _REGISTERS, "warpSize": 32,
    })  # fmt: skip

    def get_current_target(self) -> GPUTarget:
        """Return what kernels are compiled for."""
        return GPUTarget("cuda", HOPPER, 32)

    def get_active_torch_device(self) -> torch.device:
        """Return the device."""
        return torch.device("cuda", 0)

    def get_current_device(self) -> int:
        """Return its number."""
        return 0

    def get_device_interface(self) -> Any:
        """Return torch's side of it."""
        return torch.cuda


def stand_in() -> None:
    """Let torch's compiler and Triton believe in one device of compute capability 9.0, for good."""
    major, minor = divmod(HOPPER, 10)
    facts = {
        "multi_processor_count": _MULTIPROCESSORS, "max_threads_per_multi_processor": _THREADS, "major": major,
        "regs_per_multiprocessor": _REGISTERS, "max_threads_per_block": 1024, "warp_size": 32,
    }  # fmt: skip
    device = SimpleNamespace(
        **facts, minor=minor, name="stand-in", total_memory=1 << 37, shared_memory_per_block_optin=_SHARED,
        L2_cache_size=60 << 20, gcnArchName="",
    )  # fmt: skip
    properties = hints.DeviceProperties(type="cuda", index=0, cc=HOPPER, **facts)
    triton.runtime.driver.set_active(Driver())
    one = {"device_count": lambda: 1, "current_device": lambda: 0}
    of_torch = {"get_device_properties": lambda *_: device, "get_device_capability": lambda *_: (major, minor)}
    of_compiler = {"is_available": lambda: True, "get_compute_capability": lambda *_: HOPPER}
    started = {"is_available": lambda: False, "_lazy_init": lambda: None}  # while it traces, torch asks the driver else
    for name, function in (one | of_torch | started).items():
        setattr(torch.cuda, name, function)
    for name, function in (one | of_compiler).items():
        setattr(CudaInterface, name, staticmethod(function))
    CudaInterface.Worker.get_device_properties = staticmethod(lambda *_: device)
    CudaInterface.Worker.current_device = staticmethod(lambda: 0)
    hints.DeviceProperties.create = classmethod(lambda *_: properties)


def graphs(function: Callable[..., Any], shapes: list[tuple[int, ...]]) -> dict[str, tuple[Any, list[Any]]]:
    """Return the graphs of both passes, with examples of their inputs."""
    found: dict[str, tuple[Any, list[Any]]] = {}

    def kept(name: str) -> Callable[[Any, list[Any]], Any]:
        def compiler(graph: Any, inputs: list[Any]) -> Any:
            found[name] = graph, list(inputs)
            return make_boxed_func(graph.forward)

        return compiler

    backend = aot_autograd(
        fw_compiler=kept("forward"),
        bw_compiler=kept("backward"),
        partition_fn=min_cut_rematerialization_partition,
        decompositions=select_decomp_table(),
    )
    torch.compiler.reset()
    inputs = [torch.zeros(shape, dtype=torch.bfloat16, requires_grad=True) for shape in shapes]
    with (
        patch.object(routes, "is_candidate", lambda _: True),
        patch.object(routes, "_compiled_route", lambda _: routes.Route("formula", "")),
    ):
        y = torch.compile(function, backend=backend, fullgraph=True, dynamic=False)(*inputs)
        y.backward(torch.ones_like(y))
    return found


def on_cuda(graph: Any, inputs: list[Any]) -> tuple[Any, list[Any], FakeTensorMode]:
    """Return a graph of the CPU as it is for a fake CUDA device."""
    for node in graph.graph.nodes:
        if "device" in node.kwargs:
            node.kwargs = {**node.kwargs, "device": torch.device("cuda", 0)}
    graph.recompile()
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with mode:
        fakes = [torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="cuda") for t in inputs]
        moved = make_fx(graph, decomposition_table=select_decomp_table(), tracing_mode="real")(*fakes)
    return moved, fakes, mode


def sources(graph: Any, inputs: list[Any]) -> dict[str, str]:
    """Return what Inductor writes for a graph: kernels in Triton's language, by name."""
    moved, fakes, mode = on_cuda(graph, inputs)
    lowering = GraphLowering(moved, shape_env=mode.shape_env)
    here = patch.object(torch.cuda, "is_available", lambda: True)
    with here, DebugContext(), V.set_graph_handler(lowering), V.set_fake_mode(mode):
        lowering.run(*fakes)
        code, *_ = lowering.codegen()
    return dict(_KERNEL.findall(code if isinstance(code, str) else code.value))


def counted(name: str, source: str, capability: int) -> dict[str, Any]:
    """Return what one of Inductor's kernels becomes; of one with sums, which loops, the name alone."""
    if not name.startswith("triton_poi"):
        return {"kernel": name}
    signature = dict(re.findall(r"'(\w+)': '([^']+)'", re.search(r"'signature': \{(.*?)\}", source)[1]))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.py"
        file.write_text(_HEAD + source[source.index("@triton.jit") :])
        spec = importlib.util.spec_from_file_location(name, file)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        types = {key: kind for key, kind in signature.items() if kind != "constexpr"}
        constants = {key: BLOCK for key, kind in signature.items() if kind == "constexpr"}
        code = machine_code(compile_kernel(getattr(module, name), capability, types, constants), BLOCK)
    return {"kernel": name, **code.summary()}


def main() -> None:
    """Write what was asked for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("capabilities", type=int, nargs="*", default=[HOPPER])
    parser.add_argument("--only", nargs="+", choices=list(CASES), default=list(CASES))
    options = parser.parse_args()
    config.compile_threads = 1
    stand_in()
    found: dict[str, Any] = {}
    for name in options.only:
        found[name] = {}
        for direction, graph in graphs(*CASES[name]).items():
            kernels = sources(*graph).items()
            found[name][direction] = {
                cap: [counted(kernel, source, cap) for kernel, source in kernels] for cap in options.capabilities
            }
    options.out.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
