"""The blocks of ``docs/paper.md`` that are made of records: each stands between two marks and is written anew."""

import re
from collections import Counter
from collections.abc import Sequence

from gelu_paper.records import RunRecord
from gelu_paper.tables import KINDS, tables
from lit_gelu.errors import ArgumentError

_BLOCK = re.compile(r"(<!-- gelu_paper: ([\w ]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def with_blocks(page: str, records: Sequence[RunRecord]) -> str:
    """Return a page whose marked blocks say what the records say.

    A block begins with a line ``<!-- gelu_paper: EXPERIMENT KIND -->``, or ``<!-- gelu_paper: about -->``, and ends
    with ``<!-- end -->``.

    Args:
        page: The page.
        records: The runs.

    Returns:
        The page.

    Raises:
        ArgumentError: If it has no block, or one of a name that there is not.
    """
    if not _BLOCK.search(page):
        raise ArgumentError("The page has no block <!-- gelu_paper: EXPERIMENT KIND --> ... <!-- end -->.")
    return _BLOCK.sub(lambda block: f"{block[1]}\n{_block(block[2], records)}\n\n{block[3]}", page)


def _block(name: str, records: Sequence[RunRecord]) -> str:
    if name == "about":
        return about(records)
    experiment, _, kind = name.partition(" ")
    if kind not in KINDS:
        raise ArgumentError(f"The page has a block {name!r}; accepted: about, and EXPERIMENT {'|'.join(KINDS)}.")
    return "\n\n".join(table.to_markdown(brief=True) for table in tables(records, [experiment], kind)) or "No runs yet."


def about(records: Sequence[RunRecord]) -> str:
    """Return a table of what was trained, on what, and how long it took."""
    lines = [
        "| experiment | runs trained | hours of one core | device, instructions, torch |",
        "| --- | --- | --- | --- |",
    ]
    trained = [run for run in records if run.shared_from is None]
    for name in dict.fromkeys(run.experiment for run in trained):
        runs = [run for run in trained if run.experiment == name]
        places = Counter(
            ", ".join([run.machine["device"], run.machine["instructions"], run.versions["torch"]]) for run in runs
        )
        hours = sum(run.seconds for run in runs) / 3600
        lines.append(
            f"| `{name}` | {len(runs)} | {hours:.1f} | {'; '.join(place for place, _ in places.most_common())} |"
        )
    together = sum(run.group is not None for run in trained)
    if together:
        lines.append(
            f"\n{together} of these {len(trained)} runs were made several in one process, by earlier versions."
        )
    return "\n".join(lines)
