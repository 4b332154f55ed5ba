"""Module, record and graph agree on every file that the exporter writes; where one of them does not, it is said."""

import json

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from export_cases import EveryActivation
from parity_files import model, node
from torch import nn

from lit_gelu import activations
from lit_gelu.errors import ModelFileError
from lit_gelu.export import check_parity, export_onnx
from lit_gelu.export.inputs import take_apart
from lit_gelu.export.parity.runs import References, output_faults
from lit_gelu.export.parity.structure import activation_faults, load_structure
from lit_gelu.export.runtime.model_file import Port
from lit_gelu.export.site_nodes import cut_out, site_nodes, sites_in_subgraphs

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


def silu(x, y, site="act"):
    return [node("Sigmoid", [x], f"s_{y}", site), node("Mul", [x, f"s_{y}"], y, site)]


def calls_of(made, **calls):
    return [(e.site, e.call, [n.op_type for n in e.nodes], e.x, e.y) for e in site_nodes(made, calls)]


def test_two_calls_of_one_site_also_if_they_feed_each_other_or_share_their_input():
    chained = model([*silu("x", "a"), *silu("a", "y")])
    assert [entry[1:] for entry in calls_of(chained, act=2)] == [
        (0, ["Sigmoid", "Mul"], "x", "a"),
        (1, ["Sigmoid", "Mul"], "a", "y"),
    ]
    shared = model([*silu("x", "a"), *silu("x", "b"), node("Add", ["a", "b"], "y", None)])
    assert [entry[3:] for entry in calls_of(shared, act=2)] == [("x", "a"), ("x", "b")]


def test_what_cannot_be_divided_is_left_out():
    assert not calls_of(model([*silu("x", "a"), node("Neg", ["a"], "y")]), act=2)
    assert not calls_of(model(silu("x", "y")), other=1)
    assert not calls_of(model([node("Mul", ["x", "x"], "a", None), node("Add", ["x", "a"], "y")]), act=1)  # two inputs


def test_a_site_that_is_called_within_a_branch_too_is_left_out():
    branch = onnx.helper.make_graph(silu("x", "a"), "branch", [], [onnx.helper.make_empty_tensor_value_info("a")])
    choice = onnx.helper.make_node("If", ["c"], ["b"], then_branch=branch, else_branch=branch)
    made = model([*silu("x", "s"), choice, node("Tanh", ["s"], "t", "other"), node("Add", ["t", "b"], "y", None)])
    assert sites_in_subgraphs(made) == {"act"}
    assert [entry[0] for entry in calls_of(made, act=3, other=1)] == ["other"]
    assert [entry[0] for entry in calls_of(made, act=2, other=1)] == ["other"]


def test_the_cut_out_model_computes_what_its_part_computed():
    made = model(
        [
            node("Neg", ["x"], "n", None),
            node("Mul", ["n", "beta"], "b"),
            node("Tanh", ["b"], "t"),
            node("Neg", ["t"], "y", None),
        ],
        {"beta": np.array([[3.0], [4.0]], np.float32)},
    )
    (entry,) = site_nodes(made, {"act": 1})
    cut = cut_out(made, entry)
    session = onnxruntime.InferenceSession(cut.SerializeToString(), providers=["CPUExecutionProvider"])
    x = np.linspace(-1, 1, 5, dtype=np.float32)
    np.testing.assert_allclose(session.run(None, {"n": x})[0], np.tanh(3 * x), rtol=1e-5)


def test_a_file_that_records_a_site_twice_is_damaged(tmp_path):
    net = nn.Sequential(nn.Linear(6, 3), nn.GELU())
    export_onnx(net, tmp_path / "net.onnx", SAMPLE)
    file = onnx.load(tmp_path / "net.onnx")
    entries = {entry.key: entry.value for entry in file.metadata_props}
    entries["lit_gelu.sites"] = json.dumps(2 * json.loads(entries["lit_gelu.sites"]))
    onnx.helper.set_model_props(file, entries)
    onnx.save(file, tmp_path / "net.onnx")
    with pytest.raises(ModelFileError):
        check_parity(net, tmp_path / "net.onnx")
