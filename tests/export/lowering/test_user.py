"""Activations that were registered with operators of their own."""

import numpy as np
import onnx
import pytest
import torch
from torch import nn

from lit_gelu import activations
from lit_gelu.activations.onnx_recipes import OnnxCases, OnnxRecipes, OnnxSpelling
from lit_gelu.errors import ArgumentError
from lit_gelu.export import OnnxPredictor, check_parity, export_onnx
from lit_gelu.export.graph_activations import graph_activations


@pytest.fixture
def registry():
    return activations.ActivationRegistry()


def register_cube(registry, onnx):
    @registry.register("leaky_cube", onnx=onnx)
    def cube(x, scale=1.0):
        return scale * x**3 + x

    return registry.create("leaky_cube(scale=0.5)")


def test_a_recipe_takes_the_activations_arguments(tmp_path, registry):
    model = nn.Sequential(nn.Linear(4, 4), register_cube(registry, "Add(Mul(Mul(Mul(x, x), x), scale), x)"))
    path = tmp_path / "cube.onnx"
    report = export_onnx(model, path, torch.zeros(1, 4), registry=registry)
    assert report.sites[0].operators == ("Mul", "Mul", "Mul", "Add")
    x = torch.randn(16, 4)
    assert np.abs(OnnxPredictor(path)(x.numpy()) - model(x).detach().numpy()).max() < 1e-5


def test_the_arguments_decide_among_cases(tmp_path, registry):
    """With None torch's exporter decomposes the activation."""

    def case(arguments):
        return {1.0: "unit", 0.5: "scaled", 2.0: "lost"}.get(arguments["scale"])

    register_cube(
        registry,
        OnnxCases(
            {
                "unit": OnnxRecipes(native="Add(Pow(x, 3.0), x)"),
                "scaled": OnnxRecipes(native="Add(Mul(Pow(x, 3.0), scale), x)"),
            },
            case,
        ),
    )
    sites = {}
    for scale in (1.0, 0.5, 3.0):
        model = nn.Sequential(nn.Linear(4, 4), registry.create("leaky_cube", scale=scale))
        path = tmp_path / f"{scale}.onnx"
        sites[scale] = export_onnx(model, path, torch.zeros(1, 4), registry=registry).sites[0]
        x = torch.randn(16, 4)
        assert np.abs(OnnxPredictor(path)(x.numpy()) - model(x).detach().numpy()).max() < 1e-5
    assert sites[1.0].operators == ("Pow", "Add")
    assert sites[0.5].operators == ("Pow", "Mul", "Add")
    assert sites[3.0].lowering == "torch"
    with pytest.raises(ArgumentError):
        export_onnx(registry.create("leaky_cube(scale=2.0)"), path, torch.zeros(1, 4), registry=registry)


def test_contrib_operators_of_a_recipe_are_for_onnxruntime(tmp_path, registry):
    model = nn.Sequential(register_cube(registry, "microsoft.FastGelu(x)"))
    export_onnx(model, tmp_path / "a.onnx", torch.zeros(1, 4), registry=registry, target="ort-cpu")
    with pytest.raises(ArgumentError):
        export_onnx(model, tmp_path / "b.onnx", torch.zeros(1, 4), registry=registry)
    assert [path.name for path in tmp_path.iterdir()] == ["a.onnx"]


DOUBLED = "Mul(x, Tanh(Mul(x, 2.0)))"
OF_OTHER_TYPES = (
    f"Where(GreaterOrEqual(x, 0.0), {DOUBLED}, {DOUBLED})",
    f"Where(And(Greater(x, 0.0), Or(Less(x, 1.0), Greater(x, -1.0))), {DOUBLED}, {DOUBLED})",
    "Mul(x, Tanh(Mul(Add(1.0, 1.0), x)))",
)


@pytest.mark.parametrize("options", [{"opset": 22}, {"dtype": "fp16"}], ids=str)
@pytest.mark.parametrize("onnx", OF_OTHER_TYPES)
def test_inner_values_have_types_and_shapes_of_their_own(tmp_path, registry, onnx, options):
    @registry.register("soft", onnx=onnx)
    def soft(x, beta=2):
        return x * torch.tanh(x * beta)

    path, x = tmp_path / "soft.onnx", torch.linspace(-3, 3, 64).reshape(16, 4)
    model = nn.Sequential(registry.create("soft"))
    export_onnx(model, path, x, registry=registry, **options)
    fed = x.half() if options.get("dtype") == "fp16" and "io_dtype" not in options else x
    wide = fed.double()
    outputs = OnnxPredictor(path)(fed.numpy()).astype(np.float64)
    limit = 2e-3 if options.get("dtype") == "fp16" else 1e-6
    assert np.abs(outputs - (wide * torch.tanh(2.0 * wide)).numpy()).max() < limit
    assert check_parity(model, path, registry=registry, input_sample=x).passed


