"""`tune` and `bench` call a module as its file is called: arguments by name, and with the file's softmax."""

import numpy as np
import pytest
import torch
from export_cases import gelu_net
from torch import nn

from lit_gelu.export import ModelInputError, export_onnx
from lit_gelu.export.runtime.bench import bench
from lit_gelu.export.runtime.tuning import tune


class Shifted(nn.Module):
    """The file has the first argument and the last: in order, the shift would be the scale."""

    def __init__(self):
        super().__init__()
        self.net = gelu_net()

    def forward(self, x, scale=None, *, shift=None):
        y = self.net(x)
        y = y if scale is None else y * scale
        return {"shifted": y if shift is None else y + shift, "sum": y.sum(-1)}


SHIFTED = {"x": torch.randn(2, 6), "shift": torch.full((2, 1), 100.0)}


@pytest.fixture
def shifted(tmp_path):
    model = Shifted().eval()
    export_onnx(model, tmp_path / "shifted.onnx", SHIFTED)
    return model, tmp_path / "shifted.onnx"


def test_tune_calls_by_name(shifted):
    model, path = shifted
    assert tune(path, SHIFTED, reference=model, seconds=0.0, save=False).choice.error < 1e-5


def test_bench_calls_by_name(shifted):
    model, path = shifted
    report = bench(path, model, batch_sizes=[2], inputs=SHIFTED, seconds=0.0, backend="aot_eager")
    assert [row.error < 1e-5 for row in report.rows] == [True] * 3


def test_arguments_without_a_name_are_given_in_order(tmp_path):
    class Sum(nn.Module):
        def forward(self, *parts):
            return sum(parts) * 2.0 - parts[0]

    sample = (torch.ones(2, 3), torch.randn(2, 3))
    export_onnx(Sum(), tmp_path / "net.onnx", sample)
    assert tune(tmp_path / "net.onnx", list(sample), reference=Sum(), seconds=0.0, save=False).choice.error < 1e-6


class Gathering(nn.Module):
    """Gathers arguments in both ways."""

    def forward(self, x, *others, mask=None, **named):
        y = sum(others, x) * (1.0 if mask is None else mask)
        return y + sum(3.0 * named[name] for name in sorted(named))


@pytest.mark.parametrize("given", [3, "x mask", "x a b", "b x mask a"])
def test_gathered_arguments_are_given_as_they_were(tmp_path, given):
    if isinstance(given, int):
        sample = tuple(torch.randn(2, 3) for _ in range(given))
    else:
        sample = {name: torch.randn(2, 3) for name in given.split()}
    export_onnx(Gathering(), tmp_path / "net.onnx", sample)
    report = bench(tmp_path / "net.onnx", Gathering(), batch_sizes=[2], seconds=0.0, compiled=False)
    assert all(row.error < 1e-5 for row in report.rows)


def test_a_softmax_is_the_files(tmp_path):
    model, path = gelu_net().eval(), tmp_path / "net.onnx"
    export_onnx(model, path, torch.zeros(2, 6), softmax=True)
    assert tune(path, reference=model, seconds=0.0, save=False).choice.error < 1e-5
    rows = bench(path, model, batch_sizes=[2], seconds=0.0, compiled=False).rows
    assert max(row.error for row in rows) < 1e-5


def test_another_module_is_refused(tmp_path):
    torch.manual_seed(1)
    export_onnx(gelu_net(), tmp_path / "net.onnx", torch.zeros(2, 6))
    other = gelu_net()
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.neg_()
    with pytest.raises(ModelInputError):
        tune(tmp_path / "net.onnx", reference=other, seconds=0.0, save=False)


def test_a_module_that_fails_in_float64_is_refused(tmp_path):
    class OneDtype(nn.Module):
        table = torch.ones(6, 3)  # neither parameter nor buffer: it stays in float32

        def forward(self, x):
            return torch.nn.functional.gelu(x) @ self.table

    export_onnx(OneDtype(), tmp_path / "net.onnx", torch.zeros(2, 6))
    with pytest.raises(ModelInputError, match=r"OneDtype.forward fails on the file's inputs in float64: .*reference="):
        tune(tmp_path / "net.onnx", reference=OneDtype(), seconds=0.0, save=False)
    inputs = torch.randn(4, 6)
    tune(
        tmp_path / "net.onnx", inputs, reference=OneDtype()(inputs).numpy().astype(np.float64), seconds=0.0, save=False
    )
