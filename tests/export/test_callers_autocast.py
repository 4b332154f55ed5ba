"""Autocast around an export is the caller's; autocast within forward is a part of the model."""

import onnx
import torch
from torch import nn

from lit_gelu.export import OnnxPredictor, check_parity, export_onnx

X = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2))


def types_in(path):
    model = onnx.load(path)
    values = [value.type.tensor_type.elem_type for value in (*model.graph.input, *model.graph.output)]
    return {*values, *(tensor.data_type for tensor in model.graph.initializer)}


def test_a_file_written_and_compared_inside_of_autocast_is_the_same_as_outside(tmp_path):
    model, path = net(), tmp_path / "net.onnx"
    export_onnx(model, tmp_path / "outside.onnx", X)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        export_onnx(model=model, path=path, input_sample=X)
        report = check_parity(model, path, input_sample=X)
        assert torch.is_autocast_enabled("cpu")
        assert model(X).dtype == torch.bfloat16
    assert types_in(path) == {onnx.TensorProto.FLOAT}
    assert path.read_bytes() == (tmp_path / "outside.onnx").read_bytes()
    assert report.passed
    assert report.row("sample").error < 1e-6
    with torch.no_grad():
        exact = net().double()(X.double())
    torch.testing.assert_close(OnnxPredictor(path)(X).double(), exact, rtol=0, atol=1e-6)


def test_forwards_own_autocast_stays_a_part_of_the_file(tmp_path):
    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net()

        def forward(self, x):
            with torch.autocast("cpu", dtype=torch.float16):
                return self.net(x).float()

    model, path = Mixed(), tmp_path / "net.onnx"
    with torch.autocast("cpu", dtype=torch.bfloat16):
        export_onnx(model, path, X)
    assert onnx.TensorProto.FLOAT16 in {
        attribute.i for node in onnx.load(path).graph.node for attribute in node.attribute if attribute.name == "to"
    }
    with torch.no_grad():
        torch.testing.assert_close(OnnxPredictor(path)(X), model(X), rtol=0, atol=2e-3)
