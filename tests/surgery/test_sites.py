"""Where a model has activations, found in both modes by passes that leave no trace."""

import random

import pytest
import torch
import torch.nn.functional as F
import unusual_nets as nets
from torch import nn

from lit_gelu import activations, surgery
from lit_gelu.activations import ActivationRegistry
from lit_gelu.errors import SwapError

SAMPLE = torch.randn(3, 4, generator=torch.Generator().manual_seed(1))
X = SAMPLE[:1]  # one example, which batch normalisation refuses


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
    sites = surgery.find_sites(Shared())
    assert sites[0].names == ("first", "second", "table.copy")
    assert [(site.name, str(site.spec), site.role) for site in sites] == [
        ("first", "prelu", "activation"),
        ("blocks.0.act", "gelu", "activation"),
        ("blocks.0.gate", "sigmoid", "gate"),
        ("blocks.1.act", "gelu", "activation"),
        ("blocks.1.gate", "sigmoid", "gate"),
        ("table.silu", "silu", "activation"),
    ]


def test_torch_identity_is_no_site_and_ours_is_as_may_be_the_model_itself():
    assert [site.name for site in surgery.find_sites(nn.GELU())] == [""]
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


def test_the_pass_leaves_no_trace():
    class Noisy(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.drop = nn.BatchNorm1d(4), nn.Dropout(0.5).eval()
            self.register_buffer("count", torch.zeros(()))

        def forward(self, x):
            self.count += 1
            return F.relu(self.drop(self.norm(x + torch.rand(())))) + random.random()

    model = Noisy()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    flags = [module.training for module in model.modules()]
    torch_state, python_state = torch.get_rng_state(), random.getstate()
    surgery.find_sites(model, SAMPLE)
    surgery.coverage(model, SAMPLE)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert [module.training for module in model.modules()] == flags
    assert torch.equal(torch.get_rng_state(), torch_state)
    assert random.getstate() == python_state
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert not nn.modules.module._global_forward_pre_hooks


def test_the_sample_is_not_overwritten():
    model, x = nn.Sequential(nn.ReLU(inplace=True)), SAMPLE.clone()
    surgery.swap(model, {"*": "silu"}, x).undo()
    surgery.coverage(model, x)
    assert torch.equal(x, SAMPLE)


def test_samples_of_every_form_and_a_failing_one():
    class Two(nn.Module):
        def forward(self, x, scale=1.0):
            return F.relu(x * scale)

    for sample in (SAMPLE, (SAMPLE, 2.0), [SAMPLE], {"x": SAMPLE, "scale": 2.0}):
        assert [site.name for site in surgery.find_sites(Two(), sample)] == [":relu"]
    for model, sample in ((Two(), {"y": SAMPLE}), ("model", None)):
        with pytest.raises(SwapError):
            surgery.find_sites(model, sample)


def test_activations_of_training_alone_are_found_and_told_apart():
    model = nets.InTraining()
    sites = surgery.find_sites(model, X)
    calls = {site.name: [(call.count, call.training_only) for call in site.calls] for site in sites}
    assert calls == {"act": [(1, False)], "auxiliary": [(1, True)], ":gelu": [(1, True)]}
    assert str(next(site for site in sites if site.name == ":gelu").calls[0]).endswith("1 time, in training alone")
    report = surgery.coverage(model, X)
    assert report.counts() == {"relu": 1}
    assert {row.name for row in report.sites if row.training_only} == {"auxiliary", ":gelu"}
    assert report.never_ran == ()


def test_a_swap_reaches_activations_of_training_alone():
    model = nets.InTraining()
    report = surgery.swap(model, {"*": "silu"}, X)
    assert len(report) == 3
    assert [str(row.spec) for row in surgery.coverage(model, X).sites] == ["silu"] * 3
    model.train()
    model.norm.eval(), model.dropout.eval()
    expected = F.silu(model.norm(model.linear(X))) + F.silu(F.silu(X))
    torch.testing.assert_close(model(X), expected)


def test_a_model_that_wants_more_in_training_is_surveyed_in_evaluation_and_the_reports_say_so():
    model = nets.WantsTargets()
    note = (
        "What runs in training alone is not known: the sample fails in training mode (targets should not be none when "
        "in training mode)."
    )
    assert [site.name for site in surgery.find_sites(model, X)] == ["act"]
    assert surgery.coverage(model, X).notes == (note,)
    assert note in str(surgery.coverage(model, X))
    assert surgery.swap(model, {"*": "silu"}, X).notes == (note,)
    assert surgery.swap(model, {"*": "gelu"}, (X, X)).notes == ()
