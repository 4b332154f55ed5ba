"""Findings against figures made by hand, the optimizer's limit against optimizers that are run."""

import math
from dataclasses import replace

import pytest
import torch

from lit_gelu.report import ExportedFile, LoggedCurve, OptimizerSettings, ReportedRun, judged
from lit_gelu.report.findings import stability_limit

RUN = ReportedRun(title="", source="", made="")
RATE = "curvature/loss/learning_rate"
SGD = OptimizerSettings("SGD", plain=True)


def curve(name, *values, first=1):
    return LoggedCurve(name, tuple(range(first, first + len(values))), values)


def levels(run):
    return {(finding.level, finding.topic) for finding in judged(run).findings}


@pytest.mark.parametrize(
    ("statistic", "value", "expected"),
    [
        ("share_dead", 0.05, {("good", "dead units")}),
        ("share_dead", 0.1, {("warning", "dead units")}),
        ("share_dead", 0.5, {("alarm", "dead units")}),
        ("share_dead", math.nan, set()),
        ("share_saturated", 0.5, set()),  # ReLU's own
        ("share_saturated", 0.97, {("warning", "saturation")}),
        ("share_linear", 0.99, set()),
        ("share_non_finite", 0.0, set()),
        ("share_non_finite", 1e-9, {("alarm", "non-finite inputs")}),
    ],
)
def test_a_site_is_judged_by_its_last_figures(statistic, value, expected):
    logged = curve(f"curvature/net.1/{statistic}", 1.0, value)
    assert levels(replace(RUN, curves=(logged,))) == expected


OPTIMIZERS = {
    "plain": {"lr": 0.1},
    "momentum": {"lr": 0.1, "momentum": 0.9},
    "nesterov": {"lr": 0.3, "momentum": 0.5, "nesterov": True},
    "decay": {"lr": 0.1, "momentum": 0.9, "weight_decay": 2.0},
}


def reached(options, sharpness):
    """Where torch's SGD comes to on the loss sharpness / 2 x^2, from 1 in 3000 steps."""
    x = torch.ones((), dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.SGD([x], foreach=False, **options)
    for _ in range(3000):
        x.grad = sharpness * x.detach()
        optimizer.step()
    return abs(x.item())


@pytest.mark.parametrize("options", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_the_limit_is_where_the_optimizer_begins_to_grow(options):
    settings = OptimizerSettings.of_groups("SGD", torch.optim.SGD([torch.zeros(1)], **options).param_groups)
    limit = stability_limit(settings, options["lr"])
    assert reached(options, 0.99 * limit) < 1e-3
    assert not reached(options, 1.01 * limit) < 1e3


def measured(top, *rates, optimizers=(SGD,)):
    """A run whose sharpness was measured at step 1, with the learning rates that the monitor logged there."""
    names = (RATE, "curvature/loss/largest_learning_rate")
    logged = [curve(name, rate) for name, rate in zip(names, rates, strict=False)]
    top = curve("curvature/loss/top_eigenvalue", top)
    return replace(RUN, curves=(top, *logged), optimizers=optimizers)


@pytest.mark.parametrize(("top", "level"), [(10.0, "good"), (17.0, "note"), (29.0, "note"), (31.0, "warning")])
def test_sharpness_beside_2_over_the_learning_rate_of_its_step(top, level):
    (finding,) = judged(measured(top, 0.1)).findings
    assert (finding.level, finding.topic) == (level, "edge of stability")
    assert finding.figures == pytest.approx({"top_eigenvalue": top, "limit": 20.0, "ratio": top / 20})


@pytest.mark.parametrize(
    "run",
    [
        measured(1e4, 0.1, optimizers=(OptimizerSettings("AdamW"),)),
        measured(1e4, 0.1, optimizers=()),
        measured(1e4, 0.1, optimizers=(SGD, SGD)),
        measured(1e4),
    ],
    ids=["adam", "unknown", "several", "no rate"],
)
def test_a_sharpness_without_a_known_limit_is_noted_and_decides_nothing(run):
    (finding,) = judged(run).findings
    assert (finding.level, finding.topic, finding.advice) == ("note", "sharpness", "")


@pytest.mark.parametrize(
    ("name", "values", "expected"),
    [
        ("train_loss", (1.0, math.nan, 0.5), {("alarm", "loss not finite")}),
        ("train_loss", (1.0, 0.5, 9.0), set()),
        ("curvature/loss/probe_loss", (math.inf,), set()),
    ],
)
def test_curves_are_judged(name, values, expected):
    assert levels(replace(RUN, curves=(curve(name, *values),))) == expected


def test_how_a_run_ended_and_what_its_files_prove():
    proofs = ("passed", "failed", "none", "unreadable")
    files = tuple(ExportedFile(f"{proof}.onnx", 1, proof) for proof in proofs)
    findings = judged(replace(RUN, status="failed", failure="boom", files=files)).findings
    assert [(finding.level, finding.where) for finding in findings] == [
        ("alarm", ""),
        ("alarm", "failed.onnx"),
        ("warning", "unreadable.onnx"),
        ("note", "none.onnx"),
        ("good", "passed.onnx"),
    ]
    assert levels(replace(RUN, status="interrupted")) == {("warning", "interrupted run")}


@pytest.mark.parametrize(
    ("shares", "level"), [([0.2, 0.5, 0.6], "good"), ([0.9, 0.2, 1.0], "note"), ([0.9, 1.0, 2.0], "warning")]
)
def test_a_sharpness_beside_the_limit_that_was_logged_with_it(shares, level):
    name = "curvature/loss/preconditioned_sharpness"
    curves = (
        LoggedCurve(name, (0, 1, 2), tuple(3800 * share for share in shares)),
        LoggedCurve(f"{name}_limit", (0, 1, 2), (3800.0,) * 3),
    )
    (finding,) = judged(replace(RUN, curves=curves)).findings
    assert (finding.level, finding.topic) == (level, "edge of stability")


def test_a_limit_of_somebody_elses_is_no_sharpness():
    for name, limits in (("gpu_memory", (80.0,) * 3), ("curvature/loss/batch_sharpness", (math.nan,) * 3)):
        curves = (LoggedCurve(name, (0, 1, 2), (70.0, 72, 75)), LoggedCurve(f"{name}_limit", (0, 1, 2), limits))
        assert not judged(replace(RUN, curves=curves)).findings
