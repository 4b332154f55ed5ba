"""What was tuned, in the words of Triton's onnxruntime backend."""

import pytest
import torch
from export_cases import gelu_net
from triton_proto import parsed

from lit_gelu.export import ExportOptionError, export_onnx
from lit_gelu.export.runtime import CPU, CUDA
from lit_gelu.export.runtime.settings import ACCEPTED
from lit_gelu.export.runtime.tuning_file import TuningChoice, TuningKey, this_key, write_choice
from lit_gelu.export.serving import write_triton_repository
from lit_gelu.export.serving.backend import backend_settings

ON_CPU = {
    "intra_op_num_threads": 2,
    "graph_optimization_level": "extended",
    "enable_mem_pattern": False,
    "allow_spinning": False,
    "disabled_optimizers": ["QuickGeluFusion"],
}
ON_CUDA = {"prefer_nhwc": 1, "fuse_conv_bias": 1, "cudnn_conv_algo_search": "HEURISTIC", "batch_buckets": [32]}


@pytest.fixture
def path(tmp_path):
    export_onnx(gelu_net(), tmp_path / "net.onnx", torch.zeros(2, 6))
    return tmp_path / "net.onnx"


def choice(key, settings):
    return TuningChoice(key, settings, ratio=0.8, error=1e-7, limit=1e-5, batch_size=32)


def config_of(path, **options):
    written = write_triton_repository(path, path.parent / "repository", **options)
    return parsed(written.config), "\n".join(written.notes)


def test_what_is_kept_beside_the_file_is_used(path):
    write_choice(path, choice(this_key(CPU, torch.device("cpu")), ON_CPU))
    config, notes = config_of(path, device="cpu")
    assert {key: value.string_value for key, value in config.parameters.items()} == {
        "intra_op_thread_count": "2",
        "enable_mem_pattern": "0",
    }
    assert config.optimization.graph.level == 1
    assert "net.onnx is configured as tuned" in notes
    assert "no name for allow_spinning=False, disabled_optimizers=['QuickGeluFusion']" in notes


def test_unless_that_is_not_wanted_or_it_is_of_another_machine(path):
    write_choice(path, choice(TuningKey("1.0", CPU, "another processor"), ON_CPU))
    assert config_of(path, device="cpu") == config_of(path, device="cpu", tuning=False, overwrite=True)
    write_choice(path, choice(this_key(CPU, torch.device("cpu")), ON_CPU))
    config, notes = config_of(path, device="cpu", tuning=False, overwrite=True)
    assert (len(config.parameters), config.HasField("optimization"), notes) == (0, False, "")


def test_a_choice_of_the_machine_that_will_serve_it(path):
    tuned = choice(TuningKey("1.31.1", CUDA, "NVIDIA H200"), ON_CUDA)
    config, notes = config_of(path, device="gpu", tuning=tuned)
    (cuda,) = config.optimization.execution_accelerators.gpu_execution_accelerator
    assert cuda.name == "cuda"
    assert dict(cuda.parameters) == {
        "use_tf32": "0",
        "prefer_nhwc": "1",
        "fuse_conv_bias": "1",
        "cudnn_conv_algo_search": "HEURISTIC",
    }
    assert config.parameters["cudnn_conv_algo_search"].string_value == "1"  # else the backend searches exhaustively
    assert "no name for batch_buckets=[32]" in notes
    with pytest.raises(ExportOptionError, match="is a choice for CUDAExecutionProvider, and device='cpu'"):
        config_of(path, device="cpu", tuning=tuned)


@pytest.mark.parametrize(
    ("settings", "sixteen_bit", "expected"), [({}, False, "0"), ({}, True, "1"), ({"use_tf32": 1}, False, "1")]
)
def test_float32_products_are_not_computed_in_tf32_unless_that_was_tuned(settings, sixteen_bit, expected):
    assert backend_settings("gpu", settings, sixteen_bit=sixteen_bit).cuda == {"use_tf32": expected}


def test_without_tuning_the_backend_keeps_its_defaults_on_the_cpu(path):
    config, _ = config_of(path, device="cpu")
    assert (len(config.parameters), config.HasField("optimization")) == (0, False)


@pytest.mark.parametrize(("level", "number"), [("all", None), ("extended", 1), ("basic", -1), ("disabled", 2)])
def test_levels_of_graph_optimisation(level, number):
    assert backend_settings("cpu", {"graph_optimization_level": level}, sixteen_bit=False).graph_level == number


@pytest.mark.parametrize("device", ["cpu", "gpu"])
@pytest.mark.parametrize("name", sorted(ACCEPTED))
def test_no_setting_is_lost_without_a_word(device, name):
    value = {"graph_optimization_level": "basic", "cudnn_conv_algo_search": "DEFAULT"}.get(name, 1)
    found = backend_settings(device, {name: value}, sixteen_bit=False)
    plain = backend_settings(device, {}, sixteen_bit=False)
    assert (found.left_out == (f"{name}={value}",)) != (
        (found.graph_level, found.parameters) != (plain.graph_level, plain.parameters) or name in found.cuda
    )
