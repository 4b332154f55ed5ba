"""Scale factors of gaussian_gelu and swish in the weights beside them: where, when, and that the function stays."""

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from torch import nn
from traced_graph import TracedGraph

from lit_gelu import activations
from lit_gelu.export import check_parity, export_onnx

POWERS = "gaussian_gelu(sigma=(0.25, 0.5, 1.0, 2.0, 4.0, 8.0))"


class Pieces(nn.Module):
    """Linear and convolutional neighbours, scales that are powers of two and scales that are not."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.plain = self.net("gaussian_gelu(sigma=2.0)")
        self.uneven = self.net("gaussian_gelu(sigma=1.7)")
        self.channels = nn.Sequential(nn.Linear(4, 6), activations.create(POWERS, channel_dim=-1), nn.Linear(6, 3))
        self.beta = nn.Sequential(
            nn.Linear(4, 6), activations.create("swish(beta=(0.25, 0.5, 1.0, 2.0, 4.0, 8.0))"), nn.Linear(6, 3)
        )
        self.conv = nn.Sequential(nn.Conv2d(1, 6, 1), activations.create(POWERS), nn.Conv2d(6, 2, 1))
        self.shifted = self.net("gaussian_gelu(mu=0.5, sigma=2.0)")
        self.first = nn.Linear(4, 6)
        self.read_twice = activations.create("gaussian_gelu(sigma=2.0)")
        self.tail = nn.Linear(6, 3)
        self.example_input_array = torch.zeros(2, 4)

    def net(self, spec):
        return nn.Sequential(nn.Linear(4, 6), activations.create(spec), nn.Linear(6, 3))

    def forward(self, x):
        h = self.first(x)
        return (
            self.plain(x), self.uneven(x), self.channels(x), self.beta(x), self.conv(x.reshape(-1, 1, 2, 2)),
            self.shifted(x), self.tail(self.read_twice(h)) + h[:, :3],
        )  # fmt: skip


@pytest.fixture(scope="module")
def pieces():
    return TracedGraph(Pieces())


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
def test_strict_folds_powers_of_two_and_fast_any_scale(pieces, dtype):
    for policy, expected in (("strict", {"plain.1", "channels.1", "beta.1", "conv.1"}), ("fast", None)):
        _, lowered = pieces.lowered("ort-cuda", dtype, policy)
        folded = {row.site: row.folded for row in lowered.sites if row.folded}
        assert set(folded) == (expected or {"plain.1", "uneven.1", "channels.1", "beta.1", "conv.1"})
        assert folded["plain.1"] == "1/2 in plain.0.weight and plain.0.bias, 2 in plain.2.weight"
        assert all(any(site in note for note in lowered.notes) for site in folded)


def test_what_is_left_is_one_gelu_or_silu(pieces):
    _, lowered = pieces.lowered("portable", "fp32", "strict")
    found = {row.site: row.operators for row in lowered.sites}
    assert found["plain.1"] == found["channels.1"] == found["conv.1"] == ("Gelu",)
    assert found["beta.1"] == ("Sigmoid", "Mul")
    assert found["uneven.1"] == found["read_twice"] == ("Div", "Gelu", "Mul")
    assert len(found["shifted.1"]) == 6


@pytest.mark.parametrize("policy", ["strict", "fast"])
def test_the_function_stays(pieces, policy):
    graph, _ = pieces.lowered("portable", "fp32", policy)
    session = onnxruntime.InferenceSession(ir.to_proto(graph).SerializeToString(), providers=["CPUExecutionProvider"])
    x = 3 * torch.randn(200, 4)
    with torch.no_grad():
        exact = pieces.model.eval().double()(x.double())
        pieces.model.float()
    for y, y64 in zip(session.run(None, {"x": x.numpy()}), exact, strict=True):
        assert np.abs(y - y64.numpy()).max() < 3e-6


def test_a_named_lowering_folds_nothing(pieces):
    _, lowered = pieces.lowered("portable", "fp32", "fast", "native")
    assert not any(row.folded for row in lowered.sites)


def test_the_report_and_the_file_say_so(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), activations.create("gaussian_gelu(sigma=4.0)"), nn.Linear(6, 3))
    report = export_onnx(model, tmp_path / "net.onnx", torch.zeros(2, 4))
    assert report.sites[0].spec == "gaussian_gelu(sigma=4.0)"
    assert "1/4 in 0.weight and 0.bias, 4 in 2.weight" in str(report)
    assert report.notes == report.metadata.notes == ("1: 1/4 in 0.weight and 0.bias, 4 in 2.weight",)
    assert dict(report.census) == {"Gemm": 2, "Gelu": 1}
    assert check_parity(model, tmp_path / "net.onnx", input_sample=torch.zeros(2, 4)).passed


@pytest.mark.parametrize(
    ("policy", "dtype", "recipe"),
    [
        ("strict", "fp32", "Mul(Mul(x, 0.5), Add(Erf(Div(x, sigma * SQRT_2)), 1.0))"),
        ("strict", "fp16", "fp32: Mul(Gelu(Div(x, sigma), approximate='none'), sigma)"),
        ("fast", "fp32", "Mul(Gelu(Div(x, sigma), approximate='none'), sigma)"),
    ],
)
def test_a_learned_sigma_below_one_is_fused_where_it_cannot_overflow(tmp_path, policy, dtype, recipe):
    model = nn.Sequential(activations.create("gaussian_gelu(sigma=0.5, learnable=True)"))
    path = tmp_path / "learned.onnx"
    report = export_onnx(model, path, torch.zeros(2, 4), policy=policy, dtype=dtype)
    assert report.sites[0].recipe == recipe
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    kind = np.float16 if dtype == "fp16" else np.float32
    largest = np.full((1, 4), np.finfo(kind).max)
    (y,) = session.run(None, {session.get_inputs()[0].name: largest})
    assert np.isfinite(y).all() == (policy == "strict")


FOUR = "gaussian_gelu(sigma=(1.0, 2.0, 4.0, 8.0))"
OTHER_DIMENSIONS = {
    "a convolution before, a linear layer behind": (
        nn.Conv1d(4, 4, 1), activations.create(FOUR), nn.Linear(4, 3), torch.randn(2, 4, 4)
    ),
    "linear layers, channels in the middle": (
        nn.Linear(5, 4), activations.create(FOUR), nn.Linear(4, 3), torch.randn(2, 4, 5)
    ),
    "convolutions, channels last": (
        nn.Conv1d(4, 4, 1), activations.create(FOUR, channel_dim=-1), nn.Conv1d(4, 3, 1), torch.randn(2, 4, 4)
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", OTHER_DIMENSIONS)
def test_scales_along_another_dimension_stay_where_they_are(case, tmp_path):
    *layers, x = OTHER_DIMENSIONS[case]
    net = nn.Sequential(*layers).eval()
    report = export_onnx(net, tmp_path / "net.onnx", x, policy="fast")
    assert not any(site.folded for site in report.sites)
    assert check_parity(net, tmp_path / "net.onnx", input_sample=x).passed
