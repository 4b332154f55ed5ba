"""What each activation costs, beside torch: ``python benchmarks/activations.py [--device cuda --dtype bfloat16]``.

For every registered activation three ways of computing it run in turn, in one process: the module that the registry
builds, what a user would write in torch, and ``torch.compile`` of that. A number is the share of copy bandwidth: the
bytes that must move (forward: input and output; backward: both gradients and one saved tensor of the input's size)
over the time, divided by what ``Tensor.clone`` of the input reaches in the same round; the median over the rounds. 1.00
is as fast as copying. ``clone`` allocates its result as the activations do.

Saved bytes are those that ``torch.autograd.graph.saved_tensors_hooks`` sees, each storage once, for one element of the
input; ``x``, ``y`` or both says whether input and output are among them. The next layer often keeps the output anyway.
"""

import argparse
import ctypes
import functools
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from _formulas import FORMULAS
from torch import Tensor, nn
from torch._functorch import config as functorch_config
from torch.utils.checkpoint import checkpoint

from lit_gelu import activations
from lit_gelu.files import write_atomically

VARIANTS = (
    "gaussian_gelu(mu=0.5, sigma=2.0)",
    "gaussian_gelu(mu=0.5, sigma=2.0, memory='recompute')",
    "gaussian_gelu(mu=0.5, sigma=2.0, learnable=True)",
    "swish(beta=1.5)",
    "swish(beta=1.5, memory='recompute')",
    "swish(beta=1.5, learnable=True)",
    "gelu(approximate='sigmoid', memory='recompute')",
    "geglu(memory='recompute')",
)
ROW_LENGTH = 1024
WARM_UP = 2  # rounds that allocate, compile and fill caches
Function = Callable[[Tensor], Tensor]


class Clock:
    """Times calls on one device.

    Args:
        device: Where they run.
        threads: How many threads torch uses: on one, processor time is taken, which other processes do not lengthen.
    """

    def __init__(self, device: torch.device, threads: int) -> None:
        self.cuda = device.type == "cuda"
        self.now = time.thread_time if threads == 1 else time.perf_counter

    def seconds(self, call: Callable[[], object], repeats: int) -> float:
        """Time ``repeats`` calls and return the seconds of one."""
        if not self.cuda:
            start = self.now()
            for _ in range(repeats):
                call()
            return (self.now() - start) / repeats
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        begin.record()
        for _ in range(repeats):
            call()
        end.record()
        torch.cuda.synchronize()
        return begin.elapsed_time(end) / 1000 / repeats


def saved_bytes(function: Function, x: Tensor) -> tuple[float, str]:
    """Return the bytes an element that autograd keeps, and which of input and output are among them."""
    storages: dict[int, tuple[Tensor, int]] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = (tensor, storage.nbytes())  # kept, so that no address is used twice
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        y = function(x)
    total = sum(size for _, size in storages.values())
    kept = [name for name, t in (("x", x), ("y", y)) if t.untyped_storage().data_ptr() in storages]
    return total / x.numel(), "+".join(kept) or "-"


def ways(spec: str, device: torch.device, dtype: torch.dtype) -> tuple[nn.Module, Function | None]:
    """Return the module of an activation, in training mode, and the plain formula, if there is one here."""
    formulas = {str(activations.resolve(name)): formula for name, formula in FORMULAS.items()}
    return activations.create(spec).to(device, dtype).train(), formulas.get(spec)


def compiled(function: Function, x: Tensor, grad: Tensor) -> Function | None:
    """Return ``torch.compile`` of a function, tried forward and backward, ``None`` where the compiler fails."""
    torch.compiler.reset()
    result: Function = torch.compile(function, fullgraph=True, dynamic=False)
    try:
        torch.autograd.grad(result(x), x, grad)
    except Exception as error:  # noqa: BLE001 - whatever the compiler raises, the other figures are still wanted
        print(f"  torch.compile failed: {type(error).__name__}")
        return None
    return result


