"""Nets on the CUDA provider, plain and with CUDA graphs: they open with nothing copied, or the reason is said.

The shipped provider opens the files on stand-in libraries, all of them in one process.
"""

import importlib
import warnings

import pytest
import stand_in_cuda
import torch
from child_processes import run_python
from cuda_nets import VisionTransformer, encoder
from torch import nn

from lit_gelu import activations
from lit_gelu.export import export_onnx

GRAPH = {"enable_cuda_graph": "1"}


class LastState(nn.Module):
    """A language model's last hidden state."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids, attention_mask):
        return self.model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state


class Scaled(nn.Module):
    """A size that becomes data: a factor of a tensor."""

    def forward(self, x):
        return nn.functional.gelu(x) * x.shape[0]


class Numbered(nn.Module):
    """Sizes that a kernel of CUDA reads from host memory: the end of a range, a shape."""

    def forward(self, x):
        rows = x.shape[0] * x.shape[1]
        return nn.functional.gelu(x.reshape(rows, -1) + torch.arange(rows, device=x.device).unsqueeze(1))


def bert():
    library = importlib.import_module("transformers")
    size = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}
    return LastState(library.BertModel(library.BertConfig(vocab_size=20, **size)))


IDS = torch.randint(20, (2, 8))
LENGTH = {"input_ids": {1: "sequence"}, "attention_mask": {1: "sequence"}}
# By name: the net, a sample, its open sizes beside the batch; how many nodes are left on the CPU.
NETS = {
    "encoder": (encoder, torch.zeros(2, 5, 8), (), []),
    "ViT": (VisionTransformer, torch.zeros(2, 3, 8, 8), (), ["Concat"]),
    "numbered": (Numbered, torch.zeros(2, 5, 8), (), ["Mul", "Squeeze"]),
}
FULL = {
    "encoder, any length": (encoder, torch.zeros(2, 5, 8), {"src": {1: "sequence"}}, None),
    "ViT, any image": (VisionTransformer, torch.zeros(2, 3, 16, 8), {"x": {2: "height", 3: "width"}}, None),
    "BERT": (bert, {"input_ids": IDS, "attention_mask": torch.ones_like(IDS)}, LENGTH, None),
}


@pytest.fixture(scope="module")
def libraries(tmp_path_factory):
    stand_in_cuda.require_tools()
    return stand_in_cuda.build(tmp_path_factory.mktemp("stand_in_cuda"))


def opened(libraries, folder, nets):
    """What the provider says of each net, plain and as a CUDA graph."""
    cells = []
    for number, (make, sample, sizes, *_) in enumerate(nets):
        path = folder / f"{number}.onnx"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the exporter and of the libraries, on the way to the graph
            export_onnx(make().eval(), path, sample, target="ort-cuda", dynamic_shapes=sizes)
        cells += [(path, {}, {}), (path, GRAPH, {})]
    entries = stand_in_cuda.opened(libraries, cells)
    return list(zip(entries[::2], entries[1::2], strict=True))


def require_open(pairs, nets):
    for (plain, graph), (_, _, _, left) in zip(pairs, nets, strict=True):
        for entry in (plain, graph):
            assert "error" not in entry, entry
            assert entry["providers"][0] == "CUDAExecutionProvider"
            assert entry["copies"] == 0
        assert left in (None, plain["left"])


def test_nodes_that_compute_sizes_alone_may_run_on_the_cpu(libraries, tmp_path):
    require_open(opened(libraries, tmp_path, NETS.values()), NETS.values())


@pytest.mark.full
def test_nets_of_others_open(libraries, tmp_path):
    require_open(opened(libraries, tmp_path, FULL.values()), FULL.values())


def test_a_size_that_becomes_data_and_a_node_without_a_kernel_are_refused(libraries, tmp_path):
    """CUDA's provider has none for Atan."""
    cauchy = nn.Sequential(nn.Linear(4, 4), activations.create("cauchy_linear"), nn.Linear(4, 4))
    nets = [(Scaled, torch.zeros(2, 5), ()), (lambda: cauchy, torch.zeros(2, 4), ())]
    for (plain, _), node in zip(opened(libraries, tmp_path, nets), ("Cast", "Atan"), strict=True):
        assert plain["copies"] > 0
        assert plain["error"].startswith("ProviderError")
        assert node in plain["error"]


_OPEN = """
import sys

sys.modules["torch"] = None
import onnxruntime

onnxruntime.preload_dlls = lambda: None  # the real ones
from lit_gelu.export.runtime import OnnxPredictor
from lit_gelu.export.runtime.session import open_session

session = open_session(sys.argv[1], [("CUDAExecutionProvider", {"use_tf32": "0", "device_id": sys.argv[2]})])
assert session.get_providers()[0] == OnnxPredictor(sys.argv[1]).providers[0] == "CUDAExecutionProvider"
print(session.get_provider_options()["CUDAExecutionProvider"]["device_id"])
"""


@pytest.mark.parametrize("device", ["0", "1"])
def test_the_default_is_cuda_where_the_driver_has_a_device(libraries, tmp_path, device):
    """Where a device's number is given, onnxruntime 1.31 warns of plugins: it is given only if it counts."""
    export_onnx(nn.Sequential(nn.Linear(4, 4), nn.GELU()), tmp_path / "net.onnx", torch.zeros(2, 4), target="ort-cuda")
    environment = stand_in_cuda.environment(libraries)
    done = run_python(_OPEN, str(tmp_path / "net.onnx"), device, env=environment, check=False)
    if device == "0":
        assert (done.returncode, done.stdout, done.stderr) == (0, "0\n", "")
    else:  # there is one device
        assert done.returncode != 0
