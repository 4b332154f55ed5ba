"""The stage ``replicas``: many runs of the paper's small nets as one CUDA graph: equality, steps, whole figures.

Whole figures are made as ``lit-gelu paper run --preset full --noise keys`` makes them, measurements and records
included, out of ``LIT_GELU_DATA``; where the data are not there, or with ``--quick``, scikit-learn's digits stand for
MNIST's, in few epochs, and the record says so. On a CPU the same step runs without a graph.
"""

import copy
import itertools
import logging
import os
import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from _gpu_record import Record, Settings
from lightning.pytorch import Trainer, seed_everything
from replicas import NETS, RandomSamples

from lit_gelu.paper.group_planning import GroupPlanner
from lit_gelu.paper.jobs import CellGroup, RunOptions
from lit_gelu.paper.protocol.cells import Cell, expand
from lit_gelu.paper.protocol.experiments import MNIST, TWEETS, Experiment
from lit_gelu.paper.training.cell_training import DataCache
from lit_gelu.paper.training.group_training import train_group
from lit_gelu.replicas import BatchOrder, EagerExecutor, ReplicaDataModule, ReplicaGroup, build_members
from lit_gelu.replicas.device.captured_steps import CapturedSteps
from lit_gelu.replicas.device.steps import DeviceSteps
from lit_gelu.tasks.keyed_noise import DeviceKeys, Key, dropout_factors, launch, readings

ACTIVATIONS = ("elu", "gelu_tanh", "relu")
RUNS = {"tweets": 45, "MNIST, keep 1": 90, "MNIST, keep .5": 90, "autoencoder": 18}
QUICK_RUNS, QUICK_STEPS, STEPS = 3, 4, 143
NEEDS = 60.0  # seconds of a whole figure
COMPARED = (10, 100)  # steps after which weights are compared
FACTOR = 4.0  # a replica may be so many times as far from float64 as its run alone in float32: another order of sums
LEAST = 1e-6  # of a distance, relative to the largest weight of a tensor: some roundings
FURTHEST = 5e-6  # of a mean loss, relative
CLUSTERS = "50mpaths2"


def run(record: Record, settings: Settings) -> None:
    """Compare, time steps, then make whole figures."""
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", module="lightning")
    cuda = settings.device == "cuda"
    kinds = ("graph", "device") if cuda else ("device", "stacked")
    if cuda:
        record.figure("masks equal NumPy's", masks_are_equal)
    else:
        record.leave_out("graphs, masks of the kernel", "they are of a GPU; tests/replicas has the rest")
    nets = [name for name in NETS if not (settings.quick and name == "autoencoder")]
    for name in nets:
        found = record.figure(f"{name}: equality", partial(equality, name, kinds, settings.device, settings.quick))
        if found is not None and found["too far"]:
            record.fail(f"{name}: equality", f"further apart than allowed: {found['too far']}")
        if found is not None and cuda and not found[same_bits(kinds)]:
            record.fail(f"{name}: equality", "the graph's weights are not those of the step outside of it")
        measured = record.figure(
            f"{name}: measured", partial(measurement, name, kinds[0], settings.device, settings.quick)
        )
        if measured is not None and measured["furthest from float64"] > FURTHEST:
            record.fail(f"{name}: measured", f"further from float64 than {FURTHEST:g}")
    for name in nets:
        record.figure(f"{name}: a step", partial(step_time, name, kinds[0], settings.device, settings.quick))
    for experiment in (MNIST, TWEETS)[: 1 if settings.quick else None]:
        used, source = experiment_of(experiment, settings.quick)
        if source:
            record.leave_out(f"{experiment.name} in full", source)
        record.figure(f"{experiment.name}: all runs", partial(whole, used, settings), 0.0 if settings.quick else NEEDS)


def same_bits(kinds: Sequence[str]) -> str:
    """Return the name of what says whether two ways to make a step have the same bits."""
    return f"{kinds[0]} equals {kinds[1]}"


