"""`OnnxExportMixin.to_onnx`: Lightning's signature, and a file for inference in every mode of the module."""

import inspect
import io

import numpy as np
import onnx
import pytest
import torch
from export_cases import gelu_net
from lightning.pytorch import LightningModule

from lit_gelu.export import ExportOptionError, OnnxExportMixin, OnnxPredictor, check_parity


class Plain(LightningModule):
    def __init__(self):
        super().__init__()
        self.net = gelu_net()
        self.example_input_array = torch.zeros(2, 6)

    def forward(self, features):
        return self.net(features)


class Mixed(OnnxExportMixin, Plain):
    pass


def test_the_signature_is_lightnings():
    own, lightnings = (inspect.signature(cls.to_onnx).parameters for cls in (Mixed, LightningModule))
    assert [(p.name, p.kind, p.default) for p in own.values()] == [
        (p.name, p.kind, p.default) for p in lightnings.values()
    ]


def _dropout_is_live(path):
    nodes = [node for node in onnx.load(path).graph.node if node.op_type == "Dropout"]
    return any(len(node.input) > 2 for node in nodes)


@pytest.mark.filterwarnings("ignore")  # the exporter's own, about exporting in training mode
def test_in_training_mode_where_lightnings_own_method_writes_live_dropout(tmp_path):
    theirs, ours = tmp_path / "theirs" / "net.onnx", tmp_path / "ours" / "net.onnx"
    theirs.parent.mkdir()
    Plain().train().to_onnx(theirs, dynamo=True, verbose=False)
    assert _dropout_is_live(theirs)  # if this fails, Lightning has changed, and the docstring must too
    assert onnx.load(theirs).graph.input[0].type.tensor_type.shape.dim[0].dim_value == 2
    model = Mixed().train()
    model.to_onnx(ours, export_params=True, do_constant_folding=True, dynamo=True)
    assert model.training
    assert not _dropout_is_live(ours)
    assert [file.name for file in ours.parent.iterdir()] == ["net.onnx"]
    x = np.ones((5, 6), np.float32)
    np.testing.assert_array_equal(OnnxPredictor(ours)(x), OnnxPredictor(ours)(x))
    assert OnnxPredictor(ours).metadata["lit_gelu.model_class"].endswith("test_mixin.Mixed")
    assert check_parity(model, ours).passed


def test_options_of_both_and_a_buffer(tmp_path):
    buffer = io.BytesIO()
    report = Mixed().to_onnx(buffer, torch.zeros(1, 6), opset_version=18, approximate="tanh")
    model = onnx.load_from_string(buffer.getvalue())
    assert {entry.domain: entry.version for entry in model.opset_import}[""] == 18
    assert report.metadata.approximate == "tanh"
    assert report.path.as_posix() == "model.onnx"


def test_dynamic_shapes_as_torch_takes_them():
    class Time(OnnxExportMixin, torch.nn.Conv1d):
        pass

    buffer = io.BytesIO()
    report = Time(3, 4, 1).to_onnx(buffer, torch.zeros(1, 3, 5), dynamic_shapes=({2: torch.export.Dim("time")},))
    dims = onnx.load_from_string(buffer.getvalue()).graph.output[0].type.tensor_type.shape.dim
    assert [dim.dim_param for dim in dims] == ["batch", "", "time"]
    assert report.metadata.dynamic_shapes == {"input": {2: "time"}}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"input_names": ["x"]}, "inputs are called as forward's arguments are"),
        ({"dynamic_axes": {"x": {0: "n"}}}, "give dynamic_shapes="),
        ({"dynamo": False}, "only dynamo=True exists"),
        ({"export_params": False}, r"export_params=False\) is not done here"),
        ({"opset_version": 18, "opset": 20}, "two names of one option"),
        ({"aproximate": "tanh"}, "no option 'aproximate'. Accepted: approximate, target"),
    ],
)
def test_what_is_not_done_is_refused(tmp_path, options, message):
    with pytest.raises(ExportOptionError, match=message):
        Mixed().to_onnx(tmp_path / "net.onnx", **options)
    assert list(tmp_path.iterdir()) == []


def test_no_path_and_the_wrong_order():
    with pytest.raises(ExportOptionError, match="needs file_path"):
        Mixed().to_onnx()
    with pytest.raises(ExportOptionError, match="Name the mixin first"):
        type("Wrong", (Plain, OnnxExportMixin), {})
