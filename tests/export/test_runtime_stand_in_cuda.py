"""The default predictor's session on CUDA, divided and optimised by the shipped provider on stand-in libraries."""

import json
import subprocess
import sys

import pytest
import stand_in_cuda
import torch
from torch import nn

from lit_gelu import activations
from lit_gelu.export import export_onnx

# Without torch, which loads the real libraries.
OPEN = """
import json, pathlib, sys
from collections import Counter

settings, options = map(json.loads, sys.argv[1:3])
sys.modules["torch"] = None

import onnx
import onnxruntime

onnxruntime.preload_dlls = lambda: None  # the real ones
onnxruntime.set_default_logger_severity(4)
from lit_gelu.export.runtime.placement import placement_of
from lit_gelu.export.runtime.session import open_session

found = []
for path in sys.argv[3:]:
    sess_options = onnxruntime.SessionOptions()
    sess_options.log_severity_level = 4
    sess_options.optimized_model_filepath = path + ".optimized"
    for key, value in settings.items():
        sess_options.add_session_config_entry(key, value)
    entry = {}
    try:
        given = {"providers": [["CUDAExecutionProvider", options]]} if options else {}
        session = open_session(path, sess_options=sess_options, **given)
        entry["providers"] = session.get_providers()
        entry["on_cpu"] = sorted(node.operator for node in placement_of(session).outside("CUDAExecutionProvider"))
        entry["table"] = str(placement_of(session))
    except Exception as error:
        entry["error"] = f"{type(error).__name__}: {error}"
    written = pathlib.Path(path + ".optimized")
    operators = Counter(node.op_type for node in onnx.load(written).graph.node) if written.exists() else {}
    found.append({**entry, "copies": sum(count for name, count in operators.items() if name.startswith("Memcpy"))})
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def libraries(tmp_path_factory):
    stand_in_cuda.require_tools()
    return stand_in_cuda.build(tmp_path_factory.mktemp("stand_in_cuda"))


def opened(libraries, paths, settings=None, options=None):
    arguments = [json.dumps(each) for each in (settings or {}, options or {})]
    done = subprocess.run(
        [sys.executable, "-P", "-c", OPEN, *arguments, *map(str, paths)],
        capture_output=True,
        text=True,
        timeout=600,
        env=stand_in_cuda.environment(libraries),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


class Scaled(nn.Module):
    """A size that becomes data: a factor of a tensor."""

    def forward(self, x):
        return nn.functional.gelu(x) * x.shape[0]


class Numbered(nn.Module):
    """Sizes that a kernel of CUDA reads from host memory: the end of a range, a shape."""

    def forward(self, x):
        rows = x.shape[0] * x.shape[1]
        return nn.functional.gelu(x.reshape(rows, -1) + torch.arange(rows, device=x.device).unsqueeze(1))


def vision_transformer():
    timm = pytest.importorskip("timm")
    sizes = {"img_size": 32, "depth": 1, "embed_dim": 24, "num_heads": 3}
    return timm.create_model("vit_tiny_patch16_224", **sizes)


def export(module, folder, sample):
    path = folder / "net.onnx"
    export_onnx(module.eval(), path, sample, target="ort-cuda")
    return path


ENCODER = {"d_model": 8, "nhead": 2, "dim_feedforward": 16, "activation": "gelu", "batch_first": True}
# What is left on the CPU.
OPENED = {
    "encoder": (lambda: nn.TransformerEncoderLayer(**ENCODER), torch.zeros(2, 5, 8), []),
    "vision transformer": (vision_transformer, torch.zeros(2, 3, 32, 32), ["Concat"]),  # the class token's rows
    "numbered": (Numbered, torch.zeros(2, 5, 8), ["Mul", "Squeeze"]),
}


@pytest.mark.parametrize("name", OPENED)
def test_nodes_that_compute_sizes_may_run_on_the_cpu(libraries, tmp_path, name):
    """The optimised file has no copies, and the default predictor's session opens; CUDA graphs too."""
    make, sample, left = OPENED[name]
    path = export(make(), tmp_path, sample)
    for options in ({}, {"enable_cuda_graph": "1"}):
        (found,) = opened(libraries, [path], options=options)
        assert found["providers"][0] == "CUDAExecutionProvider", found
        assert found["copies"] == 0
        assert found["on_cpu"] == left
        assert ("CPUExecutionProvider" in found["table"]) == bool(left)


def test_without_sizes_to_compute_nhwc_and_cuda_graphs_go_together(libraries, tmp_path):
    make, sample, _ = OPENED["encoder"]
    options = {"prefer_nhwc": "1", "enable_cuda_graph": "1"}
    (found,) = opened(libraries, [export(make(), tmp_path, sample)], options=options)
    assert (found["on_cpu"], found["copies"]) == ([], 0)


def test_a_size_that_becomes_data_is_refused_and_is_a_copy_at_every_call(libraries, tmp_path):
    (found,) = opened(libraries, [export(Scaled(), tmp_path, torch.zeros(2, 5))])
    assert found["copies"] == 1
    assert found["error"].startswith("ProviderError")
    assert "they make data out of sizes" in found["error"]
    assert "Cast 'node_" in found["error"]


def test_a_node_without_a_kernel_is_refused(libraries, tmp_path):
    """CUDA's provider has none for Atan."""
    net = nn.Sequential(nn.Linear(4, 4), activations.create("cauchy_linear"), nn.Linear(4, 4))
    (found,) = opened(libraries, [export(net, tmp_path, torch.zeros(2, 4))])
    assert found["copies"] > 0
    assert found["error"].startswith("ProviderError")
    assert "Atan" in found["error"]
    assert "CUDAExecutionProvider has no kernel for them" in found["error"]
    assert "providers=['CUDAExecutionProvider', 'CPUExecutionProvider']" in found["error"]


def test_onnxruntimes_own_option_forbids_all_of_the_cpu(libraries, tmp_path):
    make, sample, _ = OPENED["numbered"]
    path = export(make(), tmp_path, sample)
    (found,) = opened(libraries, [path], settings={"session.disable_cpu_ep_fallback": "1"})
    assert "session.disable_cpu_ep_fallback=1 is set" in found["error"]
    assert "Leave the option out" in found["error"]
