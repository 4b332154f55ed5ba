"""A run that is killed and resumed, again and again, ends with the very weights of one that was not."""

import random

import pytest
import torch
from killed_runs import STEPS_AN_EPOCH, Kill, ended, flat, run_in_process

pytestmark = pytest.mark.forks

# Before the first checkpoint; within the file of the second "last"; after the swap to PReLU and before the next save.
CHOSEN = [Kill("batch", 2), Kill("save", 4), Kill("swap", 1)]


def equal(a, b):
    return torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b


def assert_same_end(one, other):
    one, other = flat(ended(one)), flat(ended(other))
    assert len(one) == len(other) > 30
    assert all(equal(a, b) for a, b in zip(one, other, strict=True))


def whole_run(tmp_path, epochs, seed=0):
    (tmp_path / "whole").mkdir()
    assert run_in_process(tmp_path / "whole", epochs, None, seed) == 0
    return tmp_path / "whole"


def starts(folder):
    return [int(step) for step in (folder / "starts.txt").read_text().split()]


def test_three_kills(tmp_path):
    reference = whole_run(tmp_path, 4)
    folder = tmp_path / "killed"
    folder.mkdir()
    for kill in CHOSEN:
        assert run_in_process(folder, 4, kill) == -9
    assert starts(folder) == [0, 0, 3]
    assert run_in_process(folder, 4, None) == 0
    assert starts(folder)[-1] == 9  # two steps before the swap that had been made already
    assert_same_end(reference, folder)


@pytest.mark.full
@pytest.mark.parametrize("seed", [0, 1])
def test_twenty_kills_at_random_points(tmp_path, seed):
    epochs = 12
    reference = whole_run(tmp_path, epochs, seed)
    folder = tmp_path / "killed"
    folder.mkdir()
    draw = random.Random(seed)
    kinds = ["batch", "forward", "save", "commit", "validation"]
    kills = [Kill("forward", 1), *CHOSEN, Kill("swap", 1), Kill("swap", 2), Kill("swap", 2)]
    for kill in kills:
        assert run_in_process(folder, epochs, kill, seed) == -9
    count = len(kills)
    while count < 20:
        kind = draw.choice(kinds)
        kill = Kill(kind, draw.randint(1, 2 if kind == "validation" else 6))
        code = run_in_process(folder, epochs, kill, seed)
        assert code == -9, f"{kill} was not reached; {count} kills, from steps {starts(folder)}"
        count += 1
    assert run_in_process(folder, epochs, None, seed) == 0
    assert starts(folder)[-1] < epochs * STEPS_AN_EPOCH
    assert_same_end(reference, folder)
