"""Where a file runs, fallbacks that are errors, the table of who runs what, and files that are no whole model."""

from collections import Counter

import export_zoo
import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper
from onnxruntime.capi import onnxruntime_pybind11_state as ort_errors

from lit_gelu.cuda_versions import tensorrt_library, tensorrt_wheel
from lit_gelu.export import ModelFileError, OnnxPredictor, ProviderError
from lit_gelu.export.runtime import CPU, CUDA, TENSORRT, CpuFallbackWarning, open_session, session
from lit_gelu.export.runtime.model_file import read_model_file
from lit_gelu.export.runtime.placement import Placement, placement_of


@pytest.fixture(scope="module")
def path():
    return export_zoo.exported("gelu")[1]


@pytest.mark.parametrize("providers", [[(CPU, {"use_arena": 1})], [CPU, CPU], [], CPU, ["CUDA"], ["CUDAProvider"]])
def test_lists_of_providers_that_are_refused(path, providers):
    with pytest.raises(ProviderError):
        OnnxPredictor(path, providers=providers)


def test_the_table_counts_the_files_nodes(path):
    placement = OnnxPredictor(path, providers=[CPU]).placement
    expected = Counter(node.op_type for node in onnx.load(path).graph.node)
    assert placement.counts == {CPU: sum(expected.values())}
    assert placement.operators == {CPU: dict(expected)}
    assert not placement.outside(CPU)
    assert str(placement).startswith(f"{CPU}  5 nodes  3 Gemm")
    assert str(Placement(())) == ""
    with pytest.raises(ProviderError):
        placement_of(onnxruntime.InferenceSession(path, providers=[CPU]))  # which did not record it


class FakeCuda:
    """onnxruntime's session on CUDA, without kernels for ELU: nodes without one go to the CPU."""

    works, error = True, None
    nodes = (("Gemm", CUDA), ("Elu", CPU))

    def __init__(self, path, options, providers, **kwargs):
        assert kwargs["enable_fallback"] == 0
        assert options.get_session_config_entry("session.record_ep_graph_assignment_info") == "1"
        self.names = [name for name, _ in providers]
        if self.error:
            raise self.error

    def get_providers(self):
        return self.names if self.works else [CPU]

    def get_provider_graph_assignment_info(self):
        class Node:
            def __init__(self, operator):
                self.op_type, self.name, self.domain = operator, f"node_{operator}", ""

        class Part:
            def __init__(self, operator, provider):
                self.ep_name, self.get_nodes = provider, lambda: [Node(operator)]

        return [Part(*node) for node in self.nodes]


@pytest.fixture
def cuda(monkeypatch):
    monkeypatch.setattr(onnxruntime, "InferenceSession", FakeCuda)
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [TENSORRT, CUDA, CPU])
    monkeypatch.setattr(onnxruntime, "preload_dlls", lambda: None)
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(FakeCuda, "works", True)
    return FakeCuda


def test_nodes_on_the_cpu_are_an_error_or_a_warning_where_it_was_named(path, cuda, monkeypatch):
    with pytest.raises(ProviderError):
        open_session(path, [CUDA])
    with pytest.warns(CpuFallbackWarning):
        open_session(path, [CUDA, CPU])
    monkeypatch.setattr(cuda, "nodes", (("Gemm", CUDA),))
    assert open_session(path, [CUDA]).get_providers() == [CUDA]
    assert open_session(path, [CUDA, CPU]).get_providers() == [CUDA, CPU]


@pytest.mark.parametrize("providers", [[CUDA], [CUDA, CPU], [(CUDA, {"perfer_nhwc": 1})]])
def test_a_provider_that_onnxruntime_dropped_is_an_error(path, cuda, monkeypatch, providers):
    monkeypatch.setattr(cuda, "works", False)
    with pytest.raises(ProviderError):
        open_session(path, providers)


@pytest.mark.parametrize(
    ("error", "kind"), [(ort_errors.Fail("no"), ProviderError), (ort_errors.InvalidGraph("no"), ModelFileError)]
)
def test_what_onnxruntime_raises_is_the_files_fault_or_the_providers(path, cuda, monkeypatch, error, kind):
    monkeypatch.setattr(cuda, "error", error)
    with pytest.raises(kind):
        open_session(path, [CUDA])
    with pytest.raises(ModelFileError):
        open_session(path, [CPU])


def test_a_torch_for_another_cuda_is_refused(path, cuda, monkeypatch):
    monkeypatch.setattr(cuda, "nodes", (("Gemm", CUDA),))
    monkeypatch.setattr(onnxruntime, "cuda_version", "13.0")
    for version in ("13.1", None):
        monkeypatch.setattr(torch.version, "cuda", version)
        open_session(path, [CUDA])
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    with pytest.raises(ProviderError):
        open_session(path, [CUDA])


def test_without_tensorrts_libraries_the_remedy_is_their_wheel(path, cuda, monkeypatch, tmp_path):
    def missing(name):
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(session.ctypes, "CDLL", missing)
    with pytest.raises(ProviderError):
        open_session(path, [TENSORRT])
    (tmp_path / "onnxruntime_providers_tensorrt.dll").write_bytes(b"MZ\0nvinfer_10.dll\0")
    assert tensorrt_library(tmp_path) == "nvinfer_10.dll"
    assert tensorrt_wheel("nvinfer_10.dll", "13.0") == "pip install 'tensorrt-cu13<11'"  # its newest wheels are 11


