"""Hand-written activations: every order of operands becomes the same node; what is not the formula is left alone."""

import math

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from traced_graph import TracedGraph

from lit_gelu.activations import ActivationRegistry
from lit_gelu.export import OnnxPredictor, check_parity, export_onnx

ROOT = math.sqrt(2)
TANH = math.sqrt(2 / math.pi)
EXACT, HALF_TANH = "gelu(approximate='none')", "gelu(approximate='tanh')"

SPELLINGS = {
    EXACT: [
        lambda x: 0.5 * x * (1 + torch.erf(x / ROOT)),
        lambda x: x * 0.5 * (1 + torch.erf(x * 0.7071067811865476)),
        lambda x: x * (0.5 * (torch.erf(x / 1.4142135) + 1)),
        lambda x: (x * (1 + torch.erf(x * 0.70710678))) / 2,
        lambda x: x * torch.special.ndtr(x),
        lambda x: x * 0.5 * torch.special.erfc(-x / ROOT),
        lambda x: 0.5 * x + 0.5 * x * torch.erf(x / ROOT),
        lambda x: x - x * 0.5 * (1 - torch.erf(x / ROOT)),
        lambda x: (lambda h: 0.5 * h * (1 + torch.erf(h / ROOT)))(2 * x + x.flip(1)),
    ],
    HALF_TANH: [
        lambda x: 0.5 * x * (1 + torch.tanh(TANH * (x + 0.044715 * torch.pow(x, 3)))),
        lambda x: 0.5 * x * (1 + torch.tanh(x * 0.7978845608 * (1 + 0.044715 * x * x))),
        lambda x: x * (torch.tanh((x**3 * 0.044715 + x) * TANH) + 1) * 0.5,
    ],
    "gelu(approximate='sigmoid')": [lambda x: x * torch.sigmoid(1.702 * x), lambda x: x / (1 + torch.exp(-1.702 * x))],
    "silu": [
        lambda x: x * torch.sigmoid(x),
        lambda x: x / (1 + torch.exp(-x)),
        lambda x: torch.sigmoid(x + x.flip(1)) * (x + x.flip(1)),
    ],
    "swish": [lambda x: x * torch.sigmoid(1.3 * x), lambda x: x / (1 + torch.exp(-1.3 * x))],
    "mish": [
        lambda x: x * torch.tanh(F.softplus(x)),
        lambda x: x * torch.tanh(torch.log1p(torch.exp(x))),
        lambda x: torch.tanh(torch.log(1 + torch.exp(x))) * x,
    ],
    "hard_swish": [
        lambda x: x * F.relu6(x + 3) / 6,
        lambda x: x * F.hardsigmoid(x),
        lambda x: x * torch.clamp(x + 3, 0, 6) * (1 / 6),
        lambda x: x * torch.clamp(x / 6 + 0.5, 0, 1),
        lambda x: x * torch.minimum(F.relu(x + 3), torch.tensor(6.0)) / 6,
    ],
    "softplus(beta=1)": [F.softplus, lambda x: torch.log1p(torch.exp(x))],
    "softplus": [lambda x: F.softplus(x, 2.0, 3.0)],
    "log_sigmoid": [F.logsigmoid, lambda x: -F.softplus(-x), lambda x: torch.log(torch.sigmoid(2 * x))],
    "erfc": [torch.special.erfc],
    "ndtr": [torch.special.ndtr],
    "log_ndtr": [torch.special.log_ndtr],
}
OTHERS = [
    lambda x: x * 0.5 * (1 + torch.erf(x * 0.7071)),
    lambda x: x * 0.5 * (1 + torch.tanh(0.79788 * (x + 0.044715 * x**3))),
    lambda x: x * 0.51 * (1 + torch.erf(x / ROOT)),
    lambda x: x * torch.tanh(F.relu(x)),
    lambda x: x * torch.clamp(x + 3, 0, 6) / 6.01,
    lambda x: x * torch.minimum(F.relu(x + 3), torch.tensor(5.0)) / 6,
    lambda x: x * torch.minimum(2 * F.relu(x + 3), torch.tensor(6.0)) / 6,
    lambda x: x.flip(1) * torch.erf(x / ROOT),
    lambda x: x * torch.sigmoid(-x),  # swish and its like, with arguments that these do not take
    lambda x: x * torch.sigmoid(-1.702 * x),
    lambda x: x / (1 + torch.exp(x)),
    lambda x: torch.sigmoid(x) * (1 + x * torch.sigmoid(-x)),
]
CASES = [(row, function) for row, functions in SPELLINGS.items() for function in functions]


