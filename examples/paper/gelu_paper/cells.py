"""`Cell`: one run of an experiment's grid, with everything that is needed to make it."""

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gelu_paper.experiments import Experiment
from gelu_paper.published import agrees
from gelu_paper.records import RunRecord, differences, fingerprint
from lit_gelu.errors import ArgumentError

PRECISION = "32-true"


@dataclass(frozen=True)
class Cell:
    """One run: a seed of an arm of an experiment, at one learning rate and one value of each setting."""

    key: str  # unique in a preset
    preset: str
    experiment: str
    arm: str
    activation: str
    setting: Mapping[str, float]  # from an argument of the task to its value
    learning_rate: float
    seed: int  # of weights, batches and noise
    # "model" and "data" (class_path and init_args), "trainer" (arguments) and "measurement": with the seed, what
    # `lit-gelu fit --config` takes to make the same run. Where the data lie and what computes it is no part of it.
    config: Mapping[str, Any]

    @property
    def fingerprint(self) -> str:
        """Text that two cells have in common if and only if they train the same net in the same way."""
        return fingerprint(self.config, self.seed)

    @property
    def robustness_levels(self) -> tuple[float, ...]:
        """The levels of noise that the net is measured at in the end; empty for none."""
        return tuple(self.config["measurement"]["robustness_levels"])

    def accepts(self, record: RunRecord) -> bool:
        """Tell whether the record of an identical run has all that is measured here, the test set under noise too."""
        measured = record.robustness.levels if record.robustness is not None else ()
        return not self.robustness_levels or record.status == "diverged" or measured == self.robustness_levels


def expand(
    experiment: Experiment,
    preset: str,
    *,
    arms: Sequence[str] = (),
    seeds: Sequence[int] = (),
    learning_rates: Mapping[str, float] | None = None,
    precision: str = PRECISION,
) -> list[Cell]:
    """Return the cells of an experiment: arms x settings x learning rates x seeds.

    Args:
        experiment: The experiment.
        preset: Name of its preset.
        arms: Those that are asked for; empty means all, and names of other experiments' arms are passed over.
        seeds: Those that are asked for; empty means all, and those that the experiment does not have are passed over.
        learning_rates: From arm to rate, where another experiment searched them; an arm without one has no cells.
        precision: The Trainer's.

    Returns:
        The cells. Seeds vary slowest, so that the arms of a seed are finished close to each other.
    """
    cells = []
    for seed in [seed for seed in range(experiment.seeds) if not seeds or seed in seeds]:
        for arm in [name for name in experiment.arms if not arms or name in arms]:
            arm_settings = experiment.arms[arm].settings
            settings = experiment.settings if arm_settings is None else arm_settings
            rates = experiment.learning_rates
            if experiment.learning_rate_from is not None:
                rates = tuple(rate for name, rate in (learning_rates or {}).items() if name == arm)
            for *values, rate in itertools.product(*settings.values(), rates):
                setting = dict(zip(settings, values, strict=True))
                cells.append(_cell(experiment, arm, preset, setting, rate, seed, precision))
    return cells


def check_configuration(cell: Cell, record: RunRecord) -> None:
    """Refuse to take a finished run for a cell that is another run of the same name."""
    if text := differences(record.config, json.loads(json.dumps(cell.config))):
        raise ArgumentError(
            f"The run {cell.key!r} is in the results with another configuration ({text}). Give another folder "
            "(--results), or delete the record's line to make the run again."
        )


def _cell(
    experiment: Experiment, arm: str, preset: str, setting: dict[str, float], rate: float, seed: int, precision: str
) -> Cell:
    activation = experiment.arms[arm].activation
    settings = [f"{name}={value:g}" for name, value in setting.items()]
    is_robust = agrees(experiment.robust_settings, setting)
    arguments = {**experiment.task_args, **setting, "activation": activation, "learning_rate": rate}
    config = {
        "model": {"class_path": experiment.task, "init_args": arguments},
        "data": {"class_path": experiment.data, "init_args": dict(experiment.data_args)},
        # No validation by Lightning: it would draw random numbers, and the recorder goes through both sets itself.
        "trainer": {
            "max_epochs": experiment.epochs,
            "limit_val_batches": 0,
            "precision": precision,
            **experiment.trainer_args,
        },
        "measurement": {
            "evaluations_per_epoch": experiment.evaluations,
            "robustness_levels": list(experiment.robustness_levels) if is_robust else [],
        },
    }
    return Cell(
        key="/".join([experiment.name, arm, *settings, f"lr={rate:g}", f"seed={seed}"]),
        preset=preset,
        experiment=experiment.name,
        arm=arm,
        activation=activation,
        setting=setting,
        learning_rate=rate,
        seed=seed,
        config=config,
    )
