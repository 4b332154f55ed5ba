"""``lit-gelu paper run``: make the runs of the paper's protocol; what is finished is not made again."""

import os
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import jsonargparse
from rich.console import Console

from lit_gelu.cli.main import EXIT_FAILURE
from lit_gelu.cli.options import command_parser
from gelu_paper.cli.accelerators import accelerator_of
from gelu_paper.cli.kept_nets import CHECKPOINTS_FOLDER, say_runs_without
from gelu_paper.cli.ray_options import add_engine_options, check_engine, ray_pool
from gelu_paper.cli.results import given_results
from gelu_paper.cli.run_options import (
    add_choice_options,
    add_file_options,
    add_outcome_options,
    add_trainer_options,
    add_worker_options,
)
from lit_gelu.cli.terminal import console_for_output
from lit_gelu.files import is_file, require_writable
from gelu_paper.errors import PaperArgumentError
from gelu_paper.grid_runner import Runner, Tally
from gelu_paper.group_planning import GroupPlanner, parse_replicas
from gelu_paper.jobs import RunOptions
from gelu_paper.planning import RunRequest, plan, searched_learning_rates
from gelu_paper.pools.visible_gpus import VARIABLE, visible_gpus
from gelu_paper.pools.worker_pool import WorkerPool
from gelu_paper.progress import GridProgress
from gelu_paper.protocol.cells import PRECISION
from gelu_paper.protocol.presets import PRESETS
from gelu_paper.protocol.variants import ProtocolVariant, check_variant, own_experiments
from gelu_paper.records.run_record import RECORDS_FILE, RunRecord, read_records
from gelu_paper.records.run_store import RecordStore
from gelu_paper.shards import parse_shard, records_of_others
from gelu_paper.training.unfinished_groups import GROUPS_FOLDER

if TYPE_CHECKING:
    from gelu_paper.pools.job_pool import JobPool

# Processes that import Lightning while this one imports torch and plans; more would be idle in a small grid.
_AT_FIRST = 2
RENAMED = {"--data": "--data-root"}
DESCRIPTION = """\
Make the runs of the GELU paper's protocol with the ordinary Trainer and keep one record of each.

Every finished run is a line of RESULTS/runs.jsonl: configuration, seed, versions, machine, curves, result. The same
command goes on where it was stopped or killed; finished runs are not made again. Runs that two experiments have in
common are made once.

On the CPU, runs of a small net that differ in activation, learning rate, dropout and seed are made together, as
replicas in one process, which takes less time: each with the numbers that it has alone (--replicas off), the training
loss to one part in a million, all else to the bit. A killed group goes on where it was within the last minute.

With --shard I/N, the I-th of N disjoint parts is made, the same one at every call, in RESULTS/shard-I-of-N, so that
several machines can share a grid; lit-gelu paper merge joins them. Runs in RESULTS and in its other shards count as
finished. Searched learning rates are known when all shards of the search have ended: give the commands again then.

Exit code: 0 if all runs are in the results; 1 if some failed, or could not be made because data are missing (0 in the
second case with --skip-missing), or if a checkpoint that --checkpoints asks for could not be written; 130 after Ctrl-C.
Failed runs are tried again by the same command.
"""
EXAMPLES = """\
examples:
  lit-gelu paper run --preset quick                   all experiments, shortened: a quarter of an hour on two cores
  lit-gelu paper run --preset quick --dry-run         how many runs that is
  lit-gelu paper run --preset full --only mnist       the paper's 50 epochs, three learning rates, five seeds
  lit-gelu paper run --preset full --only tweets --tweet-clusters 50mpaths2      without the authors' vectors
  lit-gelu paper run --preset full --only cifar10 --accelerator cuda --precision bf16-mixed
  lit-gelu paper run --preset full --only cifar100 --devices all --workers 8        on 4 GPUs: two runs on each
  lit-gelu paper run --preset full --only mnist --arms gelu elu --seeds 0 1 --results runs/try
  lit-gelu paper run --preset full --engine ray --ray-address auto --results /shared/runs     on a Ray cluster
  lit-gelu paper run --preset full --shard $SLURM_ARRAY_TASK_ID/8                in a job array, sbatch --array=1-8
"""


def build_parser() -> jsonargparse.ArgumentParser:
    """Return the parser."""
    parser = command_parser("paper run", EXAMPLES, DESCRIPTION)
    add_choice_options(parser)
    add_file_options(parser)
    add_worker_options(parser)
    add_engine_options(parser)
    add_trainer_options(parser)
    add_outcome_options(parser)
    return parser


def run(arguments: jsonargparse.Namespace) -> int:
    """Run ``lit-gelu paper run``."""
    if arguments.threads < 1 or (arguments.workers is not None and arguments.workers < 1):
        raise PaperArgumentError("--workers and --threads: give integers of at least 1.")
    request = RunRequest(
        arguments.preset,
        tuple(arguments.only),
        tuple(arguments.arms),
        tuple(arguments.seeds),
        arguments.precision,
        own_experiments(arguments.preset, _variant(arguments)),
        None if arguments.shard is None else parse_shard(arguments.shard),
    )
    _check_seeds(request)
    check_variant(_variant(arguments), request.preset, [experiment.name for experiment in request.experiments()])
    folder = _folder(arguments)
    return _dry_run(request, folder) if arguments.dry_run else _run(request, folder, arguments)