@pytest.mark.gpu
def test_on_cuda_every_node_runs_there(path):
    assert set(OnnxPredictor(path, [CUDA]).placement.counts) == {CUDA}
    with pytest.raises((ProviderError, ModelFileError)):
        OnnxPredictor(path, [(CUDA, {"cudnn_conv_algo_search": "NO_SUCH_SEARCH"})])


# Files that are no whole model.


def test_a_file_that_is_truncated_anywhere_inside_its_graph(path, tmp_path):
    content = path.read_bytes()
    graph = onnx.ModelProto.FromString(content).graph.ByteSize()  # what follows is a few entries
    for length in np.linspace(0, graph, 40, dtype=int):
        (tmp_path / "net.onnx").write_bytes(content[:length])
        with pytest.raises(ModelFileError):
            OnnxPredictor(tmp_path / "net.onnx")


def with_external_weights(folder, location, offset="0"):
    weights = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[2], data_location=TensorProto.EXTERNAL)
    for key, value in {"location": location, "offset": offset, "length": "8"}.items():
        weights.external_data.add(key=key, value=value)
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Add", ["x", "w"], ["y"])], "g", [x], [y], [weights])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    (folder / "net.onnx").write_bytes(model.SerializeToString())
    return folder / "net.onnx"


@pytest.fixture
def folder(tmp_path):
    """A model's folder with data, and a file outside of it."""
    (tmp_path / "model").mkdir()
    np.array([5, 6], np.float32).tofile(tmp_path / "outside.bin")
    (tmp_path / "model" / "link.bin").symlink_to(tmp_path / "outside.bin")
    np.array([1, 2], np.float32).tofile(tmp_path / "model" / "inside.bin")
    return tmp_path / "model"


def test_data_inside_the_folder_are_read_also_through_a_link_to_the_model(folder, tmp_path):
    path = with_external_weights(folder, "inside.bin")
    assert read_model_file(path).external == ("inside.bin",)
    (tmp_path / "link.onnx").symlink_to(path)
    (tmp_path / "snapshot").mkdir()  # as a cache of the Hub: links to blobs whose names say nothing
    (path.parent / "inside.bin").rename(path.parent / "blob")
    for place in (path.parent, tmp_path / "snapshot"):
        (place / "inside.bin").symlink_to(path.parent / "blob")
    (tmp_path / "snapshot" / "net.onnx").symlink_to(path)
    for file in (path, tmp_path / "link.onnx", tmp_path / "snapshot" / "net.onnx"):
        np.testing.assert_array_equal(OnnxPredictor(file, [CPU])(np.zeros(2, np.float32)), [1, 2])


@pytest.mark.every
@pytest.mark.parametrize(
    ("location", "offset"),
    [
        *[(name, "0") for name in ("missing", "", "../outside.bin", "link.bin", "/etc/hostname", "inside.bin\0")],
        *[("inside.bin", offset) for offset in ("4", "-4", "x", "9" * 30)],
    ],
)
def test_data_that_are_missing_too_short_or_outside_the_folder_are_refused(folder, location, offset):
    with pytest.raises(ModelFileError):
        read_model_file(with_external_weights(folder, location, offset))


def test_operators_that_onnxruntime_does_not_know(path, tmp_path):
    model = onnx.load(path)
    model.opset_import[0].version = 99
    onnx.save(model, tmp_path / "net.onnx")
    with pytest.raises(ModelFileError):
        OnnxPredictor(tmp_path / "net.onnx", [CPU])
    model = onnx.load(path)
    model.opset_import.add(domain="foreign", version=1)
    model.graph.node[1].domain = "foreign"
    onnx.save(model, tmp_path / "net.onnx")
    with pytest.raises(ModelFileError):
        OnnxPredictor(tmp_path / "net.onnx", [CPU])
    with pytest.raises(ModelFileError):
        OnnxPredictor(export_zoo.exported("gelu", "cuda bf16")[1], [CPU])  # no kernels in bfloat16


def test_what_a_file_says(path):
    model = read_model_file(path)
    assert (dict(model.opsets), dict(model.operators)) == ({"": 20}, {"Gemm": 3, "Gelu": 2})
    assert not model.sixteen_bit
    assert read_model_file(export_zoo.exported("gelu", "fp16")[1]).sixteen_bit
    assert read_model_file(export_zoo.exported("recurrent")[1]).recurrent


def test_graphs_inside_a_function_are_looked_into(tmp_path):
    inner = helper.make_graph([helper.make_node("LSTM", ["x"], ["y"])], "g", [], [])
    inner.initializer.append(helper.make_tensor("half", TensorProto.FLOAT16, [1], [1.0]))
    branch = helper.make_node("If", ["c"], ["y"], then_branch=inner, else_branch=inner)
    opset = helper.make_opsetid("", 20)
    function = helper.make_function("own", "F", ["c"], ["y"], [branch], [opset])
    graph = helper.make_graph([helper.make_node("F", ["c"], ["y"], domain="own")], "g", [], [])
    own = helper.make_opsetid("own", 1)
    onnx.save(helper.make_model(graph, functions=[function], opset_imports=[opset, own]), tmp_path / "net.onnx")
    model = read_model_file(tmp_path / "net.onnx")
    assert (model.recurrent, model.sixteen_bit) == (True, True)
