"""Recurrent nets that are fed piece by piece: the batch of their states is not the first axis."""

import numpy as np
import onnxruntime
import pytest
import torch
from torch import nn

from lit_gelu.export import ExportError, check_parity, export_onnx

STATES = {"h": {1: "batch"}, "c": {1: "batch"}}


class Streaming(nn.Module):
    """State in, state out: [layers, batch, width]."""

    def __init__(self, layers=1):
        super().__init__()
        torch.manual_seed(0)
        self.lstm, self.act = nn.LSTM(4, 6, layers, batch_first=True), nn.GELU()

    def forward(self, x, h, c):
        y, (h, c) = self.lstm(x, (h, c))
        return self.act(y), h, c


class Broadcast(nn.Module):
    """The same with sums, which also take a state of one row."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.act = nn.Linear(6, 6), nn.GELU()

    def forward(self, x, state):
        y = self.act(self.linear(x) + state.sum(0))
        return y, state + y


def streaming_inputs(rows):
    return torch.randn(rows, 5, 4), torch.randn(1, rows, 6), torch.randn(1, rows, 6)


def broadcast_inputs(rows):
    return torch.randn(rows, 6), torch.randn(4, rows, 6)


def two_layers_inputs(rows):
    return torch.randn(rows, 6), torch.randn(2, rows, 6)


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("net", "inputs", "sizes", "rows"),
    [
        (Streaming(), streaming_inputs, STATES, 3),
        (Streaming(), streaming_inputs, STATES, 1),  # as many rows as layers
        (Broadcast(), two_layers_inputs, {"state": {1: "batch"}}, 2),
        (Broadcast(), two_layers_inputs, {"state": {1: "batch"}}, 1),  # the trial has two rows
        (Broadcast(), broadcast_inputs, {"state": {1: "batch"}}, 3),
        (Broadcast(), broadcast_inputs, {"state": {1: "batch"}}, 1),
    ],
)
def test_a_state_gets_the_rows_of_the_batch_in_export_and_proof(tmp_path, net, inputs, sizes, rows):
    path = tmp_path / "net.onnx"
    report = export_onnx(net, path, inputs(rows), dynamic_shapes=sizes)
    assert not report.notes
    given = inputs(7)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    found = session.run(None, {port.name: t.numpy() for port, t in zip(session.get_inputs(), given, strict=True)})
    with torch.no_grad():
        expected = net.double()(*(t.double() for t in given))
        net.float()
    for y, own in zip(found, expected, strict=True):
        np.testing.assert_allclose(y, own, atol=1e-5)
    proof = check_parity(net, path, input_sample=inputs(rows))
    assert not proof.notes
    assert {row.count for row in proof.rows if row.inputs == "gaussian, batch 32" and row.output == "output_0"} == {32}
    assert {part.output for part in proof.repeatability.batches} == {port.name for port in session.get_outputs()}


def test_a_state_that_only_comes_out_may_have_as_many_layers_as_the_trial_has_rows(tmp_path):
    class OneShot(Streaming):
        def forward(self, x):
            y, (h, _) = self.lstm(x)
            return self.act(y), h

    net, path = OneShot(2), tmp_path / "net.onnx"
    export_onnx(net, path, torch.randn(1, 5, 4))
    given = torch.randn(7, 5, 4)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    for y, own in zip(session.run(None, {"x": given.numpy()}), net(given), strict=True):
        np.testing.assert_allclose(y, own.detach(), atol=1e-5)


def test_a_state_with_another_weight_fails_its_proof(tmp_path):
    net, path = Streaming(), tmp_path / "net.onnx"
    export_onnx(net, path, streaming_inputs(3), dynamic_shapes=STATES)
    with torch.no_grad():
        net.lstm.weight_hh_l0[0, 0] += 0.1
    assert not check_parity(net, path, input_sample=streaming_inputs(3), strict=False).passed


def test_a_batch_that_is_fixed_by_a_state_names_the_remedy(tmp_path):
    with pytest.raises(ExportError, match=r"them so: dynamic_shapes=\{'h': \{1: 'batch'\}, 'c': \{1: 'batch'\}\}"):
        export_onnx(Streaming(), tmp_path / "net.onnx", streaming_inputs(3))


class OnlyItsSample(nn.Module):
    """Takes the sample's number of rows and no other, though its graph takes any."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.act, self.rows = nn.Linear(6, 6), nn.GELU(), None

    def forward(self, x):
        if self.rows is not None and x.shape[0] != self.rows:
            raise ValueError("another number of rows")
        return self.act(self.linear(x))


def test_a_file_is_run_twice_on_the_sample_where_the_module_takes_nothing_else(tmp_path):
    net, path, sample = OnlyItsSample(), tmp_path / "net.onnx", torch.randn(3, 6)
    export_onnx(net, path, sample)
    net.rows = 3
    proof = check_parity(net, path, input_sample=sample)
    assert proof.repeatability.identical
    assert not proof.repeatability.batches
    assert "gaussian, batch 32 was not tried: forward fails (another number of rows)." in proof.notes