def measure(candidates: dict[str, Function], x: Tensor, clock: Clock, rounds: int, repeats: int) -> dict[str, Any]:
    """Time forward and backward of each way in turn; return shares of copy bandwidth."""
    leaves = {}
    for way, function in candidates.items():
        parameters = list(function.parameters()) if isinstance(function, nn.Module) else []
        leaves[way] = [x, *parameters]
    grad = torch.ones_like(next(iter(candidates.values()))(x))
    shares: dict[str, list[float]] = {f"{way} {k}": [] for way in candidates for k in ("forward", "backward")}
    moved = x.numel() + grad.numel(), 2 * x.numel() + grad.numel()
    source, names = x.detach(), list(candidates)
    for turn in range(-WARM_UP, rounds):
        bandwidth = 2 * x.numel() / clock.seconds(source.clone, repeats)
        first = turn % len(names)  # who runs first finds other data in the caches
        for way in names[first:] + names[:first]:
            function = candidates[way]
            forward = clock.seconds(functools.partial(function, x), repeats)
            y = function(x)
            # Kept through the repeats: what is timed is the backward pass alone.
            back = functools.partial(torch.autograd.grad, y, leaves[way], grad, retain_graph=True)
            backward = clock.seconds(back, repeats)
            if turn >= 0:
                shares[f"{way} forward"].append(moved[0] / forward / bandwidth)
                shares[f"{way} backward"].append(moved[1] / backward / bandwidth)
    return {key: round(statistics.median(values), 3) for key, values in shares.items()}


def keep_freed_memory() -> None:
    """Tell glibc to keep what is freed, as torch's allocator on CUDA does; elsewhere nothing is changed.

    Large blocks otherwise go back to the system now and then, and the page faults of the next one cost more than ReLU.
    """
    mmap_max, trim_threshold = -4, -1
    if platform.libc_ver()[0] == "glibc":
        library = ctypes.CDLL(None)
        library.mallopt(mmap_max, 0)
        library.mallopt(trim_threshold, 2**31 - 1)


def copy_bandwidth(x: Tensor, clock: Clock, repeats: int) -> float:
    """Return the bytes a second that ``clone`` reads and writes, the best of five."""
    source = x.detach()
    times = [clock.seconds(source.clone, repeats) for _ in range(6)][1:]
    return 2 * x.numel() * x.element_size() / min(times)


def row(spec: str, x: Tensor, clock: Clock, arguments: argparse.Namespace, may_compile: bool) -> dict[str, Any]:
    """Measure one activation."""
    module, formula = ways(spec, x.device, x.dtype)
    candidates: dict[str, Function] = {"module": module}
    if formula is not None:
        candidates["eager"] = formula
        grad = torch.ones_like(formula(x))
        fast = compiled(formula, x, grad) if may_compile else None
        if fast is not None:
            candidates["compile"] = fast
    result: dict[str, Any] = {"spec": spec, **measure(candidates, x, clock, arguments.rounds, arguments.repeats)}
    for way, function in candidates.items():
        result[f"{way} saved"], result[f"{way} kept"] = saved_bytes(function, x)
    result["checkpoint saved"], result["checkpoint kept"] = saved_bytes(
        functools.partial(checkpoint, module, use_reentrant=False), x
    )
    return result


