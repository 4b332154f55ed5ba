"""``lit-gelu report``: make one page of a run from its log folder or a checkpoint: curves, findings, files."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lit_gelu.cli.terminal import console_for_output, write_text
from lit_gelu.errors import ArgumentError, LitGeluError
from lit_gelu.files import is_file, is_folder

if TYPE_CHECKING:
    from lit_gelu.report import ReportedRun

FILE_NAME = "report.html"


def report(source: str, *, output: str | None = None, title: str = "", json: str | None = None) -> int:
    """Make one page of a run from its log folder or a checkpoint: curves, findings, files.

    The page is one HTML file that needs nothing from elsewhere. RunReport, a callback, knows more of a run than its
    folder does.

    in a shell:
      lit-gelu report lightning_logs/version_0
      lit-gelu report runs/digits_gelu/version_0/checkpoints/last.ckpt --output run.html
      lit-gelu report runs/demo --title "ReLU, then GELU" --json

    Args:
        source: the folder of a logger, or a checkpoint
        output: the page; default: report.html in that folder
        title: of the page; default: the folder's or file's name
        json: print JSON, and nothing else on standard output; or write it into a file
    """
    path = Path(source)
    if not (is_file(path) or is_folder(path)):
        raise ArgumentError(f"There is no {source[:200]!r}. Give the folder of a logger, or a checkpoint.")
    default = path / FILE_NAME if is_folder(path) else path.with_name(f"{path.stem}.{FILE_NAME}")
    target = default if output is None else Path(output)
    if target.suffix not in {".html", ".htm"}:
        raise ArgumentError(f"--output {target} is not accepted. Give a file that ends in .html.")
    from lit_gelu.report import judged, page

    run = run_of(path)
    run = judged(replace(run, title=title or run.title))
    write_text(page(run), str(target))
    if json is not None:
        write_text(run.to_json(), json)
    if json != "-":
        console = console_for_output(highlight=False, soft_wrap=True, markup=False)
        for finding in run.findings:
            if finding.level != "good":
                console.print(f"{finding.level}: {f'{finding.where}: ' if finding.where else ''}{finding.text}")
        for sentence in run.missing:
            console.print(f"missing: {sentence}")
        console.print(f"wrote {target}")
    return 0


def run_of(source: Path) -> "ReportedRun":
    """Return what a log folder with its newest checkpoint says, or a checkpoint alone."""
    from lit_gelu.callbacks.checkpoint_file import read_checkpoint
    from lit_gelu.report import ReportedRun
    from lit_gelu.report.sources import environment, now, read_log_folder

    if is_file(source):
        nothing = ("Losses and errors: a checkpoint does not hold them. Give the folder of the run's logger instead.",)
        name, origin = source.name, f"the checkpoint {source.name}"
        report = ReportedRun(title=name, source=origin, made=now(), environment=environment(), missing=nothing)
        return _with_checkpoint(report, read_checkpoint(source), name)
    report, checkpoints = read_log_folder(source)
    report = replace(report, environment=environment())
    if not checkpoints:
        lack = "Optimizer, activations, status: there is no checkpoint in the folder, which holds them."
        return replace(report, missing=(*report.missing, lack))
    try:
        return _with_checkpoint(report, read_checkpoint(checkpoints[0]), checkpoints[0].name)
    except LitGeluError as error:
        return replace(report, missing=(*report.missing, f"{checkpoints[0].name}, the newest checkpoint: {error}"))


def _with_checkpoint(report: "ReportedRun", checkpoint: dict[str, Any], name: str) -> "ReportedRun":
    """Return a run with what a checkpoint adds, which may come from anybody: steps, settings, activations, swaps."""
    from lit_gelu.callbacks.checkpoint_file import hyper_parameters
    from lit_gelu.callbacks.run_report import sites_of
    from lit_gelu.callbacks.swap.history import ACTIVATIONS_KEY, SWAPS_KEY, SwapRecord
    from lit_gelu.report import OptimizerSettings
    from lit_gelu.report.content import flat
    from lit_gelu.surgery.activation_record import read_activations

    entries, states = checkpoint.get(SWAPS_KEY), checkpoint.get("optimizer_states")
    rows = [row.get("record") for row in entries if isinstance(row, Mapping)] if isinstance(entries, list) else []
    records = sorted(map(SwapRecord.from_dict, rows), key=lambda record: record.order)
    swaps = tuple(record.event() for record in records) or report.swaps
    now = read_activations(checkpoint[ACTIVATIONS_KEY]) if ACTIVATIONS_KEY in checkpoint else {}
    replaced = {change.site: change.old for swap in reversed(swaps) for change in swap.changes}
    optimizers = []
    for state in states if isinstance(states, list) else []:
        groups = state.get("param_groups") if isinstance(state, Mapping) else None
        if isinstance(groups, list) and groups and all(isinstance(group, Mapping) for group in groups):
            # Its class is told from the options that it has.
            is_sgd = {"momentum", "dampening", "nesterov"} <= groups[0].keys() and "betas" not in groups[0]
            optimizers.append(OptimizerSettings.of_groups("SGD" if is_sgd else "", groups))
    step = checkpoint.get("global_step")
    facts = {key: checkpoint.get(key) for key in ("epoch", "pytorch-lightning_version")}
    settings = {
        "Hyper-parameters of the checkpoint": flat(hyper_parameters(checkpoint, name)),
        "Checkpoint": flat({"file": name, **facts}),
    }
    return replace(
        report,
        steps=max(step, report.steps or 0) if type(step) is int and 0 <= step < 2**62 else report.steps,
        configuration={**report.configuration, **settings},
        swaps=swaps,
        sites=sites_of({**now, **{site: old for site, old in replaced.items() if site in now}}, now, swaps),
        optimizers=tuple(optimizers),
    )
