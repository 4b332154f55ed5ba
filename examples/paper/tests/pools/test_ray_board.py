"""What jobs say on the board, asked for now and then."""

import sys

from child_processes import run_python

from gelu_paper.pools.ray_board import EPOCH, PLACE, Board


def test_the_last_note_of_each_kind_is_given_once():
    board = Board()
    board.put(0, PLACE, ("node", 17))
    for epoch in (0.5, 1.0):
        board.put(0, EPOCH, epoch)
    board.put(1, EPOCH, 2.0)
    assert board.drain() == [(0, PLACE, ("node", 17)), (0, EPOCH, 1.0), (1, EPOCH, 2.0)]
    assert board.drain() == []


def test_its_process_loads_no_torch():
    run_python(
        "import sys, gelu_paper.pools.ray_board; assert not {'torch', 'ray', 'lightning'} & set(sys.modules)"
    )
    assert "torch" in sys.modules  # it is there, and would be found