def masks_are_equal() -> dict[str, Any]:
    """Compare the kernel's masks with those of the CPU; an error says that they differ."""
    shape, chances = (4, 128, 128), (0.5, 0.2, 0.0, 0.5)
    keys = [Key(seed, 3, step) for seed, step in ((0, 0), (1, 7), (2, 2**33), (2**62, 1))]
    seeds, steps = (torch.tensor(numbers).cuda() for numbers in zip(*((k.seed, k.step + 1) for k in keys), strict=True))
    x = torch.ones(shape, device="cuda")
    found = launch(x, DeviceKeys(seeds, steps, *readings(chances, x.device)), 3, 0)
    if not torch.equal(found.cpu(), dropout_factors(shape, keys, chances)):
        raise AssertionError("the kernel's masks are not those of the CPU")
    return {"elements": x.numel()}


def executor_of(name: str, kind: str, runs: int, device: str) -> EagerExecutor:
    """Return a group's executor on a device, its optimizer made."""
    build, arguments, *_ = NETS[name]
    keyed = {"noise": "keys"} if "keep" in arguments else {}
    cells = [{**arguments, **keyed, "activation": name} for name in sorted((ACTIVATIONS * runs)[:runs])]
    executor = EagerExecutor(build_members(build, cells, [run % 5 for run in range(runs)]), kind)
    executor.stacks.tree.to(device)
    executor.configure_optimizers()
    return executor


