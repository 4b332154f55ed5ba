"""What watching curvature costs, and how right it is: ``python benchmarks/curvature.py [--quick] [--only PART ...]``.

On one thread, in processor seconds of that thread, which other processes do not lengthen. Three parts:

``activations``: what monitors of activations add to a training step of a GPT of 12 blocks and of the MNIST classifier,
in ordinary runs of a Trainer that take turns in shuffled order, with ``log_every_n_steps=50``, its default. "in it" is
the time inside the monitor and its hooks, a mean over the 50 steps from one logging step to the next; "of a step" its
share of a step; "no logger" the same without the time in which the CSVLogger writes the figures; "step / nothing" the
ratio of whole steps, whose error is what a second run with nothing shows.

``loss``: what the largest eigenvalue of the Hessian, and the sharpness that the optimizer sees, cost per event, in
units of the forward and backward pass of the training batch; beside it three packages, at their defaults, on the model
as it is after these steps. Of each the deviation from ARPACK's value (scipy) of the same matrix is given.

``error``: how far the warm-started eigenvalue is from the converged one of the same probe along a run: by fixed numbers
of products, by the monitor's defaults and with ``accuracy=0.01``, on fresh
probes and on a fixed one; and what each costs in gradients of the training batch. The run's monitors see the same
probes; "converged" is 40 products from the last converged vector.
"""

import argparse
import gc
import logging
import os
import platform
import random
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

# Torch's profiler writes a line for every start and stop, from C++ and at its highest level; read as torch is loaded.
os.environ.setdefault("KINETO_LOG_LEVEL", "99")

import torch
from _curvature_accuracy import EIGHTH, error_part
from _curvature_nets import GPTSize, Net, cifar10, gpt, mnist
from _curvature_rivals import (
    ComposerStyle,
    FastaiStyle,
    by_arpack,
    full_gradient,
    missing_packages,
    names,
    package_runs,
)
from _curvature_runs import LOGGING_INTERVAL, Timed, fit
from lightning.pytorch import Callback, LightningDataModule, LightningModule
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from lit_gelu.callbacks import ActivationCurvatureMonitor, LossCurvatureMonitor

SYNCHRONISATION = "aten::_local_scalar_dense"
COMPOSERS_INTERVAL = 25  # its default


@dataclass(frozen=True)
class Variant:
    """What takes turns.

    Attributes:
        make: Makes the callback.
        before: Steps of a turn that do not count.
        steps: Steps that do.
        profiled: How many of these are profiled; 1 where all are alike.
    """

    make: Callable[[], Callback | None]
    before: int
    steps: int
    profiled: int = 1


def variants(activation: type[nn.Module], interval: int, few: int) -> dict[str, Variant]:
    """Return what takes turns.

    Args:
        activation: The class of the model's activations.
        interval: Steps between two measurements that are rare, and between two logging steps.
        few: How many steps count of what does the same at each.

    Returns:
        By name.
    """
    ours = "ActivationCurvatureMonitor"
    rare = f"{ours}, every {interval} steps"
    return {
        "nothing": Variant(lambda: None, 2, interval),
        "nothing, once more": Variant(lambda: None, 2, interval),
        f"{ours}, every step": Variant(
            lambda: ActivationCurvatureMonitor(every_n_steps=1), interval, interval, interval
        ),
        rare: Variant(lambda: ActivationCurvatureMonitor(every_n_steps=interval), interval, interval, interval),
        "fastai-style, activations": Variant(lambda: FastaiStyle(activation), 2, few),
        "Composer-style, activations": Variant(lambda: ComposerStyle(activation), 2, few),
        "Composer-style, all leaves": Variant(lambda: ComposerStyle(nn.Module), 2, few),
    }


