"""`check_parity`: what it compares on, what it refuses, and what it leaves alone."""

import copy

import export_zoo
import onnx
import pytest
import torch
from export_cases import gelu_net
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from lit_gelu.export import ModelInputError, ParityError, check_parity, export_onnx

SAMPLE = torch.zeros(2, 6)


@pytest.fixture(scope="module")
def exported():
    return gelu_net(), export_zoo.exported("gelu")[1]


@pytest.mark.parametrize("form", ["none", "tanh", "sigmoid"])
def test_the_gate_is_the_files_own_form_and_the_gap_is_reported(tmp_path, form):
    net, path = gelu_net(), tmp_path / "net.onnx"
    export_onnx(net, path, SAMPLE, approximate=form)
    report = check_parity(net, path)
    assert report.passed
    assert report.approximate == form
    gating = [row for row in report.rows if row.gating and not row.extreme]
    assert max(row.error for row in gating) < 5e-6
    gaps = [row for row in report.rows if row.comparison.startswith("approximation gap")]
    assert gaps
    assert not any(row.gating for row in gaps)
    # sup |gelu - form| is 0, 4.7e-4 and 2.0e-2; the net passes a part of it on.
    low, high = {"none": (0, 1e-6), "tanh": (1e-6, 1e-3), "sigmoid": (1e-3, 4e-2)}[form]
    assert low <= max(row.max_abs_error for row in gaps) <= high


def test_the_module_is_left_alone(exported):
    net, path = exported
    state, before = torch.get_rng_state(), copy.deepcopy(net.state_dict())
    loader = DataLoader(TensorDataset(torch.randn(8, 6)), batch_size=4, shuffle=True)
    state = torch.get_rng_state()
    check_parity(net, path, loader)
    assert net.training
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[key]) for key, value in net.state_dict().items())


def test_changed_weights_are_caught(exported):
    net, path = exported
    changed = copy.deepcopy(net)
    with torch.no_grad():
        changed[5].bias[0] += 3e-5  # outputs are 0.3
    with pytest.raises(ParityError) as caught:
        check_parity(changed, path)
    report = caught.value.report
    assert not report.passed
    assert any("trained since" in note for note in report.notes)
    assert {row.inputs for row in report.failures} >= {"sample", "gaussian, batch 32", "zeros"}
    assert not check_parity(changed, path, strict=False).passed
    assert check_parity(changed, path, tolerance=1e-3).passed


class Tokens(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.act = nn.Embedding(5, 4), nn.GELU()

    def forward(self, tokens):
        return self.act(self.table(tokens)).sum(1)


def test_token_indices_are_drawn_from_the_whole_table(tmp_path):
    path = tmp_path / "tokens.onnx"
    torch.manual_seed(0)
    model, sample = Tokens(), torch.tensor([[0, 4, 2]])
    export_onnx(model, path, sample)
    report = check_parity(model, path, input_sample=sample)
    assert {row.inputs for row in report.rows} == {
        "sample",
        "random, batch 32",
        "random, batch 1",
        "random, batch 2",
        "gelu",
    }
    assert not report.notes
    with torch.no_grad():
        model.table.weight[3] += 0.01  # which the sample does not hold
    report = check_parity(model, path, input_sample=sample, strict=False)
    assert report.row("sample").passed
    assert not report.row("random, batch 32").passed
    with pytest.raises(ModelInputError):
        check_parity(model, path)


def test_a_damaged_file_is_not_taken_for_a_trained_module(exported, tmp_path):
    net, shared = exported
    model, path = onnx.load(shared), tmp_path / "damaged.onnx"
    next(weight for weight in model.graph.initializer if weight.name == "5.bias").float_data[:] = []
    next(weight for weight in model.graph.initializer if weight.name == "5.bias").raw_data = bytes(12)
    onnx.save(model, path)
    report = check_parity(net, path, strict=False)
    assert not report.passed
    assert not any("trained" in note for note in report.notes)
