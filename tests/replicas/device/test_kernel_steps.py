"""Which replicas' kernels run side by side; the kernels themselves are in `test_net_kernels`."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lit_gelu.replicas.device.kernel_steps import stretches, usual_stretches

FIGURE_2 = [range(45), range(45, 68), range(68, 90)]


def test_the_papers_groups():
    assert stretches(90, range(45, 90), 3) == FIGURE_2
    assert stretches(45, range(45), 2) == [range(23), range(23, 45)]
    assert stretches(3, [], 1) == [range(3)]


@pytest.mark.parametrize(("passes", "count"), [(135, 6), (90, 6), (45, 3), (40, 2), (3, 1), (450, 6)])
def test_small_groups_are_cut_into_fewer_stretches(passes, count):
    assert usual_stretches(passes) == count


@given(st.integers(1, 300), st.integers(1, 8), st.data())
def test_every_replica_is_in_one_stretch_and_all_have_about_as_many_passes(replicas, count, data):
    free = range(*sorted(data.draw(st.tuples(st.integers(0, replicas), st.integers(0, replicas)))))
    found = stretches(replicas, free, count)
    assert [replica for own in found for replica in own] == list(range(replicas))
    passes = [len(own) + len(set(own) & set(free)) for own in found]
    assert len(found) <= count
    assert len(found) == count or sum(passes) < 2 * count or replicas < 2 * count
    assert max(abs(own - sum(passes) / count) for own in passes) <= 2 or len(found) < count


@pytest.mark.parametrize("replicas", [1, 2])
def test_there_are_no_more_stretches_than_replicas(replicas):
    assert stretches(replicas, range(replicas), 4) == [range(n, n + 1) for n in range(replicas)]