def activations_part(net: Net, activation: type[nn.Module], rounds: int, few: int) -> None:
    """Print what monitors of activations cost.

    Args:
        net: Name, model and data.
        activation: The class of its activations.
        rounds: How often each has its turn.
        few: Steps of a turn that count, of what does the same at each.
    """
    name, model, data = net
    cases = variants(activation, LOGGING_INTERVAL, few)
    inside, logger, totals = ({key: [] for key in cases} for _ in range(3))
    for _ in range(rounds):
        order = list(cases)
        random.shuffle(order)
        for key in order:
            before, callback = cases[key].before, cases[key].make()
            timed = None if callback is None else Timed(callback)
            gc.collect()  # the turns before shall not be paid for here
            clock = fit(model, data, _listed(timed), before + cases[key].steps)
            totals[key].append(statistics.mean(clock.steps[before:]))
            logger[key].append(statistics.mean(clock.logger[before:]))
            inside[key].append(0.0 if timed is None else statistics.mean(timed.steps[before:]))
    # Last, since a profiler leaves a million objects, through which Python's collector would go again and again.
    operations = {key: _operations(model, data, variant) for key, variant in cases.items()}
    gc.collect()
    step = statistics.median(totals["nothing"])
    print(f"\n{name}: a step takes {1000 * step:.2f} ms; means over steps, medians of {rounds} rounds")
    titles = ("operators", "scalar syncs", "in it, us", "of a step", "no logger")
    print(f"{'':<42}" + "".join(f"{title:>13}" for title in titles) + f"{'step / nothing':>16}")
    for key in cases:
        counts = [operations[key][kind] - operations["nothing"][kind] for kind in (0, 1)]
        times = [statistics.median(inside[key]), statistics.median(logger[key])]
        ratio = statistics.median(total / plain for total, plain in zip(totals[key], totals["nothing"], strict=True))
        _activation_row(key, counts, times, step, f"{ratio:.4f}")
    rest = statistics.median(inside["Composer-style, activations"]) / COMPOSERS_INTERVAL
    _activation_row(f"Composer-style, mean of {COMPOSERS_INTERVAL} steps", [], [rest, 0.0], step, "")


def _operations(model: LightningModule, data: LightningDataModule, variant: Variant) -> tuple[float, float]:
    """Return the operators and the scalar synchronisations of a step, on average."""
    steps = range(variant.before, variant.before + variant.profiled)
    counts = fit(model, data, _listed(variant.make()), steps.stop, steps).operations
    return counts.total() / len(steps), counts[SYNCHRONISATION] / len(steps)


def _activation_row(name: str, counts: Sequence[float], times: Sequence[float], step: float, ratio: str) -> None:
    seconds, logger = times
    numbers = "".join(f"{number:>13.4g}" for number in counts) or " " * 26
    shares = f"{1e6 * seconds:>13.1f}{seconds / step:>13.3%}{(seconds - logger) / step:>13.3%}"
    print(f"{name:<42}{numbers}{shares}{ratio:>16}")


