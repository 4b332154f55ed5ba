"""Modules whose ``forward`` overwrites its input: the file, its proof and its bench see the numbers that were given."""

import pytest
import torch
from torch import nn

from lit_gelu.export import bench, check_parity, export_onnx


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(4, 3), nn.GELU())

    def forward(self, x):
        return self.net(x)


class Clamps(Plain):
    def forward(self, x):
        return self.net(x.clamp_(0, 1))


@pytest.fixture
def sample():
    return 2 * torch.randn(5, 4, generator=torch.Generator().manual_seed(1))


def test_it_is_exported_and_proved_and_the_sample_stays(sample, tmp_path):
    given, net = sample.clone(), Clamps().eval()
    export_onnx(net, tmp_path / "net.onnx", given)
    assert check_parity(net, tmp_path / "net.onnx", input_sample=given).passed
    (row, *_) = bench(tmp_path / "net.onnx", net, batch_sizes=(4,), seconds=0.01, compiled=False).rows
    assert row.error < 1e-5
    assert torch.equal(given, sample)


def test_the_file_of_another_module_does_not_pass(sample, tmp_path):
    export_onnx(Plain().eval(), tmp_path / "plain.onnx", sample)
    assert not check_parity(Clamps().eval(), tmp_path / "plain.onnx", input_sample=sample, strict=False).passed
