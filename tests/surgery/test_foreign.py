"""Activation modules of other libraries are recognised, and are what they are said to be."""

import inspect

import pytest
import torch
from timm.layers import activations as timm_activations
from timm.layers import activations_me
from torch import nn
from transformers import activations as transformers_activations

from lit_gelu import activations, surgery
from lit_gelu.surgery.sites import foreign_spec

ARGUMENTS = {"ClippedGELUActivation": {"min": -2, "max": 3}}
NOT_ACTIVATIONS = {"ClassInstantier", "XIELUActivation"}  # a table; parameters that no spec can hold


def classes():
    for library in (transformers_activations, timm_activations, activations_me):
        for name, cls in vars(library).items():
            local = inspect.isclass(cls) and cls.__module__ == library.__name__
            if local and issubclass(cls, nn.Module) and name not in NOT_ACTIVATIONS:
                yield pytest.param(cls, id=f"{library.__name__}.{name}")


@pytest.mark.parametrize("cls", list(classes()))
def test_every_activation_module_is_the_spec_that_it_is_said_to_be(cls):
    module = cls(**ARGUMENTS.get(cls.__name__, {})).double()
    spec = foreign_spec(module, activations.registry)
    assert spec is not None
    x = torch.linspace(-8, 8, 4001, dtype=torch.float64)
    ours = activations.create(spec).double()(x)
    # transformers writes constants with ten digits or fewer
    torch.testing.assert_close(module(x), ours, rtol=1e-6, atol=1e-6)


def test_they_are_sites_and_are_swapped():
    model = nn.Sequential(
        transformers_activations.NewGELUActivation(),
        timm_activations.PReLU(3),
        transformers_activations.XIELUActivation(),
    )
    assert [str(site.spec) for site in surgery.find_sites(model, torch.zeros(2, 3))] == [
        "gelu(approximate='tanh')",
        "prelu(num_parameters=3)",
        "opaque:transformers.activations.XIELUActivation",
    ]
    surgery.swap(model, {"activation:gelu": "relu", "activation:prelu": "silu", "2": "mish"})
    assert [type(module) for module in model] == [nn.ReLU, nn.SiLU, nn.Mish]
