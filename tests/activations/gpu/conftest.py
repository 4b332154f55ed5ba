"""What tests of generated kernels stand on: the CPU asked as if it were a GPU, and a compiler that writes no code."""

import pytest
import torch

from lit_gelu.activations.gpu import autograd, generated, routes


@pytest.fixture
def without_code(monkeypatch):
    """Compile without writing code, each test by itself."""
    monkeypatch.setattr(generated, "BACKEND", "aot_eager")
    for memory in ("_refused", "_traces", "_runs", "_codes"):
        monkeypatch.setattr(generated, memory, {})


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    """Ask of tensors all that is asked on a GPU but the device and the size."""

    def asked(x):
        why = routes._transformed(x)
        return routes.Route("torch" if why else "kernel", why)

    monkeypatch.setattr(autograd, "route", asked)
    monkeypatch.setattr(routes, "is_candidate", lambda _: True)


@pytest.fixture
def compilations(monkeypatch):
    """What was given to the compiler: how many arguments each graph has."""
    seen = []
    compiler = torch.compile

    def noted(function, **options):
        seen.append(function.__self__.graph.find_nodes(op="placeholder"))
        return compiler(function, **options)

    monkeypatch.setattr(torch, "compile", noted)
    return seen
