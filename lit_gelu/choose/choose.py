"""`choose`: which activation for a model, by runs that differ in nothing else."""

import logging
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningDataModule, LightningModule
from lightning.pytorch.utilities.seed import isolate_rng

from lit_gelu.activations import ActivationRegistry
from lit_gelu.activations.registry import registry_or_default
from lit_gelu.choose.candidates import ActivationCandidate, builder, candidates_of, notes_of_exchange
from lit_gelu.choose.errors import AllRunsFailedError, ChoiceArgumentError, FolderInUseError
from lit_gelu.choose.kept_settings import settings_before, settings_of_data
from lit_gelu.choose.measuring import TrainedModules, measure_candidates, write_best
from lit_gelu.choose.metric import Metric, metric_of
from lit_gelu.choose.one_by_one import Setup
from lit_gelu.choose.outcome import ActivationChoice, CandidateReport, label_notes
from lit_gelu.choose.own_generators import OwnGenerators
from lit_gelu.choose.plain_text import told
from lit_gelu.choose.preconditions import check_equal_starts, check_seeds, logged_by
from lit_gelu.choose.run_files import RunFolder, TrainedRun
from lit_gelu.choose.run_maker import RunMaker
from lit_gelu.choose.samples_text import samples_told
from lit_gelu.choose.unused_callbacks import not_used, without_unused
from lit_gelu.choose.verdict import listed
from lit_gelu.errors import shown
from lit_gelu.extras import MissingExtraError, need
from lit_gelu.files import write_atomically
from lit_gelu.folder_lock import lock_folder

Say = Callable[[str], None]


def choose(
    build: Callable[..., LightningModule],
    activations: Sequence[Any] | Mapping[str, Any],
    data: LightningDataModule,
    *,
    seeds: int | Sequence[int] = 5,
    max_epochs: int = 10,
    metric: str | None = None,
    mode: str | None = None,
    baseline: str | None = None,
    swap: bool | str | type | Sequence[Any] = False,
    together: bool = True,
    trainer: Mapping[str, Any] | None = None,
    folder: str | os.PathLike[str] | None = None,
    settings: Mapping[str, Any] | None = None,
    measure: bool = True,
    seconds: float = 2.0,
    registry: ActivationRegistry | None = None,
    say: Say | None = None,
) -> ActivationChoice:
    """Train a model with several activations, each with the same seeds and the same order of data, and compare them.

    Where it holds, all runs are trained side by side as a `ReplicaGroup`; else one after another, and the result says
    why. Each run is ``seed_everything(seed)``, ``build(activation=...)``, ``Trainer(...).fit``: on a CPU its figures
    are those of the same lines written by hand, to the bit. The metric is that of the last epoch.

    A difference counts as decided if its interval (a paired bootstrap over the seeds, 95 %) leaves out 0, and
    Student's test of the paired differences does too, corrected for all pairs by Holm's method. One that is not
    may exist all the same. Learning rates are not tuned: what is decided is decided for those that were given.

    Args:
        build: The class of the module, or a function that returns one; called as ``build(activation=...)``, with
            ``swap`` as ``build()``.
        activations: Specs; a mapping gives them labels.
        data: What all are trained on and measured with. An `lit_gelu.data.InMemoryDataModule` allows a group.
        seeds: How many, from 0 on, or which. An interval needs five.
        max_epochs: Of every run.
        metric: What decides, as the module logs it in validation, or else in a test; by default ``val_error``, or else
            ``val_loss``.
        mode: ``"min"`` or ``"max"``; by default the metric's name says which.
        baseline: A label; the others are compared with it too.
        swap: ``True`` gives the activation to all sites of what ``build()`` returns; or which of them, as the targets
            of `lit_gelu.surgery.swap`. Calls of functions are found where the module has an ``example_input_array``.
        together: Whether to train as a group where that holds.
        trainer: Further options of every run's ``Trainer``. Callbacks are copied for every run, and ask for runs of
            their own. Those that serve what is switched off here are left out, such as `ModelCheckpoint` without
            ``enable_checkpointing=True``, and a note says so.
        folder: Where finished runs are kept as they end, and results are written: ``choice.json``, ``curves.png``,
            ``differences.png``, ``best.ckpt``, ``best.onnx`` and its proof. Called again with it, runs that are there
            are not made again; activations and seeds may be added. Runs of another ``build``, other data or another
            ``trainer`` are refused. ``None`` keeps nothing.
        settings: What else the runs in the folder must have in common, by name: whatever ``build`` and ``data`` do not
            show, such as the version of your code.
        measure: Whether to measure time, memory, latency and curvature, and to export the best module.
        seconds: How long to time steps, and how long latencies.
        registry: Where names are looked up; ``None`` means `lit_gelu.activations.registry`.
        say: Called with a line whenever something is finished.

    Returns:
        The table, the sentences, all figures.

    Raises:
        ChoiceArgumentError: Before anything is trained, if an argument is not accepted, the metric is not logged, or
            the folder holds runs with other settings.
        FolderInUseError: If another comparison is at work in the folder.
        UnknownActivationError: Before anything is trained, if a name is not registered.
        AllRunsFailedError: If no run came to its end with a number.

    Example:
        >>> from functools import partial
        >>> from lit_gelu.data import DigitsData
        >>> from lit_gelu.tasks import MNISTClassifier
        >>> build = partial(MNISTClassifier, hidden_layers=1)
        >>> names = {"gelu": "gelu", "same": "gelu"}
        >>> choice = choose(build, names, DigitsData(), seeds=5, max_epochs=1, measure=False)
        >>> choice.verdict[0]
        'gelu and same gave the same numbers with every seed: there is no difference between them.'
    """
    registry, report = registry_or_default(registry), say or _say_nothing
    candidates, numbers = candidates_of(activations, registry), check_seeds(seeds)
    _check_others(candidates, baseline, data, settings)
    options, left_out = without_unused({"max_epochs": max_epochs, **(trainer or {})})
    exchanged = _exchanged(swap)
    with ExitStack() as stack:
        stack.enter_context(_quiet())
        stack.enter_context(isolate_rng())
        home = Path(folder or stack.enter_context(tempfile.TemporaryDirectory(prefix="lit_gelu-choose-")))
        untold: list[str] = []
        given = {} if folder is None else settings_before(build, exchanged, options, settings or {}, untold)
        made = builder(build, exchanged, registry)
        setup = Setup(made, data, options, OwnGenerators(data))
        decides = metric_of(metric, mode, logged_by(setup, candidates, numbers[0], metric))
        stack.callback(lock_folder(home / "runs", _in_use(home)).release)
        tests, tested_on = decides.stage == "test", ""
        if folder is not None:
            given |= settings_of_data(data, untold)
            tested_on = told(samples_told(data, "test", untold), untold) if tests else ""
        setup, runs = replace(setup, tests=tests, tested_on=tested_on), RunFolder(home, given)
        modules = TrainedModules(setup, runs, {candidate.label: candidate for candidate in candidates}, registry)
        for line in not_used(left_out):
            report(line)
        work = RunMaker(modules, report)
        trained = work.make([(candidate, seed) for candidate in candidates for seed in numbers], together)
        choice = _compared(decides, numbers, candidates, trained, baseline)
        choice.notes += not_used(left_out) + notes_of_exchange(build, exchanged, candidates[0], registry)
        choice.notes += check_equal_starts(choice.candidates, data) + ([] if runs.is_new else _untold_notes(untold))
        choice.trained = work.how
        choice.module = modules.of(choice.best_run)
        if measure:
            measure_candidates(choice, modules, seconds, report)
        if folder is not None:
            write_best(choice, modules, home, exports=measure)
            _write_down(choice, home)
    return choice


