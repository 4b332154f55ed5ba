"""What `RayPool` does while no node has room; Ray itself is not needed for it."""

from types import SimpleNamespace

import pytest

from gelu_paper.errors import ClusterError
from gelu_paper.jobs import Done, Preparation, RunOptions
from gelu_paper.pools import ray_pool
from gelu_paper.pools.ray_pool import RayPool
from gelu_paper.pools.ray_session import Node

PREPARATION = Preparation("data of digits", {"class_path": "lit_gelu.data.DigitsData"})


class Session:
    """Stands for a cluster, whose tasks are done when they are asked for."""

    def __init__(self, *_, **__):
        self.found, self.ordered = [], []
        board = SimpleNamespace(drain=SimpleNamespace(remote=lambda: "notes"))
        self.board = SimpleNamespace(options=lambda **_: SimpleNamespace(remote=lambda: board))
        self.ray = SimpleNamespace(
            remote=lambda **_: (
                lambda made: self.board if isinstance(made, type) else SimpleNamespace(options=self.task)
            ),
            wait=lambda references, timeout: (references, []),
            get=lambda reference, timeout=None: [] if reference == "notes" else Done(),
            cancel=lambda reference, force: None,
            exceptions=SimpleNamespace(
                RayError=OSError, RayActorError=OSError, RayTaskError=OSError, LocalRayletDiedError=OSError
            ),
        )

    here = "here"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def nodes(self):
        return self.found

    def on(self, node, *, soft):
        return node

    def task(self, name, scheduling_strategy):
        def remote(order, board):
            self.ordered.append((order.job, scheduling_strategy))
            return f"task {len(self.ordered)}"

        return SimpleNamespace(remote=remote)


@pytest.fixture
def pool(monkeypatch):
    """A pool whose nodes went away when it had begun."""
    monkeypatch.setattr(ray_pool, "RaySession", Session)
    pool = RayPool(RunOptions())
    pool._session.found = [Node("first", "10.0.0.1", 8.0, 0.0)]
    with pool:
        pool._session.found, pool._seen = [], (-1.0, [])
        yield pool


def test_a_preparation_without_a_node_does_not_wait_for_ever(pool, monkeypatch):
    pool.start(PREPARATION)
    assert pool.running == 1
    assert not pool.has_room
    assert list(pool.wait(0.0)) == []
    monkeypatch.setattr(ray_pool, "_SECONDS_WITHOUT_NODES", -1.0)
    with pytest.raises(ClusterError, match=r"No node of the cluster has the .* CPUs .*none"):
        list(pool.wait(0.0))


def test_a_preparation_is_ordered_when_a_node_has_room_again(pool):
    pool.start(PREPARATION)
    assert list(pool.wait(0.0)) == []
    assert pool._session.ordered == []
    pool._session.found = [Node("small", "10.0.0.2", 0.0, 0.0), Node("second", "10.0.0.3", 8.0, 0.0)]
    assert list(pool.wait(0.0)) == [(PREPARATION, Done())]
    assert pool._session.ordered == [(PREPARATION, "second")]
    assert pool.running == 0
