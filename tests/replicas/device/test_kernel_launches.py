"""Which devices the kernels of layers are for; what they compute is in `test_net_kernels`."""

from types import SimpleNamespace

import pytest
import torch

from lit_gelu.replicas.device import kernel_launches
from lit_gelu.replicas.device.kernel_launches import computes


@pytest.mark.parametrize(("capability", "is_computed"), [((7, 5), False), ((8, 0), True), ((9, 0), True)])
def test_tensor_cores_must_have_tf32(monkeypatch, capability, is_computed):
    monkeypatch.setattr(kernel_launches, "has_kernel", lambda _: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    stack = SimpleNamespace(is_cuda=True, dtype=torch.float32, device="cuda:0")
    assert computes(stack) == is_computed


def test_neither_float64_nor_a_cpu_has_kernels(monkeypatch):
    assert not computes(torch.zeros(2))
    monkeypatch.setattr(kernel_launches, "has_kernel", lambda _: True)
    assert not computes(torch.zeros(2, dtype=torch.float64))
