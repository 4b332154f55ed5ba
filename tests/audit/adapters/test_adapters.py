"""Every adapter opens a file, runs it and says which GELU it names; what is damaged is refused."""

import sys

import numpy as np
import pytest
import torch
from runtime_files import SIZE, SUFFIXES, need, write_gelu, write_pte

from lit_gelu.audit import identify
from lit_gelu.audit.adapters import InputPort, open_runtime_file
from lit_gelu.errors import AuditError, MissingExtraError, ModelFileError, ModelInputError

# ExecuTorch and the others take seconds to import, and warn.
RUNTIMES = [pytest.param(name, marks=[] if name == "onnxruntime" else pytest.mark.full) for name in SUFFIXES]
pytestmark = pytest.mark.filterwarnings("ignore")
WORDS = {  # what a file's own format says of the form
    "onnxruntime": {"none": "gelu", "tanh": "gelu(approximate='tanh')"},
    "openvino": {"none": "Gelu approximation_mode=ERF", "tanh": "Gelu approximation_mode=TANH"},
    "ncnn": {"none": "GELU exact", "tanh": "GELU fast_gelu, the tanh form"},
    "ai_edge_litert": {"none": "GELU approximate=False", "tanh": "GELU approximate=True"},
    "executorch": {"none": "aten::gelu none", "tanh": "aten::gelu tanh"},
}


@pytest.mark.parametrize("approximate", ["none", "tanh"])
@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_file_is_run_and_identified_and_names_its_activation(runtime, approximate, tmp_path):
    artefact = open_runtime_file(write_gelu(runtime, tmp_path, approximate))
    assert [text for _, text in artefact.activations] == [WORDS[runtime][approximate]]
    assert artefact.runtime.split()[-1].split(".")[0].isdigit()
    assert [port.dtype for port in artefact.inputs] == ["float32"]

    x = np.linspace(-6, 6, 64, dtype=np.float32)
    (y,) = artefact.run([x])
    exact = torch.nn.functional.gelu(torch.from_numpy(x).double(), approximate=approximate).numpy()
    np.testing.assert_allclose(y, exact, rtol=0, atol=3e-6)  # the forms differ by 4.7e-4
    assert identify(artefact.function()).spec == WORDS["onnxruntime"][approximate]


@pytest.mark.full
def test_a_delegate_is_named_where_the_program_does_not_say_what_it_computes(tmp_path):
    need("executorch")
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner

    write_pte(tmp_path / "gelu.pte", "none", [XnnpackPartitioner()])
    artefact = open_runtime_file(tmp_path / "gelu.pte")
    assert [text for _, text in artefact.activations] == ["XnnpackBackend"]
    assert artefact.inputs == (InputPort("input 0", (SIZE,), "float32"),)


@pytest.mark.parametrize("damage", ["cut", "text", "empty"])
@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_damaged_file_is_refused(runtime, damage, tmp_path):
    path = write_gelu(runtime, tmp_path, "none")
    content = path.read_bytes()
    path.write_bytes({"cut": content[: len(content) // 2], "text": b"a text, and no model", "empty": b""}[damage])
    with pytest.raises(ModelFileError):
        open_runtime_file(path)


@pytest.mark.full
def test_a_file_without_its_weights_is_refused(tmp_path):
    path = write_gelu("ncnn", tmp_path, "none")
    path.with_suffix(".bin").unlink()
    with pytest.raises(ModelFileError):
        open_runtime_file(path)


@pytest.mark.parametrize("name", ["missing.onnx", "missing.tflite", "missing.param", "model.gguf", "model"])
def test_a_missing_file_or_another_suffix_is_refused(name, tmp_path):
    with pytest.raises(ModelFileError):
        open_runtime_file(tmp_path / name)


@pytest.mark.parametrize(("suffix", "library"), [(".xml", "openvino"), (".param", "ncnn"), (".pte", "executorch")])
def test_a_missing_runtime_names_its_extra(suffix, library, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, library, None)
    monkeypatch.setitem(sys.modules, "executorch.runtime", None)
    path = tmp_path / f"net{suffix}"
    path.write_text("7767517\n0 0\n")
    with pytest.raises(MissingExtraError) as caught:
        open_runtime_file(path)
    assert f"lit-gelu[{library}]" in str(caught.value)


@pytest.mark.parametrize("arrays", [[], [np.zeros(4, np.float32)] * 2, [np.zeros((2, 2), np.float32)]])
def test_inputs_that_do_not_fit_are_refused(arrays, tmp_path):
    artefact = open_runtime_file(write_gelu("onnxruntime", tmp_path, "none"))
    with pytest.raises(ModelInputError):
        artefact.run(arrays)


def test_a_file_of_two_inputs_is_no_function_of_one_array(tmp_path):
    from onnx import TensorProto, helper, save

    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xyz"]
    graph = helper.make_graph([helper.make_node("Add", ["x", "y"], ["z"])], "sum", ports[:2], ports[2:])
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), tmp_path / "sum.onnx")
    with pytest.raises(AuditError):
        open_runtime_file(tmp_path / "sum.onnx").function()
