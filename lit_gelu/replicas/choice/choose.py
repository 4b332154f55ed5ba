"""`choose`: which activation for a model, by runs that differ in nothing else."""

import logging
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningDataModule, LightningModule
from lightning.pytorch.utilities.seed import isolate_rng

from lit_gelu.activations import ActivationRegistry
from lit_gelu.activations.registry import registry_or_default
from lit_gelu.errors import shown
from lit_gelu.extras import MissingExtraError, need
from lit_gelu.files import write_atomically
from lit_gelu.replicas.choice.candidates import ActivationCandidate, builder, candidates_of
from lit_gelu.replicas.choice.errors import AllRunsFailedError, ChoiceArgumentError
from lit_gelu.replicas.choice.measuring import TrainedModules, measure_candidates, write_best
from lit_gelu.replicas.choice.metric import Metric, metric_of
from lit_gelu.replicas.choice.one_by_one import Setup, said, train_alone
from lit_gelu.replicas.choice.outcome import ActivationChoice, CandidateReport, label_notes
from lit_gelu.replicas.choice.preconditions import check_equal_starts, check_seeds, logged_by
from lit_gelu.replicas.choice.run_files import RunFolder, TrainedRun
from lit_gelu.replicas.choice.together import MOST, train_together, why_not_together

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
    Student's test of the paired differences does too, corrected for all pairs by Holm's method. One that is not is
    called none. Learning rates are not tuned: what is decided is decided for those that were given.

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
            their own.
        folder: Where finished runs are kept as they end, and results are written: ``choice.json``, ``curves.png``,
            ``differences.png``, ``best.ckpt``, ``best.onnx`` and its proof. Called again with it, runs that are there
            are not made again; activations and seeds may be added. ``None`` keeps nothing.
        measure: Whether to measure time, memory, latency and curvature, and to export the best module.
        seconds: How long to time steps, and how long latencies.
        registry: Where names are looked up; ``None`` means `lit_gelu.activations.registry`.
        say: Called with a line whenever something is finished.

    Returns:
        The table, the sentences, all figures.

    Raises:
        ChoiceArgumentError: Before anything is trained, if an argument is not accepted or the metric is not logged.
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
    _check_others(candidates, baseline, data)
    options, exchanged = {"max_epochs": max_epochs, **(trainer or {})}, _exchanged(swap)
    with ExitStack() as stack:
        stack.enter_context(_quiet())
        stack.enter_context(isolate_rng())
        home = Path(folder or stack.enter_context(tempfile.TemporaryDirectory(prefix="lit_gelu-choose-")))
        made = builder(build, exchanged, registry)
        decides = metric_of(metric, mode, logged_by(Setup(made, data, options), candidates, numbers[0], metric))
        setup = Setup(made, data, options, tests=decides.stage == "test")
        runs = RunFolder(home, _settings(build, exchanged, data, options))
        work = _RunMaker(setup, runs, report, keeps=folder is not None)
        trained = work.make([(candidate, seed) for candidate in candidates for seed in numbers], together)
        choice = _compared(decides, numbers, candidates, trained, baseline)
        choice.notes += check_equal_starts(choice.candidates, data)
        choice.trained = work.how
        modules = TrainedModules(setup, runs, {candidate.label: candidate for candidate in candidates}, registry)
        choice.module = modules.of(choice.best_run)
        if measure:
            measure_candidates(choice, modules, seconds, report)
        if folder is not None:
            write_best(choice, modules, home, exports=measure)
            _write_down(choice, home)
    return choice


def _check_others(candidates: Sequence[ActivationCandidate], baseline: str | None, data: Any) -> None:
    labels = [candidate.label for candidate in candidates]
    if baseline is not None and baseline not in labels:
        raise ChoiceArgumentError(f"baseline={baseline!r} is not compared. Give one of {', '.join(labels)}.")
    if not isinstance(data, LightningDataModule):
        raise ChoiceArgumentError(f"data={type(data).__name__} is not accepted. Give a LightningDataModule.")


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


