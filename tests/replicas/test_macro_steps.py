"""The loader of step numbers: in what chunks an epoch goes by."""

import pytest

from lit_gelu.replicas.macro_steps import MacroSteps


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
