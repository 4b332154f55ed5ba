"""Which graphs are made of a step, and which of them make so many steps; `test_steps` has steps of nets."""

import pytest
import torch
from pretended_cuda import Pretended

from lit_gelu.replicas.device.captured_steps import captured


class Counting:
    """A step that counts, and knows some ways to divide members."""

    together = 4

    def __init__(self, ways, room=4):
        self.ways, self.way, self.room = ways, ways[0], room
        self.place, self.total = torch.zeros(1, dtype=torch.int64), torch.full((1,), 10)

    @property
    def state_tensors(self):
        return [self.place, self.total]

    def __call__(self):
        self.several(1)

    def several(self, steps):
        assert int(self.place) + steps <= self.room  # the end of the tables
        self.place += steps
        self.total += steps

    def divide(self, count):
        self.way = count


@pytest.mark.parametrize("fastest", [1, 2, 5])
def test_the_fastest_way_is_taken_and_everything_is_as_before(fastest):
    step = Counting((1, 2, 5))
    step.place += 3
    cuda = Pretended(step, {1: 3.0, 2: 2.0, 5: 2.5, fastest: 1.0})  # of graphs of four steps
    make = captured(step, cuda)
    assert step.way == make.way == fastest
    assert step.place == 3
    assert step.total == 10
    assert cuda.calls.count("capture") == 6
    assert {call for call in cuda.calls if call.startswith("replay")} == {"replay 4"}


def test_long_steps_are_divided_in_the_usual_way():
    step = Counting((2, 1, 5))
    cuda = Pretended(step, {2: 9.0, 1: 1.0, 5: 1.0})
    assert captured(step, cuda).way == step.way == 2
    assert cuda.calls.count("capture") == 2


def test_one_way_is_not_timed():
    step = Counting((3,))
    cuda = Pretended(step)
    assert captured(step, cuda).way == 3
    assert "host waits" not in cuda.calls


@pytest.mark.parametrize(("steps", "replays"), [(0, []), (3, [1] * 3), (4, [4]), (11, [4, 4, 1, 1, 1])])
def test_so_many_steps_are_made_by_as_few_graphs(steps, replays):
    step = Counting((1,), room=11)
    cuda = Pretended(step)
    make = captured(step, cuda)
    before = len(cuda.calls)
    make(steps)
    assert cuda.calls[before:] == [f"replay {count}" for count in replays]
    assert step.total == 10 + steps
