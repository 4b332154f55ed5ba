"""What is measured of candidates behind their training, and the files of the best run."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from lightning.pytorch import LightningModule
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor

from lit_gelu.activations import ActivationRegistry
from lit_gelu.callbacks.checkpoint_file import read_checkpoint
from lit_gelu.choose.bends import EXAMPLES, bends
from lit_gelu.choose.candidates import ActivationCandidate
from lit_gelu.choose.errors import NoFileError
from lit_gelu.choose.expenses import kept_bytes, latencies, step_seconds
from lit_gelu.choose.one_by_one import Setup, said
from lit_gelu.choose.outcome import ActivationChoice
from lit_gelu.choose.run_files import RunFolder, TrainedRun
from lit_gelu.choose.verdict import listed
from lit_gelu.curvature.probe.examples import count_examples, take_examples
from lit_gelu.curvature.probe.forward_inputs import failure_on, forward_inputs, tried_inputs
from lit_gelu.files import write_atomically
from lit_gelu.random_states import seeded

PROOFS = ("json", "markdown", "html")


@dataclass(frozen=True)
class TrainedModules:
    """The modules of runs, built anew and with the weights that they ended with.

    Args:
        setup: What the runs have in common.
        folder: Where their weights are.
        candidates: By label.
        registry: Which names activations.
    """

    setup: Setup
    folder: RunFolder
    candidates: Mapping[str, ActivationCandidate]
    registry: ActivationRegistry

    def of(self, run: TrainedRun) -> LightningModule:
        """Return a run's module, in evaluation mode."""
        with seeded(run.seed):
            module = self.setup.build(activation=self.candidates[run.label].given)
        path = self.folder.checkpoint(run.label, run.spec, run.seed)
        module.load_state_dict(read_checkpoint(path)["state_dict"])
        return module.eval()


def measure_candidates(
    choice: ActivationChoice, modules: TrainedModules, seconds: float, say: Callable[[str], None]
) -> None:
    """Fill in time, memory, latency and curvature; of each candidate that of the run nearest to its median.

    What a module does not let itself be asked is left out, and a note says why.
    """
    middle = {c.label: run for c in choice.candidates if (run := c.middle(choice.metric)) is not None}
    reports = {c.label: c for c in choice.candidates if c.label in middle}
    batches = training_batches(modules.setup)
    with _noted(choice, "Time and memory of a step"):
        times = step_seconds({n: modules.of(run).train() for n, run in middle.items()}, batches[0], seconds)
        for label, run in middle.items():
            reports[label].step_seconds = times[label]
            reports[label].kept_bytes = kept_bytes(modules.of(run).train(), batches[0])
        say("timed the steps")
    with _noted(choice, "Curvature"):
        unknown: dict[str, list[str]] = {}
        for label, run in middle.items():
            found = bends(modules.of(run), list(_first(batches)), modules.registry)
            reports[label].bends = found.figures
            if found.unknown:
                unknown.setdefault(found.unknown, []).append(label)
        for reason, labels in unknown.items():
            choice.notes.append(f"The mean curvature of {listed(labels)} is not known, because {reason}")
        say("measured the curvature")
    with TemporaryDirectory(prefix="lit_gelu-choose-") as place, _noted(choice, "Latency"):
        files = {label: Path(place) / f"{number}.onnx" for number, label in enumerate(middle)}
        for label, path in files.items():
            _export(modules.of(middle[label]), path, batches[0], modules.registry)
        inputs = _inputs(modules.of(next(iter(middle.values()))), batches[0])
        for label, latency in latencies(files, inputs, seconds).items():
            reports[label].latency_seconds = latency
        say("timed the exported files")


@contextmanager
def _noted(choice: ActivationChoice, what: str, done: str = "measured") -> Iterator[None]:
    try:
        yield
    except Exception as error:  # noqa: BLE001 - of a user's module: the comparison stands without that figure
        choice.notes.append(f"{what} could not be {done} ({said(error).rstrip('.')}).")


