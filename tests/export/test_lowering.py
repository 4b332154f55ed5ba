"""Every registered activation in every lowering: the operators, and the values against PyTorch float64."""

import copy

import numpy as np
import onnx
import pytest
import torch
from export_cases import CASES, EveryActivation, operators_by_site
from torch import nn
from torch.nn import functional as F

from lit_gelu import activations
from lit_gelu.activations.onnx_recipes import LOWERINGS
from lit_gelu.export import OnnxPredictor, check_parity, export_onnx

GATED = {"glu", "reglu", "geglu", "swiglu"}  # torch decomposes them
CONTRIB = "com.microsoft::"


@pytest.fixture(
    scope="module", params=[LOWERINGS[0], *(pytest.param(name, marks=pytest.mark.full) for name in LOWERINGS[1:])]
)
def lowered(request, tmp_path_factory):
    """Every activation in one file; `make test` has the first lowering."""
    model, path = EveryActivation(), tmp_path_factory.mktemp("lowerings") / f"{request.param}.onnx"
    export_onnx(model, path, lowering=request.param)
    return model, request.param, path


def test_the_cases_are_every_registered_activation():
    covered = {activations.registry.resolve(case.spec).name for case in CASES}
    entries = activations.ActivationRegistry().entries()
    built_in = {entry.name for entry in entries if entry.preset is None}  # the others are other names of these
    assert covered == built_in - {"identity", *GATED}


def test_each_site_becomes_the_operators_that_are_written_by_hand(lowered):
    _, lowering, path = lowered
    operators = operators_by_site(path)
    for i, case in enumerate(CASES):
        assert operators[f"sites.{i}"] == case.operators(lowering), case.spec


def test_nothing_but_the_recipes_is_in_the_file(lowered):
    _, lowering, path = lowered
    model = onnx.load(path)
    assert all(any(p.key == "lit_gelu.site" for p in node.metadata_props) for node in model.graph.node)
    domains = {entry.domain: entry.version for entry in model.opset_import}
    assert domains == ({"": 20, "com.microsoft": 1} if lowering == "contrib" else {"": 20})


