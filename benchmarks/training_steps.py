"""A training step of the paper's small nets with Adam's fused kernel, compared with Adam as torch chooses it.

``python benchmarks/training_steps.py [--runs N]`` builds every net twice, with ``fused_optimizer=False`` and ``True``,
and makes steps of both in turns, on CUDA where it is there: loss, gradients and update, of a batch of the paper's size
of random numbers. It prints the median milliseconds of a step and of the update alone, and how many times faster the
fused kernel is. A Trainer, its logging and its data come on top of both.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from lit_gelu.tasks import ActivationTask, MNISTAutoencoder, MNISTClassifier, TweetTagger


@dataclass(frozen=True)
class Net:
    """A task, and a batch of the paper's size."""

    build: Callable[..., ActivationTask]
    samples: int
    features: tuple[int, ...]
    classes: int


NETS = {
    "MNIST": Net(MNISTClassifier, 128, (1, 28, 28), 10),
    "autoencoder": Net(MNISTAutoencoder, 64, (1, 28, 28), 10),
    "tweets": Net(TweetTagger, 16, (150,), 25),
}


@dataclass
class Steps:
    """Steps of one net, with their times."""

    model: ActivationTask
    batch: tuple[Tensor, Tensor]
    whole: list[float] = field(default_factory=list)
    update: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._optimizer: Any = self.model.configure_optimizers()

    def make(self) -> None:
        """Make one step and keep its times, in milliseconds."""
        start = _now()
        self._optimizer.zero_grad()
        self.model.mean_loss(*self.batch).backward()
        middle = _now()
        self._optimizer.step()
        end = _now()
        self.whole.append(1000 * (end - start))
        self.update.append(1000 * (end - middle))


def _now() -> float:
    """Return the time at which what was begun is done."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def steps_of(net: Net, fused: bool) -> Steps:
    """Build a net and its batch."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    inputs, labels = torch.rand(net.samples, *net.features), torch.randint(net.classes, (net.samples,))
    return Steps(net.build(fused_optimizer=fused).to(device), (inputs.to(device), labels.to(device)))


def main() -> None:
    """Measure in turns, and print two lines a net."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=100, help="steps of each (default: 100)")
    runs = parser.parse_args().runs
    for name, net in NETS.items():
        plain, fused = (steps_of(net, fused) for fused in (False, True))
        for _ in range(runs + 10):
            plain.make()
            fused.make()
        for part in ("whole", "update"):
            a, b = (statistics.median(getattr(steps, part)[10:]) for steps in (plain, fused))
            label = f"{name}, {'step' if part == 'whole' else 'update alone'}"
            sys.stdout.write(f"{label:<28} {a:8.3f} ms   fused {b:8.3f} ms   {a / b:5.2f} x\n")


if __name__ == "__main__":
    main()
