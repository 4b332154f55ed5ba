"""Files and graphs of a fused model are those of the model, byte for byte."""

import io
import re

import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode

from lit_gelu import activations, kernels
from lit_gelu.activations.gpu import autograd, formulas, routes
from lit_gelu.activations.gpu.modules import is_fused
from lit_gelu.export import check_parity, export_onnx

ACTIVATIONS = ["gelu", "gelu_tanh", "elu(alpha=0.5)", "laplace_linear"]


class Block(nn.Module):
    def __init__(self, spec):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.activation = activations.create(spec)

    def forward(self, x):
        return x + self.activation(self.linear(x))


def net():
    torch.manual_seed(0)
    return nn.Sequential(*map(Block, ACTIVATIONS), nn.ReLU(), nn.Linear(8, 3)).eval()


@pytest.fixture(scope="module")
def pair():
    fused = kernels.fuse(net())
    assert sum(kernels.explain(module, X).why.startswith("the tensor lies") for module in fused.modules()) == 4
    return net(), fused


X = torch.linspace(-3, 3, 16).reshape(2, 8)


def exported_bytes(model, **options):
    buffer = io.BytesIO()
    torch.export.save(torch.export.export(model, (X,), **options), buffer)
    return buffer.getvalue()


@pytest.fixture
def as_on_cuda(monkeypatch):
    """Have tensors on the CPU go where large 16-bit tensors on a GPU go; return the kernels that compute."""

    def route(_, x):
        if torch.compiler.is_compiling():
            return routes._compiled_route(x)
        why = routes._transformed(x)
        return routes.Route("torch" if why else "kernel", why)

    def forward(self, x):
        started.append(self.name)
        return formulas.value(self.name, x, self.p0, self.p1)

    started = []
    monkeypatch.setattr(routes, "is_candidate", lambda x: isinstance(x, torch.Tensor))
    monkeypatch.setattr(autograd.TritonKernel, "route", route)
    monkeypatch.setattr(autograd.TritonKernel, "forward", forward)
    return started


def test_what_torch_export_saves(pair, as_on_cuda):
    plain, fused = map(exported_bytes, pair)
    assert plain == fused
    assert as_on_cuda == []
    pair[1](X)
    assert "gelu" in as_on_cuda
    assert b"KernelModule" not in fused
    assert b"by_kernel" not in fused


@pytest.mark.parametrize("spec", ["gaussian_gelu(mu=0.1, learnable=True)", "zero_identity_map"])
def test_modules_that_ask_for_their_kernels_themselves(spec, tmp_path):
    found = []
    for choice in ("auto", "off"):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 8), activations.create(spec, kernels=choice)).eval()
        export_onnx(model, tmp_path / "net.onnx", X)
        found.append((exported_bytes(model), (tmp_path / "net.onnx").read_bytes()))
    assert found[0] == found[1]


def test_what_torch_export_saves_with_sizes_that_are_open(pair):
    plain, fused = (exported_bytes(model, dynamic_shapes=({0: torch.export.Dim.AUTO},)) for model in pair)
    assert plain == fused


def test_what_a_strict_export_says_of_every_node(pair):
    """But for the lines of code on the way, which it keeps of this package too."""
    plain, fused = (torch.export.export(model, (X,), strict=True) for model in pair)
    assert plain.graph_module.code == fused.graph_module.code
    assert plain.graph_signature == fused.graph_signature
    for a, b in zip(plain.graph.nodes, fused.graph.nodes, strict=True):
        for key in ("nn_module_stack", "source_fn_stack"):
            one, other = ([re.sub(r"\d{6,}", "", str(part)) for part in _parts(node.meta.get(key))] for node in (a, b))
            assert one == other


def _parts(value):
    return value.items() if isinstance(value, dict) else value or ()


@pytest.fixture(params=[torch.float16, torch.bfloat16], ids=str)
def default_dtype(request):
    before = torch.get_default_dtype()
    torch.set_default_dtype(request.param)
    yield
    torch.set_default_dtype(before)


@pytest.mark.usefixtures("default_dtype")
def test_a_graph_that_is_exported_for_cuda():
    codes = []
    with FakeTensorMode(), torch.device("cuda"):
        for change in (lambda model: model, kernels.fuse):
            model, x = change(net()), torch.zeros(2**19, 8)
            assert x.is_cuda
            assert x.numel() >= routes.THRESHOLD
            codes.append(torch.export.export(model, (x,)).graph_module.code)
    assert codes[0] == codes[1]
    assert "aten.gelu" in codes[0]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dynamo", [True, False])
def test_what_torch_s_own_exporters_write(pair, tmp_path, dynamo, as_on_cuda):
    found = []
    for name, model in zip(("plain", "fused"), pair, strict=True):
        path = tmp_path / name / "net.onnx"
        path.parent.mkdir()
        torch.onnx.export(model, (X,), path, dynamo=dynamo, verbose=False, external_data=False)
        found.append(path.read_bytes())
    assert found[0] == found[1]
    assert as_on_cuda == []


@pytest.mark.parametrize("options", [{}, {"target": "ort-cuda", "dtype": "fp16", "approximate": "tanh"}], ids=str)
def test_what_export_onnx_writes(pair, tmp_path, options, as_on_cuda):
    for name, model in zip(("plain", "fused"), pair, strict=True):
        (tmp_path / name).mkdir()
        export_onnx(model, tmp_path / name / "net.onnx", X, **options)
    assert (tmp_path / "plain" / "net.onnx").read_bytes() == (tmp_path / "fused" / "net.onnx").read_bytes()
    assert is_fused(pair[1][0].activation)  # as it was


def test_the_proof_of_a_fused_model(pair, tmp_path):
    export_onnx(pair[0], tmp_path / "net.onnx", X)
    reports = [check_parity(model, tmp_path / "net.onnx", X) for model in pair]
    assert reports[1].passed
    assert [str(row) for row in reports[0].rows] == [str(row) for row in reports[1].rows]
