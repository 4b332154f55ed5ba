"""Registered names as ``hidden_act`` of transformers' models: built, saved, loaded, undone."""

import importlib
import os
import sys

import pytest
import torch

from lit_gelu import activations
from lit_gelu.errors import ArgumentError, MissingExtraError, UnknownActivationError, UnsupportedRunError

SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
TOKENS = torch.tensor([[1, 5, 7, 2, 0, 3]])


@pytest.fixture(scope="module")
def transformers():
    os.environ["HF_HUB_OFFLINE"] = "1"
    return importlib.import_module("transformers")


@pytest.fixture
def installed(transformers):
    with activations.install("transformers") as installation:
        yield installation


def _models(transformers, activation):
    """A tiny BERT, GPT-2 and ViT with random weights, and an input for each."""
    bert = transformers.BertConfig(vocab_size=20, max_position_embeddings=16, hidden_act=activation, **SMALL)
    gpt2 = transformers.GPT2Config(
        vocab_size=20, n_positions=16, n_embd=16, n_layer=2, n_head=2, activation_function=activation
    )
    vit = transformers.ViTConfig(image_size=8, patch_size=4, hidden_act=activation, **SMALL)
    torch.manual_seed(0)
    image = torch.randn(1, 3, 8, 8)
    return [
        (transformers.BertModel(bert), {"input_ids": TOKENS}),
        (transformers.GPT2Model(gpt2), {"input_ids": TOKENS}),
        (transformers.ViTModel(vit), {"pixel_values": image}),
    ]


def _sites(model):
    return [m for m in model.modules() if str(activations.spec_of(m)).startswith(("gaussian_gelu", "swish", "gelu"))]


def _output(model, inputs):
    with torch.no_grad():
        return model.eval()(**inputs).last_hidden_state


@pytest.mark.parametrize(
    "activation", ["gaussian_gelu", "swish(beta=1.5)", "gaussian_gelu(mu=0.1, sigma=0.7, learnable=True)"]
)
def test_it_is_used_and_survives_saving(transformers, installed, tmp_path, activation):
    for i, (model, inputs) in enumerate(_models(transformers, activation)):
        sites = _sites(model)
        assert len(sites) == 2
        assert {activations.spec_of(site) for site in sites} == {activations.resolve(activation)}
        with torch.no_grad():
            for site in sites:
                for parameter in site.parameters():
                    parameter.uniform_(-0.5, 0.5)
        folder = tmp_path / str(i)
        model.save_pretrained(folder)
        loaded = type(model).from_pretrained(folder)
        assert activations.resolve(activation) == activations.spec_of(_sites(loaded)[0])
        assert torch.equal(_output(loaded, inputs), _output(model, inputs))
        for name, parameter in model.named_parameters():
            assert torch.equal(dict(loaded.named_parameters())[name], parameter), name
        assert sum(p.numel() for site in sites for p in site.parameters()) == 4 * ("learnable" in activation)


def test_the_output_is_that_of_the_activation(transformers, installed):
    """BERT with our exact GELU under a name of ours equals BERT with transformers' own, and not with another."""
    outputs = {}
    for name in ("gelu", "gaussian_gelu", "gaussian_gelu(sigma=3.0)"):
        torch.manual_seed(1)
        (model, inputs), *_ = _models(transformers, name)
        torch.manual_seed(2)
        with torch.no_grad():
            for key, parameter in sorted(model.named_parameters()):
                parameter.normal_(0, 0.3) if "LayerNorm" not in key else None
        outputs[name] = _output(model, inputs)
    torch.testing.assert_close(outputs["gaussian_gelu"], outputs["gelu"], rtol=0, atol=2e-6)
    assert (outputs["gaussian_gelu(sigma=3.0)"] - outputs["gelu"]).abs().max() > 1e-2


def test_a_learned_activation_that_a_checkpoint_lacks_starts_at_its_initial_value(transformers, installed, tmp_path):
    (model, _), *_ = _models(transformers, "silu")
    model.save_pretrained(tmp_path)
    config = transformers.BertConfig.from_pretrained(tmp_path)
    config.hidden_act = "gaussian_gelu(sigma=0.5, learnable=True)"
    for _ in range(3):  # memory that is not written is often zero, at first
        torch.full((64, 64), 7.0)
        loaded = transformers.BertModel.from_pretrained(tmp_path, config=config)
        for site in _sites(loaded):
            assert (site.mu.item(), site.sigma.item()) == (0.0, 0.5)
            assert site.log_scale.item() == 0.0


def test_names_of_transformers_keep_their_meaning(transformers):
    tables = transformers.activations
    with activations.install("transformers"):
        assert type(tables.ACT2FN["gelu"]) is tables.GELUActivation
        assert type(tables.get_activation("relu2")) is tables.ReLUSquaredActivation
        assert type(tables.ACT2CLS["gaussian_gelu"]()).__name__ == "GaussianGELU"


def test_installing_twice_is_installing_once_and_uninstalling_leaves_nothing(transformers):
    tables = transformers.activations
    before = dict(tables.ACT2FN.items()), dict(tables.ACT2CLS), type(tables.ACT2FN)
    start = transformers.PreTrainedModel._initialize_weights
    first = activations.install("transformers")
    assert activations.install("transformers") is first
    assert "gaussian_gelu" in tables.ACT2FN
    assert "gaussian_gelu(sigma=2.0)" in tables.ACT2FN
    with pytest.raises(UnsupportedRunError):
        activations.ActivationRegistry().install("transformers")
    first.uninstall()
    first.uninstall()
    assert (dict(tables.ACT2FN.items()), dict(tables.ACT2CLS), type(tables.ACT2FN)) == before
    assert list(tables.ACT2FN) == list(before[0])
    assert transformers.PreTrainedModel._initialize_weights is start
    with pytest.raises(KeyError):
        tables.ACT2FN["gaussian_gelu"]


def test_a_name_registered_later_is_there(transformers, installed):
    with activations.registry.scope():
        activations.register("cube_of")(lambda x, scale=1.0: scale * x**3)
        assert transformers.activations.get_activation("cube_of(scale=2.0)")(torch.tensor(2.0)).item() == 16.0


def test_wrong_names_and_arguments_are_refused_with_the_remedy(transformers, installed):
    with pytest.raises(UnknownActivationError):
        transformers.BertModel(transformers.BertConfig(vocab_size=20, hidden_act="gausian_gelu", **SMALL))
    with pytest.raises(ArgumentError):
        transformers.activations.get_activation("swish(slope=2)")
    with pytest.raises(KeyError):  # a configuration file may not name what is imported
        transformers.activations.get_activation("torch.nn.ELU")
    with pytest.raises(ArgumentError):
        activations.install("flax")


def test_a_missing_library_says_what_to_do(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers.activations", None)
    with pytest.raises(MissingExtraError):
        activations.ActivationRegistry().install("transformers")
