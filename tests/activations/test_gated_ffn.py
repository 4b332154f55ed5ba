"""The gated feed-forward block."""

import pytest
import torch
from torch.nn import functional as F

import lit_gelu as lg
from lit_gelu import surgery
from lit_gelu.activations import ActivationArgumentError, GatedFFN


def test_it_is_llamas_mlp():
    """down_proj(silu(gate_proj(x)) * up_proj(x)), written with plain matrices."""
    torch.manual_seed(0)
    block = GatedFFN(6, 10).double()
    x = torch.randn(2, 5, 6, dtype=torch.float64)
    gate, up, down = (
        layer.weight for layer in (block.gate_projection, block.value_projection, block.output_projection)
    )
    a = x @ gate.T
    wanted = (a / (1 + torch.exp(-a)) * (x @ up.T)) @ down.T
    torch.testing.assert_close(block(x), wanted)
    assert sorted(block.state_dict()) == [
        "gate_projection.weight",
        "output_projection.weight",
        "value_projection.weight",
    ]


@pytest.mark.parametrize(
    ("dim", "multiple_of", "hidden"),
    [
        (4096, 256, 11008),
        (5120, 256, 13824),
        (6656, 256, 17920),
        (8192, 256, 22016),
        (6, 1, 16),
        (7, 1, 19),
        (7, 8, 24),
    ],
)
def test_the_default_width(dim, multiple_of, hidden):
    """LLaMA's published sizes, and small ones by hand: 8 dim / 3 rounded up."""
    with torch.device("meta"):
        block = GatedFFN(dim, multiple_of=multiple_of)
    assert block.hidden_dim == hidden
    assert sum(parameter.numel() for parameter in block.parameters()) == 3 * dim * hidden


def test_parameters_with_biases():
    block = GatedFFN(8, 20, bias=True)
    assert sum(parameter.numel() for parameter in block.parameters()) == 3 * 8 * 20 + 20 + 20 + 8


@pytest.mark.parametrize(
    ("gate", "function"),
    [
        ("gelu", F.gelu),
        ("relu", F.relu),
        ("sigmoid", torch.sigmoid),
        (torch.nn.Tanh(), torch.tanh),
        (torch.sin, torch.sin),
    ],
)
def test_any_gate(gate, function):
    torch.manual_seed(0)
    block, x = GatedFFN(4, 6, gate, bias=True), torch.randn(3, 4)
    wanted = block.output_projection(function(block.gate_projection(x)) * block.value_projection(x))
    assert torch.equal(block(x), wanted)


def test_its_gate_is_an_activation_site():
    block = GatedFFN(4)
    assert [(site.name, str(site.spec)) for site in surgery.find_sites(block)] == [("activation", "silu")]
    surgery.swap(block, {"activation": "gelu"})
    assert type(block.activation) is torch.nn.GELU


def test_a_registry_of_the_user():
    registry = lg.activations.ActivationRegistry()
    registry.register("double")(lambda x: 2 * x)
    block, x = GatedFFN(4, 6, "double", registry=registry), torch.ones(4)
    torch.testing.assert_close(
        block(x), block.output_projection(2 * block.gate_projection(x) * block.value_projection(x))
    )


def test_refusals():
    sizes = {"dim": 0}, {"dim": 4, "hidden_dim": 2.5}, {"dim": 4, "hidden_dim": 10, "multiple_of": 4}
    for arguments in (*sizes, {"dim": 4, "multiple_of": True}, {"dim": 4, "gate": "swiglu"}):
        with pytest.raises(ActivationArgumentError):
            GatedFFN(**arguments)
