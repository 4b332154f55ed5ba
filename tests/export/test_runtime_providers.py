"""Where a file runs: options that exist, fallbacks that are errors, and the table of who runs what."""

import sys
from collections import Counter
from pathlib import Path

import onnx
import onnxruntime
import pytest
import torch
from export_cases import gelu_net
from onnxruntime.capi import onnxruntime_pybind11_state as ort_errors

from lit_gelu.cuda_versions import mismatch
from lit_gelu.export import ModelFileError, OnnxPredictor, ProviderError, export_onnx
from lit_gelu.export.runtime import CPU, CUDA, CpuFallbackWarning, open_session, providers
from lit_gelu.export.runtime.placement import Placement, placement_of


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("providers") / "net.onnx"
    export_onnx(gelu_net(), path, torch.zeros(2, 6))
    return path


@pytest.mark.parametrize("provider", [CUDA, providers.TENSORRT])
def test_every_known_option_is_in_the_provider_library(provider):
    (library,) = (Path(onnxruntime.__file__).parent / "capi").glob(f"*{providers._LIBRARIES[provider]}.so")
    content = library.read_bytes()
    missing = [name for name in providers.OPTION_NAMES[provider] if name.encode() not in content]
    assert not missing


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([(CUDA, {"perfer_nhwc": 1})], "no option 'perfer_nhwc'. Did you mean 'prefer_nhwc'?"),
        ([(providers.TENSORRT, {"trt_fp16_enabled": 1})], "Did you mean 'trt_fp16_enable'?"),
        ([(CPU, {"use_arena": 1})], "takes no options"),
        ([CPU, CPU], "is given twice"),
        ([], r"providers=\[\] names no"),
        (CPU, "is text. Give a list"),
        (["CUDA"], "Unknown execution provider 'CUDA'. Did you mean 'CUDAExecutionProvider'?"),
    ],
)
def test_what_onnxruntime_would_drop_in_silence(path, given, message):
    with pytest.raises(ProviderError, match=message):
        OnnxPredictor(path, providers=given)


def test_options_beside_the_names(path):
    assert providers.checked_providers([CUDA, CPU], [{"use_tf32": 0}, {}]) == {CUDA: {"use_tf32": "0"}, CPU: {}}
    with pytest.raises(ProviderError, match="1 entries for 2 providers"):
        OnnxPredictor(path, providers=[CUDA, CPU], provider_options=[{}])
    with pytest.raises(ProviderError, match="no option 'x'"):
        OnnxPredictor(path, providers=[CUDA], provider_options=[{"x": 1}])


def test_an_option_that_only_a_newer_library_has(monkeypatch):
    monkeypatch.setitem(providers.OPTION_NAMES, CUDA, frozenset({"device_id"}))  # as if the list were older
    assert providers.checked_providers([(CUDA, {"prefer_nhwc": 1})]) == {CUDA: {"prefer_nhwc": "1"}}


def test_the_table_counts_the_files_nodes(path):
    placement = OnnxPredictor(path, providers=[CPU]).placement
    expected = Counter(node.op_type for node in onnx.load(path).graph.node)
    assert placement.counts == {CPU: sum(expected.values())}
    assert placement.operators == {CPU: dict(expected)}
    assert not placement.outside(CPU)
    assert str(placement).startswith(f"{CPU}  5 nodes  3 Gemm")


def test_a_session_that_did_not_record_says_so(path):
    with pytest.raises(ProviderError, match="did not record"):
        placement_of(onnxruntime.InferenceSession(path, providers=[CPU]))
    assert str(Placement(())) == ""


