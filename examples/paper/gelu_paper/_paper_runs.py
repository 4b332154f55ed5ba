"""Tables and figures from ``docs/data/paper_runs.jsonl.xz``, the records of runs of the paper's protocol."""

import lzma
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from _text import table

from lit_gelu.files import write_atomically
from gelu_paper.figures.catalogue import draw
from gelu_paper.figures.drawing import FigureOptions, write
from gelu_paper.records.run_record import RECORDS_FILE, RunRecord, parse_records
from gelu_paper.results.rendering import render
from gelu_paper.results.rows import Row, point_rows, result_rows

RECORDS = Path(__file__).resolve().parent / "data" / "paper_runs.jsonl.xz"
FIGURES = (2, 3, 4)
ARMS = ("gelu", "relu", "elu", "silu")
_NOISE = "noise"
#: Names on the page, and the experiment and the kind of rows that each stands for.
_TABLES: Mapping[str, tuple[str, str]] = {
    "mnist": ("mnist", "results"),
    "mnist_points": ("mnist", "points"),
    "mnist_noise": ("mnist", _NOISE),
    "tweets": ("tweets", "results"),
    "mnist_zero_identity": ("mnist_zero_identity", "results"),
    "tweets_zero_identity": ("tweets_zero_identity", "results"),
    "phi_quality": ("phi_quality", "results"),
    "autoencoder_points": ("autoencoder", "points"),
}


def records() -> list[RunRecord]:
    """Return the records.

    Returns:
        One for each run, those that two experiments have in common once for each.
    """
    return list(parse_records(lzma.decompress(RECORDS.read_bytes()), str(RECORDS)).values())


def keep(results: Path) -> None:
    """Keep the runs of a results folder beside the page.

    Args:
        results: The folder that ``lit-gelu paper run --results`` wrote.
    """
    content = (results / RECORDS_FILE).read_bytes()
    parse_records(content, str(results))
    with write_atomically(RECORDS) as path:
        path.write_bytes(lzma.compress(content, preset=lzma.PRESET_EXTREME))


def paper_tables(runs: Sequence[RunRecord]) -> dict[str, str]:
    """Return the texts that the page asks for.

    Args:
        runs: What `records` returns.

    Returns:
        Texts by name.
    """
    found = {name: _table(_rows(runs, experiment, of)) for name, (experiment, of) in _TABLES.items()}
    return found | {"about_runs": _about(runs)}


def draw_figures(runs: Sequence[RunRecord], folder: Path) -> None:
    """Draw the paper's figures of which there are runs.

    Args:
        runs: What `records` returns.
        folder: Where ``figure_2.png`` and the others go.
    """
    for number in FIGURES:
        figure = draw(number, runs, FigureOptions(ARMS[:3], published=True)).figure
        if figure is not None:
            write(figure, folder / f"figure_{number}.png", "png")


def _rows(runs: Sequence[RunRecord], experiment: str, of: str) -> list[Row]:
    if of == "points":
        return point_rows(runs, [experiment])
    return [row for row in result_rows(runs, [experiment]) if (_NOISE in row.quantity) == (of == _NOISE)]


def _table(rows: Sequence[Row]) -> str:
    """Return rows as Markdown without the legend, which the page has once; the title a level deeper."""
    if not rows:
        return "No runs yet."
    return "#" + render(rows, "markdown").rpartition("\n\n")[0]


def _about(runs: Iterable[RunRecord]) -> str:
    """Return what was run, on what, and how long it took."""
    trained = [run for run in runs if run.shared_from is None]
    by_experiment: dict[str, list[RunRecord]] = {}
    for run in trained:
        by_experiment.setdefault(run.experiment, []).append(run)
    lines = [
        [f"`{name}`", str(len(group)), f"{sum(run.seconds for run in group) / 3600:.1f}", _machines(group)]
        for name, group in by_experiment.items()
    ]
    return table(["experiment", "runs trained", "hours of one core", "device, instructions, torch"], lines)


def _machines(runs: Iterable[RunRecord]) -> str:
    counted = Counter(
        f"{run.machine.get('device', '?')}, {run.machine.get('instructions', '?')}, {run.versions.get('torch', '?')}"
        for run in runs
    )
    return "; ".join(name for name, _ in counted.most_common())
