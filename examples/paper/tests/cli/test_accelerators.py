"""What ``--accelerator`` stands for, where torch sees a GPU and where it sees none."""

import sys

import pytest
import torch
from child_processes import run_python

from gelu_paper.cli.accelerators import ACCELERATORS, _may_have_gpu, accelerator_of
from gelu_paper.errors import PaperArgumentError


@pytest.fixture
def machine(monkeypatch):
    """Have torch see what is asked for."""

    def put(*, cuda=False, mps=False):
        monkeypatch.setattr("gelu_paper.cli.accelerators._may_have_gpu", lambda: True)
        monkeypatch.setattr("torch.cuda.is_available", lambda: cuda)
        monkeypatch.setattr("torch.backends.mps.is_available", lambda: mps)

    return put


@pytest.mark.parametrize(
    ("sees", "expected"),
    [
        ({}, {"auto": "cpu", "cpu": "cpu"}),
        ({"cuda": True}, {"auto": "cuda", "cpu": "cpu", "cuda": "cuda", "gpu": "cuda"}),
        ({"mps": True}, {"auto": "cpu", "cpu": "cpu", "gpu": "gpu", "mps": "mps"}),
    ],
)
def test_what_this_machine_has(machine, sees, expected):
    machine(**sees)
    for given in ACCELERATORS:
        if given in expected:
            assert accelerator_of(given, "processes") == expected[given]
        else:
            with pytest.raises(PaperArgumentError, match=f"--accelerator {given} given, but torch sees none here"):
                accelerator_of(given, "processes")


def test_the_nodes_of_ray_may_have_what_this_machine_has_not(machine):
    machine()
    assert [accelerator_of(given, "ray") for given in ACCELERATORS] == ["cpu", "cpu", "cuda", "gpu", "mps"]


def test_torch_sees_none_where_it_is_not_asked():
    assert _may_have_gpu() or not torch.cuda.is_available()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="what torch needs is known of Linux")
def test_torch_is_not_asked_where_it_could_see_none(monkeypatch):
    code = """
import ctypes, os, sys

def none(name):
    raise OSError(f"{name}: cannot open shared object file")

ctypes.CDLL, os.path.exists = none, lambda path: False
from gelu_paper.cli.accelerators import accelerator_of
print(accelerator_of("auto", "processes"), "torch" in sys.modules)
"""
    assert run_python(code).stdout == "cpu False\n"
    monkeypatch.setattr("os.path.exists", lambda path: path == "/dev/kfd")
    assert _may_have_gpu()
