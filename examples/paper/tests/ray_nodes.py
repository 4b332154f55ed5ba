"""A cluster of simulated nodes on this machine, and the processes that Ray starts for it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from child_processes import PATIENCE, run_command, wait_until

from gelu_paper.pools.child_variables import variables_set
from gelu_paper.pools.ray_session import import_ray

_STORE = 80 * 2**20
#: On a machine whose memory others use, Ray would end processes at random.
NO_MEMORY_MONITOR = ("RAY_memory_monitor_refresh_ms", "0")
_VARIABLES = {"RAY_worker_niceness": "0", "RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1"} | dict([
    NO_MEMORY_MONITOR
])


class Nodes:
    """A head without CPUs, which the driver joins, and nodes of one CPU that can be killed."""

    def __init__(self) -> None:
        self.ray = import_ray()
        from ray.cluster_utils import Cluster

        head = {"num_cpus": 0, "object_store_memory": _STORE, "include_dashboard": False}
        self.cluster = Cluster(initialize_head=True, head_node_args=head)

    @property
    def address(self) -> str:
        return self.cluster.address

    def add(self, **resources: float) -> Any:
        """Start a node; return it when it takes jobs."""
        # Tests see no GPU, and Ray starts no node that is said to have more than it sees.
        gpus = {"CUDA_VISIBLE_DEVICES": ",".join(map(str, range(int(resources.get("num_gpus", 0)))))}
        with variables_set(gpus):
            node = self.cluster.add_node(wait=False, object_store_memory=_STORE, **resources)
        self.cluster.wait_for_nodes(timeout=PATIENCE)
        return node

    def kill(self, node: Any) -> None:
        """End a node and all its processes at once, as a machine that loses its power."""
        self.cluster.remove_node(node, allow_graceful=False)

    def of_id(self, name: str) -> Any:
        return next(node for node in self.cluster.worker_nodes if node.node_id == name)


@contextmanager
def simulated(folder: str) -> Iterator[Nodes]:
    """A head for the time of a ``with`` block; nodes are added in it."""
    # Cluster writes the file that an address of "auto" is read from to Ray's own folder: here it is this one.
    with variables_set(_VARIABLES | {"RAY_TMPDIR": folder}):
        nodes = Nodes()
        try:
            yield nodes
        finally:
            nodes.ray.shutdown()
            nodes.cluster.shutdown()


def descendants(pid: int) -> dict[int, str]:
    """Return what a process started, with what that started, by number: the command lines."""
    listed = [line.split(None, 2) for line in run_command(["ps", "-wweo", "pid=,ppid=,args="]).stdout.splitlines()]
    found, above = {}, {pid}
    while above:
        children = {int(row[0]): row[2] for row in listed if int(row[1]) in above and int(row[0]) not in found}
        found |= children
        above = set(children)
    return {number: text for number, text in found.items() if not text.startswith("ps -wweo")}


def is_there(pid: int) -> bool:
    """Return whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_until_ended(processes: dict[int, str]) -> None:
    wait_until(lambda: not any(map(is_there, processes)), f"{processes} have ended")
