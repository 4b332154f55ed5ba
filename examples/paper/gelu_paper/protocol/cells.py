"""`Cell`: one run of an experiment's grid, with everything that is needed to make it."""

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gelu_paper.errors import OtherConfigurationError, PaperArgumentError
from gelu_paper.protocol.experiments import Arm, Experiment
from gelu_paper.protocol.published import agrees
from gelu_paper.records.run_record import RunRecord

PRECISION = "32-true"


@dataclass(frozen=True)
class Cell:
    """One run: a seed of an arm of an experiment, at one learning rate and one value of each setting."""

    # With seed_everything: SEED before them, the parts model, data and trainer of the configuration are what lit-gelu
    # fit --config takes: the same run by hand.

    key: str  # unique in a preset
    preset: str
    experiment: str
    arm: str
    activation: str  # canonical text
    setting: Mapping[str, float]  # from an argument of the task to its value
    learning_rate: float
    seed: int  # of weights, batches and noise
    # "model" and "data" (class_path and init_args), "trainer" (arguments) and "measurement". Where the data lie and
    # what it is computed on is no part of it.
    config: Mapping[str, Any]

    @property
    def robustness_levels(self) -> tuple[float, ...]:
        """The levels of noise that the net is measured at in the end; empty for none."""
        return tuple(self.config["measurement"]["robustness_levels"])

    @property
    def fingerprint(self) -> str:
        """Text that two cells have in common if and only if they train the same net in the same way."""
        return fingerprint(self.config, self.seed)

    @property
    def data_name(self) -> str:
        """Text that two cells with the same data have in common."""
        return data_name(self.config["data"])

    def accepts(self, record: RunRecord) -> bool:
        """Tell whether the record of an identical run has all that is measured here, the test set under noise too."""
        return not self.robustness_levels or (
            record.robustness is not None and record.robustness.levels == self.robustness_levels
        )


def expand(
    experiment: Experiment,
    preset: str,
    *,
    arms: Sequence[str] | None = None,
    seeds: Sequence[int] | None = None,
    learning_rates: Mapping[str, float] | None = None,
    precision: str = PRECISION,
) -> list[Cell]:
    """Return the cells of an experiment: arms x settings x learning rates x seeds, those that are asked for."""
    # Seeds vary slowest, so that the arms of a seed are finished close to each other. Names of other experiments' arms
    # are passed over; an arm without a searched learning rate has no cells.
    if seeds is not None and any(seed < 0 for seed in seeds):
        raise PaperArgumentError(f"seeds={list(seeds)} given; accepted: 0 and above.")
    given = range(experiment.seeds) if seeds is None else dict.fromkeys(seeds)
    chosen = [seed for seed in given if seed < experiment.seeds]
    names = [name for name in experiment.arms if arms is None or name in arms]
    return [
        _cell(experiment, name, preset, setting, learning_rate, seed, precision)
        for seed in chosen
        for name in names
        for setting in _settings(experiment, experiment.arms[name])
        for learning_rate in _learning_rates(experiment, name, learning_rates)
    ]


def fingerprint(config: Mapping[str, Any], seed: int) -> str:
    """Return text that two runs have in common if and only if they train the same net in the same way."""
    # Noise on the trained net is no part of the training.
    parts = {name: config[name] for name in ("model", "data", "trainer")}
    return json.dumps([parts, config["measurement"].get("evaluations_per_epoch"), seed], sort_keys=True)


def data_name(data: Mapping[str, Any]) -> str:
    """Return text that two configurations of the same data have in common."""
    return json.dumps(data, sort_keys=True)


def identical_cells(cells: Iterable[Cell]) -> list[list[Cell]]:
    """Put cells that train the same net in the same way together: the first of a group measures what any of it does."""
    groups: dict[str, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(cell.fingerprint, []).append(cell)
    for group in groups.values():
        group.sort(key=lambda cell: not cell.robustness_levels)  # stable: otherwise the order is kept
        if len({cell.robustness_levels for cell in group} - {()}) > 1:
            raise PaperArgumentError(
                f"{', '.join(cell.key for cell in group)} are the same run with different levels of noise. Give them "
                "the same robustness_levels."
            )
    return list(groups.values())


def check_same_configuration(cell: Cell, record: RunRecord) -> None:
    """Refuse to take a finished run for a cell that is another run of the same name."""
    places = ("in the record", "now")
    found = list(differences(record.config, plain(cell.config), "", places))
    if record.preset != cell.preset:
        found.insert(0, f"preset: {record.preset!r} in the record, {cell.preset!r} now")
    if found:
        raise OtherConfigurationError(
            f"The run {cell.key!r} is in the results with another configuration ({'; '.join(found)}). Give another "
            "folder (--results), or delete the record's line to make the run again."
        )


def differences(one: Any, other: Any, path: str, places: tuple[str, str]) -> Iterator[str]:
    """Say where two trees of plain data differ, and what each has there."""
    if isinstance(one, dict) and isinstance(other, dict):
        for name in [*one, *(name for name in other if name not in one)]:
            yield from differences(one.get(name), other.get(name), f"{path}.{name}" if path else name, places)
    elif one != other:
        yield f"{path}: {one!r} {places[0]}, {other!r} {places[1]}"


def plain(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments as JSON gives them back, so that a record's configuration equals its cell's."""
    read_back: dict[str, Any] = json.loads(json.dumps(dict(arguments)))
    return read_back


def _cell(
    experiment: Experiment,
    arm: str,
    preset: str,
    setting: dict[str, float],
    learning_rate: float,
    seed: int,
    precision: str,
) -> Cell:
    from lit_gelu import activations  # torch, a second that --help and what begins before it do without

    activation = str(activations.registry.resolve(experiment.arms[arm].activation))
    settings = [f"{name}={value:g}" for name, value in setting.items()]
    is_robust = agrees(experiment.robust_settings, setting)
    return Cell(
        key="/".join([experiment.name, arm, *settings, f"lr={learning_rate:g}", f"seed={seed}"]),
        preset=preset,
        experiment=experiment.name,
        arm=arm,
        activation=activation,
        setting=setting,
        learning_rate=learning_rate,
        seed=seed,
        config={
            "model": {
                "class_path": experiment.task,
                "init_args": plain(experiment.task_args)
                | {**setting, "activation": activation, "learning_rate": learning_rate},
            },
            "data": {"class_path": experiment.data, "init_args": plain(experiment.data_args)},
            # No validation by Lightning: it would draw random numbers, and the recorder goes through both sets itself.
            "trainer": {
                "max_epochs": experiment.epochs,
                "limit_val_batches": 0,
                "precision": precision,
                **plain(experiment.trainer_args),
            },
            "measurement": {
                "evaluations_per_epoch": experiment.evaluations,
                "robustness_levels": list(experiment.robustness_levels) if is_robust else [],
            },
        },
    )


def _settings(experiment: Experiment, arm: Arm) -> list[dict[str, float]]:
    settings = experiment.settings if arm.settings is None else arm.settings
    return [dict(zip(settings, values, strict=True)) for values in itertools.product(*settings.values())]


def _learning_rates(experiment: Experiment, arm: str, given: Mapping[str, float] | None) -> tuple[float, ...]:
    if experiment.learning_rate_from is None:
        return experiment.learning_rates
    return (given[arm],) if given is not None and arm in given else ()
