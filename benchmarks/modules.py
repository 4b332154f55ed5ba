"""What a module of the registry costs beside the plain torch call: ``python benchmarks/modules.py``.

Each pair runs in turn, in one process, on one thread; a line gives the median over rounds of the ratio of their times.
1.00 means that the module costs what the call costs. For functions that torch lacks, the call is the shortest spelling
in torch operations.
"""

import platform
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor
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
ELEMENTS = 1 << 20
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
    with torch.inference_mode():
        main()