def _in_use(folder: Path) -> FolderInUseError:
    return FolderInUseError(
        f"Another comparison is at work in {str(folder)!r}. Wait for it, or give another folder (folder=, --output)."
    )


def _check_others(candidates: Sequence[ActivationCandidate], baseline: str | None, data: Any, settings: Any) -> None:
    labels = [candidate.label for candidate in candidates]
    if baseline is not None and baseline not in labels:
        raise ChoiceArgumentError(f"baseline={baseline!r} is not compared. Give one of {', '.join(labels)}.")
    if not isinstance(data, LightningDataModule):
        raise ChoiceArgumentError(f"data={type(data).__name__} is not accepted. Give a LightningDataModule.")
    if settings is not None and not isinstance(settings, Mapping):
        raise ChoiceArgumentError(f'settings={shown(settings)} is not accepted. Give a mapping: {{"code": "2026-05"}}.')


def _untold_notes(untold: Sequence[str]) -> list[str]:
    """Say of what it is not known whether the runs that were there before were made with the same."""
    if not untold:
        return []
    return [
        f"Of {listed(sorted(set(untold)))} nothing but the type can be compared with that of the runs that were in the "
        "folder. Give settings= what they hold, or another folder."
    ]


def _compared(
    metric: Metric,
    seeds: list[int],
    candidates: Sequence[ActivationCandidate],
    trained: Mapping[tuple[str, int], TrainedRun],
    baseline: str | None,
) -> ActivationChoice:
    """Return the comparison of runs, by label and seed."""
    reports = [CandidateReport(c.label, c.spec, [trained[c.label, seed] for seed in seeds]) for c in candidates]
    choice = ActivationChoice(metric, seeds, reports, baseline)
    choice.notes += label_notes({c.label: c.spec for c in candidates})
    if choice.best.middle(metric) is None:
        raise AllRunsFailedError(f"No run came to its end with a number. {' '.join(choice.verdict)}")
    return choice


def _say_nothing(line: str) -> None:
    """Take the place of ``say``."""


def _exchanged(swap: bool | str | type | Sequence[Any]) -> list[Any]:
    """Return the targets of a swap; none if the module takes the activation itself."""
    if isinstance(swap, bool):
        return ["*"] if swap else []
    targets = [swap] if isinstance(swap, str | type) else list(swap)
    if not targets:
        raise ChoiceArgumentError(
            f'swap={shown(swap)} is not accepted. Give True, or which sites: "encoder.*", nn.ReLU, or several.'
        )
    return targets


def _write_down(choice: ActivationChoice, folder: Path) -> None:
    choice.folder = folder
    try:
        need("matplotlib", extra="plots", what="Drawing the pictures of the comparison")
        from lit_gelu.choose.pictures import write_pictures  # it takes a second to import

        choice.files |= write_pictures(choice, folder)
    except MissingExtraError as error:  # hours of training may be behind this: the figures are written all the same
        choice.notes.append(f"There are no pictures. {error}")
    choice.files["figures"] = "choice.json"
    with write_atomically(folder / "choice.json") as temporary:
        temporary.write_text(choice.to_json() + "\n", encoding="utf-8")


@contextmanager
def _quiet() -> Iterator[None]:
    """Turn off Lightning's hints, which come once a Trainer: there are many."""
    loggers = [logging.getLogger(name) for name in ("lightning.pytorch", "lightning.fabric")]
    before = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.WARNING)
        yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)
