"""Fused activations beside torch's own: time of a forward and backward pass, and the error in the left tail.

    python benchmarks/kernels.py                          on the GPU if there is one, else on the CPU
    python benchmarks/kernels.py --elements 1048576       another size

Each activation is computed eagerly, by torch.compile of its module, and fused (`lit_gelu.kernels`). The three take
turns in one process; the table has the medians of the rounds' ratios to eager. The error is that of f over all inputs
of bfloat16 between -13 and 0, in units in the last place, against the float64 function.
"""

import argparse
import copy
import statistics
import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from lit_gelu import activations
from lit_gelu.kernels import THRESHOLDS, explain, fuse

CASES = (
    ("gelu", torch.bfloat16),
    ("gelu_tanh", torch.bfloat16),
    ("silu", torch.bfloat16),
    ("mish", torch.bfloat16),
    ("swish(beta=1.7)", torch.bfloat16),
    ("gaussian_gelu(learnable=True)", torch.bfloat16),
    ("gaussian_gelu(learnable=True)", torch.float32),
    ("laplace_linear", torch.float32),
)


def seconds(module: Callable[[Tensor], Tensor], x: Tensor) -> float:
    """Return the time of both passes."""
    if x.is_cuda:
        torch.cuda.synchronize()
    start = time.perf_counter()
    module(x).sum().backward()
    if x.is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - start


def tail_error(module: Callable[[Tensor], Tensor], spec: str, x: Tensor) -> float:
    """Return the largest error left of 0, in units in the last place of bfloat16."""
    with torch.no_grad():
        y = module(x).double().cpu()
    exact = activations.functional.derivative(spec, x.double().cpu(), 0)
    unit = 2.0 ** exact.abs().clamp(min=torch.finfo(x.dtype).tiny).log2().floor() * torch.finfo(x.dtype).eps
    return float(((y - exact).abs() / unit).max())


def measured(spec: str, dtype: torch.dtype, elements: int, rounds: int, device: str) -> list[str]:
    """Return a row of the table."""
    plain = activations.create(spec).to(device, dtype)
    fused = fuse(copy.deepcopy(plain))
    torch.compiler.reset()
    ways: dict[str, nn.Module] = {"eager": plain, "compiled": torch.compile(copy.deepcopy(plain)), "fused": fused}
    x = torch.randn(elements // 1024, 1024, device=device).to(dtype).requires_grad_()
    for module in ways.values():
        seconds(module, x)
    times = [{way: seconds(module, x) for way, module in ways.items()} for _ in range(rounds)]
    ratios = [statistics.median(each[way] / each["eager"] for each in times) for way in ("compiled", "fused")]
    row = [spec, str(dtype).removeprefix("torch."), *(f"{ratio:.2f}" for ratio in ratios), explain(fused, x).code]
    if dtype is torch.bfloat16:
        negative = torch.arange(-32768, 0, dtype=torch.int32).to(torch.int16).view(dtype)
        negative = negative[(negative > -13) & (negative < 0)].to(device).repeat(max(1, elements // 16384))
        row += [f"{tail_error(module, spec, negative):.2f}" for module in (plain, fused)]
    return row


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--elements", type=int, default=max(4 * THRESHOLDS[device], 1 << 22))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--cases", type=int, default=len(CASES), help="the first so many")
    options = parser.parse_args(arguments)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    print(f"{device}, {options.elements:,} elements, torch {torch.__version__}; times / eager")
    head = ("activation", "dtype", "compiled", "fused", "code", "error, eager", "error, fused")
    print(" | ".join(head))
    for spec, dtype in CASES[: options.cases]:
        print(" | ".join(measured(spec, dtype, options.elements, options.rounds, device)), flush=True)


if __name__ == "__main__":
    main()
