"""`choose`: which activation for a model, by runs that differ in nothing else."""

import inspect
import itertools
import math
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint, DeviceStatsMonitor, LearningRateMonitor, ModelSummary, ProgressBar
from lightning.pytorch.utilities.model_helpers import is_overridden
from lightning.pytorch.utilities.seed import isolate_rng
from torch import nn
from typing_extensions import override

from lit_gelu.activations import registry
from lit_gelu.arguments import is_count
from lit_gelu.callbacks import ActivationCurvatureMonitor, LossCurvatureMonitor
from lit_gelu.callbacks.checkpoint_file import read_checkpoint
from lit_gelu.choose.result import ActivationChoice, CandidateReport
from lit_gelu.choose.statistics import FEWEST_SEEDS, Metric, direction_of, listed
from lit_gelu.choose.training import Candidate, RunFolder, Setup, first_line, log, make_runs, settings_of, validated
from lit_gelu.errors import ArgumentError, MissingExtraError, UnsupportedRunError, shown
from lit_gelu.extras import need
from lit_gelu.files import quiet, write_atomically
from lit_gelu.random_states import seeded
from lit_gelu.sandbox import input_sample_of
from lit_gelu.surgery import SwapPlan, find_sites, plan_swap

# Runs have no logger, progress bar or checkpoints of their own: what serves these is left out.
_UNUSED = (
    *(Checkpoint, DeviceStatsMonitor, LearningRateMonitor, ModelSummary, ProgressBar),
    *(ActivationCurvatureMonitor, LossCurvatureMonitor),
)
_PREFERRED = ("val_error", "val_loss")


