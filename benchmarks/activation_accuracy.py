"""Measure how accurate the activations are against 50 digits: this package's functions, and torch's own kernels.

    python benchmarks/activation_accuracy.py functions [--points 1000]
    python benchmarks/activation_accuracy.py kernels

``docs/numerics.md`` holds what it printed. It needs the development dependencies and a checkout: the definitions are
those of the tests.
"""

import argparse
import math
import platform
import sys
from collections.abc import Callable
from pathlib import Path

import mpmath
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - the name that torch's own documentation gives it

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from activation_oracles import CASES, ActivationCase, cases_of, points_about_extrema, sample_points, worst_ratios

TAIL_POINTS = {
    torch.float32: (-3, -5, -6, -10, -50, -90),
    torch.float64: (-3, -6, -8, -10, -20, -700, -710),
}
BOUNDS = {torch.float64: 4.0, torch.float32: 8.0}

KERNELS: tuple[tuple[str, ActivationCase, Callable[[Tensor], Tensor]], ...] = (
    ("F.gelu(approximate='none')", cases_of("gelu")[0], F.gelu),
    ("F.gelu(approximate='tanh')", cases_of("gelu")[1], lambda x: F.gelu(x, approximate="tanh")),
    ("F.silu", cases_of("silu")[0], F.silu),
    ("F.mish", cases_of("mish")[0], F.mish),
    ("torch.sigmoid", cases_of("sigmoid")[0], torch.sigmoid),
    ("F.softplus", cases_of("softplus")[0], F.softplus),
    ("F.logsigmoid", cases_of("log_sigmoid")[0], F.logsigmoid),
)


def measure_functions(points: int) -> None:
    """Print the largest error of f, f' and f'' in units of the bound, for every case."""
    print("| function | float64 f | f' | f'' | float32 f | f' | f'' |\n|---|---|---|---|---|---|---|")
    for case in CASES:
        ratios = [
            f"{ratio:.2f}"
            for dtype, epsilons in BOUNDS.items()
            for ratio, _ in worst_ratios(case, _points(case, dtype, points), epsilons)
        ]
        print(f"| {case} | {' | '.join(ratios)} |")


def _points(case: ActivationCase, dtype: torch.dtype, count: int) -> Tensor:
    """Return the tests' points, and as many about every extremum."""
    return torch.cat([sample_points(case, dtype, count), points_about_extrema(case, count).to(dtype)])


def relative_error(function: Callable[[Tensor], Tensor], case: ActivationCase, x: float, dtype: torch.dtype) -> float:
    """Return the relative error at one point, computed inside a vector so that the vectorised kernel is used."""
    point = torch.full((64,), x, dtype=dtype)
    value = function(point)[0].item()
    with mpmath.workdps(50):
        expected = case.exact(point[0].item())[0]
        return float(abs(mpmath.mpf(value) - expected) / abs(expected)) if math.isfinite(value) else math.nan


def values_at_infinity(function: Callable[[Tensor], Tensor], dtype: torch.dtype) -> str:
    """Return f and f' by autograd at both infinities, vectorised and in a tensor of one element."""
    cells = []
    for length in (64, 1):
        for x in (-math.inf, math.inf):
            point = torch.full((length,), x, dtype=dtype, requires_grad=True)
            value = function(point)
            (slope,) = torch.autograd.grad(value.sum(), point)
            cells.append(f"{value[0].item():g}, {slope[0].item():g}")
    return " | ".join(cells)


def first_zero(function: Callable[[Tensor], Tensor], dtype: torch.dtype) -> float:
    """Return the largest negative multiple of 1/64 at which the kernel returns exactly 0."""
    x = torch.arange(-1, -64 * 800, -1, dtype=dtype) / 64
    zeros = x[function(x) == 0]
    return zeros.max().item() if len(zeros) else math.nan


def measure_kernels() -> None:
    """Print what torch's own kernels give in the left tail and at infinity."""
    for dtype, points in TAIL_POINTS.items():
        header = " | ".join(f"x = {x:g}" for x in points)
        print(f"\nrelative error of f, {dtype}:\n\n| kernel | {header} | exactly 0 from |")
        print("|---" * (len(points) + 2) + "|")
        for name, case, function in KERNELS:
            kept = [x for x in points if abs(case.exact(x)[0]) > torch.finfo(dtype).tiny]
            errors = [f"{relative_error(function, case, x, dtype):.1e}" if x in kept else "" for x in points]
            print(f"| `{name}` | {' | '.join(errors)} | {first_zero(function, dtype):g} |")
        print(f"\nf, f' at infinity, {dtype}:\n\n| kernel | 64 elements, -inf | inf | 1 element, -inf | inf |")
        print("|---" * 5 + "|")
        for name, _, function in KERNELS:
            print(f"| `{name}` | {values_at_infinity(function, dtype)} |")


def main() -> None:
    """Parse the command line and print what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("functions", "kernels"), nargs="?", default="kernels")
    parser.add_argument(
        "--points", type=int, default=1000, help="random points of each of four kinds and about each extremum"
    )
    arguments = parser.parse_args()
    print(f"torch {torch.__version__}, {platform.machine()} {torch.backends.cpu.get_cpu_capability()}")
    if arguments.what == "functions":
        measure_functions(arguments.points)
    else:
        measure_kernels()


if __name__ == "__main__":
    main()
