"""``benchmarks/gpu.py``: what a record holds, budgets, mistakes in the arguments; small, all stages run on a CPU."""

import importlib
import json
import os
import sys
import time
from pathlib import Path

import pytest
from child_processes import run_command

FOLDER = Path(__file__).parents[2] / "benchmarks"
FACTS = {"machine": {"device": "a GPU"}, "versions": {"torch": "2.11.0"}, "commit": "abc", "sources": "0123"}
STAGES = ["doctor", "tests", "parity", "export", "activations", "cifar10", "wrn"]


@pytest.fixture
def module(monkeypatch):
    """Imports a file of the benchmarks."""
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module


@pytest.fixture
def begun(module, tmp_path):
    """Begins a record, as a stage does."""
    room = module("_gpu_record")

    def begin(seconds=100.0, facts=FACTS, resume=False):
        settings = room.Settings(
            "export", "cuda", False, seconds, time.time() + seconds, tmp_path, resume=resume, commit="abc"
        )
        return room.Record(tmp_path / "gpu-export.json", settings, facts)

    return begin


def on_disk(tmp_path):
    return json.loads((tmp_path / "gpu-export.json").read_text())


def raise_error():
    raise ValueError("no such kernel")


def test_without_time_nothing_is_begun_and_the_record_is_not_complete(begun, tmp_path):
    record = begun(seconds=-1.0)
    assert record.figure("block", raise_error) is None
    record.end()
    content = on_disk(tmp_path)
    assert content["left_out"] == [{"what": "block", "why": "no time was left: call again with --resume"}]
    assert content["failed"] == []
    assert not content["complete"]


def test_what_fails_is_noted_and_a_later_call_keeps_figures_and_tries_it_again(begun, tmp_path):
    record = begun()
    assert record.figure("mnist", raise_error) is None
    assert record.figure("block", lambda: 1) == 1
    record.end()
    (failure,) = on_disk(tmp_path)["failed"]
    assert failure["what"] == "mnist"
    assert failure["error"].startswith("ValueError: no such kernel\n")
    later = begun(resume=True)
    assert later.figure("block", raise_error) == 1
    assert later.figure("mnist", lambda: 2) == 2
    later.end()
    content = on_disk(tmp_path)
    assert content["figures"] == {"block": 1, "mnist": 2}
    assert content["failed"] == []
    assert content["complete"]
    assert len(content["calls"]) == 2


@pytest.mark.full
def test_every_stage_runs_to_its_end_on_a_cpu(tmp_path):
    """In a folder of its own, by an interpreter that sees neither that folder nor the script's."""
    command = [sys.executable, "-P", str(FOLDER / "gpu.py"), "--device", "cpu", "--quick", "--seconds", "3600"]
    environment = {key: value for key, value in os.environ.items() if key != "LIT_GELU_DATA"} | {"OMP_NUM_THREADS": "1"}
    for stage in STAGES:  # one at a time: together they may take longer than a child process is waited for
        run_command([*command, "--stage", stage, "--json", "out", "--keep", "keep"], cwd=tmp_path, env=environment)
    records = {stage: json.loads((tmp_path / "out" / f"gpu-{stage}.json").read_text()) for stage in STAGES}
    for stage, content in records.items():
        assert (content["stage"], content["device"], content["quick"]) == (stage, "cpu", True)
        assert "nothing is to be read from its times" in content["note"]
        assert (content["error"], content["failed"], content["complete"]) == (None, [], True)
        assert content["figures"]
    assert all(figure["passed"] for figure in records["parity"]["figures"].values())
    assert [row["variant"] for row in records["export"]["figures"]["mnist, tanh, batch 4"]["rows"]] == [
        "torch eager",
        "torch channels_last",
        "onnxruntime strict",
        "onnxruntime fast",
    ]
    for stage in ("cifar10", "wrn"):
        assert "random images" in records[stage]["data"]
        assert set(records[stage]["figures"]["milliseconds a step"]["milliseconds"]) >= {
            "nothing",
            "monitor, every step",
        }
    resumed = [*command, "--stage", "cifar10", "--resume", "--json", "out", "--keep", "keep"]
    run_command(resumed, cwd=tmp_path, env=environment)
    content = json.loads((tmp_path / "out/gpu-cifar10.json").read_text())
    assert content["figures"]["epochs"]["went on from a checkpoint"]
    assert [row["epoch"] for row in content["figures"]["epochs"]["curve"]] == [0, 1]