def _check_seeds(request: RunRequest) -> None:
    """Refuse seeds that no chosen experiment has; those that some have are made of these."""
    chosen = [row for row in request.experiments() if not request.arms or set(request.arms) & set(row.arms)]
    most = max(experiment.seeds for experiment in chosen)
    if any(not 0 <= seed < most for seed in request.seeds):
        raise PaperArgumentError(
            f"--seeds {' '.join(map(str, request.seeds))} given; accepted: {'0' if most == 1 else f'0 to {most - 1}'}, "
            f"the seeds of {', '.join(row.name for row in chosen if row.seeds == most)}. See lit-gelu paper list "
            f"--preset {request.preset}."
        )


def _variant(arguments: jsonargparse.Namespace) -> ProtocolVariant:
    """Return what was asked for in place of the preset's."""
    return ProtocolVariant(arguments.tweet_clusters, arguments.fused_optimizer, arguments.noise, arguments.epochs)


def _folder(arguments: jsonargparse.Namespace) -> Path:
    """Return the folder of the results; refuse a file."""
    folder = given_results(arguments)
    if is_file(folder):
        raise PaperArgumentError(
            f"--results {str(folder)!r} is a file; accepted: a folder, also one that is not there yet. Its runs go to "
            f"{RECORDS_FILE} in it."
        )
    return folder


def _own_folder(request: RunRequest, folder: Path) -> Path:
    """Return where the records of these runs go."""
    return folder if request.shard is None else folder / request.shard.name


def _elsewhere(request: RunRequest, folder: Path) -> dict[str, RunRecord]:
    """Return what other shards have recorded by now, and what was merged."""
    return {} if request.shard is None else records_of_others(folder, _own_folder(request, folder))


def _run(request: RunRequest, whole: Path, arguments: jsonargparse.Namespace) -> int:
    """Make the runs and say what became of them."""
    folder, accelerator = _own_folder(request, whole), accelerator_of(arguments.accelerator, arguments.engine)
    check_engine(arguments, accelerator)
    most = parse_replicas(arguments.replicas)
    together = _are_together(most, accelerator, request.precision, arguments.noise)
    making = _pool(arguments, accelerator, folder)
    console = console_for_output()
    _say(console, f"preset {request.preset}: {PRESETS[request.preset]}")
    with _saying_that_it_goes_on(folder), RecordStore(folder) as store, making as pool:
        pool.expect(_AT_FIRST)
        before = frozenset(store.records)
        if arguments.checkpoints:
            require_writable(folder / CHECKPOINTS_FOLDER / "a checkpoint.ckpt")
        alone = "" if together else ", each by itself"
        _say(console, f"{pool.workers} at a time on {_where(arguments, accelerator)}{alone}; results in {folder}")
        with GridProgress(console, request.all_experiments(), pool.workers) as progress:
            planner = GroupPlanner(pool.workers, most, on_gpu=accelerator == "cuda") if together else None
            summary = Runner(request, store, pool, progress, lambda: _elsewhere(request, whole), planner).run()
    _say_summary(summary, folder, console)
    if arguments.checkpoints:
        records = _elsewhere(request, whole) | store.records
        say_runs_without(request, records, store.records.keys() - before, whole, summary.unkept)
    if _has_failed(summary, skip_missing=arguments.skip_missing):
        return EXIT_FAILURE
    _say(console, f"next: {_next_commands(request, whole, arguments)}")
    return 0


@contextmanager
def _saying_that_it_goes_on(folder: Path) -> Iterator[None]:
    """Say after Ctrl-C where the finished runs are."""
    try:
        yield
    except KeyboardInterrupt:
        sys.stderr.write(
            f"stopped; finished runs are in {folder / RECORDS_FILE}. The same command goes on from there.\n"
        )
        raise


def _where(arguments: jsonargparse.Namespace, accelerator: str) -> str:
    """Say on what the runs are made."""
    return " ".join([accelerator, *arguments.devices, *(["by Ray"] if arguments.engine == "ray" else [])])


