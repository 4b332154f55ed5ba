"""Swaps: what is selected, what carries over, what is refused, and that nothing changes unless all of it can."""

import json

import pytest
import torch
from torch import nn
from torch.ao import quantization

from lit_gelu import surgery
from lit_gelu.activations import ActivationRegistry, UnknownActivationError
from lit_gelu.errors import SwapError
from lit_gelu.surgery import by_activation


def _net():
    return nn.Sequential(
        nn.Linear(4, 4),
        nn.ReLU(),
        nn.Linear(4, 4),
        nn.GELU(approximate="tanh"),
        nn.Linear(4, 4),
        nn.GELU(),
        nn.Sigmoid(),
    )


def _specs(model):
    return {site.name: str(site.spec) for site in surgery.find_sites(model)}


@pytest.mark.parametrize(
    ("target", "swapped"),
    [
        ("1", ["1"]),
        ("*", ["1", "3", "5"]),
        ("[13]", ["1", "3"]),
        ("6", ["6"]),
        (nn.GELU, ["3", "5"]),
        (nn.Sigmoid, ["6"]),
        ("class:torch.nn.GELU", ["3", "5"]),
        (by_activation("relu"), ["1"]),
        ("activation:relu", ["1"]),
        ("activation:gelu", ["3", "5"]),
        (by_activation("gelu_tanh"), ["3"]),
        (by_activation("gelu(approximate='none')"), ["5"]),
        (by_activation("torch.nn.GELU(approximate='none')"), ["5"]),
        (by_activation({"name": "gelu", "approximate": "none"}), ["5"]),
        (by_activation(nn.GELU), ["3", "5"]),
        ("activation:sigmoid", ["6"]),
    ],
    ids=str,
)
def test_targets(target, swapped):
    model = _net()
    report = surgery.swap(model, {target: "mish"})
    assert [row.name for row in report.rows] == swapped
    assert [name for name, spec in _specs(model).items() if spec == "mish"] == swapped


def test_undo_puts_back_the_very_modules():
    model = _net()
    before = list(model)
    report = surgery.swap(model, {"*": "silu"})
    assert _specs(model) == {"1": "silu", "3": "silu", "5": "silu", "6": "sigmoid"}
    report.undo()
    assert all(new is old for new, old in zip(model, before, strict=True))
    with pytest.raises(SwapError):
        report.undo()


def test_a_shared_module_is_replaced_in_all_its_places_by_one():
    act = nn.ReLU()
    model = nn.Sequential(act, nn.Linear(2, 2), act)
    report = surgery.swap(model, {"2": "prelu"})
    assert model[0] is model[2]
    assert len(list(model[0].parameters())) == 1
    assert str(report) == "0 (also 2): relu -> prelu"
    report.undo()
    assert model[0] is model[2] is act


def test_mode_dtype_and_hooks_carry_over():
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU()).double().eval()
    seen = []
    handle = model[1].register_forward_hook(lambda module, inputs, output: seen.append(type(module).__name__))
    report = surgery.swap(model, {"1": "prelu"})
    assert not model[1].training
    assert model[1].weight.dtype == torch.float64
    model(torch.zeros(1, 2, dtype=torch.float64))
    report.undo()
    model(torch.zeros(1, 2, dtype=torch.float64))
    assert seen == ["PReLU", "ReLU"]
    surgery.swap(model, {"1": "gelu"})
    handle.remove()
    model(torch.zeros(1, 2, dtype=torch.float64))
    assert seen == ["PReLU", "ReLU"]


def test_a_spec_may_be_a_module_and_each_site_gets_its_own():
    model = nn.Sequential(nn.ReLU(), nn.Linear(2, 2), nn.ReLU())
    prototype = nn.PReLU(init=0.5)
    surgery.swap(model, {nn.ReLU: prototype})
    assert model[0] is not model[2] is not prototype
    assert model[2].weight.item() == 0.5


def test_what_is_already_so_is_skipped_and_the_rows_are_plain_data():
    model = _net()
    kept = model[5]
    report = surgery.swap(model, {"*": "gelu"})
    assert model[5] is kept
    assert len(report) == 2
    first = {"name": "1", "aliases": [], "old": "relu", "new": "gelu", "mechanism": "module", "place": "1"}
    assert json.loads(json.dumps(vars(report.rows[0]), default=str)) == {**first, "calls": None}
    assert [str(row) for row in report.skipped] == ["5: gelu left as it is, because it is that already"]


