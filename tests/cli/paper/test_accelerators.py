"""What ``--accelerator`` stands for, where torch sees a GPU and where it sees none."""

import pytest

from lit_gelu.cli.paper.accelerators import ACCELERATORS, accelerator_of
from lit_gelu.paper.errors import PaperArgumentError


@pytest.fixture
def machine(monkeypatch):
    """Have torch see what is asked for."""

    def put(*, cuda=False, mps=False):
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
