"""Module, record and graph agree on every file that the exporter writes; where one of them does not, it is said."""

import onnx
import pytest
import torch
from export_cases import EveryActivation
from torch import nn

from lit_gelu import activations
from lit_gelu.export import check_parity, export_onnx, inspect_onnx
from lit_gelu.export.inputs import take_apart
from lit_gelu.export.parity.references import References
from lit_gelu.export.parity.structure import activation_faults, output_faults
from lit_gelu.export.parity.subgraph import load_structure

SAMPLE = torch.zeros(2, 6)


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"dtype": "fp16"},
        {"dtype": "bf16", "target": "ort-cuda"},
        {"lowering": "primitives"},
        {"lowering": "contrib", "dtype": "fp16"},
        {"opset": 18, "policy": "fast", "target": "ort-cpu"},
        {"dtype": "fp16", "io_dtype": "fp32"},
    ],
    ids=str,
)
def test_no_file_of_the_exporter_has_a_fault(tmp_path, options):
    model, path = EveryActivation(), tmp_path / "net.onnx"
    metadata = export_onnx(model, path, **options).metadata
    call = take_apart(model, model.example_input_array)
    references = References(model, call, metadata.approximate, activations.registry)
    graph = load_structure(path)
    assert not activation_faults(graph, references.float32, metadata, activations.registry, rewritable=False)
    names = {1: "tensor(float)", 10: "tensor(float16)", 16: "tensor(bfloat16)"}
    there = [(value.name, names[value.type.tensor_type.elem_type]) for value in graph.graph.output]
    assert not output_faults(references.signatures, there, metadata)


