"""Lets tensors of any size take the way of large ones on the CPU, without a C++ compiler."""

import pytest

from lit_gelu import kernels


@pytest.fixture
def compiled(monkeypatch):
    """Have fused activations compute tensors of any size by compiled code."""
    monkeypatch.setattr(kernels, "THRESHOLDS", {"cpu": 0})
    monkeypatch.setattr(kernels, "BACKEND", "aot_eager")
    monkeypatch.setattr(kernels, "_failures", {})
    _forget()
    yield
    _forget()


def _forget():
    kernels._passes.cache_clear()
    kernels._compiled_forward.cache_clear()