def machine(arguments: argparse.Namespace, bandwidth: float) -> dict[str, Any]:
    """Return what the figures depend on."""
    device = torch.device(arguments.device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else _processor()
    return {
        "device": name,
        "torch": torch.__version__.partition("+")[0],
        "dtype": arguments.dtype,
        "elements": arguments.elements,
        "threads": arguments.threads if device.type == "cpu" else None,
        "rounds": arguments.rounds,
        "copy_gigabytes_per_second": round(bandwidth / 1e9, 1),
    }


def _processor() -> str:
    """Return the processor's name where the system tells it."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    extensions = torch.backends.cpu.get_cpu_capability()
    return f"{names[0] if names else platform.processor()}, {extensions}"


def parse() -> argparse.Namespace:
    """Read the command line; sizes depend on the device."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="specs; by default everything registered")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", help="float32, bfloat16, ...; by default float32 on a CPU, bfloat16 on CUDA")
    parser.add_argument("--elements", type=int, help="by default 2^22 on a CPU, 2^28 on CUDA")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--repeats", type=int, help="calls timed together; by default 1 on a CPU, 10 on CUDA")
    parser.add_argument("--threads", type=int, default=1, help="of a CPU")
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--compile-seconds", type=float, help="stop compiling after; by default 60 on a CPU")
    parser.add_argument("--record", type=Path, help="write the figures to this JSON file too")
    arguments = parser.parse_args()
    cuda = torch.device(arguments.device).type == "cuda"
    arguments.dtype = arguments.dtype or ("bfloat16" if cuda else "float32")
    arguments.elements = arguments.elements or (1 << 28 if cuda else 1 << 22)
    arguments.repeats = arguments.repeats or (10 if cuda else 1)
    arguments.compile_seconds = arguments.compile_seconds or (float("inf") if cuda else 60.0)
    if arguments.elements % ROW_LENGTH or not arguments.dtype.startswith(("float", "bfloat")):
        parser.error(f"--elements is a multiple of {ROW_LENGTH}; --dtype is a floating one")
    return arguments


def specs(names: list[str]) -> list[str]:
    """Return canonical specs, each once."""
    chosen = names or [*activations.list_activations(), *VARIANTS]
    return list(dict.fromkeys(str(activations.resolve(name)) for name in chosen))


def line(result: dict[str, Any]) -> str:
    """Return one line of the table."""

    def cell(key: str) -> str:
        return f"{result[key]:>8.2f}" if key in result else f"{'-':>8}"

    speeds = "".join(cell(f"{way} {k}") for k in ("forward", "backward") for way in ("module", "eager", "compile"))
    saved = "".join(cell(f"{way} saved") for way in ("module", "eager", "compile", "checkpoint"))
    return f"{result['spec']:<54}{speeds}{saved}  {result['module kept']}"


def main() -> None:
    """Print the table, and write the record if one is asked for."""
    arguments = parse()
    torch.set_num_threads(arguments.threads)
    keep_freed_memory()
    # The graph is kept for repeated backward passes, which a compiled graph that gives its buffers away forbids.
    functorch_config.donated_buffer = False
    device, clock = torch.device(arguments.device), Clock(torch.device(arguments.device), arguments.threads)
    torch.manual_seed(0)
    x = torch.randn(arguments.elements // ROW_LENGTH, ROW_LENGTH, device=device)
    x = x.to(getattr(torch, arguments.dtype)).requires_grad_()
    facts = machine(arguments, copy_bandwidth(x, clock, arguments.repeats))
    print(", ".join(f"{key} {value}" for key, value in facts.items() if value is not None))
    print(f"{'':<54}{'forward, share of copy':^24}{'backward':^24}{'saved bytes an element':^32}")
    heads = [*("module", "eager", "compile") * 2, "module", "eager", "compile", "check."]
    print(f"{'activation':<54}{''.join(f'{head:>8}' for head in heads)}  module keeps", flush=True)
    results, start = [], time.perf_counter()
    for spec in specs(arguments.names):
        in_time = time.perf_counter() - start < arguments.compile_seconds
        results.append(row(spec, x, clock, arguments, in_time and not arguments.no_compile))
        print(line(results[-1]), flush=True)
    if not arguments.no_compile and time.perf_counter() - start >= arguments.compile_seconds:
        print(f"After {arguments.compile_seconds:.0f} s nothing more was compiled; see --compile-seconds.")
    if arguments.record is not None:
        content = json.dumps({"machine": facts, "activations": results}, indent=1) + "\n"
        with write_atomically(arguments.record) as path:
            path.write_text(content)
        print(f"wrote {arguments.record}")


if __name__ == "__main__":
    main()
