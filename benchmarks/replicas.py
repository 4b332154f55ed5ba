"""Runs of the paper's small nets as a group, compared with the same runs alone: processor time of one step of one run.

``python benchmarks/replicas.py [--only NET] [--runs N] [--executor KIND] [--noise keys] [--seeds N] [--fused]`` trains
every net by `Trainer.fit` alone, once for each of three activations, and as a `ReplicaGroup` of N runs of these
activations, in turn, each time in a process of its own with one thread: what a group leaves behind, such as memory that
the C library keeps, is not there for the run alone. It prints the milliseconds of processor time of a step of one run,
Trainer and data included, the least of all stretches (alone: the mean of the three activations), and how many times
less a group takes. Time in which other processes of the machine have the processor does not count, but they slow down
its caches: the load is printed as well.

With ``--noise keys`` the group has dropout by key and orders by seed; the run alone is what it is by default, and then
again with keys too. Runs of a group that have a seed in common (``--seeds``) have masks and orders in common.

On one core of a shared AMD EPYC (AVX2), at a load of 9 to 28 on four cores, a group took, each figure of one command:
tweets 5.2 times less than alone (``--only tweets --rounds 4``), of one run 5.4 (``--runs 1``), with
``--executor vmap`` 3.0 to 3.5; MNIST 2.2 with keep 1 and 2.3 with keep .5, with keep 1 and ``--executor vmap`` 2.0 to
2.1.

On one core of a quiet AMD EPYC (AVX-512, load .8 to 1 on two cores), one run of all nets: tweets 5.1, MNIST 2.1 with
keep 1 and 2.3 with keep .5, autoencoder 1.2. Another run, an hour before: 4.9, 1.9, 2.2 and 1.2; a step of MNIST alone
took 4.5 ms then, and 5.0 in the first one. With ``--executor vmap``: MNIST with keep 1 1.5 to 1.7, tweets 2.2 to 2.5.

On one core of a quiet AMD EPYC of 2017 (AVX2), whose products are a third as fast, so that less of a step is Python's,
each net by a command of its own: tweets 5.0, MNIST 1.9 with keep 1 and 2.0 with keep .5, autoencoder 1.2. With
``--executor vmap``, twice: MNIST with keep 1 1.8, tweets 3.0 and 3.3. Another day, one run of all nets with
``--noise keys --seeds 6 --rounds 4``: tweets 5.0, MNIST 1.9 with keep 1 and 2.2 with keep .5, autoencoder 1.2. An hour
before, by commands of their own and without keys, MNIST had 2.0 with either.

On one core of a quiet Intel Xeon (Ice Lake, 2.8 GHz), two runs of all nets: tweets 6.2 and 6.8, MNIST 2.1 and 2.1 with
keep 1, 2.2 and 2.5 with keep .5, autoencoder 1.4 and 1.5. With ``--executor vmap``: tweets 2.7, MNIST with keep 1 2.4.

All figures but those of the EPYC of 2017 and of the Xeon were taken in one process for each net. There a run
alone finds memory that a group left, and takes less: by that way the autoencoder had 1.1 on the processor of 2017.
"""

import argparse
import logging
import multiprocessing
import os
import time
import warnings
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from lit_gelu.data import InMemoryDataModule
from lit_gelu.data.in_memory import InMemorySamples
from lit_gelu.replicas import ReplicaDataModule, ReplicaGroup
from lit_gelu.tasks import MNISTAutoencoder, MNISTClassifier, TweetTagger

