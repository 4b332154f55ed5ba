"""The monitor and the model: which sites it finds, what it follows and resumes, what it refuses and leaves behind."""

import copy
import math

import pytest
import torch
from callback_helpers import (
    FEATURES,
    InputKeeper,
    SaveEachEpoch,
    SmallNet,
    activations_of,
    collected_warnings,
    loader,
    quiet_trainer,
)
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import GradientAccumulationScheduler
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from monitor_helpers import SITES, History, fit, logged_rows, measured
from torch import nn

from lit_gelu import activations, surgery
from lit_gelu.callbacks import (
    ActivationCurvatureMonitor,
    ActivationSwap,
)
from lit_gelu.errors import ArgumentError, UnsupportedRunError


class SoftmaxOfChannels(nn.Module):
    def forward(self, x):
        return x.softmax(-1)


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


def test_a_measurement_that_a_replacement_spoilt_is_made_up_for_at_the_next_batch(tmp_path):
    monitor = ActivationCurvatureMonitor(every_n_steps=4, sample_rows=None)
    history = History(monitor)
    fit(tmp_path, monitor, ReplaceByHand(3), history)
    assert list(history.figures) == [4, 7]


@pytest.mark.parametrize("log_every_n_steps", [1, 8])
@pytest.mark.parametrize("monitor_first", [True, False])
def test_the_step_in_which_an_annealed_swap_ends_is_measured(tmp_path, monitor_first, log_every_n_steps):
    monitor, keeper = ActivationCurvatureMonitor(every_n_steps=1), InputKeeper()
    pair = [monitor, ActivationSwap({"activation:relu": "gelu"}, at_step=1, anneal_steps=4)]
    with collected_warnings("logs nothing for") as messages:
        fit(tmp_path, *(pair if monitor_first else pair[::-1]), keeper, log_every_n_steps=log_every_n_steps)
    assert not messages
    rows = {int(row["step"]): row for row in logged_rows(tmp_path) if row["curvature/activations/seconds"]}
    assert list(rows) == list(range(8))
    formulas = {"": nn.functional.relu, ".old": nn.functional.relu, ".new": nn.functional.gelu}
    for step, row in rows.items():
        endings = (".old", ".new") if 1 <= step < 5 else ("",)
        assert {end for end in formulas if row[f"curvature/net.1{end}/mean"]} == {*endings}
        for end in endings:
            x = keeper.inputs[step]["net.1"][0].double()
            y = nn.functional.gelu(x) if step >= 5 else formulas[end](x)
            figures = [float(row[f"curvature/net.1{end}/{name}"]) for name in ("mean", "mean_output")]
            assert figures == pytest.approx([x.mean().item(), y.mean().item()], rel=1e-5, abs=1e-6)


class AppendByHand(ReplaceByHand):
    """Gives the model one more activation without telling anyone."""

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        if trainer.global_step == self.step:
            pl_module.net.append(nn.GELU())


def test_a_replacement_while_rows_wait_costs_one_measurement(tmp_path):
    monitor = ActivationCurvatureMonitor(every_n_steps=1, sample_rows=4)
    history = History(monitor)
    fit(tmp_path, ReplaceByHand(3), monitor, history, log_every_n_steps=4)
    curved = {
        int(row["step"]): float(row["curvature/net.1/mean_abs_second_derivative"]) > 0
        for row in logged_rows(tmp_path)
        if row["curvature/net.1/mean"]
    }
    assert curved == {step: step > 3 for step in range(8) if step != 3}


def test_a_new_site_is_watched_once_what_waits_is_logged(tmp_path):
    monitor = ActivationCurvatureMonitor(every_n_steps=1, sample_rows=4)
    fit(tmp_path, AppendByHand(2), monitor, log_every_n_steps=4)
    last = SmallNet(dropout=0).net
    seen = [int(row["step"]) for row in logged_rows(tmp_path) if row.get(f"curvature/net.{len(last)}/mean")]
    assert seen == [4, 5, 6, 7]


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


