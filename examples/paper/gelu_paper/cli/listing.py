"""``lit-gelu paper list``: the experiments, how many runs they are, and what the paper found."""

import json
from typing import Any

import jsonargparse
from rich.table import Table

from lit_gelu.cli.options import add_json, command_parser
from lit_gelu.cli.terminal import console_for_output, write_text
from gelu_paper.planning import RunRequest
from gelu_paper.progress import duration
from gelu_paper.protocol.cells import identical_cells
from gelu_paper.protocol.experiments import Experiment
from gelu_paper.protocol.presets import PRESETS, departures
from gelu_paper.protocol.published import NUMBERS

EXAMPLES = """\
examples:
  lit-gelu paper list
  lit-gelu paper list --preset quick              what is shortened, and to what
  lit-gelu paper list --only mnist cifar10        with their notes
  lit-gelu paper list --json
"""


def build_parser() -> jsonargparse.ArgumentParser:
    """Return the parser."""
    parser = command_parser("paper list", EXAMPLES)
    parser.add_argument("--preset", choices=list(PRESETS), default="full", help="full: the paper's protocol")
    parser.add_argument("--only", nargs="*", metavar="EXPERIMENT", default=[], help="only these, with their notes")
    add_json(parser)
    return parser


def run(arguments: jsonargparse.Namespace) -> int:
    """Run ``lit-gelu paper list``."""
    request = RunRequest(arguments.preset, tuple(arguments.only))
    experiments = [
        experiment for experiment in request.experiments() if not arguments.only or experiment.name in arguments.only
    ]
    if arguments.json is not None:
        write_text(json.dumps([_plain(experiment, request) for experiment in experiments], indent=2), arguments.json)
        return 0
    console = console_for_output()
    console.print(_table(experiments, request))
    for experiment in experiments:
        texts = [experiment.notes] if arguments.only and experiment.notes else []
        texts += [f"not the paper's protocol: {'; '.join(departures(experiment))}"] if departures(experiment) else []
        for text in texts:
            console.print(f"{experiment.name}: {text}", markup=False, highlight=False)
    return 0


def _table(experiments: list[Experiment], request: RunRequest) -> Table:
    total, different = sum(request.runs(experiment) for experiment in experiments), _different(experiments, request)
    title = f"preset {request.preset}: {PRESETS[request.preset]}; {total} runs, {different} different"
    table = Table(title=title, title_justify="left")
    table.add_column("experiment", min_width=22)  # of the longest name: names are typed, so they are not cut
    for column in ("paper", "arms", "settings", "learning rates", "seeds", "epochs", "runs", "cost"):
        table.add_column(column, justify="right" if column in {"seeds", "epochs", "runs", "cost"} else "left")
    table.add_column("published test error, %")
    for experiment in experiments:
        table.add_row(
            f"{experiment.name}\n[dim]{experiment.title}[/dim]",
            experiment.place,
            ", ".join(experiment.arms),
            "\n".join(_settings(experiment)),
            ", ".join(f"{rate:g}" for rate in experiment.learning_rates) or f"from {experiment.learning_rate_from}",
            str(experiment.seeds),
            str(experiment.epochs),
            str(request.runs(experiment)),
            _cost(experiment, request.runs(experiment)),
            "\n".join(f"{arm} {printed}" for arm, printed in _published(experiment).items()) or "-",
            end_section=True,
        )
    return table


def _different(experiments: list[Experiment], request: RunRequest) -> int:
    """Count the runs of which no two are the same, whatever learning rates are still to be searched."""
    fixed = [cell for experiment in experiments for cell in request.cells(experiment)]
    searched = [experiment for experiment in experiments if experiment.learning_rate_from is not None]
    return len(identical_cells(fixed)) + sum(request.runs(experiment) for experiment in searched)


def _settings(experiment: Experiment) -> list[str]:
    found = [(name, values, "") for name, values in experiment.settings.items()]
    for label, arm in experiment.arms.items():
        found += [(name, values, f" ({label})") for name, values in (arm.settings or {}).items()]
    return [f"{name} {', '.join(f'{value:g}' for value in values)}{of}" for name, values, of in found] or ["-"]


def _cost(experiment: Experiment, runs: int) -> str:
    """Return what the runs cost: time where it was measured, else operations."""
    if experiment.seconds is not None:
        return f"{duration(experiment.seconds * runs)} of a core"
    return "-" if experiment.training_flop is None else f"{experiment.training_flop * runs / 1e15:.3g} PFLOP"


def _published(experiment: Experiment) -> dict[str, str]:
    return {number.arm: number.printed for number in NUMBERS if number.experiment == experiment.name}


def _plain(experiment: Experiment, request: RunRequest) -> dict[str, Any]:
    return {
        "name": experiment.name,
        "title": experiment.title,
        "paper": experiment.place,
        "task": experiment.task,
        "data": experiment.data,
        "arms": {label: arm.activation for label, arm in experiment.arms.items()},
        "settings": _settings(experiment),
        "learning_rates": list(experiment.learning_rates),
        "learning_rate_from": experiment.learning_rate_from,
        "seeds": experiment.seeds,
        "epochs": experiment.epochs,
        "evaluations_per_epoch": experiment.evaluations,
        "selection": experiment.selection,
        "tuned": list(experiment.tuned),
        "metric": experiment.metric,
        "runs": request.runs(experiment),
        "training_flop_per_run": experiment.training_flop,
        "published_test_error_percent": _published(experiment),
        "departures": departures(experiment),
        "notes": experiment.notes,
    }
