"""The stage ``replicas``: many runs of the paper's small nets as one CUDA graph: equality and steps.

On a CPU the same step runs without a graph.
"""

import copy
import itertools
import logging
import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from _gpu_record import Record, Settings
from lightning.pytorch import Trainer, seed_everything
from replicas import NETS, RandomSamples

from lit_gelu.replicas import BatchOrder, EagerExecutor, ReplicaDataModule, ReplicaGroup, build_members
from lit_gelu.tasks.keyed_noise import DeviceKeys, Key, dropout_factors, launch, readings

ACTIVATIONS = ("elu", "gelu_tanh", "relu")
RUNS = {"tweets": 45, "MNIST, keep 1": 90, "MNIST, keep .5": 90, "autoencoder": 18}
QUICK_RUNS, QUICK_STEPS, STEPS = 3, 4, 143
COMPARED = (10, 100)  # steps after which weights are compared
FACTOR = 4.0  # a replica may be so many times as far from float64 as its run alone in float32: another order of sums
LEAST = 1e-6  # of a distance, relative to the largest weight of a tensor: some roundings
FURTHEST = 5e-6  # of a mean loss, relative


def run(record: Record, settings: Settings) -> None:
    """Compare, then time steps."""
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
