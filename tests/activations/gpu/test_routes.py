"""Which code runs where, with stand-ins for CUDA tensors."""

import importlib.util
from types import SimpleNamespace

import pytest
import torch

from lit_gelu.activations.gpu import routes
from lit_gelu.activations.gpu.routes import THRESHOLD, route


class StandIn(torch.Tensor):
    """A tensor on the CPU that says of itself what a test wants."""

    is_cuda = True
    device = SimpleNamespace(index=0, type="cuda")
    count = THRESHOLD

    def numel(self):
        return self.count


def stand_in(dtype=torch.bfloat16, count=THRESHOLD):
    x = torch.zeros(2, dtype=dtype).as_subclass(StandIn)
    x.count = count
    return x


@pytest.fixture
def on_a_gpu(monkeypatch):
    """The machine has a device of compute capability 9.0, and a stand-in counts as a plain tensor."""
    monkeypatch.setattr(routes, "Tensor", StandIn)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    routes.device_lacks.cache_clear()
    yield
    routes.device_lacks.cache_clear()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_large_tensors_of_16_bits_are_for_kernels(on_a_gpu, dtype):
    assert route(stand_in(dtype)).code == "kernel"


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"dtype": torch.float32}, "torch.float32"),
        ({"dtype": torch.float64}, "torch.float64"),
        ({"count": THRESHOLD - 1}, "4,194,303 elements are less than 4,194,304"),
    ],
)
def test_others_are_for_torch(on_a_gpu, given, why):
    found = route(stand_in(**given))
    assert found.code == "torch"
    assert why in found.why


def test_the_cpu_is_for_torch():
    assert route(torch.zeros(THRESHOLD, dtype=torch.bfloat16)).code == "torch"


def test_what_stands_for_a_tensor_in_a_trace_is_for_torch():
    standing = torch.fx.Proxy(torch.fx.Graph().placeholder("x"))
    assert route(standing).code == "torch"
    assert not routes.is_candidate(standing)


def test_subclasses_of_tensors_are_for_torch(on_a_gpu, monkeypatch):
    monkeypatch.setattr(routes, "Tensor", torch.Tensor)
    assert route(stand_in()) == ("torch", "StandIn is no plain tensor")


def test_an_old_device_is_for_torch(on_a_gpu, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (7, 5))
    assert route(stand_in()) == ("torch", "compute capability 7.5 is below 8.0")


def test_without_triton_it_is_torch(on_a_gpu, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    found = route(stand_in())
    assert found.code == "torch"
    assert "Triton is not installed" in found.why


def test_a_device_of_another_maker_is_for_torch(on_a_gpu, monkeypatch):
    monkeypatch.setattr(torch.version, "hip", "7.0")
    assert "NVIDIA" in route(stand_in()).why


def test_after_a_failure_it_is_torch(on_a_gpu):
    try:
        routes.give_up(RuntimeError("no such instruction"))
        assert route(stand_in()) == ("torch", "a kernel failed before: RuntimeError: no such instruction")
    finally:
        routes._failure.clear()


def test_forward_mode_is_torchs(on_a_gpu):
    with torch.autograd.forward_ad.dual_level():
        assert route(stand_in()) == ("torch", "forward-mode derivatives are torch's own")


def test_a_compiler_gets_the_formula_of_16_bits(monkeypatch):
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert route(stand_in()).code == "formula"
    assert route(stand_in(count=3)).code == "formula"
    assert route(stand_in(torch.float32)).code == "torch"
    assert route(torch.zeros(3, dtype=torch.bfloat16)).code == "torch"
    monkeypatch.setattr(torch.compiler, "is_exporting", lambda: True)
    assert route(stand_in()).code == "torch"
