"""What a candidate costs on this machine, and the files of the best run."""

import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor
from torch.optim import Optimizer

from lit_gelu.activations import ActivationRegistry
from lit_gelu.choose.result import ActivationChoice, TrainedRun
from lit_gelu.choose.training import Say, Setup, first_line, seeded
from lit_gelu.curvature.probe.forward_inputs import forward_inputs, forward_sample
from lit_gelu.curvature.probe.training_loss import loss_of, muted
from lit_gelu.errors import ModelInputError
from lit_gelu.files import write_atomically

_SECONDS = 2.0  # of timing, once for steps and once for latencies
_FEWEST_ROUNDS = 5


def measure_costs(
    choice: ActivationChoice, setup: Setup, module_of: Callable[[TrainedRun], LightningModule], say: Say
) -> None:
    """Fill in time, memory, latency and size; of each candidate those of the run nearest to its median.

    What a module does not let itself be asked is left out, and a note says why.
    """
    middle = [(c, run) for c in choice.candidates if (run := c.middle(choice.metric)) is not None]
    with _noted(choice, "Time and memory of a step could not be measured"):
        batch = _first_batch(setup)
        modules = {candidate.label: module_of(run).train() for candidate, run in middle}
        kept = {label: kept_bytes(module, batch) for label, module in modules.items()}
        times = median_seconds({label: _training_step(module, batch) for label, module in modules.items()})
        for candidate, _ in middle:
            candidate.step_seconds, candidate.kept_bytes = times[candidate.label], kept[candidate.label]
        say("timed the steps")
    with _noted(choice, "Latency could not be measured"), TemporaryDirectory(prefix="lit_gelu-choose-") as place:
        batch = _first_batch(setup)
        calls = {}
        for number, (candidate, run) in enumerate(middle):
            path = Path(place) / f"{number}.onnx"
            calls[candidate.label] = _exported_row(module_of(run), path, batch, setup.registry)
            candidate.file_bytes = path.stat().st_size
        times = median_seconds(calls)
        for candidate, _ in middle:
            candidate.latency_seconds = times[candidate.label]
        say("timed the exported files")


@contextmanager
def _noted(choice: ActivationChoice, what: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # noqa: BLE001 - of a user's module: the comparison stands without that figure
        choice.notes.append(f"{what} ({first_line(error)}).")


def _first_batch(setup: Setup) -> Any:
    """Return the first training batch in the order of seed 0."""
    with seeded(0):
        setup.data.prepare_data()
        setup.data.setup("fit")
        return next(iter(setup.data.train_dataloader()))


def median_seconds(calls: Mapping[str, Callable[[], object]], seconds: float = _SECONDS) -> dict[str, float]:
    """Return the median time of each call.

    All are timed in the same rounds, in shuffled order, so that a slow spell of the machine meets all of them; the
    first round warms up.
    """
    order, times = list(calls), {label: list[float]() for label in calls}
    shuffle, end = random.Random(0), 0.0  # noqa: S311 - an order, no secret
    for call in calls.values():
        call()
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times[order[0]]) < _FEWEST_ROUNDS:
        shuffle.shuffle(order)
        for label in order:
            start = time.perf_counter()
            calls[label]()
            times[label].append(time.perf_counter() - start)
    return {label: statistics.median(times[label]) for label in calls}


def _training_step(module: LightningModule, batch: Any) -> Callable[[], None]:
    """Return forward, backward and update, without the Trainer's share; of several optimizers no update."""
    configured: Any = module.configure_optimizers()
    if isinstance(configured, list | tuple) and configured and isinstance(configured[0], list):
        configured = configured[0]  # ([optimizer], [scheduler])
    if isinstance(configured, list | tuple) and len(configured) == 1:
        (configured,) = configured
    if isinstance(configured, dict):
        configured = configured["optimizer"]
    optimizer = configured if isinstance(configured, Optimizer) else None

    def step() -> None:
        with muted(module.modules()), torch.enable_grad():
            loss_of(module, batch, 0).backward()  # type: ignore[no-untyped-call]
        if optimizer is not None:
            optimizer.step()
        module.zero_grad(set_to_none=True)

    return step


def kept_bytes(module: LightningModule, batch: Any) -> int:
    """Return the bytes that a training step keeps for its backward pass, parameters left out, each storage once."""
    parameters = {parameter.untyped_storage().data_ptr() for parameter in module.parameters()}
    kept: dict[int, Tensor] = {}  # tensors, so that no storage is freed and its address given to another one

    def pack(tensor: Tensor) -> Tensor:
        if tensor.untyped_storage().data_ptr() not in parameters:
            kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with muted(module.modules()), torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss_of(module, batch, 0)
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


def _sample(module: LightningModule, batch: Any) -> Any:
    """Return what to trace with: the module's own sample, else a batch's inputs."""
    sample = forward_sample(module, batch)
    if sample is None:
        raise ModelInputError(
            f"{type(module).__name__}.forward is not there, or does not run on the inputs of a training batch. Give "
            "the module a forward and an example_input_array"
        )
    return sample


def _exported_row(
    module: LightningModule, path: Path, batch: Any, registry: ActivationRegistry
) -> Callable[[], object]:
    """Export a module, and return what runs one row of its sample in onnxruntime."""
    from lit_gelu.export import OnnxPredictor, export_onnx

    sample = _sample(module, batch)
    export_onnx(module, path, sample, registry=registry)
    predictor = OnnxPredictor(path, ["CPUExecutionProvider"], tuning=False)
    if isinstance(sample, Mapping):
        named = {name: value[:1] for name, value in sample.items()}
        return lambda: predictor(**named)
    rows = [value[:1] for value in (sample if isinstance(sample, list | tuple) else [sample])]
    return lambda: predictor(*rows)


def write_best(
    choice: ActivationChoice, setup: Setup, module: LightningModule, checkpoint: Path, *, exports: bool
) -> None:
    """Write the best run's module as a checkpoint, and as an ONNX file with its proof."""
    folder = choice.folder or checkpoint.parent.parent
    for earlier in (*folder.glob("best.onnx*"), *folder.glob("best.parity.*")):  # of another best module
        earlier.unlink()
    with write_atomically(folder / "best.ckpt") as temporary:
        temporary.write_bytes(checkpoint.read_bytes())
    choice.files["checkpoint"] = "best.ckpt"
    if not exports:
        return
    with _noted(choice, "The best module's file could not be written and proven"):
        from lit_gelu.export import check_parity, export_onnx, write_proof

        path, batch = folder / "best.onnx", _first_batch(setup)
        sample = _sample(module, batch)
        export_onnx(module, path, sample, registry=setup.registry)
        # A proof takes no batches whose inputs are a list or a mapping.
        data = setup.data if forward_inputs(batch, module) is not None else None
        report = check_parity(module, path, data, sample, strict=False, registry=setup.registry)
        proofs = write_proof(report, path, ("json", "markdown", "html"))
        choice.files |= {"onnx": path.name} | {f"proof_{name}": file.name for name, file in proofs.items()}
        if not report.passed:
            choice.notes.append(f"{path.name} does not compute what the module computes: see best.parity.md.")