def _say(console: Console, text: str) -> None:
    """Print a line as it stands, however long."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def _has_failed(summary: Tally, *, skip_missing: bool) -> bool:
    """Tell whether runs were not made that should have been, or checkpoints not written that were asked for."""
    failed = [failure for _, failure, _ in summary.failures if failure.kind != "missing"]
    return bool(failed or summary.unkept or (summary.failures and not skip_missing))


def _pool(arguments: jsonargparse.Namespace, accelerator: str, folder: Path) -> "JobPool":
    """Return what makes the runs."""
    gpus = _gpus(arguments.devices, accelerator) if arguments.devices else ()
    # Other processes, and other machines, have other current folders.
    checkpoints = str(folder.absolute() / CHECKPOINTS_FOLDER) if arguments.checkpoints else None
    groups = str(folder.absolute() / GROUPS_FOLDER)
    root = None if arguments.data_root is None else str(Path(arguments.data_root).absolute())
    options = RunOptions(root, accelerator, arguments.threads, checkpoints, groups, gpus)
    if arguments.engine == "ray":
        here = arguments.ray_address is None and accelerator == "cpu"
        return ray_pool(arguments, options, arguments.workers or (cores() if here else None), folder)
    return WorkerPool(arguments.workers or len(gpus) or (1 if accelerator == "cuda" else cores()), options)


def _are_together(most: int | None, accelerator: str, precision: str, noise: str) -> bool:
    """Tell whether runs are made together, as far as their task has groups; refuse a number that would have no use."""
    if precision == PRECISION and (accelerator == "cpu" or (accelerator == "cuda" and noise == "keys")):
        return most != 1
    if most not in {None, 1}:
        raise PaperArgumentError(
            f"--replicas {most}: runs are made together on the CPU, with --precision {PRECISION}, or on a GPU with "
            f"--noise keys too; given are --accelerator {accelerator}, --precision {precision} and --noise {noise}. "
            "Leave --replicas out to make each by itself."
        )
    return False


def _say_summary(summary: Tally, folder: Path, console: Console) -> None:
    """Print what became of the runs."""
    alike: dict[tuple[str, str, str], list[tuple[str, int]]] = {}  # two experiments may miss the same data
    for job, failure, runs in summary.failures:
        alike.setdefault((failure.kind, failure.message, failure.trace), []).append((job.key, runs))
    for (kind, message, trace), jobs in alike.items():
        keys, not_made = ", ".join(key for key, _ in jobs), sum(runs for _, runs in jobs)
        sys.stderr.write(f"{keys}: {not_made} not made ({kind}): {message}\n{trace}")
    said = {failure.message: (group, failure) for group, failure in reversed(summary.parted)}  # the first of each
    for group, failure in reversed(said.values()):
        sys.stderr.write(f"{group.key}: made in parts ({failure.kind}): {failure.message}\n{failure.trace}")
    restarts = f"; {summary.restarts} times one was lost and begun again" if summary.restarts else ""
    _say(
        console,
        f"{summary.finished} runs were finished before, {summary.trained} made, {summary.shared} identical to others, "
        f"{summary.diverged} diverged, {summary.not_made} not made{restarts}; results in {folder / RECORDS_FILE}",
    )


def _next_commands(request: RunRequest, folder: Path, arguments: jsonargparse.Namespace) -> str:
    """Return what to type when all runs are there."""
    if request.shard is not None:
        return (
            f"lit-gelu paper merge {folder}/shard-*-of-{request.shard.count} --results {folder}, after the last shard"
        )
    where = f"--preset {arguments.preset}" + (f" --results {folder}" if arguments.results else "")
    return f"lit-gelu paper table {where}; lit-gelu paper figures {where}"


def _dry_run(request: RunRequest, folder: Path) -> int:
    """Say what would be run."""
    records, own = _elsewhere(request, folder), _own_folder(request, folder)
    if is_file(own / RECORDS_FILE):
        records |= {record.key: record for record in read_records(own)}
    experiments = request.experiments()
    cells = list(request.first_cells())
    for experiment in experiments:
        if experiment.learning_rate_from is not None:
            search = next(other for other in experiments if other.name == experiment.learning_rate_from)
            rates = searched_learning_rates(search, request.cells(search), records)
            cells += request.later_cells(experiment, rates) if rates else []
    planned = plan(cells, records)
    known = {cell.experiment for cell in cells}
    made = Counter(group[0].experiment for group in planned.identical)
    all_cells = Counter(cell.experiment for group in planned.identical for cell in group)
    all_cells.update(record.experiment for record in planned.shared)
    for experiment in experiments:
        if experiment.learning_rate_from is None or experiment.name in known:
            text = f"{made[experiment.name]} to be made, {all_cells[experiment.name] - made[experiment.name]} identical"
        else:
            text = f"{len(request.later_cells(experiment))}, their learning rates from {experiment.learning_rate_from}"
        sys.stdout.write(f"{experiment.name}: {text}\n")
    sys.stdout.write(f"finished before: {len(planned.finished)}; to be made: {len(planned.identical)}\n")
    return 0


def _gpus(devices: list[str], accelerator: str) -> tuple[str, ...]:
    """Return what each of the GPUs is called in the variable that hides the others."""
    import torch  # a second that --help does without

    found = visible_gpus(devices, torch.cuda.device_count(), os.environ.get(VARIABLE))
    if accelerator not in {"cuda", "gpu"}:
        raise PaperArgumentError(f"--devices is for GPUs, and --accelerator is {accelerator}. Leave one of them out.")
    return found


def cores() -> int:
    """Return how many cores this process may use."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return allowed or 1
