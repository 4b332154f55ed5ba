"""What a page says of a run that is over: from a log folder and its newest checkpoint, or from a checkpoint alone."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from lit_gelu.callbacks.checkpoint_file import hyper_parameters, read_checkpoint
from lit_gelu.callbacks.run_facts import settings_of_groups
from lit_gelu.callbacks.swap.checkpoint import ACTIVATIONS_KEY, SWAPS_KEY, Checkpoint
from lit_gelu.callbacks.swap.history import SwapRecord
from lit_gelu.errors import LitGeluError
from lit_gelu.report import OptimizerSettings, ReportedRun, SiteActivations, SwapEvent
from lit_gelu.report.content import LoggedCurve
from lit_gelu.report.environment import environment
from lit_gelu.report.log_folder import read_log_folder
from lit_gelu.report.loss_findings import is_learning_rate
from lit_gelu.report.onnx_files import exported_file
from lit_gelu.report.setting_text import flat
from lit_gelu.surgery.activation_record import read_activations

_MOST_FILES = 20


def run_of_folder(folder: Path, title: str = "") -> ReportedRun:
    """Return what a log folder says, with what its newest checkpoint adds."""
    found = read_log_folder(folder)
    missing = list(found.missing)
    run = ReportedRun(
        title=title or folder.resolve().name,
        source=f"the folder {folder.resolve().name}",
        made=_now(),
        configuration=found.configuration,
        curves=found.curves,
        swaps=found.swaps,
        files=tuple(exported_file(path) for path in found.onnx_files[:_MOST_FILES]),
        environment=environment(),
    )
    if found.checkpoints:
        newest = found.checkpoints[0]
        try:
            run = with_checkpoint(run, read_checkpoint(newest), newest.name)
        except LitGeluError as error:
            missing.append(f"{newest.name}: the newest checkpoint was not read. {error}")
    else:
        missing.append("Optimizer, activations, status: there is no checkpoint in the folder, which holds them.")
    steps = max((curve.steps[-1] + 1 for curve in run.curves if curve.steps), default=None)
    run = replace(run, steps=run.steps if steps is None else max(steps, run.steps or 0))
    return replace(run, missing=(*missing, *_not_logged(run)))


def run_of_checkpoint(path: Path, title: str = "") -> ReportedRun:
    """Return what a checkpoint says by itself."""
    run = ReportedRun(
        title=title or path.name,
        source=f"the checkpoint {path.name}",
        made=_now(),
        environment=environment(),
        missing=("Losses and errors: a checkpoint does not hold them. Give the folder of the run's logger instead.",),
    )
    return with_checkpoint(run, read_checkpoint(path), path.name)


def with_checkpoint(run: ReportedRun, checkpoint: Checkpoint, called: str) -> ReportedRun:
    """Return a run with what a checkpoint adds: steps, settings, activations, swaps, optimizers, heat maps.

    Args:
        run: What is known without it; where both know something, the checkpoint's is taken.
        checkpoint: Its content, which may come from anybody.
        called: The file's name.

    Returns:
        The run; what is damaged in the checkpoint is among what is missing.
    """
    missing = list(run.missing)
    swaps, sites, settings = run.swaps, run.sites, dict(run.configuration)
    try:
        settings["Hyper-parameters of the checkpoint"] = flat(hyper_parameters(checkpoint, called))
        swaps = _swaps(checkpoint) or swaps
        sites = _sites(checkpoint, swaps)
    except LitGeluError as error:
        missing.append(f"{called}: {error}")
    version = checkpoint.get("pytorch-lightning_version")
    settings["Checkpoint"] = flat({"file": called, "epoch": checkpoint.get("epoch"), "Lightning": version})
    step = checkpoint.get("global_step")
    known = {curve.name for curve in run.curves}
    maps = tuple(curve for curve in _heat_maps(checkpoint) if curve.name not in known)
    return replace(
        run,
        steps=step if type(step) is int and 0 <= step < 2**62 else run.steps,
        configuration={name: group for name, group in settings.items() if group},
        curves=(*run.curves, *maps),
        swaps=swaps,
        sites=sites,
        optimizers=_optimizers(checkpoint),
        missing=tuple(missing),
    )


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _swaps(checkpoint: Checkpoint) -> tuple[SwapEvent, ...]:
    """Return the swaps that a checkpoint records, in their order."""
    entries = checkpoint.get(SWAPS_KEY)
    rows = entries if isinstance(entries, list) else []
    records = [SwapRecord.from_dict(row.get("record")) for row in rows if isinstance(row, Mapping)]
    return tuple(record.event() for record in sorted(records, key=lambda record: record.order))


def _sites(checkpoint: Checkpoint, swaps: tuple[SwapEvent, ...]) -> tuple[SiteActivations, ...]:
    """Return the activations that a checkpoint records; before the swaps, those that the swaps replaced."""
    if ACTIVATIONS_KEY not in checkpoint:
        return ()
    first = {change.site: change.old for swap in reversed(swaps) for change in swap.changes}
    sites = []
    for name, entry in read_activations(checkpoint[ACTIVATIONS_KEY]).items():
        now = entry if isinstance(entry, str) else f"{entry['old']}, giving way to {entry['new']}"
        sites.append(SiteActivations(name, first.get(name, now), now))
    return tuple(sites)


def _optimizers(checkpoint: Checkpoint) -> tuple[OptimizerSettings, ...]:
    """Return what the optimizers' states say; their classes are told from the options that they have."""
    states = checkpoint.get("optimizer_states")
    found = []
    for state in states if isinstance(states, list) else []:
        groups = state.get("param_groups") if isinstance(state, Mapping) else None
        known = [group for group in groups if isinstance(group, Mapping)] if isinstance(groups, list) else []
        if known:
            plain = {"momentum", "dampening", "nesterov"} <= known[0].keys() and "betas" not in known[0]
            found.append(settings_of_groups("SGD" if plain else "", known, plain=plain))
    return tuple(found)