class FakeCuda:
    """onnxruntime's session on CUDA, without kernels for ELU, as its documentation describes the options.

    Nodes without a kernel go to the CPU; with ``session.disable_cpu_ep_fallback`` that is a Fail, and naming the CPU
    beside it is an InvalidArgument.
    """

    works = True
    nodes = (("Gemm", CUDA), ("Elu", CPU))

    def __init__(self, path, options, providers, **kwargs):
        assert kwargs["enable_fallback"] == 0
        assert options.get_session_config_entry("session.record_ep_graph_assignment_info") == "1"
        self.names = [name for name, _ in providers]
        try:
            strict = options.get_session_config_entry("session.disable_cpu_ep_fallback") == "1"
        except RuntimeError:
            strict = False
        if strict and CPU in self.names:
            raise ort_errors.InvalidArgument("Conflicting session configuration")
        if strict and (not self.works or any(provider == CPU for _, provider in self.nodes)):
            raise ort_errors.Fail("This session contains graph nodes that are assigned to the default CPU EP, but ...")

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
    monkeypatch.setattr(onnxruntime, "preload_dlls", lambda: None)
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(FakeCuda, "works", True)
    return FakeCuda


def test_nodes_on_the_cpu_are_an_error_where_it_was_not_named(path, cuda):
    with pytest.raises(ProviderError, match=r"1 of 2 nodes of .* on the CPU.*: Elu 'node_Elu'.*has no kernel for them"):
        open_session(path, [CUDA])


def test_onnxruntimes_own_option_is_kept(path, cuda):
    """It refuses nodes that compute sizes too; the caller has set it."""
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    with pytest.raises(
        ProviderError, match=r"disable_cpu_ep_fallback=1 is set.*: Elu 'node_Elu'. Leave the option out"
    ):
        open_session(path, [CUDA], options)


def test_nodes_on_the_cpu_are_a_warning_where_it_was_named(path, cuda):
    with pytest.warns(CpuFallbackWarning, match=r"1 of 2 nodes .* run on the CPU.*Elu 'node_Elu'"):
        open_session(path, [CUDA, CPU])


def test_all_nodes_on_cuda_are_silent(path, cuda, monkeypatch):
    monkeypatch.setattr(cuda, "nodes", (("Gemm", CUDA),))
    assert open_session(path, [CUDA]).get_providers() == [CUDA]
    assert open_session(path, [CUDA, CPU]).get_providers() == [CUDA, CPU]


@pytest.mark.parametrize("given", [[CUDA], [CUDA, CPU]])
def test_a_provider_that_onnxruntime_dropped_is_an_error(path, cuda, monkeypatch, given):
    monkeypatch.setattr(cuda, "works", False)
    with pytest.raises(ProviderError, match=r"fell back to CPUExecutionProvider.*lit-gelu doctor"):
        open_session(path, given)


def test_the_callers_session_options_can_be_used_again(path, cuda, monkeypatch):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    with pytest.raises(ProviderError):
        open_session(path, [CUDA], options)
    monkeypatch.undo()
    assert OnnxPredictor(path, [CPU], options).providers == [CPU]


def test_what_onnxruntime_prints_of_libraries_is_logged(path, cuda, monkeypatch, capfd, caplog):
    """On standard output it would be in the midst of a command's JSON."""
    monkeypatch.setattr(cuda, "nodes", (("Gemm", CUDA),))
    monkeypatch.setattr(onnxruntime, "preload_dlls", lambda: sys.stdout.write("Failed to load libcudnn.so.9\n"))
    open_session(path, [CUDA])
    assert capfd.readouterr().out == ""
    assert "Failed to load libcudnn.so.9" in caplog.text


def test_a_torch_for_another_cuda_is_refused(path, cuda, monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    monkeypatch.setattr(onnxruntime, "cuda_version", "13.0")
    text, remedy = mismatch("12.8", "13.0")
    with pytest.raises(ProviderError, match=f"{text}. To mend it, {remedy}"):
        open_session(path, [CUDA])
    monkeypatch.setattr(cuda, "nodes", (("Gemm", CUDA),))
    for version in ("13.1", None):
        monkeypatch.setattr(torch.version, "cuda", version)
        open_session(path, [CUDA])


@pytest.mark.gpu
def test_on_cuda_every_node_runs_there(path):
    predictor = OnnxPredictor(path, [CUDA])
    assert set(predictor.placement.counts) == {CUDA}
    with pytest.raises((ProviderError, ModelFileError)):
        OnnxPredictor(path, [(CUDA, {"cudnn_conv_algo_search": "NO_SUCH_SEARCH"})])
