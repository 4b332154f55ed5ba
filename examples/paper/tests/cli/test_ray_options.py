"""``lit-gelu paper run --engine ray``: what is refused, what the pool is given, and runs that Ray makes."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest
from child_processes import run_python
from paper_runs import SHARING, InlinePool
from ray_nodes import NO_MEMORY_MONITOR

from lit_gelu.cli.main import main
from gelu_paper.jobs import Message, Restart
from gelu_paper.records.run_record import read_records


class Pool(InlinePool):
    """An `InlinePool` in place of Ray's, which loses its first job once."""

    given: ClassVar[dict] = {}
    workers = 5

    def __init__(self, options, **arguments) -> None:
        super().__init__(options.root)
        self.options = options
        type(self).given = {"options": options} | arguments
        self.is_lost = False

    def __enter__(self):
        return self

    def __exit__(self, *_) -> None: ...

    def wait(self, seconds):
        if not self.is_lost:
            self.is_lost = True
            restart: Message = Restart("The node of process 7 on 10.0.0.1 died, or was cut off.", 1, 2)
            yield self._jobs[0], restart
            return
        yield from super().wait(seconds)


@pytest.fixture(autouse=True)
def table(monkeypatch):
    """A small table in the place of the paper's."""
    row = replace(SHARING, seeds=1)
    monkeypatch.setattr("gelu_paper.planning.experiments_of", lambda preset: {row.name: row})


@pytest.fixture
def pool(monkeypatch):
    monkeypatch.setattr("gelu_paper.pools.ray_pool.RayPool", Pool)
    return Pool


def run_in(folder, *arguments):
    return main(["paper", "run", "--results", str(folder), *arguments])


def test_a_run_by_ray_says_what_was_lost(tmp_path, pool, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments = ["--engine", "ray", "--ray-address", "auto", "--checkpoints", "--data-root", "data"]
    assert run_in("results", *arguments, "--accelerator", "cpu") == 0
    assert len(read_records("results")) == 2
    said = capsys.readouterr().out
    assert "5 at a time on cpu by Ray; results in results" in said
    assert "LOST, begun again (1 of 2): The node of process 7 on 10.0.0.1 died" in said
    assert "0 not made; 1 times one was lost and begun again" in said
    # Other machines have other current folders.
    options = pool.given.pop("options")
    assert (options.root, options.checkpoints) == (str(tmp_path / "data"), str(tmp_path / "results" / "checkpoints"))
    assert pool.given == {
        "address": "auto",
        "jobs": None,  # as many as the cluster has room for
        "gpus": 0.0,
        "logs": tmp_path / "results" / "ray",
        "allow_other_versions": False,
    }


def test_what_the_pool_is_given_on_this_machine(tmp_path, pool, monkeypatch):
    monkeypatch.setattr("gelu_paper.cli.running.cores", lambda: 3)
    assert run_in(tmp_path, "--engine", "ray", "--accelerator", "cpu", "--allow-other-versions") == 0
    assert (pool.given["address"], pool.given["jobs"], pool.given["allow_other_versions"]) == (None, 3, True)
    run_in(tmp_path, "--engine", "ray", "--accelerator", "cpu", "--workers", "7")
    assert pool.given["jobs"] == 7
    monkeypatch.setattr("gelu_paper.cli.accelerators._may_have_gpu", lambda: True)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    run_in(tmp_path, "--engine", "ray")
    assert (pool.given["gpus"], pool.given["jobs"]) == (1.0, None)
    run_in(tmp_path, "--engine", "ray", "--gpu-share", ".25")
    assert pool.given["gpus"] == 0.25


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--ray-address", "auto"], "--ray-address is for Ray. Add --engine ray"),
        (["--gpu-share", "0"], "--gpu-share is for Ray. Add --engine ray"),
        (["--allow-other-versions"], "--allow-other-versions is for Ray"),
        (["--engine", "ray", "--devices", "0", "1"], "--devices 0 1 is for --engine processes"),
        (["--engine", "ray", "--gpu-share", ".5", "--accelerator", "cpu"], "--gpu-share is for GPUs"),
        (["--engine", "ray", "--gpu-share", "2", "--accelerator", "cuda"], "--gpu-share 2 given"),
        (["--engine", "spark"], "spark"),
    ],
)  # fmt: skip
def test_mistakes(tmp_path, capsys, arguments, message):
    assert run_in(tmp_path / "none", *arguments) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "none").exists()


def test_without_ray(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    assert run_in(tmp_path / "none", "--engine", "ray") == 2
    assert "Install it: pip install 'lit-gelu[ray]'" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()


@pytest.mark.ray
@pytest.mark.full
def test_ray_is_started_here(tmp_path, monkeypatch):
    """In a process of its own: one that has been in this cluster cannot have actors in another one any more."""
    pytest.importorskip("ray")
    monkeypatch.setenv(*NO_MEMORY_MONITOR)
    said = run_python(STARTED_HERE, str(Path(__file__).parents[2]), str(tmp_path)).stdout
    assert "2 at a time on cpu by Ray" in said
    assert {record.arm for record in read_records(tmp_path)} == {"relu"}
    assert len(list((tmp_path / "ray").glob("session_2*/logs"))) == 1


STARTED_HERE = """
import os, sys
sys.path.insert(0, sys.argv[1])
from dataclasses import replace
from paper_runs import SHARING
import gelu_paper.planning
from lit_gelu.cli.main import main
row = replace(SHARING, seeds=1)
gelu_paper.planning.experiments_of = lambda preset: {row.name: row}
before = dict(os.environ)
arguments = ["--engine", "ray", "--accelerator", "cpu", "--workers", "2"]
assert main(["paper", "run", "--results", sys.argv[2], *arguments]) == 0
for name in ("RAY_worker_niceness", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    assert os.environ.get(name) == before.get(name)
"""