def choose(
    build: Callable[..., LightningModule],
    activations: Sequence[Any] | Mapping[str, Any],
    data: LightningDataModule,
    *,
    seeds: int | Sequence[int] = 5,
    until: str | None = None,
    max_seeds: int = 30,
    metric: str | None = None,
    mode: str | None = None,
    baseline: str | None = None,
    swap: bool | str | type | Sequence[Any] = False,
    together: bool = True,
    folder: str | os.PathLike[str] | None = None,
    **trainer: Any,
) -> ActivationChoice:
    """Train a model with several activations, each with the same seeds and the same order of data, and compare them.

    Where it holds, all runs are trained side by side as a `ReplicaGroup`; else one after another, and the result says
    why. A run is ``seed_everything(seed)``, ``build(activation=...)``, ``Trainer(...).fit``: one after another on a CPU
    its figures are those of the same lines written by hand. The metric is that of the trained module.

    A difference counts as decided if Student's 95 % interval of the differences at equal seeds leaves out 0, and
    Student's test does too, corrected for all pairs by Holm's method. One that is not may exist all the same. Learning
    rates are not tuned: what is decided is decided for those that were given.

    What is finished is logged at level INFO by the logger ``lit_gelu.choose``.

    Args:
        build: The class of the module, or a function that returns one; called as ``build(activation=...)``, with
            ``swap`` as ``build()``.
        activations: Specs; a mapping gives them labels.
        data: What all are trained on and measured with. An `lit_gelu.data.InMemoryDataModule` allows a group.
        seeds: How many, from 0 on, or which. An interval needs five.
        until: ``"decided"`` adds seeds, one at a time, until the baseline, or else the best, is told from all others,
            or more are futile: up to ``max_seeds`` they would decide in less than one of twenty cases. Differences then
            have the test of `lit_gelu.choose.sequential`, which may be looked at after every seed.
        max_seeds: The most seeds of ``until="decided"``.
        metric: What decides, as the module logs it in validation, or else in a test; by default ``val_error``, or else
            ``val_loss``.
        mode: ``"min"`` or ``"max"``; by default the metric's name says which.
        baseline: A label; the others are compared with it too.
        swap: ``True`` gives the activation to all sites of what ``build()`` returns; or which of them, as the targets
            of `lit_gelu.surgery.swap`. Calls of functions are found where the module has an ``example_input_array``.
        together: Whether to train as a group where that holds.
        folder: Where finished runs are kept as they end, and results are written: ``choice.json``,
            ``differences.png``, ``best.ckpt``. Called again with it, it makes no run again that is there; activations
            and seeds may be added. ``None`` keeps nothing.
        **trainer: Options of every run's ``Trainer``, such as ``max_epochs``, by default 10. Callbacks are copied for
            every run, and ask for runs of their own; those that serve loggers and checkpoints are left out, and a note
            says so.

    Returns:
        The table, the sentences, all figures.

    Raises:
        ArgumentError: Before anything is trained, if an argument is not accepted, the metric is not logged, or the
            folder holds runs with other settings, as far as these are plain data: functions are told apart by their
            names, and objects by their classes.
        UnknownActivationError: Before anything is trained, if a name is not registered.
        UnsupportedRunError: If no run came to its end with a number.

    Example:
        >>> from functools import partial
        >>> from lit_gelu.data import DigitsData
        >>> from lit_gelu.tasks import MNISTClassifier
        >>> build = partial(MNISTClassifier, hidden_layers=1)
        >>> names = {"gelu": "gelu", "same": "gelu"}
        >>> choice = choose(build, names, DigitsData(), seeds=5, max_epochs=1)
        >>> choice.verdict[0]
        'gelu and same gave the same numbers with every seed: there is no difference between them.'
    """
    candidates, numbers = _candidates(activations), _seeds(seeds, until, max_seeds)
    labels = [candidate.label for candidate in candidates]
    if baseline is not None and baseline not in labels:
        raise ArgumentError(f"baseline={shown(baseline)} is not compared. Give one of {listed(labels)}.")
    if not isinstance(data, LightningDataModule):
        raise ArgumentError(f"data={type(data).__name__} is not accepted. Give a LightningDataModule.")
    if unknown := trainer.keys() - inspect.signature(Trainer).parameters.keys():
        raise ArgumentError(f"{min(unknown)}= is no option of choose, nor of a Trainer. Leave it out, or name another.")
    callbacks = trainer.pop("callbacks", None) or []
    callbacks = list(callbacks) if isinstance(callbacks, list | tuple) else [callbacks]
    unused = [callback for callback in callbacks if isinstance(callback, _UNUSED)]
    notes = [f"Not used here: {', '.join(type(callback).__name__ for callback in unused)}."] if unused else []
    options = {"max_epochs": 10, **trainer}
    if kept := [callback for callback in callbacks if callback not in unused]:
        options["callbacks"] = kept
    setup = Setup(_builder(build, swap), data, options)
    temporary = tempfile.TemporaryDirectory(prefix="lit_gelu-choose-") if folder is None else nullcontext(folder)
    with temporary as place, quiet("lightning.pytorch"), quiet("lightning.fabric"), isolate_rng():
        logged = _logged(setup, candidates, numbers[0], metric)
        for note in logged["notes"]:
            log.warning(note)
        notes += logged["notes"]
        decides = _metric(metric, mode, logged)
        setup = replace(setup, tests=decides.stage == "test")
        runs = RunFolder(Path(place), settings_of(build, swap, setup))
        test = "paired" if until is None else "sequential"

        def compared(numbers: list[int]) -> ActivationChoice:
            cells = [(candidate, seed) for candidate in candidates for seed in numbers]
            trained, how = make_runs(
                setup, runs, cells, together=together, tests_of=decides.name if setup.tests else ""
            )
            reports = [
                CandidateReport(c.label, c.spec, [trained[c.label, seed] for seed in numbers]) for c in candidates
            ]
            return ActivationChoice(decides, numbers, reports, baseline, how, notes, test=test)

        choice = _with_enough_seeds(compared, numbers, until, max_seeds)
        if not any(math.isfinite(value) for report in choice.candidates for value in report.values(decides)):
            raise UnsupportedRunError(f"No run came to its end with a number. {' '.join(choice.verdict)}")
        if swap is not False:
            plan = _plan(build(), swap, candidates[0].activation)
            names = [*(row.name for row in plan.rows), *(row.name for row in plan.skipped)]
            sites = [name or "the module itself" for name in names]
            choice.notes += [f"The activations at {listed(sites)} are exchanged.", *plan.notes]
        best = next(candidate for candidate in candidates if candidate.label == choice.best.label)
        checkpoint = runs.checkpoint(best, choice.best_run.seed)
        with seeded(choice.best_run.seed):
            choice.module = setup.build(activation=best.activation)
        choice.module.load_state_dict(read_checkpoint(checkpoint)["state_dict"])
        choice.module.eval()
        if folder is not None:
            choice.folder = Path(folder)
            _write_results(choice, choice.folder, checkpoint)
    return choice


