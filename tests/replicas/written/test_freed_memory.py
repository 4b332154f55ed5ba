"""Memory that steps of a group free, in a process of its own: what the system counts as new pages."""

import platform

import pytest

from tests.child_processes import run_python

STEPS = """
import resource, statistics, torch
from lit_gelu.replicas import ReplicaGroup
from lit_gelu.tasks import MNISTClassifier

runs, batch = 6, 128  # gradients of 4.8 MB, the largest of 2.4 MB, and the outputs of eight layers
group = ReplicaGroup.of(MNISTClassifier, [{"keep": 1.0}] * runs, list(range(runs)), executor="vmap")
inputs, labels = torch.rand(runs, batch, 784), torch.randint(10, (runs, batch))

pages = []
for _ in range(25):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    group.executor.step((inputs, labels))
    pages.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
print(statistics.median(pages[5:]))
"""


@pytest.mark.full
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have other rules")
def test_a_step_has_the_pages_of_the_one_before():
    assert float(run_python(STEPS).stdout.split()[-1]) < 50  # it is over a thousand otherwise
