"""A Ray cluster of simulated nodes that the tests of a process share: to start it takes half a minute."""

import tempfile

import pytest


@pytest.fixture(scope="session")
def ray_cluster():
    """A head and two nodes of one CPU; skipped where Ray is not installed."""
    pytest.importorskip("ray")
    from ray_nodes import simulated

    with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as folder, simulated(folder) as nodes:
        nodes.add(num_cpus=1)
        nodes.add(num_cpus=1)
        yield nodes
