"""Processes that are forked from a server: with its libraries, and nothing else of it."""

import json
import os
import signal
import subprocess
import sys

import pytest
from child_processes import command_line, end_of, run_command, run_python, started, wait_until

from lit_gelu.paper.pools.fork_server import fork_server

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="there is no such server elsewhere")

SEEN = """
import os, sys
from lit_gelu.paper.pools.fork_server import fork_server

def look(connection):
    import gc
    import torch
    import lit_gelu.paper.pools.preloaded
    connection.send({
        "parent": os.getppid(),
        "loaded": sorted({name.partition(".")[0] for name in sys.modules}),
        "threads": len(os.listdir("/proc/self/task")),
        "torch threads": torch.get_num_threads(),
        "collects": gc.isenabled(),
        "cuda": torch.cuda.is_initialized(),
    })

if __name__ == "__main__":
    import json
    before = dict(os.environ)
    context = fork_server(1)
    assert fork_server(1) is not None and dict(os.environ) == before
    pipes = [context.Pipe() for _ in range(2)]
    processes = [context.Process(target=look, args=(theirs,)) for _, theirs in pipes]
    for process in processes:
        process.start()
    print(json.dumps([ours.recv() for ours, _ in pipes]))
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]
"""


def test_two_processes_have_one_server_with_the_libraries_and_no_thread_of_it(tmp_path):
    (tmp_path / "numpy.py").write_text("raise SystemExit('a file of the current folder')")
    (tmp_path / "script.py").write_text(SEEN)
    done = run_command([sys.executable, "-P", "script.py"], cwd=tmp_path)
    assert done.stderr == ""
    one, other = json.loads(done.stdout)
    assert one == other
    assert {"lightning", "torch", "lit_gelu"} <= set(one["loaded"])
    assert (one["threads"], one["torch threads"]) == (1, 1)
    assert one["collects"]
    assert not one["cuda"]


def test_a_process_has_the_variables_of_the_one_that_asked_for_it(tmp_path):
    """And not those that the server had when it began."""
    code = """
import os, sys
from multiprocessing.connection import Connection
from lit_gelu.paper.jobs import Failure, Preparation, RunOptions
from lit_gelu.paper.pools.fork_server import fork_server
from lit_gelu.paper.pools.worker_pool import WorkerPool

server = fork_server(1)
os.environ["LIT_GELU_DATA"] = sys.argv[1]
with WorkerPool(1, RunOptions(), server) as pool:
    pool.start(Preparation("MNIST", {"class_path": "lit_gelu.data.MNISTData", "init_args": {}}))
    heard = []
    while pool.running:
        heard += pool.wait(1.0)
print([message.message for _, message in heard])
"""
    done = run_python(code, str(tmp_path / "here"), env=os.environ | {"LIT_GELU_DATA": "elsewhere"}, cwd=tmp_path)
    assert str(tmp_path / "here") in done.stdout
    assert "elsewhere" not in done.stdout


def paper_run(folder, *arguments):
    words = ["paper", "run", "--only", "mnist", "--data-root", str(folder), "--results", str(folder), *arguments]
    return command_line(*words)


def test_ctrl_c_before_it_can_fork_leaves_no_trace_and_no_process(tmp_path):
    with started(paper_run(tmp_path), start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as run:
        wait_until(lambda: "forkserver" in of_session(run.pid), "there is a server")
        os.killpg(run.pid, signal.SIGINT)
        errors = end_of(run)[1]
    assert run.returncode == 128 + signal.SIGINT
    assert "Traceback" not in errors
    wait_until(lambda: not of_session(run.pid), "all processes have ended")


def test_a_mistake_leaves_no_process(tmp_path):
    with started(paper_run(tmp_path, "--arms", "nothing"), start_new_session=True, stderr=subprocess.PIPE) as run:
        assert "nothing" in end_of(run)[1]
    assert run.returncode == 2
    wait_until(lambda: not of_session(run.pid), "all processes have ended")


def of_session(session: int) -> str:
    return run_command(["pgrep", "-a", "-s", str(session)], check=False).stdout


def test_there_is_none_where_libraries_begin_threads(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    assert fork_server(1) is None


def test_there_is_none_where_other_users_could_have_it_run_code(monkeypatch):
    monkeypatch.setattr(sys, "version_info", (3, 11, 0))
    assert fork_server(1) is None


def test_there_is_none_where_a_socket_has_no_place(tmp_path):
    code = "from lit_gelu.paper.pools.fork_server import fork_server; print(fork_server(1))"
    folder = tmp_path / ("long" * 40)
    folder.mkdir()
    assert run_python(code, env=os.environ | {"TMPDIR": str(folder)}).stdout == "None\n"


def test_a_server_that_was_killed_is_replaced():
    code = """
import os, signal
from multiprocessing import forkserver
from lit_gelu.paper.jobs import Preparation, RunOptions
from lit_gelu.paper.pools.fork_server import fork_server
from lit_gelu.paper.pools.worker_pool import WorkerPool

def heard():
    said = []
    while pool.running:
        said += [type(message).__name__ for _, message in pool.wait(1.0)]
    return said

digits = Preparation("digits", {"class_path": "lit_gelu.data.DigitsData", "init_args": {}})
with WorkerPool(2, RunOptions(), fork_server(1)) as pool:
    pool.start(digits)
    first = heard()
    os.kill(forkserver._forkserver._forkserver_pid, signal.SIGKILL)
    pool.start(digits)
    pool.start(digits)
    print(first, heard(), len({os.getpid(), *(worker.process.pid for worker in pool._processes)}))
"""
    assert run_python(code).stdout == "['Done'] ['Done', 'Done'] 3\n"
