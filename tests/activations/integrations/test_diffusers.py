"""Registered names where diffusers looks an activation up."""

import importlib

import pytest
import torch

from lit_gelu import activations
from lit_gelu.activations.errors import ActivationSpecError, UnknownActivationError

pytest.importorskip("diffusers", reason="its table is compared with ours, and install('diffusers') tried in its models")


@pytest.fixture(scope="module")
def tables():
    return importlib.import_module("diffusers.models.activations")


@pytest.fixture
def installed(tables):
    with activations.install("diffusers") as installation:
        yield installation


def test_every_key_is_registered_and_the_same(tables):
    x = torch.linspace(-12, 12, 4801, dtype=torch.float64)
    for name, theirs in tables.ACT2CLS.items():
        torch.testing.assert_close(activations.create(name)(x), theirs()(x), rtol=0, atol=1e-15)


def test_a_spec_with_arguments_is_looked_up(tables, installed):
    x = torch.linspace(-3, 3, 7)
    module = tables.get_activation("gaussian_gelu(sigma=2.0)")
    assert torch.equal(module(x), activations.create("gaussian_gelu", sigma=2.0)(x))
    learned = tables.get_activation("swish(beta=1.5, learnable=True)")
    assert activations.spec_of(learned) == activations.resolve("swish(beta=1.5, learnable=True)")
    assert len(list(learned.parameters())) == 1
    assert tables.get_activation("swish(learnable=True)") is not tables.get_activation("swish(learnable=True)")


def test_a_block_is_built_with_it(installed):
    resnet = importlib.import_module("diffusers.models.resnet")
    block = resnet.ResnetBlock2D(in_channels=4, temb_channels=None, groups=2, non_linearity="gaussian_gelu(sigma=2.0)")
    assert activations.spec_of(block.nonlinearity) == activations.resolve("gaussian_gelu(sigma=2.0)")
    assert torch.isfinite(block(torch.randn(1, 4, 5, 5), None)).all()


def test_names_of_diffusers_keep_their_meaning_unless_overridden(tables):
    with activations.install("diffusers"):
        assert type(tables.get_activation("swish")) is torch.nn.SiLU
    with activations.install("diffusers", override=True):
        assert type(tables.get_activation("swish")).__name__ == "Swish"
    assert type(tables.get_activation("swish")) is torch.nn.SiLU


def test_uninstalling_leaves_nothing(tables):
    before = tables.ACT2CLS
    first = activations.install("diffusers")
    assert activations.install("diffusers") is first
    first.uninstall()
    assert tables.ACT2CLS is before
    with pytest.raises(ValueError, match="not found"):
        tables.get_activation("gaussian_gelu")


def test_what_others_add_outlasts_the_names(tables):
    with activations.install("diffusers", override=True):
        tables.ACT2CLS["of_somebody"] = torch.nn.Tanh
    try:
        assert tables.ACT2CLS["of_somebody"] is torch.nn.Tanh
    finally:
        del tables.ACT2CLS["of_somebody"]


def test_wrong_names_are_refused_with_the_remedy(tables, installed):
    with pytest.raises(UnknownActivationError, match="Did you mean 'gaussian_gelu'"):
        tables.get_activation("gausian_gelu")
    with pytest.raises(ActivationSpecError):
        tables.get_activation("gaussian_gelu(sigma=")
    with pytest.raises(ValueError, match="not found"):  # a path is never imported
        tables.get_activation("torch.nn.elu")


@pytest.mark.full
def test_a_model_is_saved_and_loaded_with_it(installed, tmp_path):
    diffusers = importlib.import_module("diffusers")
    sizes = {"block_out_channels": (8, 8), "norm_num_groups": 4, "layers_per_block": 1, "sample_size": 8}
    blocks = {"down_block_types": ("DownBlock2D",) * 2, "up_block_types": ("UpBlock2D",) * 2}
    net = diffusers.UNet2DModel(act_fn="gaussian_gelu(sigma=2.0)", attention_head_dim=4, **sizes, **blocks).eval()
    net.save_pretrained(tmp_path)
    again = diffusers.UNet2DModel.from_pretrained(tmp_path).eval()
    wanted = activations.resolve("gaussian_gelu(sigma=2.0)")
    assert sum(activations.spec_of(module) == wanted for module in again.modules()) >= 4
    x = torch.randn(1, 3, 8, 8)
    with torch.no_grad():
        torch.testing.assert_close(net(x, 3).sample, again(x, 3).sample)
