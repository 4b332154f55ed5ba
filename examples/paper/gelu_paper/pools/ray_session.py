"""`RaySession`: Ray started on this machine, or a cluster joined, and its nodes."""

import contextlib
import importlib
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from lit_gelu.errors import shown
from lit_gelu.extras import need
from gelu_paper.errors import ClusterError, PaperArgumentError
from gelu_paper.pools.child_variables import threads_limited, variables_set

# Ray's processes run 15 niceness levels below the driver's where nothing else is said, and starve beside other work.
# What was lost is said by the pool, once; Ray would print it between the lines of a report.
_VARIABLES = {
    "RAY_worker_niceness": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".",
}
_SECONDS_TO_ANSWER = 20.0
_OBJECT_STORE_BYTES = 80 * 2**20  # records of 30 to 200 kB pass through it
# The kernel's limit of a socket's path, and what Ray appends to its folder with a process number of seven digits.
_SOCKET_BYTES = 103 if sys.platform == "darwin" else 107
_APPENDED_BYTES = len("/session_2026-01-01_00-00-00_000000_4194304/sockets/plasma_store")


@dataclass(frozen=True)
class Node:
    """A machine of a cluster that is alive."""

    id: str
    address: str
    cpus: float
    gpus: float

    def slots(self, cpus: float, gpus: float) -> int:
        """Return how many jobs with such needs fit on it side by side; shares of a GPU lie on one GPU."""
        if gpus == 0:
            by_gpus = sys.maxsize
        elif gpus < 1:
            by_gpus = int(self.gpus) * int(1 / gpus)
        else:
            by_gpus = int(self.gpus / gpus)
        return min(int(self.cpus / cpus), by_gpus)


class RaySession:
    """Ray within a ``with`` block: started here, and ended with the block, or a cluster that goes on afterwards."""

    def __init__(self, address: str | None, *, cpus: int | None, threads: int, logs: Path | None) -> None:
        self._place = None if address in {None, "auto"} else _host_and_port(str(address))
        self.ray = import_ray()
        self._address = address
        self._cpus = cpus
        self._threads = threads
        self._logs = logs
        self._open = contextlib.ExitStack()

    def __enter__(self) -> Self:
        """Start Ray, or join."""
        if self.ray.is_initialized():
            raise ClusterError("This process uses Ray already. Call ray.shutdown() first.")
        if self._place is not None:
            self._look_for_it(*self._place)
        with contextlib.ExitStack() as stack:
            arguments = self._arguments(stack)
            stack.callback(self.ray.shutdown)  # before the link to its folder is taken away
            try:
                with variables_set(_VARIABLES | threads_limited(self._threads)):
                    self.ray.init(**arguments, log_to_driver=False, logging_level="ERROR")
            except (OSError, RuntimeError, ValueError) as error:  # ConnectionError is an OSError
                raise ClusterError(self._why_not(error)) from error
            self._open = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End what was started here, or leave the cluster."""
        self._open.close()

    @property
    def here(self) -> str:
        """Ray's name of the node that this process belongs to."""
        name: str = self.ray.get_runtime_context().get_node_id()
        return name

    def nodes(self) -> list[Node]:
        """Return the nodes that are alive."""
        return [
            Node(
                node["NodeID"],
                node["NodeManagerAddress"],
                node["Resources"].get("CPU", 0.0),
                node["Resources"].get("GPU", 0.0),
            )
            for node in self.ray.nodes()
            if node["Alive"]
        ]

    def on(self, node: str, *, soft: bool) -> Any:
        """Return the strategy that puts a task on a node: soft, anywhere else if that node is gone."""
        strategies: Any = importlib.import_module("ray.util.scheduling_strategies")
        return strategies.NodeAffinitySchedulingStrategy(node, soft=soft)

    def _arguments(self, stack: contextlib.ExitStack) -> dict[str, Any]:
        """Return what Ray is started or joined with."""
        if self._address is not None:
            return {"address": self._address}
        # Without an address Ray would join any cluster that it finds on this machine.
        arguments = {
            "address": "local",
            "num_cpus": self._cpus,
            "include_dashboard": False,
            "object_store_memory": _OBJECT_STORE_BYTES,
        }
        if self._logs is not None:
            arguments["_temp_dir"] = stack.enter_context(_short_path(_emptied(self._logs)))
        return arguments

    def _look_for_it(self, host: str, port: int) -> None:
        """Refuse an address where nobody answers: Ray would try again for minutes."""
        try:
            socket.create_connection((host, port), timeout=_SECONDS_TO_ANSWER).close()
        except OSError as error:
            raise ClusterError(self._why_not(error)) from error

    def _why_not(self, error: Exception) -> str:
        if self._address is None:
            return f"Ray did not start on this machine: {error}\nGive --engine processes, which needs no Ray."
        return (
            f"The Ray cluster {self._address!r} cannot be joined: {error}\nRun the command on one of its machines "
            "(ray status says whether it is), with the versions of Python and Ray that the cluster has."
        )


def _host_and_port(address: str) -> tuple[str, int]:
    """Read where a cluster's head is."""
    host, _, port = address.rpartition(":")
    if not host or "//" in host or not (port.isascii() and port.isdigit() and len(port) < 6):
        raise PaperArgumentError(
            f"--ray-address {shown(address)} given; accepted: auto, or HOST:PORT such as 10.0.0.1:6379, on a machine "
            "of the cluster (Ray Client's ray:// has no node to keep progress on). Leave it out to start Ray here."
        )
    return host.strip("[]"), int(port)


def import_ray() -> Any:
    """Import Ray, which is no dependency of this package."""
    remark = "Every machine of the cluster needs it; --engine processes does without."
    with variables_set(_VARIABLES):  # some are read here, others by the processes that it starts
        return need("ray", extra="ray", what="--engine ray", remark=remark)


def _emptied(folder: Path) -> Path:
    """Return a folder for logs without those of earlier calls, which would grow without an end."""
    folder = folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    for session in folder.glob("session_*"):
        if session.is_symlink():
            session.unlink(missing_ok=True)
        else:
            shutil.rmtree(session, ignore_errors=True)
    return folder


@contextlib.contextmanager
def _short_path(folder: Path) -> Iterator[str]:
    """Yield a path to a folder that sockets below it may have: its own, or that of a link among temporary files."""
    if len(bytes(folder)) + _APPENDED_BYTES <= _SOCKET_BYTES:
        yield str(folder)
        return
    with tempfile.TemporaryDirectory(prefix="lit-gelu-", ignore_cleanup_errors=True) as temporary:
        link = Path(temporary) / "ray"
        link.symlink_to(folder, target_is_directory=True)
        yield str(link)
