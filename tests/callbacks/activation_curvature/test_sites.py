"""Which sites the monitor finds, what it follows and resumes, what it refuses and leaves behind; several monitors."""

import math

import pytest
from callback_helpers import FEATURES, Fails, History, SmallNet, collected_warnings
from lightning.pytorch import Callback
from monitor_helpers import SITES, fit, logged_rows
from torch import nn

from lit_gelu import activations
from lit_gelu.activations import ActivationFacts
from lit_gelu.callbacks import ActivationCurvatureMonitor
from lit_gelu.errors import ArgumentError, UnsupportedRunError


class ReplaceByHand(Callback):
    """Replaces the activations without telling anyone."""

    def __init__(self, step):
        self.step = step

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        if trainer.global_step == self.step:
            pl_module.net[1], pl_module.net[5] = nn.GELU(), nn.GELU()


@pytest.mark.parametrize("monitor_first", [True, False])
def test_hooks_follow_a_replacement_by_anyone(tmp_path, monitor_first):
    monitor = ActivationCurvatureMonitor(every_n_steps=1, sample_rows=None)
    history = History(monitor)
    pair = [monitor, ReplaceByHand(3)]
    fit(tmp_path, *(pair if monitor_first else pair[::-1]), history)
    curved = {step: row["net.1"]["mean_abs_second_derivative"] > 0 for step, row in history.figures.items()}
    missing = {3} if monitor_first else set()  # replaced after the recording began: that batch cannot be measured
    assert curved == {step: step >= 3 for step in range(8) if step not in missing}


class Bent(nn.Module):
    def forward(self, x):
        return x + (x * x + 1).sqrt() / 2


@pytest.mark.parametrize(
    ("facts", "unknown"), [(None, 1), (ActivationFacts(smoothness=0), 1), (ActivationFacts(smoothness=9), 0)]
)
def test_what_is_left_out_of_an_activation_without_facts_is_said_once(tmp_path, facts, unknown):
    with activations.registry.scope() as registry, collected_warnings("leaves out the kink mass") as seen:
        registry.register("bent", facts=facts)(Bent)
        monitor = ActivationCurvatureMonitor(every_n_steps=1)
        fit(tmp_path, monitor, model=SmallNet(Bent), max_epochs=1)
    assert len(seen) == unknown
    assert math.isnan(monitor.latest["net.1"]["kink_mass"]) == bool(unknown)


def test_undefined_figures_are_not_logged(tmp_path):
    monitor = ActivationCurvatureMonitor(every_n_steps=1)
    fit(tmp_path, monitor, model=SmallNet(nn.Softplus), max_epochs=1)
    assert math.isnan(monitor.latest["net.1"]["mean_gate"])
    keys = set(logged_rows(tmp_path)[0])
    assert "curvature/net.1/mean" in keys
    assert "curvature/net.1/mean_gate" not in keys


def test_a_site_that_is_not_called_is_named_once(tmp_path):
    class Unused(SmallNet):
        def __init__(self):
            super().__init__()
            self.spare = nn.GELU()

    monitor = ActivationCurvatureMonitor(every_n_steps=1)
    with collected_warnings("logs nothing for 'spare'") as messages:
        fit(tmp_path, monitor, model=Unused())
    assert len(messages) == 1
    assert not any("spare" in key for key in logged_rows(tmp_path)[0])


def test_hooks_are_gone_after_the_run_and_after_an_error(tmp_path):
    _, model = fit(tmp_path / "a", ActivationCurvatureMonitor(every_n_steps=1))
    assert not any(module._forward_pre_hooks for module in model.modules())

    class Failing(SmallNet):
        def training_step(self, batch, batch_idx):
            raise RuntimeError("training failed")

    model = Failing()
    with pytest.raises(RuntimeError):
        fit(tmp_path / "b", ActivationCurvatureMonitor(every_n_steps=1), model=model)
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_no_logger_is_refused(tmp_path):
    with pytest.raises(UnsupportedRunError):
        fit(tmp_path, ActivationCurvatureMonitor(), logger=False)


def test_a_model_without_activation_modules_is_refused(tmp_path):
    class Functional(SmallNet):
        def __init__(self):
            super().__init__()
            self.net = nn.Linear(FEATURES, 3)

    with pytest.raises(UnsupportedRunError):
        fit(tmp_path, ActivationCurvatureMonitor(), model=Functional())
    with pytest.raises(UnsupportedRunError):
        fit(tmp_path, ActivationCurvatureMonitor(include="encoder.*"))


def steps(folder, column="curvature/net.1/mean"):
    return [int(row["step"]) for row in logged_rows(folder) if row.get(column)]


@pytest.mark.parametrize("options", [{"every_n_steps": 4}, {"at_steps": [3]}])
def test_one_monitor_measures_every_run_it_is_given_to(tmp_path, options):
    monitor = ActivationCurvatureMonitor(**options)
    for number in range(2):
        folder = tmp_path / str(number)
        fit(folder, monitor, max_epochs=1)
        assert steps(folder) == [3]


def test_monitors_of_one_trainer_write_under_their_names(tmp_path):
    first = ActivationCurvatureMonitor(every_n_steps=4, include="net.1")
    second = ActivationCurvatureMonitor(every_n_steps=4, include="net.5", name="deep")
    fit(tmp_path, first, second, max_epochs=1)
    row = {key: value for row in logged_rows(tmp_path) for key, value in row.items() if value}
    assert float(row["curvature/net.1/mean"]) == first.latest["net.1"]["mean"]
    assert float(row["curvature/deep/net.5/mean"]) == second.latest["net.5"]["mean"]
    assert {"curvature/activations/seconds", "curvature/deep/activations/seconds"} <= row.keys()
    assert "curvature/net.5/mean" not in row


def test_two_monitors_of_one_name_are_refused(tmp_path):
    pair = [ActivationCurvatureMonitor(every_n_steps=4, include=site) for site in SITES]
    with pytest.raises(ArgumentError):
        fit(tmp_path, *pair)


class TestGates:
    def test_they_are_watched_if_they_are_named_in_full(self, tmp_path):
        monitor = ActivationCurvatureMonitor(every_n_steps=1, sample_rows=None, include=["net.5"])
        fit(tmp_path, monitor, model=SmallNet(nn.Tanh), max_epochs=1)
        assert list(monitor.latest) == ["net.5"]
        assert 0 < monitor.latest["net.5"]["mean_derivative"] < 1

    def test_a_pattern_does_not_catch_them(self, tmp_path):
        model = SmallNet()
        model.net[5] = nn.Sigmoid()
        monitor = ActivationCurvatureMonitor(every_n_steps=1, include=["net.*"])
        fit(tmp_path, monitor, model=model, max_epochs=1)
        assert list(monitor.latest) == ["net.1"]


def test_the_steps_before_a_failure_are_logged(tmp_path):
    failing = Fails("on_train_batch_start", FloatingPointError("the loss is NaN"), number=5)
    with pytest.raises(FloatingPointError):
        fit(tmp_path, failing, ActivationCurvatureMonitor(every_n_steps=1))
    assert steps(tmp_path) == [0, 1, 2, 3]
