"""A group of the paper's small nets against the same runs alone: processor time of one step of one run.

``python -P benchmarks/replicas.py [--only NET] [--runs N] [--steps N] [--rounds N]`` trains each net as one run alone,
as N runs alone, as a `ReplicaGroup` of N runs and as that group with its stacks turned off (one member after another),
in turn, in one process with one thread. It prints the milliseconds of processor time of a step of one run, Trainer and
data included but not the first steps, and ratios: the least of all rounds.
"""

import argparse
import logging
import time
import warnings
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from lit_gelu import replica_stacks
from lit_gelu.data import InMemoryDataModule
from lit_gelu.data.in_memory import InMemorySamples
from lit_gelu.replicas import ReplicaDataModule, ReplicaGroup
from lit_gelu.tasks import MNISTAutoencoder, MNISTClassifier, TweetTagger

FIRST = 10  # steps that are not measured
ACTIVATIONS = ("elu", "gelu_tanh", "relu")
# The task, its arguments, samples in a batch, features of a sample, classes.
NETS: dict[str, tuple[Callable[..., LightningModule], dict[str, Any], int, int, int]] = {
    "tweets": (TweetTagger, {"keep": 0.8}, 16, 150, 25),
    "mnist": (MNISTClassifier, {"keep": 1.0}, 128, 784, 10),
    "mnist-dropout": (MNISTClassifier, {"keep": 0.5}, 128, 784, 10),
    "autoencoder": (MNISTAutoencoder, {}, 64, 784, 10),
}


class RandomSamples(InMemoryDataModule):
    """A training set of random numbers."""

    def __init__(self, batch_size: int, steps: int, features: int, classes: int) -> None:
        super().__init__(batch_size)
        generator = torch.Generator().manual_seed(0)
        inputs = torch.rand(batch_size * steps, features, generator=generator)
        self.samples = InMemorySamples(inputs, torch.randint(classes, (len(inputs),), generator=generator))

    def load_train_and_val(self) -> tuple[InMemorySamples, InMemorySamples]:
        """Return the samples, and none to validate with."""
        return self.samples, InMemorySamples(*(tensor[:0] for tensor in self.samples.tensors))

    def load_test(self) -> InMemorySamples:
        """Return the samples."""
        return self.samples


class Clock(Callback):
    """Measures the processor time of a step behind the first ten."""

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:  # noqa: ARG002 - Lightning's names
        """Begin, or go on."""
        if batch_idx == FIRST:
            self.start = time.process_time()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:  # noqa: ARG002 - Lightning's names
        """End."""
        self.milliseconds = 1000 * (time.process_time() - self.start) / (trainer.global_step - FIRST)


def milliseconds_of(module: LightningModule, data: Any) -> float:
    """Return the processor time of a step."""
    clock = Clock()
    trainer = Trainer(
        max_epochs=1, accelerator="cpu", devices=1, logger=False, limit_val_batches=0, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, callbacks=[clock],
    )  # fmt: skip
    trainer.fit(module, datamodule=data)
    return clock.milliseconds


def compare(net: str, runs: int, steps: int, rounds: int) -> str:
    """Return a line about one net."""
    build, arguments, batch_size, features, classes = NETS[net]
    cells = [{**arguments, "activation": ACTIVATIONS[run % len(ACTIVATIONS)]} for run in range(runs)]
    data = RandomSamples(batch_size, FIRST + steps, features, classes)

    def group() -> float:
        return milliseconds_of(ReplicaGroup.of(build, cells, list(range(runs))), ReplicaDataModule(data)) / runs

    def looped() -> float:
        with mock.patch.object(replica_stacks, "_alike", return_value=False):
            return group()

    ways = {
        "one run": lambda: milliseconds_of(build(**cells[0]), data),
        "alone": lambda: sum(milliseconds_of(build(**cell), data) for cell in cells) / runs,
        "group": group,
        "loop": looped,
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            times[name].append(way())
    least = {name: min(each) for name, each in times.items()}
    figures = ", ".join(f"{name} {value:.2f} ms" for name, value in least.items())
    ratios = f"group/alone {least['group'] / least['alone']:.2f}, group/loop {least['group'] / least['loop']:.2f}"
    return f"{net}, {runs} runs: {figures}; {ratios}"


def main() -> None:
    """Print a line for every net."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=NETS, help="one net instead of all")
    parser.add_argument("--runs", type=int, default=9, help="members of a group (default: 9)")
    parser.add_argument("--steps", type=int, default=100, help="steps of a run (default: 100)")
    parser.add_argument("--rounds", type=int, default=3, help="how often each is measured (default: 3)")
    options = parser.parse_args()
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    for net in [options.only] if options.only else NETS:
        print(compare(net, options.runs, options.steps, options.rounds), flush=True)


if __name__ == "__main__":
    main()
