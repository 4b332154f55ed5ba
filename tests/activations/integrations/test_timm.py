"""Registered names as ``act_layer`` of timm's models."""

import importlib

import pytest
import torch

from lit_gelu import activations
from lit_gelu.errors import UnknownActivationError

TINY = {
    "vit_tiny_patch16_224": {"img_size": 16, "patch_size": 8, "embed_dim": 12, "depth": 2, "num_heads": 2},
    "resnet10t": {"layers": (1, 1, 1, 1), "channels": (8, 8, 8, 8)},
}


@pytest.fixture(scope="module")
def timm():
    importlib.import_module("timm.layers.create_act")
    return importlib.import_module("timm")


@pytest.fixture
def installed(timm):
    with activations.install("timm") as installation:
        yield installation


def _model(timm, name, activation):
    torch.manual_seed(0)
    return timm.create_model(name, num_classes=3, act_layer=activation, **TINY[name]).eval()


@pytest.mark.parametrize("name", TINY)
@pytest.mark.parametrize("activation", ["gaussian_gelu", "swish(beta=1.5, learnable=True)"])
def test_models_are_built_with_it(timm, installed, name, activation):
    model = _model(timm, name, activation)
    spec = activations.resolve(activation)
    sites = [m for m in model.modules() if activations.spec_of(m) == spec]
    assert len(sites) >= 2
    assert len({id(site) for site in sites}) == len(sites)
    with torch.no_grad():
        assert torch.isfinite(model(torch.randn(1, 3, 16, 16))).all()


def test_layers_by_name(timm, installed):
    x = torch.linspace(-3, 3, 7)
    layer = timm.layers.create_act_layer("gaussian_gelu(sigma=2.0)", inplace=True)
    assert torch.equal(layer(x.clone()), activations.create("gaussian_gelu", sigma=2.0)(x))
    assert timm.layers.get_act_layer("gelu") is timm.layers.GELU  # timm's names keep their meaning


def test_what_others_add_outlasts_the_names(timm):
    tables = importlib.import_module("timm.layers.create_act")
    with activations.install("timm"):
        tables._ACT_LAYER_DEFAULT["of_somebody"] = torch.nn.Tanh
    try:
        assert tables.get_act_layer("of_somebody") is torch.nn.Tanh
        assert tables.get_act_layer("gelu") is timm.layers.GELU
    finally:
        del tables._ACT_LAYER_DEFAULT["of_somebody"]


def test_installing_twice_is_installing_once_and_uninstalling_leaves_nothing(timm):
    tables = importlib.import_module("timm.layers.create_act")
    before = {name: getattr(tables, name) for name in vars(tables) if name.startswith("_ACT_")}
    first = activations.install("timm")
    assert activations.install("timm") is first
    first.uninstall()
    first.uninstall()
    assert all(getattr(tables, name) is table for name, table in before.items())
    with pytest.raises(KeyError):
        timm.layers.get_act_layer("gaussian_gelu")


def test_wrong_names_are_refused_with_the_remedy(timm, installed):
    with pytest.raises(UnknownActivationError):
        _model(timm, "vit_tiny_patch16_224", "gausian_gelu")
    with pytest.raises(KeyError):
        timm.layers.get_act_layer("torch.nn.ELU")
