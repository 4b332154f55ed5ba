"""Gated linear units, functions, modules and the feed-forward block, against their formulas."""

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lit_gelu import activations, surgery
from lit_gelu.activations import ActivationArgumentError, GatedFFN, functional


def _sigmoid(x: Tensor) -> Tensor:
    return 1 / (1 + torch.exp(-x))


def _normal(x: Tensor) -> Tensor:
    return 0.5 * torch.special.erfc(-x / math.sqrt(2))


# From the first half and the second half of a dimension to the result, with the functions' default arguments.
FORMULAS = {
    "glu": lambda first, second: first * _sigmoid(second),
    "reglu": lambda first, second: torch.where(first > 0, first, 0.0) * second,
    "geglu": lambda first, second: first * _normal(first) * second,
    "swiglu": lambda first, second: first * _sigmoid(first) * second,
}

# Specs with other arguments.
VARIANTS = {
    "geglu(approximate='tanh')": lambda a, b: (
        0.5 * a * (1 + torch.tanh(math.sqrt(2 / math.pi) * (a + 0.044715 * a**3))) * b
    ),
    "geglu(approximate='sigmoid')": lambda a, b: a * _sigmoid(1.702 * a) * b,
    "swiglu(beta=2.5)": lambda a, b: a * _sigmoid(2.5 * a) * b,
    "reglu(memory='recompute')": FORMULAS["reglu"],
    "geglu(memory='recompute')": FORMULAS["geglu"],
    "swiglu(beta=0.5, memory='recompute')": lambda a, b: a * _sigmoid(0.5 * a) * b,
}

FLOATING = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
ALL = {**FORMULAS, **VARIANTS}


def _input(*shape, dtype=torch.float64):
    return (3 * torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))).to(dtype)


@pytest.mark.parametrize("name", FORMULAS)
def test_functions_equal_their_formulas(name):
    for dtype in FLOATING:
        x = _input(5, 12, 7, dtype=dtype)
        expected = FORMULAS[name](x.double()[:, :6], x.double()[:, 6:])
        room = (
            {"rtol": 1e-14, "atol": 1e-15}
            if dtype == torch.float64
            else {"rtol": 2 * torch.finfo(dtype).eps, "atol": 1e-7}
        )
        for dim in (1, -2):
            y = getattr(functional, name)(x, dim=dim)
            assert y.dtype == dtype
            torch.testing.assert_close(y.double(), expected, **room)