def _with_enough_seeds(
    compared: Callable[[list[int]], ActivationChoice], seeds: list[int], until: str | None, most: int
) -> ActivationChoice:
    """Compare with the seeds that were asked for, or with one more, and one more, until that has an end."""
    choice = compared(seeds)
    while until is not None and not _ended(choice, most):
        further = (seed for seed in itertools.count() if seed not in choice.seeds)
        choice = compared([*choice.seeds, next(further)])
    return choice


def _ended(choice: ActivationChoice, most: int) -> bool:
    """Return whether no more seeds are to be added, and note why."""
    undecided, seeds = choice.undecided(), len(choice.seeds)
    pairs = listed(f"{difference.of} and {difference.to}" for difference in undecided) if undecided else ""
    if not choice.differences:
        reason = "there are no two candidates to compare."
    elif not undecided:
        reason = "all is decided." if any(d.is_decided for d in choice.differences) else "there is no difference."
    elif seeds >= most:
        reason = f"that is the most that were asked for (max_seeds); {pairs} may differ all the same."
    elif seeds >= FEWEST_SEEDS and all(choice.is_futile(difference, most) for difference in undecided):
        reason = f"up to {most} seeds would tell {pairs} apart in less than one of twenty cases."
    else:
        log.info("%d seeds: %s not decided", seeds, pairs)
        return False
    choice.notes.append(f"Ended after {seeds} seeds: {reason}")
    return True


def _candidates(activations: Sequence[Any] | Mapping[str, Any]) -> list[Candidate]:
    pairs: list[tuple[str, Any]] = []
    if isinstance(activations, Mapping):
        pairs = [(str(label), activation) for label, activation in activations.items()]
    elif isinstance(activations, Sequence) and not isinstance(activations, str):
        pairs = [(one if isinstance(one, str) else str(registry.resolve(one)), one) for one in activations]
    if len(pairs) < 2 or len(dict(pairs)) < len(pairs):
        raise ArgumentError(
            f"activations={shown(activations)} is not accepted. Give at least two that are called differently, such as "
            '["gelu", "silu", "relu"]; a mapping gives them labels: {"gelu": "gelu", "the same again": "gelu"}.'
        )
    return [Candidate(label, activation, str(registry.resolve(activation))) for label, activation in pairs]


def _seeds(seeds: int | Sequence[int], until: str | None, most: int) -> list[int]:
    """Return the seeds; one alone has no spread, by which a difference could be told from chance."""
    numbers: Any = list(range(seeds)) if isinstance(seeds, int) and is_count(seeds) else seeds
    is_several = isinstance(numbers, list | tuple | range) and len(numbers) >= 2
    if not is_several or not all(map(is_count, numbers)) or len(set(numbers)) < len(numbers):
        raise ArgumentError(
            f"seeds={shown(seeds)} is not accepted. Give how many, or different whole numbers from 0 on: five or more."
        )
    if until not in {None, "decided"} or (until is not None and (not is_count(most) or most < len(numbers))):
        raise ArgumentError(
            f'until={shown(until)} with max_seeds={shown(most)} is not accepted. Give until="decided" or None, and as '
            "max_seeds a whole number, no less than the seeds to begin with."
        )
    return list(numbers)


def _builder(build: Callable[..., LightningModule], swap: Any) -> Callable[..., LightningModule]:
    if not callable(build):
        raise ArgumentError(
            f"build={shown(build)} is not accepted. Give the class of your module, or a function that returns one."
        )
    if swap is not False:

        def swapped(activation: Any) -> LightningModule:
            module = build()
            _plan(module, swap, activation).apply()
            return module

        return swapped
    parameters = inspect.signature(build).parameters.values()
    if not any(p.name == "activation" or p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters):
        raise ArgumentError(
            f"build={shown(build)} takes no activation. Give a class or function with an argument activation=, or "
            "swap=True: the activations of what it returns are then exchanged."
        )
    # A module that is given as a candidate is copied: no run goes on with what another has trained.
    return lambda activation: build(
        activation=deepcopy(activation) if isinstance(activation, nn.Module) else activation
    )


def _plan(module: LightningModule, swap: Any, activation: Any) -> SwapPlan:
    targets = ["*"] if swap is True else [swap] if isinstance(swap, str | type) else list(swap)
    return plan_swap(module, dict.fromkeys(targets, activation), input_sample_of(module))


