"""The loader of step numbers: in what chunks an epoch goes by."""

import pytest

from lit_gelu.replicas.data.macro_steps import MacroSteps


def chunks(loader, start=0):
    loader.start = start
    return [batch.tolist() for batch in loader]


@pytest.mark.parametrize("ends", [(), (10,), (0, 10, 12)])
def test_an_epoch_in_chunks_of_one_size(ends):
    assert chunks(MacroSteps(10, 4, ends)) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_chunks_end_where_they_have_to():
    loader = MacroSteps(10, 4, {5, 6})
    assert chunks(loader) == [[0, 1, 2, 3], [4], [5], [6, 7, 8, 9]]
    assert len(loader) == 4
    assert loader.start == 0


@pytest.mark.parametrize("start", range(11))
def test_what_is_left_of_an_epoch(start):
    loader = MacroSteps(10, 4, {5, 6})
    left = chunks(loader, start)
    assert [step for batch in left for step in batch] == list(range(start, 10))
    assert loader.batches_from(start) == len(left)
    assert all(len(batch) <= 4 and not {4, 5} & set(batch[:-1]) for batch in left)


@pytest.mark.parametrize("steps", [1, 7, 10, 60])
@pytest.mark.parametrize("size", [1, 4, 100])
@pytest.mark.parametrize("intervals", [(3,), (5, 4), (100,), (1,), (10,)])
def test_batches_end_at_multiples_of_the_whole_runs_steps(steps, size, intervals):
    loader = MacroSteps(steps, size, intervals=intervals)
    for epoch in range(7):
        loader.before = epoch * steps
        made = chunks(loader)
        assert [step for batch in made for step in batch] == list(range(steps))
        assert len(made) == len(loader)  # which Lightning has asked for before
        ends = {loader.before + batch[-1] + 1 for batch in made}
        multiples = {
            n for n in range(loader.before + 1, loader.before + steps + 1) if any(n % i == 0 for i in intervals)
        }
        assert multiples <= ends
        assert max(map(len, made)) <= size
        for start in range(1, steps + 1):
            assert loader.batches_from(start) <= len(loader)


def test_batches_are_no_smaller_than_they_have_to_be():
    loader = MacroSteps(1000, 85, intervals=[100])
    assert len(loader) <= 12 + 10
    assert len(MacroSteps(1000, 85)) == 12