def _heat_maps(checkpoint: Checkpoint) -> list[LoggedCurve]:
    """Return the history that `ActivationCurvatureMonitor` keeps for its heat maps."""
    curves: dict[str, dict[int, float]] = {}
    states = checkpoint.get("callbacks")
    for state in states.values() if isinstance(states, Mapping) else []:
        for step, name, value in _history(state):
            curves.setdefault(name, {})[step] = value
    return [
        LoggedCurve(name, tuple(sorted(points)), tuple(points[step] for step in sorted(points)))
        for name, points in curves.items()
    ]


def _history(state: Any) -> list[tuple[int, str, float]]:
    """Return the points of one monitor's history: step, name, value; nothing of what has another form."""
    match state:
        case {"heat_maps": {"statistics": (list() | tuple()) as names, "columns": list() as columns}}:
            pass
        case _:
            return []
    points = []
    for column in columns:
        match column:
            case (int() as step, dict() as row):
                for site, values in row.items():
                    if isinstance(site, str) and isinstance(values, list) and len(values) == len(names):
                        points += [
                            (step, f"curvature/{site}/{name}", float(value))
                            for name, value in zip(names, values, strict=True)
                            if isinstance(name, str) and isinstance(value, float)
                        ]
    return points


def _not_logged(run: ReportedRun) -> list[str]:
    """Return what the loggers were not given, and how to have it the next time."""
    said = []
    if run.curves and not any(is_learning_rate(curve.name) for curve in run.curves):
        said.append("Learning rate: it was not logged. LearningRateMonitor() or RunReport() keeps it.")
    if run.curves and not any(curve.name.startswith("curvature/") for curve in run.curves):
        said.append("Curvature: it was not logged. ActivationCurvatureMonitor() and LossCurvatureMonitor() measure it.")
    return said
