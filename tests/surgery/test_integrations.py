"""Real models of torchvision, timm and transformers: nothing is missed, all of it comes back, the file agrees."""

from collections import Counter

import pytest
import torch
from integration_models import ACTIVATIONS, CASES, GATES, OperatorCounter, OtherActivation

from lit_gelu.export import check_parity, export_onnx
from lit_gelu.surgery import coverage, find_sites, plan_swap, swap, without_marks

FAST = {"torchvision.resnet18", "timm.mobilevitv2_050", "transformers.Bert"}


# Inputs 10,000 times larger than images make these amplify rounding, before any swap too.
ILL_CONDITIONED = {"timm.mobilenetv3_small_050", "timm.levit_128s"}


def each(*but):
    """Every model; those that are not fast in `make test-full`."""
    cases = [case for case in CASES if case.name not in but]
    marks = [() if case.name in FAST else pytest.mark.full for case in cases]
    return pytest.mark.parametrize(
        "case", [pytest.param(case, id=case.name, marks=mark) for case, mark in zip(cases, marks, strict=True)]
    )


@torch.no_grad()
def output(model, sample):
    return model(sample.clone())


def calls_of(rows, role):
    """Count calls by the activation's name."""
    counts = Counter()
    for row in rows:
        if row.role == role and row.calls:
            counts[row.spec.name] += row.calls
    return counts


@each()
def test_every_call_is_accounted_for(case):
    model, sample = case.model(), case.sample()
    with torch.no_grad(), OperatorCounter() as counter:
        model(sample.clone())
    report = coverage(model, sample)
    assert calls_of(report.sites, "activation") == case.activations
    assert calls_of([*report.sites, *report.outside], "gate") == case.gates
    assert {row.role for row in report.outside} <= {"gate"}
    assert not report.never_ran
    sites = find_sites(model, sample)
    assert sum(call.count for site in sites if site.role == "activation" for call in site.calls) == sum(
        case.activations.values()
    )
    if not case.written_out:
        seen = sum(number for name, number in counter.counts.items() if name in ACTIVATIONS | GATES)
        assert seen == sum(case.activations.values()) + sum(case.gates.values())


@each()
def test_all_activations_are_swapped_and_come_back(case):
    model, sample = case.model(), case.sample()
    modules, state = dict(model.named_modules()), {key: value.clone() for key, value in model.state_dict().items()}
    before = output(model, sample)
    report = swap(model, {"*": "mish"}, sample)
    after = coverage(model, sample)
    assert calls_of([*after.sites, *after.outside], "activation") == {"mish": sum(case.activations.values())}
    assert calls_of([*after.sites, *after.outside], "gate") == case.gates
    assert torch.equal(output(model, sample), expected(case, model, report, sample))
    assert not torch.equal(output(model, sample), before)
    report.undo()
    assert dict(model.named_modules()) == modules
    assert torch.equal(output(model, sample), before)
    assert list(model.state_dict()) == list(state)
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())


def expected(case, model, report, sample):
    """Compute the output that the model has with mish, without any of its activations being replaced by us."""
    if case.takes_activation:
        other = case.build("mish").eval()
        weights = model.state_dict()
        without_marks(weights)
        other.load_state_dict(weights)
        return output(other, sample)
    with OtherActivation(torch.nn.functional.mish):
        return output(case.model(), sample)


@pytest.mark.full
@each(*ILL_CONDITIONED)
def test_the_file_agrees_after_the_swap(case, tmp_path):
    model, sample = case.model(), case.sample()
    swap(model, {"*": "mish"}, sample)
    report = export_onnx(model, tmp_path / "model.onnx", sample)
    assert report.census["Mish"] == sum(case.activations.values())
    assert check_parity(model, tmp_path / "model.onnx", input_sample=sample).passed


def test_every_call_of_a_reused_module_gets_parameters_of_its_own():
    (case,) = [case for case in CASES if case.name == "torchvision.resnet18"]
    model, sample = case.model(), case.sample()
    before = output(model, sample)
    calls = [call.name for site in find_sites(model, sample) for call in site.calls]
    assert len(calls) == 17
    same = swap(model, dict.fromkeys(calls, "prelu(init=0.0)"), sample)
    assert len({id(module) for module in model.modules() if isinstance(module, torch.nn.PReLU)}) == 17
    assert torch.equal(output(model, sample), before)
    same.undo()
    plan = plan_swap(model, dict.fromkeys(calls, "swish(learnable=True, channels='infer')"), sample)
    report = plan.apply()
    shapes = [tuple(model.get_parameter(name).shape) for name in plan.new_parameters]
    widths = [64] * 5 + [128] * 4 + [256] * 4 + [512] * 4  # the stem and 2 blocks, then 2 blocks of each width
    assert sorted(shapes) == [(width,) for width in widths]
    report.undo()
    assert torch.equal(output(model, sample), before)
