"""What an ONNX file says of itself, written here or elsewhere."""

import json

import numpy as np
import onnx
import pytest
import torch
from export_cases import gelu_net
from onnx import TensorProto, helper, numpy_helper

from lit_gelu.cli.main import main
from lit_gelu.export import check_parity, export_onnx, write_proof
from lit_gelu.export.inspection import inspect_onnx

SAMPLE = torch.zeros(1, 6)


@pytest.fixture(scope="module")
def model_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("own") / "net.onnx"
    export_onnx(gelu_net(), path, SAMPLE, approximate="tanh", labels=["cat", "dog", "eel"])
    write_proof(check_parity(gelu_net(), path), path, [])
    return path


def foreign(path, nodes, weights=(), opset=20, domain=False):
    """A file of another exporter: x of shape [rows, 3] to y."""
    size = ["rows", 3]
    graph = helper.make_graph(
        nodes,
        "main",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, size)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, size)],
        [numpy_helper.from_array(np.asarray(value, np.float32), name) for name, value in weights],
    )
    opsets = [helper.make_opsetid("", opset), *([helper.make_opsetid("com.microsoft", 1)] if domain else [])]
    model = helper.make_model(graph, opset_imports=opsets, producer_name="elsewhere", producer_version="3.1")
    onnx.save(model, path)
    return path


def node(operator, inputs, output, domain="", **attributes):
    return helper.make_node(operator, inputs, [output], domain=domain, **attributes)


def test_a_file_of_ours(model_file):
    report = inspect_onnx(model_file)
    assert (report.file, report.size) == ("net.onnx", model_file.stat().st_size)
    assert report.opsets[""] == 20
    assert report.inputs == {"input": ("float", ("batch", 6))}
    assert report.outputs == {"output": ("float", ("batch", 3))}
    assert report.weights == {"float": 6 * 16 + 16 + 16 * 16 + 16 + 16 * 3 + 3}
    assert report.operators == {"Gemm": 3, "Gelu": 2}
    assert report.activations == {"gelu(approximate='tanh')": 2}
    assert report.metadata.labels == ("cat", "dog", "eel")
    assert report.metadata.parity["passed"] is True
    assert "proof: passed" in str(report)


def test_a_file_of_others_says_what_its_operators_compute(tmp_path):
    """GELU by its formula, sigmoid(1.702 x) x as onnxruntime's operator, ReLU; a product by itself is nothing."""
    nodes = [
        node("Div", ["x", "root"], "scaled"),
        node("Erf", ["scaled"], "erf"),
        node("Add", ["erf", "one"], "shifted"),
        node("Mul", ["x", "shifted"], "twice"),
        node("Mul", ["twice", "half"], "gelu"),
        node("QuickGelu", ["gelu"], "quick", "com.microsoft", alpha=1.702),
        node("Relu", ["quick"], "relu"),
        node("Mul", ["relu", "half"], "y"),
    ]
    weights = [("root", 2**0.5), ("one", 1.0), ("half", 0.5)]
    report = inspect_onnx(foreign(tmp_path / "net.onnx", nodes, weights, domain=True))
    assert report.activations == {"gelu": 1, "gelu(approximate='sigmoid')": 1, "relu": 1}
    assert report.operators["com.microsoft::QuickGelu"] == 1
    assert (report.producer, report.metadata, report.quantization) == ("elsewhere 3.1", None, None)
    assert "lit-gelu: did not write this file" in str(report)
    assert "opset: standard 20, com.microsoft 1" in str(report)


def test_the_names_of_modules_in_a_file_from_elsewhere_are_not_read(tmp_path):
    path = foreign(tmp_path / "net.onnx", [node("Relu", ["x"], "y")])
    model = onnx.load(path)
    entry = model.graph.node[0].metadata_props.add()
    entry.key, entry.value = "pkg.torch.onnx.name_scopes", "[" * 100_000
    onnx.save(model, path)
    assert inspect_onnx(path).activations == {"relu": 1}


def test_the_command(model_file, capsys):
    assert main(["inspect", str(model_file)]) == 0
    assert capsys.readouterr().out.strip() == str(inspect_onnx(model_file))
    assert main(["inspect", str(model_file), "--json"]) == 0
    plain = json.loads(capsys.readouterr().out)
    assert plain["activations"] == {"gelu(approximate='tanh')": 2}
    assert plain["metadata"]["approximate"] == "tanh"
    assert main(["inspect", str(model_file.with_name("missing.onnx"))]) == 2
    assert "There is no file" in capsys.readouterr().err


ESCAPES = "\x1b]0;title\x07\x1b[2J\x9b1m\r\nproof: passed\u2028\u202e"


@pytest.mark.parametrize("terminal", [True, False])
def test_what_a_terminal_would_obey_is_shown(terminal, model_file, tmp_path, monkeypatch, capsys):
    model = onnx.load(model_file)
    entries = {entry.key: entry.value for entry in model.metadata_props}
    entries |= {"lit_gelu.labels": json.dumps([ESCAPES]), "lit_gelu.notes": json.dumps([ESCAPES])}
    entries |= {"lit_gelu.model_class": ESCAPES, "lit_gelu.parity": "{}"}
    entries["lit_gelu.versions"] = json.dumps({ESCAPES: ESCAPES})
    helper.set_model_props(model, entries)
    model.producer_name = model.graph.input[0].name = ESCAPES
    path = tmp_path / "net\x1b[2J\n.onnx"
    path.write_bytes(model.SerializeToString())
    monkeypatch.setattr("sys.stdout.isatty", lambda: terminal)
    assert main(["inspect", str(path)]) == 0
    for text in (capsys.readouterr().out, str(inspect_onnx(path))):
        assert all(line.isprintable() for line in text.split("\n"))
        assert "proof: passed" not in text.split("\n")
        assert r"\x1b[2J" in text
