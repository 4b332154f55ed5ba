"""Runs of the paper's small nets as a group, compared with the same runs alone: processor time of one step of one run.

``python benchmarks/replicas.py [--runs N] [--steps N] [--only NET] [--noise keys] [--seeds N]`` trains every net by
`Trainer.fit` alone and as a `ReplicaGroup` of N runs of three activations, on one thread, with Adam as torch chooses it
and in its fused kernel. It prints the milliseconds of processor time (other processes of the machine do not count, its
caches do) of a step of one run, Trainer and data included, the least of three stretches, and how many times less a
group takes. With ``--noise keys`` the group has dropout by key and orders by seed, and the run alone what it has by
default; runs of a group that have a seed in common (``--seeds``) have masks and orders in common.
"""

import argparse
import time
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from lit_gelu.data import InMemoryDataModule
from lit_gelu.data.in_memory import InMemorySamples
from lit_gelu.replicas import ReplicaDataModule, ReplicaGroup
from lit_gelu.tasks import MNISTAutoencoder, MNISTClassifier, TweetTagger

STRETCHES = 3
ACTIVATIONS = ("elu", "gelu_tanh", "relu")
# The task, its arguments, samples in a batch, features of a sample, classes.
NETS: dict[str, tuple[Any, dict[str, Any], int, int, int]] = {
    "tweets": (TweetTagger, {"keep": 0.8}, 16, 150, 25),
    "MNIST, keep 1": (MNISTClassifier, {"keep": 1.0}, 128, 784, 10),
    "MNIST, keep .5": (MNISTClassifier, {"keep": 0.5}, 128, 784, 10),
    "autoencoder": (MNISTAutoencoder, {}, 64, 784, 10),
}


class RandomSamples(InMemoryDataModule):
    """A training set of random numbers."""

    def __init__(self, batch_size: int, steps: int, features: int, classes: int, order: str = "global") -> None:
        super().__init__(batch_size, order)
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
    """Keeps the processor time of an optimizer step, of every epoch but the first."""

    def __init__(self) -> None:
        self.milliseconds: list[float] = []

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:  # noqa: ARG002
        """Begin a stretch."""
        self._start = time.process_time(), trainer.global_step

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:  # noqa: ARG002
        """End it."""
        seconds, steps = time.process_time() - self._start[0], trainer.global_step - self._start[1]
        self.milliseconds.append(1000 * seconds / steps)


def time_of(module: LightningModule, data: Any) -> float:
    """Train a module and return the milliseconds of an optimizer step."""
    clock = Clock()
    trainer = Trainer(
        max_epochs=1 + STRETCHES, callbacks=[clock], accelerator="cpu", devices=1, logger=False, limit_val_batches=0,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(module, datamodule=data)
    return min(clock.milliseconds[1:])


def compare(name: str, runs: int, steps: int, fused: bool, noise: str = "global", seeds: int | None = None) -> str:
    """Return a line about one net."""
    build, arguments, batch_size, features, classes = NETS[name]
    keyed = {"noise": noise} if noise == "keys" and "keep" in arguments else {}
    cells = [
        {**arguments, "fused_optimizer": fused, "activation": activation}
        for activation in sorted((ACTIVATIONS * runs)[:runs])
    ]
    alone = time_of(build(**cells[runs // 2]), RandomSamples(batch_size, steps, features, classes))
    order = "seed" if noise == "keys" else "global"
    data = ReplicaDataModule(RandomSamples(batch_size, steps, features, classes, order))
    own = [run % (seeds or runs) for run in range(runs)]
    together = time_of(ReplicaGroup.of(build, [cell | keyed for cell in cells], own), data) / runs
    kernel = ("fused Adam" if fused else "Adam") + (", noise by key" if noise == "keys" else "")
    return (
        f"{name}, {runs} runs, {kernel}: alone {alone:.2f} ms, in the group {together:.2f} ms, {alone / together:.1f} x"
    )


def main() -> None:
    """Print two lines a net."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=15, help="runs in a group")
    parser.add_argument("--steps", type=int, default=34, help="optimizer steps in each of four epochs")
    parser.add_argument("--only", choices=NETS, help="one net")
    parser.add_argument("--noise", choices=["global", "keys"], default="global", help="of the group")
    parser.add_argument("--seeds", type=int, help="how many there are in a group; by default each run has its own")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name in [options.only] if options.only else NETS:
        for fused in (False, True):
            print(compare(name, options.runs, options.steps, fused, options.noise, options.seeds), flush=True)


if __name__ == "__main__":
    main()
