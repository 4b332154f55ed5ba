"""The command: ``python -m gelu_paper list|run|table|figures``."""

import argparse
import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from gelu_paper.experiments import EXPERIMENTS, PRESETS
from gelu_paper.request import Request, check_names
from lit_gelu.errors import ArgumentError, LitGeluError

PRECISIONS = ("32-true", "bf16-mixed", "16-mixed", "64-true")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        arguments: As on the command line.

    Returns:
        0 if all is done, 1 if something is missing, 2 after a mistake in the arguments or the files, 130 after Ctrl-C.
    """
    command = build_parser().parse_args(arguments)
    try:
        code: int = command.function(command)
    except LitGeluError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped; the same command goes on behind the finished runs", file=sys.stderr)
        return 130
    return code


def build_parser() -> argparse.ArgumentParser:
    """Return the parser."""
    parser = argparse.ArgumentParser(prog="python -m gelu_paper", description="The GELU paper's experiments.")
    commands = parser.add_subparsers(required=True, metavar="list|run|table|figures")
    meanings = "; ".join(f"{name}: {meaning}" for name, meaning in PRESETS.items())

    listing = commands.add_parser("list", help="what there is: experiments, arms, learning rates, seeds, runs")
    listing.set_defaults(function=list_experiments)

    run = commands.add_parser("run", help="make runs; finished ones are not made again")
    run.set_defaults(function=run_grid)
    run.add_argument("--epochs", type=int, help="end each run after so many, where time is short; tables say so")
    run.add_argument("--arms", nargs="*", default=[], metavar="ARM", help="only these, such as gelu")
    run.add_argument("--seeds", nargs="*", type=int, default=[], metavar="SEED", help="only these")
    run.add_argument("--tweet-clusters", metavar="FILE", help="word clusters (50mpaths2) in place of word vectors")
    run.add_argument("--data-root", metavar="FOLDER", help="default: LIT_GELU_DATA, or data")
    run.add_argument("--workers", type=int, help="runs at a time; default: one for each core, or one on a GPU")
    run.add_argument("--threads", type=int, default=1, help="of each run on the CPU: small nets are fastest with 1")
    run.add_argument("--accelerator", choices=("cpu", "cuda", "mps"), default="cpu", help="the Trainer's")
    run.add_argument("--precision", choices=PRECISIONS, default="32-true", help="the Trainer's; tables say so")
    run.add_argument("--engine", choices=("processes", "ray"), default="processes", help="ray: on several machines")
    run.add_argument("--ray-address", metavar="ADDRESS", help="of a Ray cluster, or auto; default: Ray on this machine")
    run.add_argument("--gpus", type=float, default=1.0, help="of each run by Ray with cuda; .25: four runs share one")
    run.add_argument("--skip-missing", action="store_true", help="missing data are no failure")
    run.add_argument("--dry-run", action="store_true", help="say how many runs would be trained")

    table = commands.add_parser("table", help="medians and spread of the runs, beside the paper's numbers")
    table.set_defaults(function=write_tables)
    table.add_argument("--of", choices=("results", "noise", "points"), default="results", help="what the rows are")
    table.add_argument("--format", choices=("markdown", "csv"), default="markdown", help="csv: numbers unrounded")
    table.add_argument("--page", metavar="FILE", help="write the marked blocks of this page anew instead")

    figures = commands.add_parser("figures", help="the paper's figures 1 to 7")
    figures.set_defaults(function=write_figures)
    figures.add_argument("--numbers", nargs="+", type=int, metavar="NUMBER", help="default: those with runs")
    figures.add_argument("--output", metavar="FOLDER", help="default: the results' figures/")
    figures.add_argument("--format", choices=("png", "svg", "pdf"), default="png", help="of the files")
    figures.add_argument("--published", action="store_true", help="mark points that were read from the paper's figures")

    for command in (listing, run, table, figures):
        command.add_argument("--preset", choices=list(PRESETS), default="quick", help=meanings)
    for command in (listing, run, table):
        command.add_argument("--only", nargs="+", default=[], metavar="EXPERIMENT", help="only these experiments")
    for command in (run, table, figures):
        what = "folder of runs.jsonl" if command is run else "that folder, or a file of records, packed by xz or not"
        command.add_argument("--results", metavar="PATH", help=f"{what}; default: runs/paper/PRESET")
    return parser


def list_experiments(command: argparse.Namespace) -> int:
    """Print the experiments of a preset."""
    request = Request(command.preset, tuple(command.only))
    for experiment in request.experiments():
        rates = ", ".join(f"{rate:g}" for rate in experiment.learning_rates)
        rates = rates or f"from {experiment.learning_rate_from}"
        settings = "".join(f"; {name} {', '.join(map(str, x))}" for name, x in experiment.settings.items())
        runs = len(request.cells(experiment, dict.fromkeys(experiment.arms, 0.0)))
        print(
            f"{experiment.name}: {experiment.title} ({experiment.place})\n"
            f"    {', '.join(experiment.arms)}{settings}; learning rate {rates}; "
            f"{experiment.seeds} seeds; {experiment.epochs} epochs; {runs} runs\n    {experiment.notes}"
        )
    return 0


def run_grid(command: argparse.Namespace) -> int:
    """Make runs."""
    # Heavy imports: `list` and mistakes do without.
    from gelu_paper.engines import by_processes, by_ray
    from gelu_paper.grid import GridRunner, missing_runs, records_of
    from gelu_paper.training import RunOptions

    request = Request(
        command.preset,
        tuple(command.only),
        tuple(command.arms),
        tuple(command.seeds),
        command.precision,
        command.epochs,
        command.tweet_clusters,
    )
    folder = _results(command)
    if command.dry_run:
        for experiment in request.experiments():
            groups, _ = missing_runs(request.cells(experiment), records_of(folder))
            searched = experiment.learning_rate_from
            print(f"{experiment.name}: {f'as {searched} decides' if searched else len(groups)} to be trained")
        return 0
    if command.threads < 1 or (command.workers is not None and command.workers < 1):
        raise ArgumentError("--workers and --threads: give integers of at least 1.")
    root = None if command.data_root is None else str(Path(command.data_root).absolute())
    options = RunOptions(root, command.accelerator, command.threads)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    workers = command.workers or (cores if command.accelerator == "cpu" else 1)
    engine = partial(by_processes, options=options, workers=workers)
    if command.engine == "ray":
        gpus = command.gpus if command.accelerator == "cuda" else 0
        engine = partial(by_ray, options=options, workers=workers, address=command.ray_address, gpus=gpus)
    tally = GridRunner(request, folder, engine, root).run()
    for name, reason in [*tally.missing.items(), *tally.failed.items()]:
        print(f"{name}: {reason}", file=sys.stderr)
    print(
        f"{tally.finished} runs were finished before, {tally.trained} trained, {tally.copied} identical to others, "
        f"{len(tally.failed)} failed; data of {len(tally.missing)} experiments are missing; results in {folder}"
    )
    return int(bool(tally.failed) or (bool(tally.missing) and not command.skip_missing))


def write_tables(command: argparse.Namespace) -> int:
    """Print tables, or write those of a page."""
    from gelu_paper.page import with_blocks
    from gelu_paper.records import read_records
    from gelu_paper.tables import LEGEND, Table, tables, to_csv
    from lit_gelu.files import write_atomically

    check_names("experiment", command.only, EXPERIMENTS)
    records = read_records(_results(command))
    if command.page is not None:
        page = Path(command.page)
        text = with_blocks(page.read_text(encoding="utf-8"), records)
        with write_atomically(page) as temporary:
            temporary.write_text(text, encoding="utf-8", newline="\n")
        return 0
    selection = tables(records, command.only, command.of)
    print(to_csv(selection) if command.format == "csv" else "\n\n".join([*map(Table.to_markdown, selection), LEGEND]))
    return int(not selection)


def write_figures(command: argparse.Namespace) -> int:
    """Draw figures."""
    from gelu_paper.drawing import write
    from gelu_paper.figures import FIGURES, draw
    from gelu_paper.records import read_records

    results = _results(command)
    records = read_records(results) if command.numbers != [1] else []
    folder = Path(command.output) if command.output else (results if results.is_dir() else results.parent) / "figures"
    missing = []
    for number in sorted(command.numbers or FIGURES):
        figure = draw(number, records, published=command.published)
        if figure is None:
            missing.append(number)
        else:
            path = folder / f"figure_{number}.{command.format}"
            write(figure, path)
            print(f"wrote {path}")
    for number in missing:
        print(f"figure {number} ({FIGURES[number]}) is not drawn: there are no runs of it", file=sys.stderr)
    return int(bool(missing and command.numbers))


def _results(command: argparse.Namespace) -> Path:
    return Path(command.results or f"runs/paper/{command.preset}")


if __name__ == "__main__":
    sys.exit(main())
