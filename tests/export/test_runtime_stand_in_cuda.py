"""The default predictor's session on CUDA, divided and optimised by the shipped provider on stand-in libraries."""

import pytest
import stand_in_cuda
import torch
from child_processes import run_python
from torch import nn

from lit_gelu import activations
from lit_gelu.export import export_onnx


@pytest.fixture(scope="module")
def libraries(tmp_path_factory):
    stand_in_cuda.require_tools()
    return stand_in_cuda.build(tmp_path_factory.mktemp("stand_in_cuda"))


class Scaled(nn.Module):
    """A size that becomes data: a factor of a tensor."""

    def forward(self, x):
        return nn.functional.gelu(x) * x.shape[0]


class Numbered(nn.Module):
    """Sizes that a kernel of CUDA reads from host memory: the end of a range, a shape."""

    def forward(self, x):
        rows = x.shape[0] * x.shape[1]
        return nn.functional.gelu(x.reshape(rows, -1) + torch.arange(rows, device=x.device).unsqueeze(1))


def export(module, folder, sample):
    path = folder / "net.onnx"
    export_onnx(module.eval(), path, sample, target="ort-cuda")
    return path


@pytest.fixture(scope="module")
def numbered(libraries, tmp_path_factory):
    """Opened as it is, with CUDA graphs, and with onnxruntime's own option."""
    path = export(Numbered(), tmp_path_factory.mktemp("numbered"), torch.zeros(2, 5, 8))
    options = ({}, {}), ({"enable_cuda_graph": "1"}, {}), ({}, {"session.disable_cpu_ep_fallback": "1"})
    return stand_in_cuda.opened(libraries, [(path, *each) for each in options])


def test_nodes_that_compute_sizes_may_run_on_the_cpu(numbered):
    """They do, the optimised file has no copies, and the default predictor's session opens; CUDA graphs too."""
    for found in numbered[:2]:
        assert found["providers"][0] == "CUDAExecutionProvider", found
        assert found["copies"] == 0
        assert found["left"] == ["Mul", "Squeeze"]
        assert "CPUExecutionProvider   2 nodes" in found["table"]


def test_a_size_that_becomes_data_is_refused_and_is_a_copy_at_every_call(libraries, tmp_path):
    (found,) = stand_in_cuda.opened(libraries, [(export(Scaled(), tmp_path, torch.zeros(2, 5)), {}, {})])
    assert found["copies"] == 1
    assert found["error"].startswith("ProviderError")
    assert "they make data out of sizes" in found["error"]
    assert "Cast 'node_" in found["error"]


def test_a_node_without_a_kernel_is_refused(libraries, tmp_path):
    """CUDA's provider has none for Atan."""
    net = nn.Sequential(nn.Linear(4, 4), activations.create("cauchy_linear"), nn.Linear(4, 4))
    (found,) = stand_in_cuda.opened(libraries, [(export(net, tmp_path, torch.zeros(2, 4)), {}, {})])
    assert found["copies"] > 0
    assert found["error"].startswith("ProviderError")
    assert "Atan" in found["error"]
    assert "CUDAExecutionProvider has no kernel for them" in found["error"]
    assert "providers=['CUDAExecutionProvider', 'CPUExecutionProvider']" in found["error"]


# What the predictor asks for: the device's number and options, as its engine adds them where torch has CUDA.
_SAID = """
import sys

sys.modules["torch"] = None
import onnxruntime

onnxruntime.preload_dlls = lambda: None  # the real ones
from lit_gelu.export.runtime.session import open_session

session = open_session(sys.argv[1], [("CUDAExecutionProvider", {"use_tf32": "0", "device_id": sys.argv[2]})])
assert session.get_providers()[0] == "CUDAExecutionProvider"
print(session.get_provider_options()["CUDAExecutionProvider"]["device_id"])
"""


@pytest.mark.parametrize("device", ["0", "1"])
def test_a_session_says_nothing_of_plugins(libraries, tmp_path, device):
    """Where a device's number is given, onnxruntime 1.31 warns of plugins: it is given only if it counts."""
    path = export(nn.Sequential(nn.Linear(4, 4), nn.GELU()), tmp_path, torch.zeros(2, 4))
    done = run_python(_SAID, str(path), device, env=stand_in_cuda.environment(libraries), check=False)
    if device == "0":
        assert done.returncode == 0, done.stderr
        assert done.stdout == "0\n"
        assert done.stderr == ""
    else:  # there is one device
        assert "Invalid device ID: 1" in done.stderr


def test_onnxruntimes_own_option_forbids_all_of_the_cpu(numbered):
    assert "session.disable_cpu_ep_fallback=1 is set" in numbered[2]["error"]
    assert "Leave the option out" in numbered[2]["error"]