def test_values_agree_with_pytorch_float64(lowered):
    model, _, path = lowered
    x = np.concatenate([np.linspace(-40, 40, 20_001), [-1e30, -1e4, -1e-30, 1e-40, 1e4, 1e30]]).astype(np.float32)
    x = x[: x.size // 4 * 4].reshape(-1, 4)
    exact = {
        name: y.detach().numpy()
        for name, y in copy.deepcopy(model).eval().double()(torch.from_numpy(x).double()).items()
    }
    for (name, y64), y, case in zip(exact.items(), OnnxPredictor(path)(x), CASES, strict=True):
        with np.errstate(over="ignore"):
            y64 = y64.astype(np.float32).astype(np.float64)  # relu2(1e30) is infinite in float32
            error = np.where(y == y64, 0.0, np.abs(y - y64) / np.maximum(1, np.abs(y64)))
        assert error.max() < 3e-6, (name, case.spec)


def test_learned_parameters_have_their_present_values(tmp_path):
    model = nn.Sequential(
        activations.create("swish(learnable=True)"), activations.create("gaussian_gelu(sigma=0.5, learnable=True)")
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(0.3)
    path = tmp_path / "learned.onnx"
    export_onnx(model, path, torch.zeros(2, 5))
    x = torch.linspace(-6, 6, 100).reshape(20, 5)
    assert np.abs(OnnxPredictor(path)(x.numpy()) - model.double()(x.double()).detach().numpy()).max() < 1e-6


def test_parameters_with_one_value_a_channel(tmp_path):
    """In the second dimension, in the last and between; QuickGelu takes one number only."""
    model = nn.Sequential(
        nn.Conv2d(1, 3, 2),
        activations.create("swish(learnable=True, channels=3)"),
        activations.create("gaussian_gelu(learnable=True, channels=3)"),
        activations.create("gaussian_gelu(learnable=True, channels=5, channel_dim=-1)"),
        activations.create("swish(learnable=True, channels=4, channel_dim=-2)"),
        nn.GELU(),
    )
    with torch.no_grad():
        for parameter in [parameter for module in model[1:] for parameter in module.parameters()]:
            parameter.copy_(torch.linspace(-0.5, 0.5, len(parameter)))
    path = tmp_path / "channels.onnx"
    report = export_onnx(model, path, torch.zeros(1, 1, 5, 6), lowering="contrib")
    assert "com.microsoft::QuickGelu" not in report.census
    assert check_parity(model, path).passed


def test_one_module_at_two_places(tmp_path):
    gelu = nn.GELU()
    model = nn.Sequential(nn.Linear(4, 4), gelu, nn.Linear(4, 4), gelu)
    report = export_onnx(model, tmp_path / "shared.onnx", torch.zeros(1, 4), lowering="contrib")
    (site,) = report.sites
    assert (site.site, site.calls) == ("1", 2)
    assert check_parity(model, tmp_path / "shared.onnx").passed


class Functional(nn.Module):
    def forward(self, x):
        return F.gelu(x), F.gelu(2 * x, approximate="tanh"), F.silu(x), F.logsigmoid(x), F.elu(x, 0.3), F.mish(x)


@pytest.mark.parametrize(
    ("lowering", "gelu"), [("native", "Gelu"), ("primitives", "Erf"), ("contrib", "com.microsoft::Gelu")]
)
def test_calls_of_functions_are_lowered_too(tmp_path, lowering, gelu):
    path = tmp_path / "functional.onnx"
    report = export_onnx(Functional(), path, torch.zeros(2, 3), lowering=lowering)
    assert report.census[gelu] >= 1
    assert {site.spec for site in report.sites} == {
        "gelu", "gelu(approximate='tanh')", "silu", "log_sigmoid", "elu(alpha=0.3)", "mish",
    }  # fmt: skip
    assert check_parity(Functional(), path, input_sample=torch.zeros(2, 3)).passed


class UsesInPlace(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.act = nn.Linear(4, 4), nn.SiLU(inplace=True)

    def forward(self, x):
        hidden = self.linear(x)
        self.act(hidden)  # what it returns is not used
        return hidden


def test_an_in_place_activation_changes_its_input(tmp_path):
    path, model = tmp_path / "inplace.onnx", UsesInPlace()
    report = export_onnx(model, path, torch.zeros(2, 4), lowering="contrib")
    assert dict(report.census) == {"Gemm": 1, "com.microsoft::QuickGelu": 1}
    assert check_parity(model, path).passed


def test_a_name_that_the_user_gave_to_something_else_is_not_mistaken(tmp_path):
    registry = activations.ActivationRegistry()
    registry.register("gelu", override=True)(nn.Softsign)
    model = nn.Sequential(registry.create("gelu"))
    report = export_onnx(model, tmp_path / "softsign.onnx", torch.zeros(1, 4), registry=registry)
    assert "Gelu" not in report.census
    assert check_parity(model, tmp_path / "softsign.onnx", registry=registry).passed


@pytest.mark.parametrize("spec", ["gaussian_gelu", "gaussian_gelu(sigma=1.0, learnable=True)"])
def test_a_gaussian_gelu_of_unit_deviation_is_one_gelu(tmp_path, spec):
    path, model = tmp_path / "net.onnx", nn.Sequential(activations.create(spec))
    assert export_onnx(model, path, torch.zeros(2, 4)).census == {"Gelu": 1}
    x = torch.linspace(-12, 12, 4096).reshape(-1, 4)
    torch.testing.assert_close(OnnxPredictor(path)(x), F.gelu(x), rtol=0, atol=1e-6)


class Gates(nn.Module):
    def __init__(self):
        super().__init__()
        names = ("glu", "reglu", "geglu", "geglu(approximate='tanh')", "swiglu", "swiglu(beta=1.5)")
        self.gates = nn.ModuleList([activations.create(name) for name in names])

    def forward(self, x):
        return tuple(gate(x) for gate in self.gates)


@pytest.mark.parametrize(("dtype", "regions", "limit"), [("fp32", 0, 1e-5), ("fp16", 4, 2e-2)])
def test_gated_functions_are_a_split_the_inner_activation_and_a_product(tmp_path, dtype, regions, limit):
    """The inner activation is that of the table: in fp16 the sigmoid, tanh and Swish gates stand in float32."""
    path = tmp_path / "gates.onnx"
    report = export_onnx(Gates(), path, torch.zeros(2, 8), dtype=dtype)
    assert {site.row for site in report.sites if site.calls} == {
        "sigmoid", "relu", "gelu(approximate='none')", "gelu(approximate='tanh')", "silu", "swish"
    }  # fmt: skip
    assert report.census["Split"] == 2  # torch shares them: one for glu, whose halves are the other way round
    assert report.census.get("Cast", 0) == 2 * regions
    x = torch.randn(64, 8)
    fed = x.half() if dtype == "fp16" else x
    with torch.no_grad():
        exact = Gates().double()(fed.double())
    for y, y64 in zip(OnnxPredictor(path)(fed), exact, strict=True):
        torch.testing.assert_close(y.double(), y64, rtol=0, atol=limit)