def test_activations_that_mix_elements_are_left_out(tmp_path):
    registry = activations.ActivationRegistry()
    registry.register("soft", facts=activations.ActivationFacts(elementwise=False))(SoftmaxOfChannels)
    monitor = ActivationCurvatureMonitor(every_n_steps=1, registry=registry)
    model = SmallNet()
    model.net[5] = SoftmaxOfChannels()
    fit(tmp_path, monitor, model=model, max_epochs=1)
    assert list(monitor.latest) == ["net.1"]


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


def test_a_copy_of_the_model_in_training_has_no_working_hook(tmp_path):
    class CopyAndRun(Callback):
        def on_before_zero_grad(self, trainer, pl_module, optimizer):
            copy.deepcopy(pl_module.net)(torch.full((8, FEATURES), 1e6))

    monitor = ActivationCurvatureMonitor(every_n_steps=1, sample_rows=None)
    fit(tmp_path, monitor, CopyAndRun(), max_epochs=1)
    assert monitor.latest["net.1"]["standard_deviation"] < 100


def test_no_logger_is_refused(tmp_path):
    with pytest.raises(MisconfigurationException):
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


def test_any_seed_is_accepted(tmp_path):
    monitor = ActivationCurvatureMonitor(every_n_steps=1, sample_rows=2, seed=2**64 - 1)
    fit(tmp_path, monitor, max_epochs=1)
    assert monitor.latest


@pytest.mark.parametrize("arguments", [{"every_n_steps": 0}, {"sample_rows": -1}])
def test_numbers_that_are_not_positive_are_refused(arguments):
    with pytest.raises(ArgumentError, match=next(iter(arguments))):
        ActivationCurvatureMonitor(**arguments)


class OneCall(SmallNet):
    """A net with activation modules, and a call of a function behind them."""

    def forward(self, x):
        return nn.functional.relu(super().forward(x))


def test_calls_that_are_not_watched_for_want_of_a_sample_are_named(tmp_path):
    for number, sample in enumerate((None, torch.zeros(1, FEATURES))):
        monitor = ActivationCurvatureMonitor(every_n_steps=2, input_sample=sample)
        with collected_warnings("cannot observe ':relu': it is a call of a function (test_sites.py:") as messages:
            fit(tmp_path / str(number), monitor, model=OneCall())
        assert len(messages) == (sample is None)


def test_what_would_give_something_to_watch_is_said_by_whether_there_was_a_sample(tmp_path):
    for sample, remedy in ((None, "are found with input_sample="), (torch.zeros(1, FEATURES), "Use other patterns")):
        monitor = ActivationCurvatureMonitor(every_n_steps=2, input_sample=sample, include="nothing")
        with pytest.raises(UnsupportedRunError):
            fit(tmp_path, monitor)


def test_a_run_too_short_for_a_measurement_warns(tmp_path):
    with collected_warnings("will measure nothing: this run has 8 steps") as messages:
        fit(tmp_path, ActivationCurvatureMonitor(every_n_steps=9))
    assert len(messages) == 1


def test_a_run_whose_length_lightning_cannot_tell_starts(tmp_path):
    monitor = ActivationCurvatureMonitor(every_n_steps=2)
    swap = ActivationSwap({"*": "gelu"}, at_step=3)
    _, model = fit(tmp_path, monitor, swap, GradientAccumulationScheduler({1: 2}))
    assert monitor.latest
    assert activations_of(model) == ["GELU", "GELU"]


def test_a_trial_run_warns_of_nothing(tmp_path):
    fit(tmp_path, ActivationCurvatureMonitor(), ActivationSwap({"*": "gelu"}, at_epoch=5), fast_dev_run=2)


def test_state_dict_of_the_model_is_unchanged(tmp_path):
    _, model = fit(tmp_path, ActivationCurvatureMonitor(every_n_steps=1))
    assert list(model.state_dict()) == list(SmallNet().state_dict())
    assert activations_of(model) == ["ReLU", "ReLU"]


def test_find_sites_agrees_with_what_is_watched(tmp_path):
    monitor = ActivationCurvatureMonitor(every_n_steps=1)
    _, model = fit(tmp_path, monitor, max_epochs=1)
    assert list(monitor.latest) == [site.name for site in surgery.find_sites(model)]
