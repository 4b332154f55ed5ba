"""What is measured of candidates behind their training, and the files of the best run."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from lightning.pytorch import LightningModule

from lit_gelu.activations import ActivationRegistry
from lit_gelu.callbacks.checkpoint_file import read_checkpoint
from lit_gelu.curvature.probe.examples import count_examples, take_examples
from lit_gelu.replicas.building import seeded
from lit_gelu.replicas.choice.bends import EXAMPLES, bends
from lit_gelu.replicas.choice.candidates import ActivationCandidate
from lit_gelu.replicas.choice.expenses import kept_bytes, latencies, step_seconds
from lit_gelu.replicas.choice.one_by_one import Setup, said
from lit_gelu.replicas.choice.outcome import ActivationChoice
from lit_gelu.replicas.choice.run_files import RunFolder, TrainedRun

Given = Mapping[str, ActivationCandidate]
PROOFS = ("json", "markdown", "html")


def module_of(run: TrainedRun, setup: Setup, folder: RunFolder, given: Given) -> LightningModule:
    """Return the module of a run as it ended, in evaluation mode."""
    with seeded(run.seed):
        module = setup.build(activation=given[run.label].given)
    path = folder.checkpoint(run.label, run.spec, run.seed)
    module.load_state_dict(read_checkpoint(path)["state_dict"])
    return module.eval()


def measure_candidates(
    choice: ActivationChoice,
    setup: Setup,
    folder: RunFolder,
    given: Given,
    seconds: float,
    registry: ActivationRegistry,
    say: Callable[[str], None],
) -> None:
    """Fill in time, memory, latency and curvature; of each candidate that of the run nearest to its median.

    What a module does not let itself be asked is left out, and a note says why.
    """
    middle = {c.label: run for c in choice.candidates if (run := c.middle(choice.metric)) is not None}
    reports = {c.label: c for c in choice.candidates if c.label in middle}
    batches = training_batches(setup)
    with _noted(choice, "Time and memory of a step"):
        trained = {label: module_of(run, setup, folder, given).train() for label, run in middle.items()}
        times = step_seconds(trained, batches[0], seconds)
        for label, run in middle.items():
            reports[label].step_seconds = times[label]
            reports[label].kept_bytes = kept_bytes(module_of(run, setup, folder, given).train(), batches[0])
        say("timed the steps")
    with _noted(choice, "Curvature"):
        for label, run in middle.items():
            reports[label].bends = bends(module_of(run, setup, folder, given), list(_first(batches)), registry)
        say("measured the curvature")
    with TemporaryDirectory(prefix="lit_gelu-choose-") as place, _noted(choice, "Latency"):
        files = {label: Path(place) / f"{number}.onnx" for number, label in enumerate(middle)}
        for label, path in files.items():
            _export(module_of(middle[label], setup, folder, given), path, batches[0], registry)
        for label, latency in latencies(files, None, seconds).items():
            reports[label].latency_seconds = latency
        say("timed the exported files")


@contextmanager
def _noted(choice: ActivationChoice, what: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # noqa: BLE001 - of a user's module: the comparison stands without that figure
        choice.notes.append(f"{what} could not be measured ({said(error).rstrip('.')}).")


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
    """Return what to trace with: ``None`` where the module has a sample of its own, else a batch's inputs."""
    if getattr(module, "example_input_array", None) is not None:
        return None
    inputs = batch[0] if isinstance(batch, list | tuple) else batch
    return take_examples(inputs, 2)


def write_best(
    choice: ActivationChoice,
    setup: Setup,
    folder: RunFolder,
    given: Given,
    target: Path | None,
    registry: ActivationRegistry,
    *,
    exports: bool,
) -> None:
    """Give the choice its best run's module, and write it as a checkpoint and an ONNX file with its proof."""
    run = choice.best_run
    choice.module = module_of(run, setup, folder, given)
    if target is None:
        return
    from lit_gelu.files import write_atomically

    with write_atomically(target / "best.ckpt") as temporary:
        temporary.write_bytes(folder.checkpoint(run.label, run.spec, run.seed).read_bytes())
    choice.files["checkpoint"] = "best.ckpt"
    if exports:
        with _noted(choice, "The best module's file"):
            _write_proven(choice, choice.module, target, training_batches(setup)[0], setup, registry)


def _write_proven(
    choice: ActivationChoice,
    module: LightningModule,
    target: Path,
    batch: Any,
    setup: Setup,
    registry: ActivationRegistry,
) -> None:
    from lit_gelu.export import check_parity, write_proof

    path = target / "best.onnx"
    _export(module, path, batch, registry)
    sample = _sample(module, batch)
    report = check_parity(module, path, setup.data, sample, strict=False, registry=registry)
    written = write_proof(report, path, PROOFS)
    choice.files |= {"onnx": path.name} | {f"proof_{name}": file.name for name, file in written.items()}
    if not report.passed:
        choice.notes.append(f"{path.name} does not compute what the module computes: see {written['markdown'].name}.")
