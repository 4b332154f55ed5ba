"""Runs by Ray: equal to those of processes, and complete when processes, nodes and the driver die."""

import os
import re
import signal
import subprocess
import sys
from collections import Counter
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from child_processes import end_of, run_python, started, wait_until
from paper_runs import DIGITS, Log, run, without_times

from gelu_paper.errors import ClusterError, PaperArgumentError
from gelu_paper.grid_runner import Runner
from gelu_paper.jobs import CellGroup, Failure, Preparation, Progress, Restart, RunOptions
from gelu_paper.protocol.cells import expand
from gelu_paper.records.run_record import read_records
from gelu_paper.records.run_store import RecordStore
from gelu_paper.training.unfinished_groups import checkpoint_file

pytest.importorskip("ray")

from ray_nodes import NO_MEMORY_MONITOR, descendants, wait_until_ended

from gelu_paper.pools.ray_pool import RayPool

pytestmark = [
    pytest.mark.ray,
    pytest.mark.full,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks for processes as Linux lists them"),
]
SCRIPT = Path(__file__).parents[1] / "digits_grid.py"
DATA = {"class_path": "lit_gelu.data.DigitsData", "init_args": {}}
LONG = expand(replace(DIGITS, epochs=2000, evaluations=1), "quick")[0]


@pytest.fixture(autouse=True)
def memory_of_others(monkeypatch):
    monkeypatch.setenv(*NO_MEMORY_MONITOR)


@pytest.fixture(scope="module")
def wanted():
    sys.path.insert(0, str(SCRIPT.parent))
    try:
        from digits_grid import WANTED
    finally:
        sys.path.remove(str(SCRIPT.parent))
    return WANTED


@pytest.fixture(scope="module")
def made_here(wanted, tmp_path_factory):
    """The records of the grid, made in this process one after the other."""
    _, records = run(tmp_path_factory.mktemp("here"), wanted)
    assert len(records) == 12
    return without_times(records)


def until(pool, kind, say=lambda job, message: None):
    """Return the first message of a kind."""
    found = []

    def look():
        for job, message in pool.wait(1.0):
            say(job, message)
            if isinstance(message, kind):
                found.append(message)
        return found

    wait_until(look, f"there is a {kind}")
    return found[0]


class Killer(Log):
    """A reporter that kills the first process that is heard of, and then a node in the midst of a run."""

    def __init__(self, pool, nodes) -> None:
        super().__init__()
        self.pool, self.nodes = pool, nodes
        self.reasons: list[str] = []
        self.killed: set[str] = set()

    def progressed(self, job, epoch) -> None:
        found = next(((reference, task) for reference, task in self.pool._tasks.items() if task.job is job), None)
        if found is None or found[1].place is None or self.killed == {"process", "node"}:
            return
        node, process = found[1].place
        os.kill(process, signal.SIGSTOP)
        if self.nodes.ray.wait([found[0]], timeout=1.0)[0]:
            os.kill(process, signal.SIGCONT)  # the run has ended meanwhile
        elif not self.killed:
            self.killed.add("process")
            os.kill(process, signal.SIGKILL)
        else:
            self.killed.add("node")
            self.nodes.kill(self.nodes.of_id(node))
            os.kill(process, signal.SIGKILL)

    def restarted(self, job, restart) -> None:
        self.reasons.append(restart.reason)


def test_a_process_and_a_node_are_killed_and_every_run_is_recorded_once(tmp_path, ray_cluster, wanted, made_here):
    with RecordStore(tmp_path) as store, RayPool(RunOptions(), address=ray_cluster.address) as pool:
        log = Killer(pool, ray_cluster)
        try:
            tally = Runner(wanted, store, pool, log).run()
        finally:
            if "node" in log.killed:
                ray_cluster.add(num_cpus=1)
    assert tally.failures == []
    assert tally.restarts == len(log.reasons) >= 2, log.reasons
    assert re.match(r"The process \d+ on [\d.]+ died", log.reasons[0])
    assert any(re.match(r"The node of process \d+ on .* died", reason) for reason in log.reasons)
    keys = Counter(record.key for record in read_records(tmp_path))
    assert len(keys) == 12
    assert set(keys.values()) == {1}
    assert without_times({record.key: record for record in read_records(tmp_path)}) == made_here


def grid(folder, *arguments, **options):
    """Start the script on Ray that it starts itself; with ``pause``, it waits for a line after its first record."""
    command = [sys.executable, "-W", "ignore", str(SCRIPT), str(folder), "ray", *arguments]
    return started(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, **options)


def recorded(lines):
    return [line.strip().removeprefix("recorded ") for line in lines if line.startswith("recorded ")]


def processes_in_the_midst(process):
    """Return what Ray has started when the script waits."""
    assert any(line.startswith("recorded ") for line in process.stdout)
    found = descendants(process.pid)
    assert any("gcs_server" in text for text in found.values())
    assert any(re.match("ray::(IDLE|digits|sharing)", text) for text in found.values())  # a worker
    return found


