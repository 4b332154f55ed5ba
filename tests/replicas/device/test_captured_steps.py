"""Which graphs are made of a step, and which of them make so many steps; `test_steps` has steps of nets."""

import pytest
import torch
from pretended_cuda import Pretended

from lit_gelu.replicas.device.captured_steps import captured


class Counting:
    """A step that counts."""

    together = 4

    def __init__(self, room=4):
        self.room = room
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


def test_everything_is_as_before_a_capture():
    step = Counting()
    step.place += 3
    cuda = Pretended(step)
    captured(step, cuda)
    assert step.place == 3
    assert step.total == 10
    assert cuda.calls.count("capture") == 2


@pytest.mark.parametrize(("steps", "replays"), [(0, []), (3, [1] * 3), (4, [4]), (11, [4, 4, 1, 1, 1])])
def test_so_many_steps_are_made_by_as_few_graphs(steps, replays):
    step = Counting(room=11)
    cuda = Pretended(step)
    make = captured(step, cuda)
    before = len(cuda.calls)
    make(steps)
    assert cuda.calls[before:] == [f"replay {count}" for count in replays]
    assert step.total == 10 + steps
