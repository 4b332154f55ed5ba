"""Where a model has activations."""

import pytest
import torch
from torch import nn

from lit_gelu import activations, surgery
from lit_gelu.activations import ActivationRegistry
from lit_gelu.errors import SwapError


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.act = nn.GELU()
        self.gate = nn.Sigmoid()
        self.shortcut = nn.Identity()
        self.norm = nn.LayerNorm(4)


class Shared(nn.Module):
    def __init__(self):
        super().__init__()
        act = nn.PReLU()
        self.first, self.second = act, act
        self.blocks = nn.ModuleList([Block(), Block()])
        self.table = nn.ModuleDict({"silu": nn.SiLU(), "copy": act})


def test_names_specs_and_roles():
    found = [(site.name, str(site.spec), site.role) for site in surgery.find_sites(Shared())]
    assert found == [
        ("first", "prelu", "activation"),
        ("blocks.0.act", "gelu", "activation"),
        ("blocks.0.gate", "sigmoid", "gate"),
        ("blocks.1.act", "gelu", "activation"),
        ("blocks.1.gate", "sigmoid", "gate"),
        ("table.silu", "silu", "activation"),
    ]


def test_a_module_in_several_places_has_all_its_names():
    site = surgery.find_sites(Shared())[0]
    assert site.aliases == ("second", "table.copy")
    assert site.names == ("first", "second", "table.copy")


def test_torch_identity_is_no_site_and_ours_is():
    model = nn.Sequential(nn.Identity(), activations.create("identity"))
    assert [site.name for site in surgery.find_sites(model)] == ["1"]


def test_a_plain_function_s_module_is_a_site_registered_or_not():
    registry = ActivationRegistry()
    model = nn.Sequential(registry.create(lambda x: x.sin()))
    (site,) = surgery.find_sites(model, registry=registry)
    assert site.spec.opaque


def test_a_user_s_class_is_a_site_once_registered():
    class Mine(nn.Module):
        pass

    registry, model = ActivationRegistry(), nn.Sequential(Mine())
    assert surgery.find_sites(model, registry=registry) == []
    registry.register("mine")(Mine)
    assert [str(site.spec) for site in surgery.find_sites(model, registry=registry)] == ["mine"]


def test_a_compiled_model_is_looked_into():
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    assert [site.name for site in surgery.find_sites(torch.compile(model, backend="eager"))] == ["1"]


def test_the_model_itself_may_be_the_site():
    assert [site.name for site in surgery.find_sites(nn.GELU())] == [""]


def test_what_is_no_model_is_refused():
    with pytest.raises(SwapError):
        surgery.find_sites("model")