STRETCHES = 3  # epochs that are timed of each `Trainer.fit`, behind one that is not
ACTIVATIONS = ("elu", "gelu_tanh", "relu")
# The task, its arguments, samples in a batch, features of a sample, classes, and runs in a group.
NETS: dict[str, tuple[Any, dict[str, Any], int, int, int, int]] = {
    "tweets": (TweetTagger, {"keep": 0.8}, 16, 150, 25, 15),
    "MNIST, keep 1": (MNISTClassifier, {"keep": 1.0}, 128, 784, 10, 18),
    "MNIST, keep .5": (MNISTClassifier, {"keep": 0.5}, 128, 784, 10, 18),
    "autoencoder": (MNISTAutoencoder, {}, 64, 784, 10, 6),
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


def measured(name: str, activation: str | None, keyed: bool, options: argparse.Namespace) -> tuple[str, float]:
    """Train a net of one activation alone, or where none is named the group; return how, and the milliseconds."""
    _quiet()
    build, arguments, batch_size, features, classes, usual = NETS[name]
    given = {**arguments, "fused_optimizer": options.fused} | (
        {"noise": "keys"} if keyed and "keep" in arguments else {}
    )
    data = RandomSamples(batch_size, options.steps, features, classes, "seed" if keyed else "global")
    if activation is not None:
        return "alone", time_of(build(**given, activation=activation), data)
    runs = options.runs or usual
    cells = [{**given, "activation": one} for one in _activations(runs)]
    group = ReplicaGroup.of(
        build, cells, [run % (options.seeds or runs) for run in range(runs)], executor=options.executor
    )
    return group.executor.kind, time_of(group, ReplicaDataModule(data)) / runs


def compare(name: str, options: argparse.Namespace) -> str:
    """Return a line about one net; what is compared is measured in turn, each time in a new process."""
    runs, keyed = options.runs or NETS[name][-1], options.noise == "keys"
    times: dict[tuple[str | None, bool], list[float]] = {}
    kind = ""
    for _ in range(options.rounds):
        alone = [(activation, keys) for activation in ACTIVATIONS for keys in ((False, True) if keyed else (False,))]
        for activation, keys in [*alone, (None, keyed)]:
            with ProcessPoolExecutor(1, mp_context=_context()) as pool:
                kind, milliseconds = pool.submit(measured, name, activation, keys, options).result()
            times.setdefault((activation, keys), []).append(milliseconds)

    def line(keys: bool) -> str:
        alone = sum(min(times[activation, keys]) for activation in _activations(runs)) / runs
        return f"alone{', keys' if keys else ''} {alone:.2f} ms, {alone / min(times[None, keyed]):.2f} x"

    return (
        f"{name}, {runs} runs, {kind}{', fused Adam' if options.fused else ''}: in the group "
        f"{min(times[None, keyed]):.2f} ms; {line(False)}{'; ' + line(True) if keyed else ''} "
        f"(load {os.getloadavg()[0]:.1f})"
    )


def _activations(runs: int) -> list[str]:
    """Return those of a group, neighbours alike."""
    return sorted((ACTIVATIONS * runs)[:runs])


def _context() -> Any:
    """Return how a process begins that has trained nothing yet: what it imports is imported once, if the system can."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["lightning.pytorch", "lit_gelu.replicas", "lit_gelu.tasks"])
    return context


def _quiet() -> None:
    torch.set_num_threads(1)
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)  # else a dozen lines stand between two results
    warnings.filterwarnings("ignore", ".*LeafSpec")  # Lightning's own


def main() -> None:
    """Print a line a net."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=NETS, help="one net")
    parser.add_argument("--runs", type=int, help="runs in a group; 15, 18 or 6 if it is not given")
    parser.add_argument("--executor", default="auto", help="how the group computes")
    parser.add_argument("--noise", choices=("global", "keys"), default="global", help="of the group")
    parser.add_argument("--seeds", type=int, help="how many there are in a group; by default each run has its own")
    parser.add_argument("--fused", action="store_true", help="both with Adam in torch's fused kernel")
    parser.add_argument("--rounds", type=int, default=3, help="how often each is trained anew")
    parser.add_argument("--steps", type=int, default=34, help="optimizer steps in each of four epochs")
    options = parser.parse_args()
    for name in [options.only] if options.only else NETS:
        print(compare(name, options), flush=True)


if __name__ == "__main__":
    main()
