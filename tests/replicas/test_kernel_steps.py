"""Which replicas' kernels run side by side; the kernels themselves are in `test_net_kernels`."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lit_gelu.replicas.kernel_steps import PASSES, stretches

FIGURE_2 = [range(45), range(45, 68), range(68, 90)]


def test_the_papers_groups():
    assert stretches(90, range(45, 90)) == FIGURE_2
    assert stretches(45, range(45)) == [range(23), range(23, 45)]
    assert stretches(3, []) == [range(3)]


@given(st.integers(1, 300), st.data())
def test_every_replica_is_in_one_stretch_and_all_have_about_as_many_passes(replicas, data):
    free = range(*sorted(data.draw(st.tuples(st.integers(0, replicas), st.integers(0, replicas)))))
    found = stretches(replicas, free)
    assert [replica for own in found for replica in own] == list(range(replicas))
    passes = [len(own) + len(set(own) & set(free)) for own in found]
    assert len(found) == max(1, round(sum(passes) / PASSES))
    assert (
        max(passes) - min(passes) <= 2 + sum(passes) / len(found) / 10 or len(found) == 1 or min(passes) > PASSES // 2
    )


@pytest.mark.parametrize("replicas", [1, 2])
def test_few_replicas_are_one_stretch(replicas):
    assert stretches(replicas, range(replicas)) == [range(replicas)]