class Calls(nn.Module):
    """Activations as calls of functions, written by hand, learned by the channel, and folded."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 3)
        self.folded = activations.create("gaussian_gelu(sigma=2.0)")
        self.prelu = nn.PReLU(6)
        self.unused = nn.GELU()

    def forward(self, x):
        y = self.first(self.folded(self.first(x)))
        y = nn.functional.gelu(y, approximate="tanh") + y * torch.sigmoid(1.5 * y)
        return self.last(self.prelu(0.5 * y * (1 + torch.erf(y / 2**0.5))) + nn.functional.gelu(y))


class Mixed(nn.Module):
    """A module and a call of a function, to be given one form."""

    def __init__(self):
        super().__init__()
        self.first, self.act, self.unused = nn.Linear(6, 6), nn.GELU(), nn.GELU()

    def forward(self, x):
        return self.act(nn.functional.gelu(self.first(x)))


@pytest.mark.parametrize(
    ("model", "options"), [(Calls, {}), (Calls, {"policy": "fast"}), (Mixed, {"approximate": "tanh"})]
)
def test_calls_of_functions_spellings_and_folded_factors_have_none(tmp_path, model, options):
    torch.manual_seed(0)
    net, path = model(), tmp_path / "net.onnx"
    export_onnx(net, path, SAMPLE, **options)
    assert not check_parity(net, path, input_sample=SAMPLE).faults


def test_what_a_user_registered_has_none(tmp_path):
    with activations.registry.scope():

        @activations.register("twice", onnx="Mul(x, 2.0)")
        def twice(x):
            return 2 * x

        model = nn.Sequential(nn.Linear(6, 3), activations.create("twice"))
        export_onnx(model, tmp_path / "net.onnx", SAMPLE)
        assert not check_parity(model, tmp_path / "net.onnx").faults


def test_a_swapped_activation_is_a_fault_whatever_the_numbers(tmp_path):
    path = tmp_path / "net.onnx"
    net = nn.Sequential(nn.Linear(6, 3), nn.GELU())
    export_onnx(net, path, SAMPLE)
    other = nn.Sequential(net[0], nn.GELU("tanh"))
    report = check_parity(other, path, tolerance=1.0, strict=False)
    assert not report.failures
    assert report.faults == ("1 is gelu(approximate='tanh') in the module, and gelu(approximate='none') is recorded.",)
    assert "FAILED (1 is gelu(approximate='tanh') in the module" in report.summary()
    assert "Fault: 1 is gelu" in str(report)


def test_what_torch_decomposed_is_named_beside_a_fault(tmp_path):
    with activations.registry.scope():

        @activations.register("slanted")
        def slanted(x):
            return 2 * torch.tanh(x)

        net = nn.Sequential(nn.Linear(6, 3), activations.create("slanted"))
        export_onnx(net, tmp_path / "net.onnx", SAMPLE)
        assert inspect_onnx(tmp_path / "net.onnx").activations == {"slanted": 1, "tanh": 1}
        other = nn.Sequential(net[0], nn.ReLU())
        report = check_parity(other, tmp_path / "net.onnx", strict=False, input_sample=SAMPLE)
    assert "1 is relu in the module, and slanted is recorded." in report.faults


@pytest.mark.parametrize(("name", "message"), [("nan", "NaN"), ("dropout", "two runs on the same input differ")])
def test_the_verdict_says_what_happened(tmp_path, name, message):
    net, path = nn.Sequential(nn.Linear(6, 3), nn.Identity(), nn.GELU()), tmp_path / "net.onnx"
    if name == "nan":
        with torch.no_grad():
            net[0].bias[0] = float("nan")
    export_onnx(net, path, SAMPLE)
    if name == "dropout":
        graph = onnx.load(path)
        graph.graph.initializer.append(onnx.helper.make_tensor("ratio", 1, [], [0.5]))
        graph.graph.initializer.append(onnx.helper.make_tensor("live", 9, [], [True]))
        gelu = next(node for node in graph.graph.node if node.op_type == "Gelu")
        graph.graph.node.insert(1, onnx.helper.make_node("Dropout", [gelu.input[0], "ratio", "live"], ["dropped"]))
        gelu.input[0] = "dropped"
        onnx.save(graph, path)
    summary = check_parity(net, path, strict=False).summary()
    assert message in summary.partition("largest error")[0]
    assert ("largest error NaN" in summary) == (name == "nan")
    assert "(0 comparisons)" not in summary


class OfParameters(nn.Module):
    """A learned prompt and learned gates: activations that read no input of the net."""

    def __init__(self, activation):
        super().__init__()
        self.prompt, self.gate = nn.Parameter(torch.randn(3, 6)), nn.Parameter(torch.randn(6))
        self.act, self.sigmoid, self.last = activation, nn.Sigmoid(), nn.Linear(6, 2)
        self.register_buffer("table", torch.randn(6))

    def forward(self, x):
        prompt = self.act(self.prompt).expand(x.shape[0], 3, 6)
        return self.last(torch.cat([prompt, x], 1) * self.sigmoid(self.gate) + self.act(self.table))


@pytest.mark.one_in(3)
@pytest.mark.parametrize("activation", [nn.GELU("tanh"), nn.SiLU(), nn.Softplus()], ids=str)
@pytest.mark.parametrize("options", [{}, {"lowering": "primitives"}, {"dtype": "fp16", "io_dtype": "fp32"}], ids=str)
def test_activations_of_parameters_and_buffers_have_none(tmp_path, activation, options):
    torch.manual_seed(0)
    net, x = OfParameters(activation), torch.randn(2, 5, 6)
    export_onnx(net, tmp_path / "net.onnx", x, **options)
    assert not check_parity(net, tmp_path / "net.onnx", input_sample=x).faults


def test_a_recipe_that_reads_two_parameters_is_a_fault(tmp_path):
    net, path, x = OfParameters(nn.SiLU()), tmp_path / "net.onnx", torch.randn(2, 5, 6)
    export_onnx(net, path, x)
    model = onnx.load(path)
    products = [n for n in model.graph.node if n.op_type == "Mul" and "table" in n.input]
    assert len(products) == 1
    products[0].input[list(products[0].input).index("table")] = "gate"
    onnx.save(model, path)
    (fault,) = check_parity(net, path, input_sample=x, strict=False).faults
    assert "act (silu)" in fault
    assert "reads another value as input" in fault
