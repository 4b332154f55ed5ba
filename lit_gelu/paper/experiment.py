"""What an experiment of the GELU paper consists of: its arms, and the grid of runs."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Selection = Literal["best_validation", "last"]
Metric = Literal["test_error", "test_loss"]


@dataclass(frozen=True)
class Arm:
    """One of the things that an experiment compares.

    Args:
        activation: The activation's spec.
        settings: From an argument of the task to its values, in place of the experiment's; ``None`` keeps those.
    """

    activation: str
    settings: Mapping[str, tuple[float, ...]] | None = None


@dataclass(frozen=True)
class Experiment:
    """A grid of runs: arms x settings x learning rates x seeds.

    Args:
        name: The first part of every run's key.
        title: One line for people.
        place: Figure, table or section of the paper.
        task: Class path of the `LightningModule`.
        data: Class path of the `LightningDataModule`.
        arms: From label to arm, in the order of tables.
        learning_rates: Every one is run.
        seeds: How many; they are 0, 1, ...
        epochs: Of training.
        evaluations: How many times an epoch validation and test set are gone through, evenly spaced, the last at the
            epoch's end.
        selection: Where in a run its result is taken: ``"best_validation"``, at the evaluation with the lowest
            validation error, or ``"last"``, at the end.
        tuned: What is chosen for each arm by the lowest median (over seeds) of the lowest validation error:
            ``"learning_rate"``, and names of settings. What is not named is reported separately.
        metric: The result that tables show, the median over seeds.
        settings: From an argument of the task to its values.
        task_args: Further arguments of the task.
        data_args: Arguments of the data module.
        data_requires: From a property of the data module to the value it must have once the data are prepared.
        trainer_args: Further arguments of the Trainer.
        learning_rate_from: Name of the experiment whose tuned learning rates are taken; ``learning_rates`` is empty
            then.
        robustness_levels: Levels of noise that a run's net is measured at in the end; empty for none.
        robust_settings: The settings that a run must have for that.
        training_flop: Floating-point operations of one run's training, 6 per multiply-accumulate and example.
        seconds: About how long one run takes on one core, where that was measured.
        notes: What a reader must know: what the paper leaves open, what is ours.
    """

    name: str
    title: str
    place: str
    task: str
    data: str
    arms: Mapping[str, Arm]
    learning_rates: tuple[float, ...]
    seeds: int
    epochs: int
    evaluations: int
    selection: Selection
    tuned: tuple[str, ...]
    metric: Metric = "test_error"
    settings: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    task_args: Mapping[str, Any] = field(default_factory=dict)
    data_args: Mapping[str, Any] = field(default_factory=dict)
    data_requires: Mapping[str, str] = field(default_factory=dict)
    trainer_args: Mapping[str, Any] = field(default_factory=dict)
    learning_rate_from: str | None = None
    robustness_levels: tuple[float, ...] = ()
    robust_settings: Mapping[str, float] = field(default_factory=dict)
    training_flop: float | None = None
    seconds: float | None = None
    notes: str = ""
