"""Module, record and graph agree on every file that the exporter writes; where one of them does not, it is said."""

from dataclasses import replace

import onnx
import pytest
import torch
from export_cases import EveryActivation
from torch import nn

from lit_gelu import activations
from lit_gelu.export import check_parity, export_onnx
from lit_gelu.export.inputs import take_apart
from lit_gelu.export.metadata import SiteRecord
from lit_gelu.export.parity.runs import References, output_faults
from lit_gelu.export.parity.structure import activation_faults, load_structure, recipe_fault
from lit_gelu.export.runtime.model_file import Port

SAMPLE = torch.zeros(2, 6)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"dtype": "fp16", "io_dtype": "fp32"},
        pytest.param({"dtype": "bf16", "target": "ort-cuda"}, marks=pytest.mark.full),
        pytest.param({"lowering": "primitives"}, marks=pytest.mark.full),
        pytest.param({"lowering": "contrib", "dtype": "fp16"}, marks=pytest.mark.full),
        pytest.param({"opset": 18, "policy": "fast", "target": "ort-cpu"}, marks=pytest.mark.full),
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
    there = {v.name: Port(v.name, names[v.type.tensor_type.elem_type], ()) for v in graph.graph.output}
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


def test_a_swapped_activation_is_a_fault_whatever_the_numbers(tmp_path):
    path = tmp_path / "net.onnx"
    net = nn.Sequential(nn.Linear(6, 3), nn.GELU())
    export_onnx(net, path, SAMPLE)
    other = nn.Sequential(net[0], nn.GELU("tanh"))
    report = check_parity(other, path, tolerance=1.0, strict=False)
    assert not report.failures
    (fault,) = report.faults
    assert fault in str(report)


@pytest.mark.parametrize("recipe", ["Mul(x, 0.5)", "Gelu(", "fp32: Gelu(x)"])
def test_a_record_whose_recipe_is_not_of_its_operators_is_a_fault(recipe):
    node = onnx.helper.make_node("Gelu", ["x"], ["y"])
    record = SiteRecord("1", "gelu", "gelu", "native", ("Gelu",), 1, recipe)
    assert recipe_fault(record, [node], {})
    assert not recipe_fault(replace(record, recipe="Gelu(x, approximate='none')"), [node], {})


def test_a_default_that_is_left_out_is_no_fault_and_another_value_is(tmp_path):
    net = nn.Sequential(nn.Linear(6, 3), nn.GELU(), nn.LeakyReLU(0.01), nn.ELU())
    export_onnx(net, tmp_path / "net.onnx", SAMPLE)
    file = onnx.load(tmp_path / "net.onnx")
    activation_nodes = [node for node in file.graph.node if node.op_type in {"Gelu", "LeakyRelu", "Elu"}]
    assert len(activation_nodes) == 3
    for one in activation_nodes:
        one.domain = "ai.onnx"
        del one.attribute[:]
    onnx.save(file, tmp_path / "net.onnx")
    assert check_parity(net, tmp_path / "net.onnx").passed
    for one, name, value in zip(activation_nodes[:2], ("approximate", "alpha"), ("tanh", 0.02), strict=True):
        one.attribute.append(onnx.helper.make_attribute(name, value))
    onnx.save(file, tmp_path / "net.onnx")
    assert len(check_parity(net, tmp_path / "net.onnx", strict=False).faults) == 2


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


@pytest.mark.parametrize(
    ("activation", "options"),
    [
        (nn.GELU("tanh"), {"lowering": "primitives"}),
        (nn.SiLU(), {}),
        (nn.Softplus(), {"dtype": "fp16", "io_dtype": "fp32"}),
    ],
    ids=str,
)
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
    assert "silu" in fault
