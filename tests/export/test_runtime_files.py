"""Files that are no whole model, or that want data from outside their folder: refused before onnxruntime sees them."""

import numpy as np
import onnx
import pytest
from export_cases import gelu_net
from onnx import TensorProto, helper

from lit_gelu.export import ModelFileError, OnnxPredictor, export_onnx
from lit_gelu.export.runtime.model_file import read_model_file


@pytest.fixture(scope="module")
def content(tmp_path_factory):
    import torch

    path = tmp_path_factory.mktemp("files") / "net.onnx"
    export_onnx(gelu_net(), path, torch.zeros(2, 6))
    return path.read_bytes()


def with_external_weights(location: str, *, offset: int | str = 0, opset: int = 20) -> onnx.ModelProto:
    weights = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[2], data_location=TensorProto.EXTERNAL)
    for key, value in {"location": location, "offset": str(offset), "length": "8"}.items():
        weights.external_data.add(key=key, value=value)
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Add", ["x", "w"], ["y"])], "g", [x], [y], [weights])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


@pytest.fixture
def folder(tmp_path):
    """A model's folder with data, and a file outside of it."""
    (tmp_path / "model").mkdir()
    np.array([5, 6], np.float32).tofile(tmp_path / "outside.bin")
    np.array([1, 2], np.float32).tofile(tmp_path / "model" / "inside.bin")
    (tmp_path / "model" / "link.bin").symlink_to(tmp_path / "outside.bin")
    return tmp_path / "model"


def saved(folder, model):
    path = folder / "net.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def test_truncated_anywhere_inside_the_graph(content, tmp_path):
    """The graph is the greater part of the file; what follows it (metadata, operator sets) is a few entries."""
    path = tmp_path / "net.onnx"
    graph = onnx.ModelProto.FromString(content).graph.ByteSize()
    for length in np.linspace(0, graph, 60, dtype=int):
        path.write_bytes(content[:length])
        with pytest.raises(ModelFileError, match=r"net\.onnx.*(truncated|empty|no whole)"):
            OnnxPredictor(path)


@pytest.mark.parametrize("foreign", [b"PK\x03\x04" + b"a" * 99, b"\x89PNG\r\n", b'{"a": 1}', b"\x00" * 64])
def test_foreign_files(foreign, tmp_path):
    path = tmp_path / "net.onnx"
    path.write_bytes(foreign)
    with pytest.raises(ModelFileError, match=r"no ONNX model|no whole ONNX model"):
        OnnxPredictor(path)


def test_a_folder_and_onnxruntimes_own_format(tmp_path):
    with pytest.raises(ModelFileError, match="is a folder"):
        OnnxPredictor(tmp_path)
    (tmp_path / "net.ort").write_bytes(b"ORTM")
    with pytest.raises(ModelFileError, match="own format"):
        OnnxPredictor(tmp_path / "net.ort")


def test_data_inside_the_folder_are_read(folder):
    path = saved(folder, with_external_weights("inside.bin"))
    assert read_model_file(path).external == ("inside.bin",)
    np.testing.assert_array_equal(OnnxPredictor(path)(np.zeros(2, np.float32)), [1, 2])


@pytest.mark.parametrize("location", ["../outside.bin", "/etc/hostname", "link.bin", "a/../../outside.bin", ""])
def test_data_outside_the_folder_are_refused(folder, location, monkeypatch):
    import onnxruntime

    monkeypatch.setattr(onnxruntime, "InferenceSession", None)  # refused before anything is read
    with pytest.raises(ModelFileError, match="outside its own folder"):
        OnnxPredictor(saved(folder, with_external_weights(location)))


def test_data_outside_the_folder_of_a_constant_in_a_branch_are_refused(folder):
    inner = with_external_weights("../outside.bin").graph.initializer[0]
    constant = helper.make_node("Constant", [], ["c"])
    constant.attribute.append(helper.make_attribute("value", inner))
    branch = helper.make_graph([constant], "b", [], [helper.make_tensor_value_info("c", TensorProto.FLOAT, [2])])
    node = helper.make_node("If", ["x"], ["y"], then_branch=branch, else_branch=branch)
    x = helper.make_tensor_value_info("x", TensorProto.BOOL, [])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])
    model = helper.make_model(helper.make_graph([node], "g", [x], [y]), ir_version=10)
    with pytest.raises(ModelFileError, match="outside its own folder"):
        OnnxPredictor(saved(folder, model))


def test_data_that_are_missing_or_too_short(folder):
    with pytest.raises(ModelFileError, match="which is not there"):
        OnnxPredictor(saved(folder, with_external_weights("missing.bin")))
    with pytest.raises(ModelFileError, match=r"has 8 bytes; 'w' ends at byte 12"):
        OnnxPredictor(saved(folder, with_external_weights("inside.bin", offset=4)))


@pytest.mark.parametrize("opset", [30, 99])
def test_an_operator_set_that_onnxruntime_does_not_know(folder, opset):
    with pytest.raises(ModelFileError, match=rf"ai.onnx {opset}.*lower opset="):
        OnnxPredictor(saved(folder, with_external_weights("inside.bin", opset=opset)))


def test_operators_of_a_domain_that_onnxruntime_does_not_know(content, tmp_path):
    model = onnx.ModelProto.FromString(content)
    model.opset_import.add(domain="foreign", version=1)
    model.graph.node[1].domain = "foreign"
    with pytest.raises(ModelFileError, match="foreign 1"):
        OnnxPredictor(saved(tmp_path, model))


def test_what_a_file_says(content, tmp_path):
    path = tmp_path / "net.onnx"
    path.write_bytes(content)
    model = read_model_file(path)
    assert (dict(model.opsets), dict(model.operators)) == ({"": 20}, {"Gemm": 3, "Gelu": 2})
    assert not model.sixteen_bit
    half = onnx.ModelProto.FromString(content)
    half.graph.input[0].type.tensor_type.elem_type = TensorProto.BFLOAT16
    assert read_model_file(saved(tmp_path, half)).sixteen_bit


@pytest.mark.parametrize("offset", ["abc", "-4", "", "1e3", "9" * 5000, "\u0663", "4 "])
def test_an_offset_that_is_no_number(folder, offset):
    with pytest.raises(ModelFileError, match=r"says offset=.*a number of bytes is meant"):
        read_model_file(saved(folder, with_external_weights("inside.bin", offset=offset)))


@pytest.mark.parametrize(
    ("location", "message"), [("inside.bin\0", "it holds NUL"), ("\0", "it holds NUL"), ("a" * 5000, "is not there")]
)
def test_a_location_that_no_file_can_have(folder, location, message):
    with pytest.raises(ModelFileError, match=message):
        read_model_file(saved(folder, with_external_weights(location)))


@pytest.mark.parametrize("name", ["net\0.onnx", "n" * 300 + ".onnx", "a/" * 3000 + "net.onnx"])
def test_a_path_that_no_file_can_have(tmp_path, name):
    with pytest.raises(ModelFileError, match="There is no file"):
        OnnxPredictor(tmp_path / name)