def test_whole_numbers_of_an_operator_stay_whole(tmp_path, registry):
    registry.register("gate", onnx="Mul(x, Softmax(x, axis=-1))")(lambda x: x * torch.softmax(x, -1))
    path, x = tmp_path / "gate.onnx", torch.randn(3, 4)
    export_onnx(nn.Sequential(registry.create("gate")), path, x, registry=registry)
    (node,) = (node for node in onnx.load(path).graph.node if node.op_type == "Softmax")
    assert [(entry.type, entry.i) for entry in node.attribute] == [(onnx.AttributeProto.INT, -1)]
    expected = x.double() * torch.softmax(x.double(), -1)
    assert np.abs(OnnxPredictor(path)(x.numpy()) - expected.numpy()).max() < 1e-6


@pytest.mark.parametrize(
    "recipe",
    [
        3,
        "Mul(x,",
        "Mul(x, gain)",
        "x",
        "Mul(x, Softmax(x, axis=0.5))",
        "Add(x, Mull(0.5, x))",
        "Swish(x)",  # of opset 24, says ONNX's list of operators
        "a = Sqrt(x); Mul(x, 2.0)",
        "y = Mul(x, 2.0); a = Sqrt(x); y",
        OnnxRecipes(native="Mul(x, Nichts(x))"),
        OnnxRecipes(contrib="microsoft.FastGelu(x)"),
    ],
    ids=str,
)
def test_what_cannot_be_used_is_refused(tmp_path, registry, recipe):
    model = nn.Sequential(register_cube(registry, recipe))
    with pytest.raises(ArgumentError):
        export_onnx(model, tmp_path / "cube.onnx", torch.zeros(1, 4), registry=registry)


def test_a_users_own_formula_is_recognised_where_it_is_no_module(tmp_path):
    registry = activations.ActivationRegistry()
    spelling = OnnxSpelling("Mul(x, Tanh(Exp(Mul(x, rate))))")
    recipes = OnnxRecipes(primitives="Mul(x, Tanh(Exp(Mul(x, rate))))", spellings=(spelling,), absolute=1e-7)

    @registry.register("tanh_exp", onnx=recipes)
    def tanh_exp(x, rate=1.0):
        return x * torch.tanh(torch.exp(rate * x))

    class ByHand(nn.Module):
        def forward(self, x):
            return x * torch.tanh((x * 1.3).exp())

    report = export_onnx(ByHand(), tmp_path / "net.onnx", torch.zeros(2, 3), registry=registry)
    assert [(site.site, site.spec, site.operators) for site in report.sites] == [
        (":tanh_exp", "tanh_exp(rate=1.3)", ("Mul", "Exp", "Tanh", "Mul"))
    ]
    assert check_parity(ByHand(), tmp_path / "net.onnx", registry=registry, input_sample=torch.zeros(2, 3)).passed


def test_what_the_default_registry_has_is_recognised_without_naming_it(tmp_path):
    """A spelling may use arguments that it fixes."""
    spelling = OnnxSpelling("Mul(x, Tanh(Mul(x, rate)))", {"rate": 2.0})

    class ByHand(nn.Module):
        def forward(self, x):
            return x * torch.tanh(x * 2.0)

    torch.onnx.export(ByHand().eval(), (torch.zeros(2, 3),), tmp_path / "plain.onnx", dynamo=True, verbose=False)
    with activations.registry.scope() as registry:
        recipes = OnnxRecipes(primitives="Mul(x, Tanh(Mul(x, rate)))", spellings=(spelling,))
        registry.register("steep", onnx=recipes)(lambda x, rate=1.0: x * torch.tanh(rate * x))
        assert [entry.spec for entry in graph_activations(tmp_path / "plain.onnx")] == ["steep(rate=2.0)"]


def test_a_spelling_that_no_formula_can_be_is_refused(tmp_path, registry):
    spelling = OnnxSpelling("Mul(x, Sin(x))")
    registry.register("wave", onnx=OnnxRecipes(primitives="Mul(x, Sin(x))", spellings=(spelling,)))(torch.sin)
    with pytest.raises(ArgumentError):
        export_onnx(nn.Sequential(nn.ReLU()), tmp_path / "net.onnx", torch.zeros(1, 4), registry=registry)


def test_a_trained_parameter_is_in_the_file_as_it_is_now(tmp_path, registry):
    @registry.register("sharp", onnx="Mul(x, Sigmoid(Mul(x, beta)))")
    class Sharp(nn.Module):
        def __init__(self, beta=1.0, channels=4):
            super().__init__()
            self.beta = nn.Parameter(torch.full((channels,), float(beta)))

        def forward(self, x):
            return x * torch.sigmoid(self.beta * x)

    net, x = nn.Sequential(nn.Linear(4, 4), registry.create("sharp")), torch.randn(3, 4)
    with torch.no_grad():
        net[1].beta += torch.arange(4.0)
    export_onnx(net, tmp_path / "net.onnx", x, registry=registry)
    torch.testing.assert_close(OnnxPredictor(tmp_path / "net.onnx")(x), net(x).detach(), rtol=0, atol=1e-5)


def test_a_forward_that_was_replaced_is_what_is_exported(tmp_path):
    net, x = nn.Sequential(nn.Linear(4, 4), nn.GELU()), torch.randn(3, 4)
    net[1].forward = lambda y: 2 * y
    export_onnx(net, tmp_path / "net.onnx", x)
    torch.testing.assert_close(OnnxPredictor(tmp_path / "net.onnx")(x), 2 * net[0](x).detach(), rtol=0, atol=1e-5)
