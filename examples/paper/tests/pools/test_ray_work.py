"""What a process of Ray's does with an order; Ray itself is not needed for it."""

import os
import sys
from types import SimpleNamespace

import pytest
from paper_runs import DIGITS

from gelu_paper.jobs import Done, Failure, Preparation, RunOptions
from gelu_paper.pools import ray_work
from gelu_paper.pools.ray_board import EPOCH, PLACE
from gelu_paper.protocol.cells import expand
from gelu_paper.training.cell_training import versions

CELL = expand(DIGITS, "quick")[0]


class Notes:
    """A board in this process."""

    def __init__(self) -> None:
        self.seen: list[tuple] = []
        self.put = SimpleNamespace(remote=lambda *note: self.seen.append(note))


@pytest.fixture
def board(monkeypatch):
    """A board, in a process that Ray has just started."""
    context = SimpleNamespace(get_node_id=lambda: "here")
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(get_runtime_context=lambda: context))
    monkeypatch.setattr(ray_work, "_data", {})
    monkeypatch.setattr(ray_work, "_prepared", set())
    monkeypatch.setattr(ray_work, "quieten", lambda: None)
    return Notes()


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_run_says_where_and_how_far_it_is(board):
    assert isinstance(ray_work.work(ray_work.Order(3, CELL, RunOptions(), (), versions()), board), Done)
    first, *others = board.seen
    assert first == (3, PLACE, ("here", os.getpid()))
    assert others
    assert all(note[:2] == (3, EPOCH) and 0 < note[2][0] <= 2 for note in others)


def test_other_versions_do_nothing(board):
    wanted = versions() | {"torch": "1.0"}
    assert ray_work.work(ray_work.Order(0, CELL, RunOptions(), (), wanted), board) == ray_work.OtherVersions(
        "here", versions()
    )
    assert len(board.seen) == 1


def test_data_are_prepared_before_the_first_run_of_a_process(board, monkeypatch):
    answered = []
    monkeypatch.setattr(ray_work, "answer", lambda job, *_: answered.append(job) or Done(None))
    preparation = Preparation("digits", CELL.config["data"])
    for number in range(2):
        ray_work.work(ray_work.Order(number, CELL, RunOptions(), (preparation,)), board)
    assert answered == [preparation, CELL, CELL]


def test_data_that_a_node_lacks(board, tmp_path, monkeypatch):
    """The driver's folder stands in where the node names none, and what is missing there is said."""
    monkeypatch.delenv("LIT_GELU_DATA", raising=False)
    preparation = Preparation("mnist", {"class_path": "lit_gelu.data.MNISTData", "init_args": {}})
    order = ray_work.Order(0, CELL, RunOptions(), (preparation,), data=str(tmp_path / "the driver's"))
    failure = ray_work.work(order, board)
    assert isinstance(failure, Failure)
    assert failure.kind == "missing"
    assert "the driver's" in failure.message
    monkeypatch.setenv("LIT_GELU_DATA", str(tmp_path / "its own"))
    assert "its own" in ray_work.work(order, board).message