@pytest.mark.parametrize(
    ("targets", "error"),
    [
        ({"encoder.*": "gelu"}, SwapError),
        ({nn.ELU: "gelu"}, SwapError),
        ({"*": "silu", "1": "elu"}, SwapError),
        ({"1": "gelo"}, UnknownActivationError),
        ({"activation:gelo": "gelu"}, UnknownActivationError),
        ({"class:torch.nn.Nope": "gelu"}, ValueError),
        ({3: "gelu"}, SwapError),
        ({}, SwapError),
        ("gelu", SwapError),
        ({"6*": "gelu"}, SwapError),  # a gate, which a pattern leaves alone
    ],
)
def test_what_is_refused_changes_nothing(targets, error):
    model = _net()
    before = list(model)
    with pytest.raises(error):
        surgery.swap(model, targets)
    assert all(new is old for new, old in zip(model, before, strict=True))


def test_a_failure_half_way_puts_everything_back():
    class Stubborn(nn.Sequential):
        def __setattr__(self, name, value):
            if name == "1" and not isinstance(value, nn.ReLU):
                raise RuntimeError("not here")
            super().__setattr__(name, value)

    model = nn.Sequential(nn.ReLU(), Stubborn(nn.ReLU(), nn.ReLU()))
    before = dict(model.named_modules())
    with pytest.raises(RuntimeError):
        surgery.swap(model, {"*": "gelu"})
    assert all(module is before[name] for name, module in model.named_modules())


def test_a_model_that_is_itself_the_activation_or_has_none_is_refused():
    model = nn.GELU()
    with pytest.raises(SwapError):
        surgery.swap(nn.Linear(2, 2), {"*": "gelu"})
    with pytest.raises(SwapError):
        surgery.swap(model, {"": "prelu"})
    assert type(model) is nn.GELU


def test_what_an_activation_is_made_of_goes_with_it_and_is_no_site():
    registry = ActivationRegistry()

    @registry.register("scaled_relu")
    class ScaledReLU(nn.Module):
        def __init__(self, scale=1.0):
            super().__init__()
            self.inner, self.scale = nn.ReLU(), scale

        def forward(self, x):
            return self.scale * self.inner(x)

    model = nn.Sequential(ScaledReLU(2.0), nn.Linear(4, 4), nn.ReLU())
    assert [site.name for site in surgery.find_sites(model, torch.zeros(1, 4), registry=registry)] == ["0", "2"]
    report = surgery.swap(model, {"*": "gelu"}, registry=registry)
    assert [row.name for row in report.rows] == ["0", "2"]
    report.undo()
    assert isinstance(model[0].inner, nn.ReLU)


def test_new_parameters_are_like_those_nearby():
    teacher = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).bfloat16()
    student = nn.Sequential(nn.ReLU(), nn.Linear(4, 4), nn.ReLU())
    model = nn.ModuleDict({"teacher": teacher, "student": student})
    surgery.swap(model, {"*": "prelu"})
    assert [slope.dtype for slope in (teacher[1].weight, student[0].weight, student[2].weight)] == [
        torch.bfloat16,
        torch.float32,
        torch.float32,
    ]
    mixed = nn.Sequential(nn.ReLU(), nn.Linear(4, 4, dtype=torch.float64))
    mixed.codes = nn.Parameter(torch.zeros(2, dtype=torch.int8), requires_grad=False)
    surgery.swap(mixed, {"0": "prelu"})
    assert mixed(torch.ones(1, 4, dtype=torch.float64)).dtype == torch.float64


def test_a_plan_changes_nothing_and_says_what_it_would_do():
    model = _net()
    plan = surgery.plan_swap(model, {"1": "prelu", "5": "silu"})
    assert _specs(model)["1"] == "relu"
    assert [str(row) for row in plan.rows] == ["1: relu -> prelu", "5: gelu -> silu"]
    assert plan.new_parameters == ("1.weight",)
    assert len(plan.apply()) == 2
    assert _specs(model)["1"] == "prelu"


@pytest.mark.parametrize("kind", [nn.Hardswish, nn.LeakyReLU])
@pytest.mark.filterwarnings("ignore")  # torch.ao.quantization is deprecated
def test_what_hooks_put_into_an_activation_is_not_lost(kind):
    model = nn.Sequential(nn.Linear(4, 4), kind())
    if kind is nn.Hardswish:
        model.qconfig = quantization.get_default_qat_qconfig("fbgemm")
        model = quantization.prepare_qat(model.train())
    else:  # the same by hand
        model[1].add_module("watcher", nn.Identity())
        model[1].register_forward_hook(lambda module, args, output: module.watcher(output))
    before = list(model.named_modules())
    with pytest.raises(SwapError, match="Swap first"):
        surgery.swap(model, {"1": "gelu"})
    assert list(model.named_modules()) == before
    assert model(torch.ones(2, 4)).shape == (2, 4)
