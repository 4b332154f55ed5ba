"""How the progress of a grid is shown."""

import pytest
from paper_runs import DIGITS
from rich.console import Console

from gelu_paper.jobs import CellGroup, Failure, Preparation, Progress, Restart
from gelu_paper.planning import plan
from gelu_paper.progress import GridProgress, duration
from gelu_paper.protocol.cells import expand


def test_bars_in_a_terminal(capsys):
    console = Console(force_terminal=True, width=120)
    cells = expand(DIGITS, "quick")
    with GridProgress(console, {"digits": DIGITS}, 2) as progress:
        progress.planned(plan(cells, {}), 3)
        preparation = Preparation("data of digits", {})
        progress.started(preparation)
        progress.prepared(preparation)
        progress.started(cells[0])
        progress.progressed(cells[0], Progress(1.5, 10))
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


def test_a_group_says_how_many_steps_a_second_makes_and_where_it_is_begun_again(capsys, monkeypatch):
    now = 0.0
    monkeypatch.setattr("gelu_paper.progress.time.monotonic", lambda: now)
    group = CellGroup(tuple(expand(DIGITS, "quick")[:4]))
    with GridProgress(Console(force_terminal=True, width=160), {"digits": DIGITS}, 1) as progress:
        progress.started(group)
        progress.progressed(group, Progress(0.5, 20))
        now = 2.0
        progress.progressed(group, Progress(1.0, 20))
        assert "20 steps/s" in shown(progress)  # of 4 runs, half an epoch of 20 steps each, in 2 s
        progress.restarted(group, Restart("its node died", 1, 2))
        assert "steps/s" not in shown(progress)
    assert "begun again (1 of 2), from its checkpoint if there is one: its node died" in capsys.readouterr().out


def test_runs_that_are_given_up_take_no_more_time():
    cells = expand(DIGITS, "quick")
    with GridProgress(Console(force_terminal=True, width=160), {"digits": DIGITS}, 1) as progress:
        progress.planned(plan(cells, {}), 0)
        progress.failed(Preparation("data of digits", {}), Failure("missing", "no data"), len(cells), cells)
        assert progress._left == {}


def shown(progress):
    """Return the notes of the bars."""
    return " ".join(task.fields["note"] for task in progress._bars.tasks)


def test_a_warning_is_shown_once_for_each_run(capsys):
    cells = expand(DIGITS, "quick")[:2]
    group = CellGroup(tuple(cells))
    with GridProgress(Console(width=160), {"digits": DIGITS}, 1) as progress:
        progress.started(group)
        for number in range(3):
            progress.progressed(group, Progress(number / 2, 20, "not saved: no room"))
            for cell in cells:
                progress.progressed(group, Progress(2.0, warning="not kept: no room", unkept=cell.key))
        progress.unkept({cell.key: "not kept: no room" for cell in cells} | {"another": "not kept: gone"})
    assert capsys.readouterr().out.splitlines() == [
        f"{group.key}: WARNING: not saved: no room",
        *(f"{cell.key}: WARNING: not kept: no room" for cell in cells),
        "another: WARNING: not kept: gone",
    ]