def samples_of(name: str, steps: int, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return random inputs and labels for so many batches."""
    _, _, batch, features, classes, _ = NETS[name]
    made = RandomSamples(batch, steps, features, classes).samples
    return made.inputs.to(device), made.labels.to(device)


def equality(name: str, kinds: Sequence[str], device: str, quick: bool) -> dict[str, Any]:
    """Compare the step in the graph with itself outside, and a replica with its run alone."""
    runs, steps = (QUICK_RUNS, 10) if quick else (15, 100)
    samples, batch = samples_of(name, steps, device), NETS[name][2]
    weights = []
    for kind in kinds:
        executor = executor_of(name, kind, runs, device)
        rows = BatchOrder(len(samples[0]), batch, "seed").epoch(executor.streams.generators)
        at, first = {}, 0
        for end in [count for count in COMPARED if count <= steps]:
            executor.steps(*samples, rows[first:end].to(device), first)
            at[end] = [stack.detach().double().cpu() for stack in executor.stacks.trained.values()]
            first = end
        weights.append(at)
    apart = {}
    for step in weights[0]:
        exact = weights_alone(name, step, steps, "cpu", "64-true")
        alone = distance(weights_alone(name, step, steps, device), exact)
        apart[step] = {"replica": distance([stack[0] for stack in weights[0][step]], exact), "alone": alone}
    return {
        same_bits(kinds): all(
            torch.equal(a, b) for step in weights[0] for a, b in zip(weights[0][step], weights[1][step], strict=True)
        ),
        "from the run alone in float64": apart,
        "too far": [step for step, far in apart.items() if far["replica"] > max(LEAST, FACTOR * far["alone"])],
    }


def distance(one: Sequence[torch.Tensor], other: Sequence[torch.Tensor]) -> float:
    """Return the largest difference, relative to the largest number of its tensor."""
    return max(float((a - b).abs().max() / b.abs().max().clamp(min=1e-12)) for a, b in zip(one, other, strict=True))


def weights_alone(name: str, steps: int, of: int, device: str, precision: Any = "32-true") -> list[torch.Tensor]:
    """Return the weights of the first replica's run alone after so many steps."""
    build, arguments, batch, features, classes, _ = NETS[name]
    keyed = {"noise": "keys"} if "keep" in arguments else {}
    seed_everything(0, verbose=False)
    module = build(**arguments, **keyed, activation=sorted(ACTIVATIONS)[0])
    trainer = Trainer(
        max_steps=steps, accelerator="cuda" if device == "cuda" else "cpu", devices=1, precision=precision,
        logger=False, limit_val_batches=0, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(module, datamodule=RandomSamples(batch, of, features, classes, "seed"))
    return [parameter.detach().double().cpu() for parameter in module.parameters()]


def measurement(name: str, kind: str, device: str, quick: bool) -> dict[str, Any]:
    """Compare losses of all replicas over samples with those of the members in float64 on a CPU, and take the time."""
    executor = executor_of(name, kind, QUICK_RUNS if quick else RUNS[name], device)
    inputs, labels = samples_of(name, 2 if quick else 64, device)
    found = executor.means(inputs, labels)
    assert found is not None  # noqa: S101 - tasks are measured together
    spans = []
    for _ in range(3):
        begun = time.perf_counter()
        executor.means(inputs, labels)["loss"].cpu()  # type: ignore[index]
        spans.append(time.perf_counter() - begun)
    apart = []
    for member, loss in zip(executor.stacks.modules[::15], found["loss"][::15], strict=True):
        exact = copy.deepcopy(member).cpu().double().eval()
        with torch.no_grad():
            values = exact.sample_values(inputs.cpu().double(), labels.cpu())  # type: ignore[operator]
        apart.append(abs(float(loss) / float(values["loss"].mean()) - 1))
    return {"samples": len(labels), "milliseconds": round(1e3 * min(spans), 3), "furthest from float64": max(apart)}


def step_time(name: str, kind: str, device: str, quick: bool) -> dict[str, Any]:
    """Time steps of a group inside a Trainer, data and losses included, and the memory that it takes."""
    runs, steps = (QUICK_RUNS, QUICK_STEPS) if quick else (RUNS[name], STEPS)
    build, arguments, batch, features, classes, _ = NETS[name]
    keyed = {"noise": "keys"} if "keep" in arguments else {}
    cells = [{**arguments, **keyed, "activation": own} for own in sorted((ACTIVATIONS * runs)[:runs])]
    group = ReplicaGroup.of(build, cells, [run % 5 for run in range(runs)], steps_per_batch=steps, executor=kind)
    ends: list[float] = []
    original: Callable[..., Any] = group.training_step

    def timed(*given: Any) -> Any:
        made = original(*given)
        made["train_loss"].cpu()  # the device has ended
        ends.append(time.perf_counter())
        return made

    group.training_step = timed  # type: ignore[method-assign, assignment]
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    begun = time.perf_counter()
    trainer = Trainer(
        max_epochs=6, accelerator="cuda" if device == "cuda" else "cpu", devices=1, logger=False, limit_val_batches=0,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(group, datamodule=ReplicaDataModule(RandomSamples(batch, steps, features, classes, "seed")))
    spans = [later - earlier for earlier, later in itertools.pairwise(ends)]
    return {
        "runs": runs,
        "microseconds a step": round(1e6 * statistics.median(spans) / steps, 1),
        "of each run": round(1e6 * statistics.median(spans) / steps / runs, 2),
        "seconds until the first batch had ended": round(ends[0] - begun, 2),
        "GiB at most": round(torch.cuda.max_memory_allocated() / 2**30, 2) if device == "cuda" else None,
    }


class Parts:
    """Where the time of a whole figure on a GPU goes: in graphs of steps, in measurements, and until the first."""

    def __init__(self) -> None:
        self.spans: list[tuple[str, torch.cuda.Event, torch.cuda.Event]] = []
        self.begun, self.first = time.perf_counter(), 0.0

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Note them."""
        with (
            patch.object(DeviceSteps, "make_of", self._first_of(DeviceSteps.make_of)),
            patch.object(CapturedSteps, "__call__", self._around("in steps", CapturedSteps.__call__)),
            patch.object(EagerExecutor, "means", self._around("in measurements", EagerExecutor.means)),
        ):
            yield

    def seconds(self) -> dict[str, float]:
        """Return them."""
        found = {"until the first steps were made": self.first}
        for name, begin, end in self.spans:
            found[name] = found.get(name, 0.0) + begin.elapsed_time(end) / 1e3
        return {name: round(seconds, 3) for name, seconds in found.items()}

    def _first_of(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any) -> Any:
            made = method(*given)
            if not self.first:
                made.cpu()  # the device has ended
                self.first = time.perf_counter() - self.begun
            return made

        return call

    def _around(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            begin, made, end = self._now(), method(*given, **named), self._now()
            if self.first:  # before, graphs are timed
                self.spans.append((name, begin, end))
            return made

        return call

    def _now(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


def experiment_of(experiment: Experiment, quick: bool) -> tuple[Experiment, str]:
    """Return what is made of an experiment with noise by key, and why it is not the paper's, if it is not."""
    root, own = os.environ.get("LIT_GELU_DATA", ""), "tweets" if experiment is TWEETS else "MNIST"
    arms = {name: arm for name, arm in experiment.arms.items() if name in {"gelu", "relu", "elu"}}
    noise = {"noise": "keys"}
    keyed = replace(
        experiment,
        arms=arms,
        task_args={**experiment.task_args, **noise},
        data_args={**experiment.data_args, "order": "seed"},
    )
    if not quick and root and (Path(root) / own).exists():
        if experiment is not TWEETS or (Path(root) / own / "embeddings-twitter.txt").is_file():
            return keyed, ""
        clusters = replace(keyed, data_args={**keyed.data_args, "clusters": CLUSTERS})
        return clusters, f"word clusters ({CLUSTERS}) stand for the authors' word vectors"
    why = "--quick" if quick else f"LIT_GELU_DATA has no {own}"
    digits = replace(
        keyed, task="lit_gelu.tasks.MNISTClassifier", data="lit_gelu.data.DigitsData", epochs=1, seeds=1,
        task_args={"hidden_layers": 2, **noise}, data_args={"order": "seed"},
    )  # fmt: skip
    return digits, f"the digits stand for the data in one epoch, since {why}"


def group_of(experiment: Experiment, *, quick: bool) -> CellGroup:
    """Return the runs of an experiment as one group."""
    cells: list[Cell] = expand(experiment, "full")
    (group,) = GroupPlanner(1, on_gpu=True).jobs(cells[:QUICK_RUNS] if quick else cells)
    assert isinstance(group, CellGroup)  # noqa: S101 - more than one run is a group
    return group


def whole(experiment: Experiment, settings: Settings) -> dict[str, Any]:
    """Make all runs of an experiment as one group, with its measurements and records."""
    cuda = settings.device == "cuda"
    root = os.environ.get("LIT_GELU_DATA") or None
    options = RunOptions(root, "cuda" if cuda else "cpu", 1, None)
    data = DataCache(root)
    group = group_of(experiment, quick=settings.quick)
    data.get(group.cells[0].config["data"])  # what a machine reads once is not timed
    begun = time.perf_counter()
    if cuda:  # nor is what it compiles once
        train_group(group_of(replace(experiment, epochs=1), quick=settings.quick), data, options, lambda _: None)
    before, parts = time.perf_counter() - begun, Parts()
    with parts.noted() if cuda else nullcontext():
        records = train_group(group, data, options, lambda _: None)
    seconds = time.perf_counter() - parts.begun
    medians: dict[str, float] = {}
    places = sorted({(record.arm, str(dict(record.setting)), record.learning_rate) for record in records})
    for place in places:
        chosen = [r for r in records if (r.arm, str(dict(r.setting)), r.learning_rate) == place]
        losses = [r.result.last_train_loss for r in chosen if r.result.last_train_loss is not None]
        if losses:
            medians[" ".join(map(str, place))] = statistics.median(losses)
    return {
        "runs": len(records),
        "seconds": round(seconds, 2),
        "seconds by part": parts.seconds() if cuda else {},
        "seconds before, of one epoch with kernels that are compiled": round(before, 2) if cuda else None,
        "diverged": sum(record.status == "diverged" for record in records),
        "executor": records[0].group["executor"] if records[0].group else None,
        "last training loss, medians": medians,
    }
