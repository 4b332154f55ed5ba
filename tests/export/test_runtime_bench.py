"""Timing: fair turns, and differences from PyTorch."""

import functools
import json

import export_zoo
import numpy as np
import pytest
import torch
from export_cases import gelu_net

from lit_gelu.errors import ModelInputError
from lit_gelu.export import OnnxPredictor, export_onnx
from lit_gelu.export.runtime import CPU
from lit_gelu.export.runtime.bench import bench, interleaved, relative_error, resized
from lit_gelu.export.runtime.model_file import Port

DEVICE = torch.device("cpu")
QUICK = {"seconds": 0.0, "compiled": False}


@pytest.fixture(scope="module")
def path():
    return export_zoo.exported("gelu")[1]


def test_every_call_has_its_turn_in_every_round_in_shuffled_order():
    order = []
    calls = {name: lambda name=name: order.append(name) for name in "abc"}
    samples = interleaved(calls, DEVICE, seconds=0.0, rounds=(20, 20), warm_up=2)
    assert {name: len(times) for name, times in samples.items()} == {"a": 20, "b": 20, "c": 20}
    rounds = [order[i : i + 3] for i in range(6, len(order), 3)]  # after the warm-up
    assert all(sorted(names) == ["a", "b", "c"] for names in rounds)
    assert len({tuple(names) for names in rounds}) > 3


def test_a_file_beside_pytorch(path, monkeypatch):
    before = torch.get_num_threads()
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager"))
    with torch.autocast("cpu", torch.bfloat16):  # the caller's own, and not measured
        report = bench(path, gelu_net(), batch_sizes=[1, 5], seconds=0.0, threads=before + 1)
    variants = ["torch eager", "torch.compile", "onnxruntime"]
    assert [(row.batch_size, row.variant) for row in report.rows] == [(n, v) for n in (1, 5) for v in variants]
    assert all(row.error < 1e-6 for row in report.rows)
    assert [(row.ratio, row.error) for row in report.rows if row.variant == "torch eager"] == [(1.0, 0.0)] * 2
    for row in report.rows:
        assert 0 < row.median <= row.p90
        assert row.throughput > 0
    content = json.loads(report.to_json())
    assert (content["threads"], content["provider"], len(content["rows"])) == (before + 1, CPU, 6)
    assert torch.get_num_threads() == before


def test_a_file_of_other_weights_shows_in_the_error(path):
    report = bench(path, gelu_net(seed=1), batch_sizes=[4], **QUICK)
    assert {row.variant: row.error > 0.1 for row in report.rows} == {"torch eager": False, "onnxruntime": True}


@pytest.mark.parametrize(
    ("y", "exact", "error"),
    [
        ([1.0, 2.0], [1.0, 2.0], 0.0),
        ([1.0, 2.5], [1.0, 2.0], 0.25),
        ([np.nan, 2.0], [1.0, 2.0], np.inf),
        ([np.inf, 2.0], [np.inf, 2.0], 0.0),
        ([np.inf, 2.0], [-np.inf, 2.0], np.inf),
        ([np.nan, 2.0], [np.nan, 2.0], 0.0),
        ([0.5, 0.0], [0.0, 0.0], 0.5),
        ([1.0], [1.0, 2.0], np.inf),
    ],
)
def test_the_error_is_a_share_of_the_largest_output(y, exact, error):
    assert relative_error([np.array(y)], [np.array(exact)]) == error


def test_values_of_whole_numbers_are_not_made_up(tmp_path):
    net = torch.nn.Sequential(torch.nn.Embedding(5, 4), torch.nn.GELU())
    tokens = torch.ones(2, 3, dtype=torch.int64)
    export_onnx(net, tmp_path / "tokens.onnx", tokens)
    with pytest.raises(ModelInputError):
        bench(tmp_path / "tokens.onnx", **QUICK)
    report = bench(tmp_path / "tokens.onnx", net, inputs={"input": tokens}, batch_sizes=[2], **QUICK)
    assert all(row.error < 1e-6 for row in report.rows)


def test_given_rows_are_repeated_along_the_batch_wherever_that_is(path):
    rows = torch.arange(12.0).reshape(2, 6)
    assert torch.equal(resized({"input": rows}, OnnxPredictor(path).ports, 5)["input"], rows[[0, 1, 0, 1, 0]])
    assert bench(path, gelu_net(), inputs={"input": rows}, batch_sizes=[3], **QUICK).rows
    with pytest.raises(ModelInputError):
        bench(path, inputs={}, batch_sizes=[3])
    shapes = {"x": ("batch", 4), "h": (2, "batch", 3), "table": (5, 2)}
    ports = {name: Port(name, "tensor(float)", shape) for name, shape in shapes.items()}
    inputs = {"x": torch.randn(2, 4), "h": torch.randn(2, 2, 3), "table": torch.randn(5, 2)}
    batch = resized(inputs, ports, 3)
    assert torch.equal(batch["x"], inputs["x"][[0, 1, 0]])
    assert torch.equal(batch["h"], inputs["h"][:, [0, 1, 0]])
    assert torch.equal(batch["table"], inputs["table"])


class Shifted(torch.nn.Module):
    """Of two optional arguments the file has the second: in order, the shift would be the scale."""

    def forward(self, x, scale=None, *, shift=None):
        return torch.nn.functional.gelu(x if shift is None else x + shift)


def test_inputs_are_given_by_name(tmp_path):
    x = torch.randn(2, 4)
    export_onnx(Shifted(), tmp_path / "net.onnx", {"x": x, "shift": x})
    assert all(row.error < 1e-6 for row in bench(tmp_path / "net.onnx", Shifted(), batch_sizes=[3], **QUICK).rows)


@pytest.mark.gpu
def test_on_cuda(path):
    report = bench(path, gelu_net(), batch_sizes=[8], seconds=0.2, compiled=False)
    assert report.provider == "CUDAExecutionProvider"
    assert all(row.median > 0 and row.error < 1e-5 for row in report.rows)