def loss_part(net: Net, inputs_of: Callable[[Any], Any], steps: int, repeats: int) -> None:
    """Print what the top eigenvalue costs, and the optimizer's sharpness.

    Args:
        net: Name, model and data; its forward gives one row of logits a target.
        inputs_of: From a batch to inputs and flat targets.
        steps: Steps of training, each with an event.
        repeats: How often each package is run.
    """
    name, model, data = net
    options: dict[str, dict[str, Any]] = {
        "LossCurvatureMonitor, warm, an eighth": EIGHTH,
        "LossCurvatureMonitor, warm, default": {},
        "LossCurvatureMonitor, warm, default, and trace": {"quantities": ["top_eigenvalue", "trace"]},
        "LossCurvatureMonitor, warm, whole batch": {"fraction": None},
        "preconditioned sharpness, warm, default": {"quantities": "preconditioned_sharpness"},
        "preconditioned sharpness, warm, whole batch": {"quantities": "preconditioned_sharpness", "fraction": None},
        "batch sharpness, warm, whole batch": {"quantities": "batch_sharpness", "fraction": None},
    }
    rows: list[tuple[str, list[float], str]] = []
    for label, extra in options.items():
        timed = Timed(LossCurvatureMonitor(every_n_steps=1, **extra))
        clock = fit(model, data, [timed], steps)
        gradient = statistics.median(clock.gradients[1:])
        costs = [seconds / gradient for seconds in timed.steps]
        rows.append((label, costs[1:], ""))
        rows.append((label.replace("warm", "first event"), costs[:1], ""))
    inputs, targets = inputs_of(next(iter(data.train_dataloader())))
    eighth = max(2, len(inputs) // 8)
    for label, count in (("whole batch", len(inputs)), ("an eighth", eighth)):
        part, labels = inputs[:count], targets[: len(targets) // len(inputs) * count]
        with sdpa_kernel(SDPBackend.MATH):  # the fused kernels have no second derivative
            exact = by_arpack(model, part, labels)
            for package, run in package_runs(model, part, labels).items():
                costs, value = _package_costs(run, lambda: full_gradient(model, inputs, targets), repeats)
                rows.append((f"{package}, {label}", costs, f"{value / exact - 1:+.2%}"))
    print(f"\n{name}: a gradient of the training batch takes {1000 * gradient:.2f} ms")
    print(f"{'top eigenvalue':<64}{'gradients an event':>19}{'quartiles':>18}{'deviation':>12}")
    for label, costs, deviation in sorted(rows, key=lambda row: statistics.median(row[1])):
        low, _, high = statistics.quantiles(costs, n=4) if len(costs) > 1 else costs * 3
        print(f"{label:<64}{statistics.median(costs):>19.2f}{f'{low:.2f} to {high:.2f}':>18}{deviation:>12}")


def _package_costs(run: Callable[[], float], gradient: Callable[[], None], repeats: int) -> tuple[list[float], float]:
    """Return times in gradients, each gradient timed beside the run, and the last value."""
    costs, value = [], 0.0
    for _ in range(repeats):
        start = time.thread_time()
        gradient()
        middle = time.thread_time()
        value = run()
        costs.append((time.thread_time() - middle) / (middle - start))
    return costs, value


def _listed(callback: Callback | None) -> list[Callback]:
    return [] if callback is None else [callback]


def parser() -> argparse.ArgumentParser:
    """Return the command's parser.

    Returns:
        The parser.
    """
    parts = ("activations", "loss", "error")
    cli = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cli.add_argument("--quick", action="store_true", help="tiny nets and few steps: shows that it works, no figures")
    cli.add_argument("--only", nargs="+", choices=parts, default=parts, help="which parts")
    return cli


def main(arguments: Iterable[str] | None = None) -> None:
    """Run the parts.

    Args:
        arguments: Of the command line.
    """
    options = parser().parse_args(None if arguments is None else list(arguments))
    quick = options.quick
    torch.set_num_threads(1)
    random.seed(0)
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else float("nan")
    print(
        f"{platform.machine()}, torch {torch.__version__}, 1 thread, load average {load:.1f} on {os.cpu_count()} cores"
    )
    size = GPTSize(12, 16, 2, 4, 16) if quick else GPTSize(12, 128, 4, 64, 16)
    small = GPTSize(2, 16, 2, 4, 16) if quick else GPTSize(2, 64, 4, 64, 16)
    shape = f"{size.blocks} blocks, width {size.width}, batch {size.batch} x {size.length}"
    if "activations" in options.only:
        activations_part((f"GPT of {shape}", *gpt(size, 100)), nn.GELU, 1 if quick else 3, 1 if quick else 3)
        name, *net = mnist()
        activations_part((f"classifier on {name}", *net), nn.GELU, 1 if quick else 5, 1 if quick else 40)
    if "loss" in options.only:
        print(f"\npackages that are not installed, and left out: {names(missing_packages())}")
        loss_part(
            (f"GPT of {shape}", *gpt(size, 40)), lambda b: (b[0], b[1].flatten()), 3 if quick else 10, 1 if quick else 2
        )
        name, *net = mnist()
        net[1].setup("fit")
        loss_part((f"classifier on {name}", *net), lambda batch: batch, 3 if quick else 200, 1 if quick else 5)
    if "error" in options.only:
        name, *net = mnist()
        error_part((f"classifier on {name}", *net), 6 if quick else 2000, 2 if quick else 50)
        error_part(("GPT of 2 blocks on source code", *gpt(small, 250)), 6 if quick else 1000, 2 if quick else 50)
        if not quick:
            error_part((f"GPT of {shape} on source code", *gpt(size, 40)), 100, 10)
        cifar = None if quick else cifar10()
        if cifar is None:
            print("\nCIFAR-10: left out (with --quick, and where LIT_GELU_DATA is not set)")
        else:
            error_part(("CIFAR-10 net, a third of the channels, batch 64", *cifar), 200, 20)


if __name__ == "__main__":
    main()