@pytest.mark.parametrize("spec", ALL)
def test_modules_equal_their_formulas(spec):
    for dtype in FLOATING:
        x = _input(4, 10, dtype=dtype)
        y = activations.create(spec)(x)
        assert y.dtype == dtype
        tolerance = 1e-14 if dtype == torch.float64 else 8 * torch.finfo(dtype).eps
        expected = ALL[spec](*x.double().chunk(2, -1))
        torch.testing.assert_close(y.double(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("spec", ALL)
def test_gradients(spec):
    module, x = activations.create(spec), _input(2, 6).requires_grad_()
    assert torch.autograd.gradcheck(module, x)
    assert torch.autograd.gradgradcheck(module, x)
    name = spec.partition("(")[0]
    assert torch.autograd.gradcheck(getattr(functional, name), x)


def test_glu_is_torchs():
    x = _input(4, 6, dtype=torch.float32)
    module = activations.create("glu(dim=0)")
    assert type(module) is nn.GLU
    assert torch.equal(module(x), F.glu(x, 0))
    torch.testing.assert_close(functional.glu(x), F.glu(x))
    assert str(activations.spec_of(nn.GLU(1))) == "glu(dim=1)"
    assert str(activations.resolve(F.glu)) == "glu"


@pytest.mark.parametrize("name", FORMULAS)
def test_what_cannot_be_halved_is_refused(name):
    for shape, dim in (((3, 5), -1), ((4,), 1), ((), -1)):
        with pytest.raises(ActivationArgumentError):
            getattr(functional, name)(torch.zeros(shape), dim=dim)
        if name != "glu":
            with pytest.raises(ActivationArgumentError):
                activations.create(name, dim=dim)(torch.zeros(shape))


def test_bad_arguments_are_refused():
    for spec in ("geglu(approximate='erf')", "swiglu(beta=-1.0)"):
        with pytest.raises(ActivationArgumentError):
            activations.create(spec)


@pytest.mark.parametrize("name", FORMULAS)
def test_they_have_facts_and_no_derivative(name):
    info = activations.info(name)
    assert info.formula
    assert info.reference
    assert (info.elementwise, info.halves, info.stochastic, info.learnable) == (False, True, False, False)
    assert (info.range, info.lipschitz, info.minimum) == (None, None, None)
    assert info.smoothness == (0 if name == "reglu" else float("inf"))
    for order in (1, 2):
        with pytest.raises(ActivationArgumentError):
            functional.derivative(name, torch.zeros(4), order)
    x = _input(3, 4)
    torch.testing.assert_close(functional.derivative(name, x, 0), activations.create(name)(x))


@pytest.mark.parametrize("name", FORMULAS)
def test_they_are_no_activation_sites_and_cannot_become_one(name):
    model = nn.Sequential(nn.Linear(4, 8), activations.create(name), nn.Linear(4, 4), nn.ReLU())
    assert [site.name for site in surgery.find_sites(model)] == ["3"]
    with pytest.raises(surgery.SwapError):
        surgery.swap(model, {"3": name})
    with pytest.raises(surgery.NoMatchError):
        surgery.swap(model, {type(model[1]): "gelu"})
    assert model(torch.zeros(2, 4)).shape == (2, 4)


@pytest.mark.parametrize("name", FORMULAS)
def test_specs_and_compilation(name):
    module = activations.create(name, dim=-2)
    assert activations.create(str(activations.spec_of(module))).dim == -2
    x = _input(3, 4, 5, dtype=torch.float32)
    torch.compiler.reset()
    compiled = torch.compile(module, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), module(x))


def test_it_is_llamas_mlp():
    """down_proj(silu(gate_proj(x)) * up_proj(x)), written with plain matrices."""
    torch.manual_seed(0)
    block = GatedFFN(6, 10).double()
    x = torch.randn(2, 5, 6, dtype=torch.float64)
    gate, up, down = (
        layer.weight for layer in (block.gate_projection, block.value_projection, block.output_projection)
    )
    a = x @ gate.T
    expected = (a / (1 + torch.exp(-a)) * (x @ up.T)) @ down.T
    torch.testing.assert_close(block(x), expected)
    assert sorted(block.state_dict()) == [
        "gate_projection.weight",
        "output_projection.weight",
        "value_projection.weight",
    ]


def test_the_default_width():
    """LLaMA's published sizes, and small ones by hand: 8 dim / 3 rounded up."""
    for dim, multiple_of, hidden in ((4096, 256, 11008), (8192, 256, 22016), (6, 1, 16), (7, 1, 19), (7, 8, 24)):
        with torch.device("meta"):
            block = GatedFFN(dim, multiple_of=multiple_of)
        assert block.hidden_dim == hidden
        assert sum(parameter.numel() for parameter in block.parameters()) == 3 * dim * hidden


def test_any_gate():
    registry = activations.ActivationRegistry()
    registry.register("double")(lambda x: 2 * x)
    gates = [("gelu", F.gelu), (nn.Tanh(), torch.tanh), (torch.sin, torch.sin), ("double", lambda x: 2 * x)]
    for gate, function in gates:
        block, x = GatedFFN(4, 6, gate, bias=True, registry=registry), torch.randn(3, 4)
        expected = block.output_projection(function(block.gate_projection(x)) * block.value_projection(x))
        assert torch.equal(block(x), expected)


def test_its_gate_is_an_activation_site():
    block = GatedFFN(4)
    assert [(site.name, str(site.spec)) for site in surgery.find_sites(block)] == [("activation", "silu")]
    surgery.swap(block, {"activation": "gelu"})
    assert type(block.activation) is nn.GELU


def test_sizes_and_gates_that_do_not_fit_are_refused():
    sizes = {"dim": 0}, {"dim": 4, "hidden_dim": 2.5}, {"dim": 4, "hidden_dim": 10, "multiple_of": 4}
    for arguments in (*sizes, {"dim": 4, "multiple_of": True}, {"dim": 4, "gate": "swiglu"}):
        with pytest.raises(ActivationArgumentError):
            GatedFFN(**arguments)