class _OneBatch(Callback):
    """Ends a fit behind its first batch."""

    @override
    def on_train_batch_end(self, trainer: Trainer, *args: Any, **kwargs: Any) -> None:
        trainer.should_stop = True


def _logged(setup: Setup, candidates: Sequence[Candidate], seed: int, metric: str | None) -> dict[str, list[str]]:
    """Return what a module logs in validation and in a test, by a fit of one batch, and notes on its activations."""
    failures = []
    for candidate in candidates:
        try:
            with seeded(seed):
                return _logged_by(setup, candidate, metric)
        except ArgumentError:
            raise
        except Exception as error:  # noqa: BLE001 - of a user's module; it is named if no candidate does better
            failures.append(f"{candidate.label}: {first_line(error)}")
    raise ArgumentError(
        f"No candidate can be built and trained. {'; '.join(failures)}. Try build and one of them in a Trainer first."
    )


def _logged_by(setup: Setup, candidate: Candidate, metric: str | None) -> dict[str, list[str]]:
    module, other = setup.build(activation=candidate.activation), setup.build(activation=candidate.activation)
    if {id(p) for p in module.parameters()} & {id(p) for p in other.parameters()}:
        raise ArgumentError(
            "build returns modules that have parameters in common, so that every run would go on with what the one "
            "before has trained. Build or copy within the function: lambda a: Net(copy.deepcopy(encoder), a)."
        )
    sites = find_sites(module, input_sample_of(module))
    is_used = registry.resolve(candidate.activation).name in {site.spec.name for site in sites}
    hint = f"No site of {type(module).__name__} is a {candidate.label}: if it makes no use of activation=, --swap true."
    # All else is as in a run, so that schedules are made for the steps that it will have; callbacks may write files.
    limit = setup.options.get("limit_val_batches")
    options = {"limit_val_batches": 1 if limit is None else min(1, limit), "check_val_every_n_epoch": 1}
    data = setup.new_data()
    trainer = setup.new_trainer(_OneBatch(), callbacks=None, min_epochs=None, min_steps=None, **options)
    trainer.fit(module, datamodule=data)
    logged: dict[str, list[str]] = {"val": [*validated(trainer, module, data)], "test": []}
    logged["notes"] = [] if is_used else [hint]
    needs_test = metric not in logged["val"] if metric is not None else not logged["val"]
    if needs_test and is_overridden("test_dataloader", data, LightningDataModule):
        trainer = setup.new_trainer(callbacks=None, limit_test_batches=1)
        trainer.test(module, datamodule=data, verbose=False)
        logged["test"] = list(trainer.callback_metrics)
    return logged


def _metric(name: str | None, mode: str | None, logged: Mapping[str, Sequence[str]]) -> Metric:
    everything = [*logged["val"], *logged["test"]]
    chosen = name if name is not None else next((one for one in _PREFERRED if one in everything), None)
    if chosen is None or chosen not in everything:
        missing = f"metric={shown(name)} is not logged" if name else f"neither {' nor '.join(_PREFERRED)} is logged"
        names = ", ".join(everything) or "nothing: give the module a validation_step that calls self.log"
        raise ArgumentError(f"{missing}. The module logs in validation and test {names}. Give one of them as metric.")
    return Metric(chosen, "val" if chosen in logged["val"] else "test", direction_of(chosen, mode))


def _write_results(choice: ActivationChoice, folder: Path, best: Path) -> None:
    choice.files["checkpoint"] = "best.ckpt"
    with write_atomically(folder / "best.ckpt") as temporary:
        temporary.write_bytes(best.read_bytes())
    try:
        need("matplotlib", extra="plots", what="Drawing the picture of the comparison")
    except MissingExtraError as error:  # hours of training may be behind this: the figures are written all the same
        choice.notes.append(f"There is no picture. {error}")
    else:
        choice.files["differences"] = "differences.png"
        with write_atomically(folder / "differences.png") as temporary:
            choice.draw_differences().savefig(temporary, dpi=130, metadata={"Software": None})
    choice.files["figures"] = "choice.json"
    with write_atomically(folder / "choice.json") as temporary:
        temporary.write_text(choice.to_json() + "\n", encoding="utf-8")
