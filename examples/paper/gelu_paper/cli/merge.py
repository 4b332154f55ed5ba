"""``lit-gelu paper merge``: join the runs of several results folders into one."""

import sys
from collections import Counter
from pathlib import Path

import jsonargparse

from lit_gelu.cli.main import EXIT_FAILURE
from lit_gelu.cli.options import command_parser
from gelu_paper.cli.listed import say_listed
from gelu_paper.cli.results import NoRunsError, records_file
from lit_gelu.files import is_file
from gelu_paper.records.run_record import RECORDS_FILE
from gelu_paper.results.joined_results import JoinedResults, ResultsFile, join_into, read_results_file

DESCRIPTION = """\
Join the runs of several results folders into one: every run once, in the order of the folders, those that the target
holds first. The folders themselves stay as they are.

A run that several folders hold with the same numbers is taken once, and said if it was made more than once. If its
numbers differ, nothing is written, unless --keep first takes the one that comes first. Runs of the same name with
another configuration, runs of two presets, and runs of an experiment by two protocols, of which no table could be made,
are never joined. Damaged lines are said and left out. Experiments to which no run is added are left as they are.

Exit code: 0 if the target holds all runs; 1 if lines were damaged, or nothing was written because runs of the same name
differ; 2 if nothing was written because runs are of two presets or protocols, or a folder has none.
"""
EXAMPLES = """\
examples:
  lit-gelu paper merge runs/paper/full/shard-* --results runs/paper/full        the parts that --shard made
  lit-gelu paper merge machine_a machine_b --results all
  lit-gelu paper merge machine_a/runs.jsonl machine_b --results all --keep first
"""


def build_parser() -> jsonargparse.ArgumentParser:
    """Return the parser."""
    parser = command_parser("paper merge", EXAMPLES, DESCRIPTION)
    parser.add_argument("folders", nargs="+", metavar="FOLDER", help="with runs.jsonl, or such a file")
    parser.add_argument("--results", metavar="FOLDER", required=True, help="where the joined runs go")
    parser.add_argument("--keep", choices=["first"], default=None, help="of a run with several results; see above")
    return parser


def run(arguments: jsonargparse.Namespace) -> int:
    """Run ``lit-gelu paper merge``."""
    files = [read_results_file(path) for path in _paths(arguments.folders)]
    for file in files:
        _say_damage(file)
    target = Path(arguments.results)
    joined = join_into(target, files, keep_first=arguments.keep == "first")
    is_written = _say_differences(joined, keep_first=arguments.keep == "first")
    if is_written:
        given = sum(len(file.records) for file in files)
        sys.stdout.write(
            f"{len(joined.records)} runs in {target / RECORDS_FILE}; {given} read from {len(files)} files, "
            f"{_in_several(files)} of them in several\n"
        )
    return 0 if is_written and not any(file.damaged for file in files) else EXIT_FAILURE


def _paths(given: list[str]) -> list[Path]:
    """Return the files of the given folders, each once."""
    paths: dict[Path, Path] = {}
    for text in given:
        path = records_file(Path(text))
        if not is_file(path):
            raise NoRunsError(f"There are no runs in {text!r} (no {path.name}). Leave it out, or make them first.")
        paths.setdefault(path.resolve(), path)
    return list(paths.values())


def _in_several(files: list[ResultsFile]) -> int:
    """Count the runs that more than one file holds, whatever their records say."""
    holding = Counter(key for file in files for key in {record.key for _, record in file.records})
    return sum(count > 1 for count in holding.values())


def _say_damage(file: ResultsFile) -> None:
    for text in file.damaged:
        sys.stderr.write(f"left out: {text}\n")
    if file.cut:
        sys.stderr.write(f"left out: {file.file!r}: the last line is cut off; that run counts as not finished\n")


def _say_differences(joined: JoinedResults, *, keep_first: bool) -> bool:
    """Say which runs have several records, and return whether the runs were joined nevertheless."""
    say_listed(joined.incompatible, "runs of the same name are other runs")
    say_listed(joined.differing, "runs were made more than once, with other numbers")
    say_listed(joined.repeated, "runs were made more than once, with the same numbers; the first is taken")
    say_listed(joined.orphaned, "copies are left out; lit-gelu paper run makes them again")
    if joined.incompatible:
        sys.stderr.write("Nothing is written. Leave one of the folders out, or delete the lines of one of the two.\n")
    elif joined.differing and not keep_first:
        sys.stderr.write("Nothing is written. Give --keep first to take the first of each, in the order given.\n")
    elif joined.differing:
        sys.stderr.write("Of each the first is taken.\n")
    return not joined.incompatible and (keep_first or not joined.differing)
