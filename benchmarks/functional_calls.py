"""What it costs to swap a function call: ``python benchmarks/functional_calls.py``.

The model's blocks call ``F.gelu(x)``; each variant below computes the tanh form there instead, and all of them compute
the same. They take turns in shuffled order, in one process, on one thread. A line gives, beside a model that has the
tanh form written in its source, the median over rounds of the additional microseconds of a forward pass for each of its
functional calls, and of the ratio of the times of a whole forward and backward pass. What a second plain model shows is
the error of the measurement.
"""

import contextlib
import platform
import random
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the name that torch's own documentation gives it
from torch.overrides import TorchFunctionMode

from lit_gelu import surgery

BLOCKS = 12
ROUNDS = 201
TANH = "gelu(approximate='tanh')"


class Block(nn.Module):
    """A residual MLP that calls a function.

    Args:
        width: Size of its input and output; the hidden layer has four times as many.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Linear(width, 4 * width)
        self.second = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return the output."""
        return x + self.second(F.gelu(self.first(x)))


class Plain(Block):
    """The same with the new activation in its source."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the output."""
        return x + self.second(F.gelu(self.first(x), approximate="tanh"))


class WithModule(Block):
    """The same with an activation module, as most networks have it.

    Args:
        width: As `Block`.
        approximate: As ``nn.GELU``.
    """

    def __init__(self, width: int, approximate: str = "none") -> None:
        super().__init__(width)
        self.act = nn.GELU(approximate=approximate)

    def forward(self, x: Tensor) -> Tensor:
        """Return the output."""
        return x + self.second(self.act(self.first(x)))


def apply_gelu(x: Tensor) -> Tensor:
    """Call the function outside of any method, so that the call cannot be written anew.

    Args:
        x: Any tensor.

    Returns:
        Exact GELU.
    """
    return F.gelu(x)


class WithHelper(Block):
    """The same with the call in a function of its own."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the output."""
        return x + self.second(apply_gelu(self.first(x)))


class GELUMode(TorchFunctionMode):
    """Sends every ``F.gelu`` to a module, whoever calls it."""

    def __init__(self) -> None:
        super().__init__()
        self.module = nn.GELU(approximate="tanh")

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Pass on every other function."""
        return self.module(args[0]) if func is F.gelu else func(*args, **(kwargs or {}))


def variants(width: int, x: Tensor) -> dict[str, Callable[[], tuple[float, float]]]:
    """Build the models.

    Args:
        width: As `Block`.
        x: A sample.

    Returns:
        By name a forward and backward pass, which returns the seconds of the first and of both.
    """

    def step(
        block: Callable[[int], Block], targets: dict[Any, str], mode: bool = False
    ) -> Callable[[], tuple[float, float]]:
        torch.manual_seed(0)
        model = nn.Sequential(*(block(width) for _ in range(BLOCKS)))
        if targets:
            surgery.swap(model, targets, x)

        def run() -> tuple[float, float]:
            start = time.thread_time()  # processor seconds, which other processes do not lengthen
            with GELUMode() if mode else contextlib.nullcontext():
                output = model(x)
            forward = time.thread_time() - start
            output.sum().backward()
            return forward, time.thread_time() - start

        return run

    return {
        "plain": step(Plain, {}),
        "plain, once more": step(Plain, {}),
        "plain, as a module": step(lambda size: WithModule(size, "tanh"), {}),
        "module replaced": step(WithModule, {nn.GELU: TANH}),
        "call rewritten": step(Block, {"*:gelu": TANH}),
        "call intercepted in its forward": step(WithHelper, {"*:gelu": TANH}),
        "mode over the whole model": step(Block, {}, mode=True),
    }


def main() -> None:
    """Print one line a variant and size."""
    torch.set_num_threads(1)
    print(f"{platform.machine()}, torch {torch.__version__}, {BLOCKS} blocks, 1 thread, {ROUNDS} rounds")
    print(f"{'batch x width':<15}{'variant':<33}{'microseconds a call':>20}{'step / plain':>14}")
    for batch, width in ((1, 8), (64, 128)):
        runs = variants(width, torch.randn(batch, width))
        names = list(runs)
        rounds = []
        for _ in range(ROUNDS + 1):
            random.shuffle(names)
            rounds.append({name: runs[name]() for name in names})
        for name in runs:
            pairs = [(row[name], row["plain"]) for row in rounds[1:]]  # the first round allocates
            extra = statistics.median(times[0] - plain[0] for times, plain in pairs) / BLOCKS * 1e6
            ratio = statistics.median(times[1] / plain[1] for times, plain in pairs)
            print(f"{f'{batch} x {width}':<15}{name:<33}{extra:>20.2f}{ratio:>14.3f}")


if __name__ == "__main__":
    random.seed(0)
    main()
