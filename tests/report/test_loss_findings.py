"""The limits against optimizers that are run, and findings against figures made by hand."""

import pytest
import torch

from lit_gelu.report import LoggedCurve, OptimizerSettings, ReportedRun
from lit_gelu.report.loss_findings import (
    critical_rate,
    diverged,
    loss_findings,
    overfitted,
    rule_in_words,
    sharpness,
    stability_limit,
    steep_steps,
)

SETTINGS = [
    OptimizerSettings("SGD", 0.1, plain=True),
    OptimizerSettings("SGD", 0.1, momentum=0.9, plain=True),
    OptimizerSettings("SGD", 0.3, momentum=0.5, nesterov=True, plain=True),
    OptimizerSettings("SGD", 0.1, momentum=0.9, weight_decay=2.0, plain=True),
]


def reached(settings, sharp):
    """Where torch's SGD comes to on the loss sharp / 2 x^2, from 1 in 3000 steps."""
    x = torch.ones((), dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.SGD(
        [x], settings.learning_rate, settings.momentum, 0, settings.weight_decay, settings.nesterov, foreach=False
    )
    for _ in range(3000):
        x.grad = sharp * x.detach()
        optimizer.step()
    return abs(x.item())


@pytest.mark.parametrize("settings", SETTINGS, ids=["plain", "momentum", "nesterov", "decay"])
def test_the_limit_is_where_the_optimizer_begins_to_grow(settings):
    limit = stability_limit(settings)
    assert reached(settings, 0.99 * limit) < 1e-3
    assert not reached(settings, 1.01 * limit) < 1e3


@pytest.mark.parametrize(
    "settings",
    [
        OptimizerSettings("Adam", 0.1, momentum=0.9, adaptive=True),
        OptimizerSettings("SGD", 0.0, plain=True),
        OptimizerSettings("SGD", float("nan"), plain=True),
        OptimizerSettings("SGD", 0.1, momentum=1.0, plain=True),
    ],
)
def test_no_limit_where_none_is_known(settings):
    assert stability_limit(settings) is None


def test_the_rule_is_said_with_its_numbers():
    assert rule_in_words(SETTINGS[0]) == "2 / learning rate 0.1"
    assert rule_in_words(SETTINGS[3]) == "2 (1 + momentum 0.9) / learning rate 0.1 - weight decay 2"
    assert "(1 + 2 momentum)" in rule_in_words(SETTINGS[2])


@pytest.mark.parametrize(("top", "level"), [(10.0, "good"), (17.0, "note"), (29.0, "note"), (31.0, "warning")])
def test_sharpness_beside_2_over_the_learning_rate(top, level):
    (found,) = sharpness(LoggedCurve("curvature/loss/top_eigenvalue", (9,), (top,)), (SETTINGS[0],))
    assert found.level == level
    assert found.figures == pytest.approx({"top_eigenvalue": top, "limit": 20.0, "ratio": top / 20})


def test_adam_is_told_apart():
    (found,) = sharpness(LoggedCurve("top_eigenvalue", (9,), (1e4,)), (OptimizerSettings("Adam", 0.1, adaptive=True),))
    assert found.level == "note"
    assert "does not hold for Adam" in found.text


def run_with(*curves, rate=0.1, **settings):
    """A run of one optimizer whose sharpness was measured at step 12."""
    top = LoggedCurve("curvature/loss/top_eigenvalue", (2, 12), (5.0, 19.0))
    optimizer = OptimizerSettings("SGD", rate, plain=True, **settings)
    return ReportedRun(title="", source="", made="", curves=(*curves, top), optimizers=(optimizer,))


def test_the_learning_rate_of_the_measured_step_counts():
    (found,) = loss_findings(run_with(LoggedCurve("learning_rate/SGD", (0, 12, 20), (0.3, 0.1, 1e-6)), rate=1e-6))
    assert found.figures["limit"] == pytest.approx(20.0)


def test_the_rate_that_the_monitor_logged_is_taken_before_all_others():
    others = LoggedCurve("lr-SGD", (12,), (7.0,)), LoggedCurve("curvature/b/learning_rate", (12,), (8.0,))
    own = LoggedCurve("curvature/loss/learning_rate", (2, 12), (0.5, 0.1))
    (found,) = loss_findings(run_with(*others, own, rate=9.0))
    assert found.figures["limit"] == pytest.approx(20.0)


@pytest.mark.parametrize(
    ("steps", "values", "end", "is_known"),
    [
        ((0, 10), (0.1, 0.1), 0.0, False),  # it changed behind step 10, nobody knows when
        ((0, 10), (0.1, 0.1), 0.1, True),
        ((0, 10, 20), (0.3, 0.1, 0.1), 0.0, True),
        ((0, 10, 20), (0.3, 0.1, 0.05), 0.05, False),
        ((20,), (0.1,), 0.1, False),  # it may have been warmed up
        ((), (), 0.1, False),
    ],
)
def test_a_rate_that_is_not_known_is_not_judged(steps, values, end, is_known):
    (found,) = loss_findings(run_with(LoggedCurve("lr-SGD", steps, values), rate=end))
    assert ("limit" in found.figures, found.topic) == (is_known, "edge of stability" if is_known else "sharpness")
    assert ("is not known" in found.text) != is_known
    assert ("LearningRateMonitor" in found.advice) != is_known


def test_at_a_rate_of_0_there_is_no_limit():
    (found,) = loss_findings(run_with(LoggedCurve("lr-SGD", (0, 12), (0.1, 0.0)), rate=0.0))
    assert (found.level, found.topic) == ("note", "sharpness")
    assert "learning rate was 0 at that step" in found.text


def test_momentum_and_weight_decay_are_no_learning_rates():
    others = [LoggedCurve(f"lr-SGD-{name}", (0, 12), (0.9, 0.9)) for name in ("momentum", "weight_decay")]
    (found,) = loss_findings(run_with(*others, LoggedCurve("lr-SGD", (0, 12), (0.1, 0.1))))
    assert found.figures["limit"] == pytest.approx(20.0)


def test_a_critical_rate_is_not_compared_with_a_rate_that_is_not_known():
    (found,) = critical_rate(LoggedCurve("x/critical_learning_rate", (7,), (0.05,)), float("nan"))
    assert (found.level, found.figures) == ("note", {"critical_learning_rate": 0.05})
    assert "is not known" in found.text


@pytest.mark.parametrize(
    ("rates", "ratio"),
    [
        ({"curvature/loss/learning_rate": ((2, 12), (9.0, 0.1)), "lr-SGD": ((12,), (7.0,))}, 2.0),
        ({"lr-SGD": ((2, 12), (9.0, 0.1))}, 2.0),
        ({"lr-SGD": ((2, 20), (0.1, 0.1))}, 2.0),  # the same before and after
        ({"lr-SGD": ((2,), (0.1,))}, None),
        ({"lr-SGD/pg1": ((12,), (0.1,)), "lr-SGD/pg2": ((12,), (0.2,))}, None),
        (
            {
                "curvature/loss/learning_rate": ((12,), (0.1,)),
                "lr-SGD/pg1": ((12,), (0.1,)),
                "lr-SGD/pg2": ((12,), (0.2,)),
            },
            2.0,
        ),
        ({}, None),
    ],
)
def test_logs_alone_say_the_learning_rate_but_not_the_optimizer(rates, ratio):
    curves = [LoggedCurve(name, *points) for name, points in rates.items()]
    measured = {"critical_learning_rate": 0.05, "top_eigenvalue": 19.0}
    curves += [LoggedCurve(f"curvature/loss/{name}", (12,), (value,)) for name, value in measured.items()]
    critical, sharp = loss_findings(ReportedRun(title="", source="", made="", curves=tuple(curves)))
    assert critical.topic == "critical learning rate"
    assert critical.level == ("note" if ratio is None else "warning")
    assert critical.figures.get("ratio") == (None if ratio is None else pytest.approx(ratio))
    assert (sharp.level, sharp.figures) == ("note", {"top_eigenvalue": 19.0})
    assert "None are known of this run" in sharp.text


@pytest.mark.parametrize("second", ["lr-SGD-1", "lr-Adam", "lr-SGD-1/pg1"])
def test_logs_that_name_several_optimizers_are_not_judged(second):
    rates = [LoggedCurve(name, (12,), (0.1,)) for name in ("curvature/loss/learning_rate", "lr-SGD", second)]
    curves = (*rates, LoggedCurve("curvature/loss/critical_learning_rate", (12,), (0.05,)))
    assert not list(loss_findings(ReportedRun(title="", source="", made="", curves=curves)))


def test_the_rates_of_several_optimizers_are_not_judged():
    curves = [
        LoggedCurve(f"curvature/loss/{name}", (12,), (0.1,)) for name in ("learning_rate", "critical_learning_rate")
    ]
    two = (OptimizerSettings("SGD", 0.1, plain=True),) * 2
    assert not list(loss_findings(ReportedRun(title="", source="", made="", curves=tuple(curves), optimizers=two)))


def grows(hessian, rates):
    """Whether torch's SGD diverges on the loss x'Hx / 2 with a parameter group for each coordinate."""
    x = [torch.ones((), dtype=torch.float64, requires_grad=True) for _ in rates]
    optimizer = torch.optim.SGD([{"params": [each], "lr": rate} for each, rate in zip(x, rates, strict=True)])
    for _ in range(3000):
        gradient = hessian @ torch.stack([each.detach() for each in x])
        for each, slope in zip(x, gradient, strict=True):
            each.grad = slope.clone()
        optimizer.step()
    return not max(abs(each.item()) for each in x) < 1e3


@pytest.mark.one_in(2)
@pytest.mark.parametrize("angle", [0.0, 0.6, 1.2, 1.5707963])
def test_several_groups_are_judged_by_the_largest_rate(angle):
    """Below the limit of the largest rate every run is stable; above it that depends on where the sharpness is."""
    rates = (0.001, 0.1)
    settings = OptimizerSettings("SGD", rates[0], plain=True, group_rates=rates)
    limit = stability_limit(settings)
    assert limit == pytest.approx(2 / 0.1)
    direction = torch.tensor([angle], dtype=torch.float64)
    v = torch.cat([direction.cos(), direction.sin()])
    hessian = 0.1 * torch.eye(2, dtype=torch.float64) + torch.outer(v, v)
    for share in (0.5, 0.99, 1.6):
        top = share * limit
        stretched = hessian * (top / torch.linalg.eigvalsh(hessian)[-1])
        (found,) = sharpness(LoggedCurve("top_eigenvalue", (9,), (top,)), (settings,))
        assert found.level == ("good" if share == 0.5 else "note")
        assert "largest learning rate 0.1" in found.text
        if share < 1:
            assert not grows(stretched, rates)
    scale = torch.tensor(rates, dtype=torch.float64).sqrt()  # the exact limit is 2 for D^1/2 H D^1/2
    assert grows(stretched, rates) == (torch.linalg.eigvalsh(scale[:, None] * stretched * scale)[-1].item() > 2)


def test_long_steps_and_critical_rates():
    (steep,) = steep_steps(LoggedCurve("x/directional_stability", (1, 2, 3, 4), (0.2, 1.0, 1.5, float("nan"))))
    assert (steep.level, steep.figures["share"]) == ("warning", pytest.approx(2 / 3))
    (found,) = critical_rate(LoggedCurve("x/critical_learning_rate", (7,), (0.05,)), 0.1)
    assert (found.level, found.figures["ratio"]) == ("warning", pytest.approx(2.0))


def test_losses():
    (bad,) = diverged(LoggedCurve("train_loss", (0, 5, 9), (2.0, float("nan"), 1.0)))
    assert bad.level == "alarm"
    assert bad.text == "train_loss was NaN or infinite first at step 5."
    (rose,) = overfitted(LoggedCurve("val_loss", (1, 2, 3), (2.0, 1.0, 1.2)))
    assert "step 2" in rose.text
    assert not list(overfitted(LoggedCurve("val_loss", (1, 2, 3), (2.0, 1.0, 1.05))))
    assert not list(diverged(LoggedCurve("train_loss", (0,), (1.0,))))


@pytest.mark.parametrize("name", ["train_loss", "train/loss", "val/loss", "Loss", "TrainLoss/epoch"])
def test_every_name_of_a_loss_is_judged(name):
    run = ReportedRun(title="t", source="s", made="m", curves=(LoggedCurve(name, (0, 1), (1.0, float("nan"))),))
    assert [finding.topic for finding in loss_findings(run)] == ["loss not finite"]
    rising = (LoggedCurve(name, (0, 1, 2), (1.0, 0.5, 0.6)),)
    expected = ["overfitting"] if name.startswith("val") else []
    assert [
        found.topic for found in loss_findings(ReportedRun(title="t", source="s", made="m", curves=rising))
    ] == expected


@pytest.mark.parametrize("name", ["curvature/loss/probe_loss", "activation_swap/loss", "export/loss", "lr-loss"])
def test_what_is_no_loss_of_the_module(name):
    run = ReportedRun(title="t", source="s", made="m", curves=(LoggedCurve(name, (0,), (float("nan"),)),))
    assert not list(loss_findings(run))
