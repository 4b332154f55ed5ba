"""The monitor and the model: which sites it finds, what it follows and resumes, what it refuses and leaves behind."""

import math

import pytest
import torch
from callback_helpers import (
    FEATURES,
    SaveEachEpoch,
    SmallNet,
    activations_of,
    collected_warnings,
    loader,
    quiet_trainer,
)
from lightning.pytorch import Callback
from monitor_helpers import SITES, History, fit, logged_rows, measured
from torch import nn

from lit_gelu import activations
from lit_gelu.activations import ActivationFacts
from lit_gelu.callbacks import ActivationCurvatureMonitor
from lit_gelu.errors import UnsupportedRunError


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


def test_resumed_run_logs_what_the_uninterrupted_one_does(tmp_path):
    def run(folder, **options):
        torch.manual_seed(3)
        monitor = ActivationCurvatureMonitor(every_n_steps=3, sample_rows=3)
        trainer = quiet_trainer(folder, monitor, SaveEachEpoch(folder), max_epochs=3)
        trainer.fit(SmallNet(dropout=0), loader(), **options)
        return {int(row["step"]): row for row in logged_rows(folder) if row["curvature/net.1/mean"]}

    whole = run(tmp_path / "whole")
    resumed = run(tmp_path / "resumed", ckpt_path=tmp_path / "whole" / "epoch0.ckpt")
    assert list(whole) == [2, 5, 8, 11]
    assert list(resumed) == [5, 8, 11]
    for step, row in resumed.items():
        assert measured(row) == measured(whole[step])


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


def test_include_picks_sites_by_pattern(tmp_path):
    monitor = ActivationCurvatureMonitor(every_n_steps=1, include=["nothing.*", "net.5"])
    fit(tmp_path, monitor, max_epochs=1)
    assert list(monitor.latest) == ["net.5"]


def test_gates_are_not_activations(tmp_path):
    class Gated(SmallNet):
        def __init__(self):
            super().__init__()
            self.gate = nn.Sigmoid()

        def forward(self, x):
            return self.gate(self.net(x))

    monitor = ActivationCurvatureMonitor(every_n_steps=1)
    fit(tmp_path, monitor, model=Gated(), max_epochs=1)
    assert list(monitor.latest) == list(SITES)


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


def test_a_run_too_short_for_a_measurement_warns(tmp_path):
    with collected_warnings("will measure nothing: this run has 8 steps") as messages:
        fit(tmp_path, ActivationCurvatureMonitor(every_n_steps=9))
    assert len(messages) == 1


def test_state_dict_of_the_model_is_unchanged(tmp_path):
    _, model = fit(tmp_path, ActivationCurvatureMonitor(every_n_steps=1))
    assert list(model.state_dict()) == list(SmallNet().state_dict())
    assert activations_of(model) == ["ReLU", "ReLU"]
