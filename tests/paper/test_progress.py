"""How the progress of a grid is shown."""

import pytest
from paper_runs import DIGITS
from rich.console import Console

from lit_gelu.paper.cells import expand
from lit_gelu.paper.jobs import Failure, Preparation
from lit_gelu.paper.planning import plan
from lit_gelu.paper.progress import GridProgress, duration


def test_bars_in_a_terminal(capsys):
    console = Console(force_terminal=True, width=120)
    cells = expand(DIGITS, "quick")
    with GridProgress(console, {"digits": DIGITS}, 2) as progress:
        progress.planned(plan(cells, {}), 3)
        preparation = Preparation("data of digits", {})
        progress.started(preparation)
        progress.prepared(preparation)
        progress.started(cells[0])
        progress.progressed(cells[0], 1.5)
        progress.tick()
        progress.failed(cells[0], Failure("error", "no such thing"), 1)
    text = capsys.readouterr().out
    assert "8 runs: 0 finished before, 8 to be made, 0 identical to others; 3 more" in text
    assert "FAILED: no such thing" in text
    assert "0/11" in text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (59.6, "1 min 0 s"), (3599.4, "59 min 59 s"), (7260, "2 h 1 min")]
)
def test_durations(seconds, text):
    assert duration(seconds) == text