class Spellings(nn.Module):
    """All of them on one input; what is recognised keeps its name in the file's outputs."""

    def __init__(self):
        super().__init__()
        self.example_input_array = torch.zeros(2, 4)
        self.beta = nn.Parameter(torch.tensor([0.5, 1.0, 1.5, 2.5]))

    def forward(self, x):
        outputs = {f"known_{i}": function(x) for i, (_, function) in enumerate(CASES)}
        outputs |= {f"other_{i}": function(x) for i, function in enumerate(OTHERS)}
        return outputs | {"channels": x * torch.sigmoid(self.beta * x)}


@pytest.fixture(scope="module")
def spelled():
    traced = TracedGraph(Spellings())
    graph, lowered = traced.lowered("portable", "fp32", "strict")
    return traced.model, graph, lowered


def sites(graph):
    """The row of the node that makes each output, before an Identity that names it."""
    rows = {}
    for value in graph.graph.outputs:
        node = value.producer()
        while node.op_type == "Identity":
            node = node.inputs[0].producer()
        rows[value.name] = node.metadata_props.get("lit_gelu.site", "").removeprefix(":").split("#")[0]
    return rows


def test_every_spelling_is_the_row_of_its_function(spelled):
    _, graph, _ = spelled
    rows = sites(graph)
    assert {f"known_{i}": rows[f"known_{i}"] for i in range(len(CASES))} == {
        f"known_{i}": row for i, (row, _) in enumerate(CASES)
    }


def test_one_beta_a_channel_is_swish_with_one_a_channel(spelled):
    _, graph, lowered = spelled
    assert sites(graph)["channels"] == "swish(channels)"
    (row,) = [row for row in lowered.sites if row.row == "swish(channels)"]
    slopes = {tuple(tensor.const_value.numpy().ravel()) for tensor in graph.graph.initializers.values()}
    assert (0.5, 1.0, 1.5, 2.5) in slopes, row


def test_what_is_another_function_is_left_alone(spelled):
    """Constants of four digits, other factors, two different inputs, arguments that the activation does not take."""
    _, graph, _ = spelled
    rows = sites(graph)
    assert {rows[f"other_{i}"] for i in range(len(OTHERS))} == {""}


def test_values_agree_with_pytorch_float64(spelled):
    model, graph, _ = spelled
    session = onnxruntime.InferenceSession(ir.to_proto(graph).SerializeToString(), providers=["CPUExecutionProvider"])
    x = torch.linspace(-12, 12, 4000).reshape(-1, 4)
    with torch.no_grad():
        exact = model.eval().double()(x.double())
    for (name, y64), y in zip(exact.items(), session.run(None, {"x": x.numpy()}), strict=True):
        error = np.abs(y - y64.numpy()) / np.maximum(1.0, np.abs(y64.numpy()))
        assert error.max() < 2.5e-6, name


def test_tails_of_erfc_ndtr_and_log_ndtr_keep_their_digits(spelled):
    """torch exports 1 - Erf(x) and the like, which is 0 there."""
    from scipy import special

    _, graph, _ = spelled
    session = onnxruntime.InferenceSession(ir.to_proto(graph).SerializeToString(), providers=["CPUExecutionProvider"])
    x = np.linspace(0.0, 8.0, 800, dtype=np.float32).reshape(-1, 4)
    for row, sign in (("erfc", 1), ("ndtr", -1), ("log_ndtr", -1), ("log_ndtr", 1)):
        function, name = getattr(special, row), next(f"known_{i}" for i, (key, _) in enumerate(CASES) if key == row)
        (y,) = session.run([name], {"x": sign * x})
        np.testing.assert_allclose(y, function(sign * x.astype(np.float64)), rtol=3e-5)


class Complement(nn.Linear):
    def forward(self, x):
        return torch.special.erfc(super().forward(x))


def test_a_call_that_is_no_activation_is_proved(tmp_path):
    net = Complement(4, 4)
    export_onnx(net, tmp_path / "net.onnx", torch.randn(2, 4))
    assert check_parity(net, tmp_path / "net.onnx").passed


def test_torchs_gelu_is_itself_where_its_name_is_another_activations(tmp_path):
    registry = ActivationRegistry()
    registry.register("gelu", override=True)(lambda x: 0.5 * x)
    x, path = torch.randn(64, 4), tmp_path / "gelu.onnx"
    report = export_onnx(nn.Sequential(nn.GELU()), path, x, registry=registry, lowering="native")
    assert [(site.spec, site.operators) for site in report.sites] == [("gelu", ("Gelu",))]
    np.testing.assert_allclose(OnnxPredictor(path)(x.numpy()), F.gelu(x.double()).numpy(), atol=1e-6)
    assert check_parity(nn.Sequential(nn.GELU()), path, input_sample=x, registry=registry).passed
