"""Gated linear units, functions and modules, against their formulas."""

import pytest
import torch
from gated_formulas import FORMULAS, VARIANTS
from torch import nn
from torch.nn import functional as F

from lit_gelu import activations, surgery
from lit_gelu.activations import ActivationArgumentError, functional
from lit_gelu.tasks import MNISTClassifier
from lit_gelu.tasks.errors import TaskArgumentError

FLOATING = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
ALL = {**FORMULAS, **VARIANTS}


def _input(*shape, dtype=torch.float64):
    return (3 * torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))).to(dtype)


@pytest.mark.parametrize("name", FORMULAS)
@pytest.mark.parametrize("dtype", FLOATING, ids=str)
def test_functions_equal_their_formulas(name, dtype):
    x = _input(5, 12, 7, dtype=dtype)
    for dim in (1, -2):
        y = getattr(functional, name)(x, dim=dim)
        wanted = FORMULAS[name](x.double()[:, :6], x.double()[:, 6:])
        assert y.dtype == dtype
        if dtype == torch.float64:
            torch.testing.assert_close(y, wanted, rtol=1e-14, atol=1e-15)
        else:
            torch.testing.assert_close(y.double(), wanted, rtol=2 * torch.finfo(dtype).eps, atol=1e-7)


@pytest.mark.parametrize("spec", ALL)
@pytest.mark.parametrize("dtype", FLOATING, ids=str)
def test_modules_equal_their_formulas(spec, dtype):
    x = _input(4, 10, dtype=dtype)
    y = activations.create(spec)(x)
    assert y.dtype == dtype
    tolerance = 1e-14 if dtype == torch.float64 else 8 * torch.finfo(dtype).eps
    wanted = ALL[spec](*x.double().chunk(2, -1))
    torch.testing.assert_close(y.double(), wanted, rtol=tolerance, atol=tolerance)


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
        with pytest.raises(ActivationArgumentError, match=rf"{name}: dim={dim} .*even size"):
            getattr(functional, name)(torch.zeros(shape), dim=dim)
        if name != "glu":
            with pytest.raises(ActivationArgumentError, match=rf"{name}: dim={dim} .*even size"):
                activations.create(name, dim=dim)(torch.zeros(shape))


def test_bad_arguments_are_refused():
    with pytest.raises(ActivationArgumentError, match="approximate='erf'"):
        activations.create("geglu(approximate='erf')")
    with pytest.raises(ActivationArgumentError, match=r"beta=-1\.0"):
        activations.create("swiglu(beta=-1.0)")


@pytest.mark.parametrize("name", FORMULAS)
def test_they_have_facts_and_no_derivative(name):
    info = activations.info(name)
    assert info.formula
    assert info.reference
    assert (info.elementwise, info.halves, info.stochastic, info.learnable) == (False, True, False, False)
    assert (info.range, info.lipschitz, info.minimum) == (None, None, None)
    assert info.smoothness == (0 if name == "reglu" else float("inf"))
    for order in (1, 2):
        with pytest.raises(ActivationArgumentError, match=f"'{name}' has no derivative here"):
            functional.derivative(name, torch.zeros(4), order)
    x = _input(3, 4)
    torch.testing.assert_close(functional.derivative(name, x, 0), activations.create(name)(x))


@pytest.mark.parametrize("name", FORMULAS)
def test_they_are_no_activation_sites_and_cannot_become_one(name):
    model = nn.Sequential(nn.Linear(4, 8), activations.create(name), nn.Linear(4, 4), nn.ReLU())
    assert [site.name for site in surgery.find_sites(model)] == ["3"]
    with pytest.raises(surgery.SwapError, match=f"{name} is not elementwise"):
        surgery.swap(model, {"3": name})
    with pytest.raises(surgery.NoMatchError):
        surgery.swap(model, {type(model[1]): "gelu"})
    assert model(torch.zeros(2, 4)).shape == (2, 4)


def test_the_classifier_refuses_them():
    with pytest.raises(TaskArgumentError, match=r"'swiglu' turns shape \[2, 128\] into \[2, 64\]"):
        MNISTClassifier(activation="swiglu")


@pytest.mark.parametrize("name", FORMULAS)
def test_specs_and_compilation(name):
    module = activations.create(name, dim=-2)
    assert activations.create(str(activations.spec_of(module))).dim == -2
    x = _input(3, 4, 5, dtype=torch.float32)
    torch.compiler.reset()
    compiled = torch.compile(module, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), module(x))