def test_the_driver_is_killed_and_the_same_command_makes_the_rest(tmp_path, made_here):
    folder = tmp_path / ("a deep folder " * 8)
    with grid(folder, "pause") as process:
        processes = processes_in_the_midst(process)
        process.kill()
        end_of(process)
    before = {record.key for record in read_records(folder)}
    assert 1 <= len(before) < 12
    wait_until_ended(processes)

    with grid(folder) as process:
        said, _ = end_of(process)
    assert process.returncode == 0
    assert not before & set(recorded(said.splitlines()))
    assert len(recorded(said.splitlines())) == 12 - len(before)
    assert without_times({record.key: record for record in read_records(folder)}) == made_here
    assert len(list((folder / "ray").glob("session_2*"))) == 1  # the logs of the last call


def test_ctrl_c_in_a_terminal_ends_all_processes(tmp_path):
    with grid(tmp_path, "pause", start_new_session=True, stderr=subprocess.PIPE) as process:
        processes = processes_in_the_midst(process)
        process.stdin.write("\n")
        process.stdin.flush()
        os.killpg(process.pid, signal.SIGINT)
        _, errors = end_of(process)
    assert errors.count("KeyboardInterrupt") == 1  # this script's own; no worker adds a trace
    assert errors.count("Traceback") == 1
    wait_until_ended(processes)
    assert 1 <= len(read_records(tmp_path)) < 12


# In a process of its own: one that has been in a cluster of its own cannot have actors in another one any more.
SHORT_OF_MEMORY = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from dataclasses import replace
from paper_runs import DIGITS
from gelu_paper.protocol.cells import expand
from gelu_paper.jobs import RunOptions
from gelu_paper.pools.ray_pool import RayPool
with RayPool(RunOptions(), jobs=1, retries=1, logs=Path(sys.argv[2])) as pool:
    pool.start(expand(replace(DIGITS, epochs=2000, evaluations=1), "quick")[0])
    while pool.running:
        for _, message in pool.wait(1.0):
            print(message)
"""


def test_a_job_that_takes_too_much_memory_is_begun_again_and_given_up(tmp_path, monkeypatch):
    """Ray ends the last task of a node whose memory is used to a share: here any machine's is."""
    monkeypatch.delenv(NO_MEMORY_MONITOR[0])
    monkeypatch.setenv("RAY_memory_usage_threshold", "0.001")
    said = run_python(SHORT_OF_MEMORY, str(Path(__file__).parents[2]), str(tmp_path)).stdout
    again, failure = [line for line in said.splitlines() if not line.startswith("Progress")]
    assert again.startswith("Restart(reason='Ray ended the process")
    assert "because memory was short there: give fewer --workers" in again
    assert again.endswith("attempt=1, attempts=1)")
    assert failure.startswith("Failure(kind='lost'")
    assert "It was begun 2 times." in failure


def test_a_group_that_was_lost_goes_on_from_its_checkpoint(tmp_path, ray_cluster):
    cells = expand(replace(DIGITS, epochs=2000, evaluations=1, seeds=1), "quick")
    group = CellGroup(tuple(cells[:2]))
    checkpoint = checkpoint_file(tmp_path, group)  # and not a temporary file, which has its suffix
    with RayPool(RunOptions(groups=str(tmp_path)), address=ray_cluster.address, retries=1) as pool:
        pool.start(group)
        first = until(pool, Progress).epoch
        wait_until(lambda: list(pool.wait(1.0)) and checkpoint.exists(), "there is a checkpoint")
        ((_, process),) = [task.place for task in pool._tasks.values()]
        os.kill(process, signal.SIGKILL)
        assert until(pool, Restart).attempt == 1
        assert until(pool, Progress).epoch > first + 1


def test_other_versions_on_a_node(ray_cluster, monkeypatch):
    from gelu_paper.pools import ray_pool

    there = ray_pool.versions()
    monkeypatch.setattr(ray_pool, "versions", lambda: there | {"torch": "1.0"})
    with RayPool(RunOptions(), address=ray_cluster.address) as pool:
        pool.start(Preparation("digits", DATA))
        said = re.escape(f" has torch {there['torch']} instead of 1.0. Install")
        with pytest.raises(ClusterError, match=rf"^[\d.]+{said}.*--allow-other-versions"):
            until(pool, Failure)
    with RayPool(RunOptions(), address=ray_cluster.address, allow_other_versions=True) as pool:
        pool.start(LONG)
        until(pool, Progress)


def test_quarters_of_a_gpu(ray_cluster):
    """The GPU is pretended: Ray hands out what a node is said to have."""
    with (
        pytest.raises(ClusterError, match=r"No node of the cluster has the 1 CPUs and 1 GPUs.*--gpu-share"),
        RayPool(RunOptions(), address=ray_cluster.address, gpus=1.0),
    ):
        pass
    with ExitStack() as stack:
        node = ray_cluster.add(num_cpus=8, num_gpus=1)
        stack.callback(ray_cluster.kill, node)
        with RayPool(RunOptions(), address=ray_cluster.address, gpus=0.25) as pool:
            assert pool.workers == 4
            pool.start(LONG)
            until(pool, Progress)
            assert [task.place[0] for task in pool._tasks.values()] == [node.node_id]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"jobs": 0}, "jobs=0"),
        ({"cpus": 0}, "cpus=0"),
        ({"gpus": -1.0}, "gpus=-1.0"),
        ({"retries": -1}, "retries=-1"),
        ({"options": RunOptions(accelerator="cuda")}, "all runs would be on the first GPU"),
    ],
)
def test_arguments_out_of_range(arguments, message):
    with pytest.raises(PaperArgumentError, match=message):
        RayPool(**{"options": RunOptions()} | arguments)
