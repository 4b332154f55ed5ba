"""What a module of the registry costs beside the plain torch call: ``python benchmarks/modules.py``.

Each pair runs in turn, in one process, on one thread; a line gives the median over rounds of the ratio of their times.
1.00 means that the module costs what the call costs. For functions that torch lacks, the call is the shortest spelling
in torch operations.

A second table has what `memory=` costs: the modes beside ``memory="autograd"`` of the same module, forward and with the
backward pass, for few elements, where the calls count, and for many.
"""

import platform
import random
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the name that torch's own documentation gives it

from lit_gelu import activations

PAIRS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "elu": F.elu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "gelu_sigmoid": lambda x: x * torch.sigmoid(1.702 * x),
    "gaussian_gelu": F.gelu,
    "gaussian_gelu(sigma=2.0)": lambda x: x * torch.special.ndtr(x / 2.0),
    "silu": F.silu,
    "swish": F.silu,
    "swish(beta=1.5)": lambda x: x * torch.sigmoid(1.5 * x),
    "hard_swish": F.hardswish,
    "mish": F.mish,
    "relu2": lambda x: F.relu(x) ** 2,
}
MODES = (
    ("gelu_sigmoid", "recompute"),
    ("swish(beta=1.5)", "recompute"),
    ("gaussian_gelu(mu=0.5, learnable=True)", "recompute"),
    ("geglu", "recompute"),
    ("gelu", "output"),
    ("gelu_sigmoid", "output"),
    ("silu", "output"),
    ("elu", "output"),
)
ELEMENTS = 1 << 20
FEW = 64
ROUNDS = 15


def seconds(call: Callable[[Tensor], Tensor], x: Tensor) -> float:
    """Time one call.

    Args:
        call: What to time.
        x: Its argument.

    Returns:
        Processor seconds of this thread, which other processes do not lengthen.
    """
    start = time.thread_time()
    call(x)
    return time.thread_time() - start


def passes(module: nn.Module, x: Tensor) -> tuple[float, float]:
    """Time a forward pass, and one with the backward pass behind it.

    Args:
        module: An activation.
        x: Its argument, a leaf.

    Returns:
        Processor seconds of both.
    """
    start = time.thread_time()
    y = module(x)
    forward = time.thread_time() - start
    torch.autograd.grad(y, (x, *module.parameters()), torch.ones_like(y))
    return forward, time.thread_time() - start


def modes(elements: int, rounds: int, dtype: torch.dtype) -> None:
    """Print one line a memory mode.

    Args:
        elements: Of the input.
        rounds: Of which the median is taken.
        dtype: Of the input.
    """
    print(f"\n{elements} elements, {dtype}, {rounds} rounds")
    print(f"{'activation':<40}{'memory':<12}{'forward / autograd':>20}{'step / autograd':>18}{'microseconds more':>20}")
    x = torch.randn(elements // 2, 2, dtype=dtype, requires_grad=True)
    for spec, mode in MODES:
        name = activations.resolve(spec)
        options = {which: {**name.arguments, "memory": which} for which in ("autograd", mode)}
        built = {which: activations.create(name.name, **arguments).to(dtype) for which, arguments in options.items()}
        rows = []
        for _ in range(rounds + 1):
            turn = random.sample(sorted(built), 2)
            rows.append({which: passes(built[which], x) for which in turn})
        pairs = [(row[mode], row["autograd"]) for row in rows[1:]]  # the first round allocates
        forward, step = (statistics.median(times[i] / plain[i] for times, plain in pairs) for i in (0, 1))
        extra = statistics.median(times[0] - plain[0] for times, plain in pairs) * 1e6
        print(f"{spec:<40}{mode:<12}{forward:>20.2f}{step:>18.2f}{extra:>20.1f}")


def main() -> None:
    """Print one line an activation."""
    torch.set_num_threads(1)
    x = torch.randn(ELEMENTS, generator=torch.Generator().manual_seed(0))
    print(f"{platform.machine()}, torch {torch.__version__}, {ELEMENTS} float32 elements, 1 thread, {ROUNDS} rounds")
    print(f"{'activation':<28}{'module / call, median':>24}{'min':>8}{'max':>8}")
    for spec, call in PAIRS.items():
        module = activations.create(spec)
        seconds(module, x), seconds(call, x)  # the first call allocates
        ratios = [seconds(module, x) / seconds(call, x) for _ in range(ROUNDS)]
        print(f"{spec:<28}{statistics.median(ratios):>24.2f}{min(ratios):>8.2f}{max(ratios):>8.2f}")


if __name__ == "__main__":
    random.seed(0)
    with torch.inference_mode():
        main()
    for dtype in (torch.float32, torch.bfloat16):
        modes(FEW, 501, dtype)
        modes(ELEMENTS, ROUNDS, dtype)