def training_batches(setup: Setup) -> list[Any]:
    """Return the first training batches in the order of seed 0, as many as curvature is measured on."""
    with seeded(0):
        setup.data.prepare_data()
        setup.data.setup("fit")
        loader: Iterable[Any] = setup.data.train_dataloader()
        first = list(islice(loader, 1))
        each = count_examples(first[0]) or EXAMPLES
        return first + list(islice(loader, max(0, -(-EXAMPLES // each) - 1)))


def _first(batches: Iterable[Any]) -> Iterator[Any]:
    missing = EXAMPLES
    for batch in batches:
        present = count_examples(batch) or 0
        if missing > 0:
            yield take_examples(batch, missing) if present else batch
        missing -= present


def _export(module: LightningModule, path: Path, batch: Any, registry: ActivationRegistry) -> Any:
    from lit_gelu.export import export_onnx

    return export_onnx(module, path, _sample(module, batch), registry=registry)


def _sample(module: LightningModule, batch: Any) -> Any:
    """Return what to trace with: the module's own sample, else a batch's inputs.

    Raises:
        NoFileError: If the module does not run on it, or has no ``forward``.
    """
    name, own = type(module).__name__, getattr(module, "example_input_array", None)
    if not is_overridden("forward", module, LightningModule):
        raise NoFileError(f"{name} has no forward, which its file and latency need")
    sample, failure = (own, failure_on(module, own)) if own is not None else tried_inputs(module, batch)
    if failure is None and sample is not None:
        return sample
    reason = "" if failure is None else f": {said(failure).rstrip('.')}"
    if own is not None:
        raise NoFileError(f"{name}.forward fails on its example_input_array{reason}")
    why = "finds no inputs in" if failure is None else "fails on the inputs of"
    raise NoFileError(f"{name}.forward {why} a training batch{reason}. Give the module an example_input_array")


def _inputs(module: LightningModule, batch: Any) -> dict[str, Tensor]:
    """Return the same by the names that a file has for it."""
    from lit_gelu.export.inputs import take_apart

    call = take_apart(module, _sample(module, batch))
    return dict(zip(call.names, call.tensors, strict=True))


def write_best(choice: ActivationChoice, modules: TrainedModules, target: Path, *, exports: bool) -> None:
    """Write the best run's module as a checkpoint, and as an ONNX file with its proof."""
    run = choice.best_run
    for earlier in (*target.glob("best.onnx*"), *target.glob("best.parity.*")):  # of another best module
        earlier.unlink()
    with write_atomically(target / "best.ckpt") as temporary:
        temporary.write_bytes(modules.folder.checkpoint(run.label, run.spec, run.seed).read_bytes())
    choice.files["checkpoint"] = "best.ckpt"
    if exports:
        with _noted(choice, "The best module's file", "written and proven"):
            _write_proven(choice, modules, modules.of(run), target)


def _write_proven(choice: ActivationChoice, modules: TrainedModules, module: LightningModule, target: Path) -> None:
    from lit_gelu.export import check_parity, write_proof

    path, batch = target / "best.onnx", training_batches(modules.setup)[0]
    _export(module, path, batch, modules.registry)
    sample, flat = _sample(module, batch), forward_inputs(batch, module) is not None
    data = modules.setup.data if flat else None  # a proof takes no batches whose inputs are a list or a mapping
    report = check_parity(module, path, data, sample, strict=False, registry=modules.registry)
    if not flat:
        why = "whose batches do not begin with its inputs as tensors"
        choice.notes.append(f"{path.name} is proven on a sample and on drawn inputs, not on the data, {why}.")
    written = write_proof(report, path, PROOFS)
    choice.files |= {"onnx": path.name} | {f"proof_{name}": file.name for name, file in written.items()}
    if not report.passed:
        choice.notes.append(f"{path.name} does not compute what the module computes: see {written['markdown'].name}.")