class _RunMaker:
    """Makes the runs that are not there yet."""

    def __init__(self, setup: Setup, folder: RunFolder, say: Say, *, keeps: bool) -> None:
        self.setup, self.folder, self.say, self.keeps = setup, folder, say, keeps
        self.how = "Nothing was trained: all runs were there."

    def make(
        self, wanted: Sequence[tuple[ActivationCandidate, int]], together: bool
    ) -> dict[tuple[str, int], TrainedRun]:
        """Return all runs by label and seed."""
        found = {(c.label, seed): self.folder.find(c.label, c.spec, seed) for c, seed in wanted}
        done = {key: run for key, run in found.items() if run is not None}
        missing = [(c, seed) for c, seed in wanted if (c.label, seed) not in done]
        if not missing:
            return done
        reason = why_not_together(self.setup) if together else "together=False was given"
        for first in range(0, len(missing), MOST):
            part = missing[first : first + MOST]
            made, reason = self._part(part, reason)
            done |= {(run.label, run.seed): run for run in made}
        self.how = "Trained one after another" if reason else "Trained side by side, as a group"
        self.how += f": {reason}." if reason else "."
        return done

    def _part(self, wanted: Sequence[tuple[ActivationCandidate, int]], reason: str) -> tuple[list[TrainedRun], str]:
        """Return runs of a group, or where there can be none, single ones and why."""
        if not reason:
            try:
                runs = train_together(self.setup, wanted, self.folder, keeps=self.keeps)
            except Exception as error:  # noqa: BLE001 - whatever a group cannot do, single runs may
                reason = f"as a group they cannot be trained ({said(error).rstrip('.')})"
                self.say(f"one after another: {reason}")
            else:
                self.say(f"trained {len(runs)} runs side by side in {sum(run.seconds for run in runs):.1f} s")
                return runs, ""
        return [self._alone(candidate, seed) for candidate, seed in wanted], reason

    def _alone(self, candidate: ActivationCandidate, seed: int) -> TrainedRun:
        run = train_alone(self.setup, candidate, seed, self.folder.checkpoint(candidate.label, candidate.spec, seed))
        self.say(f"{candidate.label}, seed {seed}: {run.failure or f'trained in {run.seconds:.1f} s'}")
        if not run.failure:
            self.folder.keep(run)
        return run


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


def _settings(build: Any, exchanged: Sequence[Any], data: LightningDataModule, options: Mapping[str, Any]) -> Any:
    """Return what all runs in a folder have in common, as plain data."""
    inner = getattr(build, "func", build)  # of functools.partial
    arguments = [getattr(build, "args", ()), sorted(getattr(build, "keywords", {}).items())]
    return {
        "build": f"{getattr(inner, '__module__', '')}.{getattr(inner, '__qualname__', type(inner).__name__)}",
        "arguments": _told(arguments) if inner is not build else "",
        "swap": [str(target) for target in exchanged],
        "data": type(data).__qualname__,
        "data_arguments": {name: _told(value) for name, value in sorted(data.hparams.items())},
        "trainer": {name: _told(value) for name, value in sorted(options.items())},
        "versions": {"lit-gelu": version("lit-gelu"), "torch": torch.__version__, "lightning": version("lightning")},
    }


def _told(value: Any) -> str:
    """Return an option as text without addresses, which are others at every start."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_told, value))}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{name}: {_told(entry)}' for name, entry in value.items())}}}"
    return repr(value) if isinstance(value, str | int | float | bool | None) else type(value).__qualname__


def _write_down(choice: ActivationChoice, folder: Path) -> None:
    choice.folder = folder
    try:
        need("matplotlib", extra="plots", what="Drawing the pictures of the comparison")
        from lit_gelu.replicas.choice.pictures import write_pictures  # it takes a second to import

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
