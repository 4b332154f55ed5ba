"""One monitor in several runs, several monitors in one run, and checkpoints that are saved when a run is over."""

import pytest
import torch
from callback_helpers import SmallNet, collected_warnings, loader, quiet_trainer
from lightning.pytorch import Callback
from monitor_helpers import SITES, fit, logged_rows
from torch import nn

from lit_gelu.callbacks import (
    ActivationCurvatureMonitor,
)
from lit_gelu.errors import ArgumentError, UnsupportedRunError


def steps(folder, column="curvature/net.1/mean"):
    return [int(row["step"]) for row in logged_rows(folder) if row.get(column)]


@pytest.mark.parametrize(
    "options", [{"every_n_steps": 4}, {"at_steps": [3]}, {"every_n_steps": 4, "max_overhead": 0.9}]
)
def test_one_monitor_measures_every_run_it_is_given_to(tmp_path, options):
    monitor = ActivationCurvatureMonitor(**options)
    for number in range(2):
        folder = tmp_path / str(number)
        fit(folder, monitor, max_epochs=1)
        assert steps(folder) == [3]
        assert monitor.heat_maps.table("curvature")[0] == [3]


def test_windows_of_dead_units_begin_anew_with_another_run(tmp_path):
    monitor = ActivationCurvatureMonitor(every_n_steps=1, dead_unit_window=3)
    for number in range(2):
        folder = tmp_path / str(number)
        fit(folder, monitor, max_epochs=1)
        assert steps(folder, "curvature/net.1/share_dead") == [2, 3]


def test_a_second_fit_of_the_same_trainer_goes_on(tmp_path):
    monitor = ActivationCurvatureMonitor(every_n_steps=1, dead_unit_window=6)
    trainer, model = fit(tmp_path, monitor, max_epochs=1)
    trainer.fit_loop.max_epochs = 2
    trainer.fit(model, loader())
    assert monitor.heat_maps.table("curvature")[0] == list(range(8))
    assert steps(tmp_path, "curvature/net.1/share_dead") == [5, 6, 7]


class FailAtStep(Callback):
    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if trainer.global_step == 6:
            raise RuntimeError("the end")


class SaveOnException(Callback):
    def __init__(self, path):
        self.path = path

    def on_exception(self, trainer, pl_module, exception):
        trainer.save_checkpoint(self.path)


@pytest.mark.parametrize("monitor_first", [True, False])
@pytest.mark.parametrize("fails", [True, False])
def test_a_checkpoint_of_a_run_that_is_over_has_the_state(tmp_path, fails, monitor_first):
    monitor = ActivationCurvatureMonitor(every_n_steps=1, dead_unit_window=50)
    path = tmp_path / "end.ckpt"
    if fails:
        pair = [monitor, SaveOnException(path)]
        with pytest.raises(RuntimeError):
            fit(tmp_path, *(pair if monitor_first else pair[::-1]), FailAtStep())
    else:
        trainer, _ = fit(tmp_path, monitor)
        trainer.save_checkpoint(path)
    state = torch.load(path, weights_only=True)["callbacks"][monitor.state_key]["measurement"]
    assert state["sites"] == list(SITES)
    assert state["reference"].shape == (2, 2)
    assert state["window"] is not None


@pytest.mark.pictures
def test_monitors_of_one_trainer_write_under_their_names(tmp_path):
    first = ActivationCurvatureMonitor(every_n_steps=4, include="net.1", heat_maps=["mean"], histograms=True)
    second = ActivationCurvatureMonitor(
        every_n_steps=4, include="net.5", heat_maps=["mean"], histograms=True, name="deep"
    )
    fit(tmp_path, first, second, max_epochs=1)
    row = {key: value for row in logged_rows(tmp_path) for key, value in row.items() if value}
    assert float(row["curvature/net.1/mean"]) == first.latest["net.1"]["mean"]
    assert float(row["curvature/deep/net.5/mean"]) == second.latest["net.5"]["mean"]
    assert {"curvature/activations/seconds", "curvature/deep/activations/seconds"} <= row.keys()
    assert "curvature/net.5/mean" not in row
    folder = tmp_path / "logs" / "0"
    names = {path.name for path in folder.iterdir()}
    assert {"curvature_heat_map_mean.png", "curvature_deep_heat_map_mean.png"} <= names
    assert {"curvature_histograms", "curvature_deep_histograms"} <= names


def test_two_monitors_of_one_name_are_refused(tmp_path):
    pair = [ActivationCurvatureMonitor(every_n_steps=4, include=site) for site in SITES]
    with pytest.raises(ArgumentError):
        fit(tmp_path, *pair)


class Removes(Callback):
    """Takes all activations away before a step, and gives others back before a later one."""

    def __init__(self, activation):
        self.activation = activation

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        if trainer.global_step in {2, 5}:
            new = nn.Identity if trainer.global_step == 2 else self.activation
            pl_module.net[1], pl_module.net[5] = new(), new()


@pytest.mark.parametrize("gives_back", [True, False])
def test_a_model_that_loses_its_activations_trains_on(tmp_path, gives_back):
    monitor = ActivationCurvatureMonitor(every_n_steps=1, sample_rows=None)
    with collected_warnings("finds nothing to watch") as warned:
        fit(tmp_path, Removes(nn.GELU if gives_back else nn.Identity), monitor)
    assert len(warned) == 1
    assert steps(tmp_path) == [0, 1, *([5, 6, 7] if gives_back else [])]


class TestGates:
    def test_they_are_named_where_nothing_else_is_there(self, tmp_path):
        trainer = quiet_trainer(tmp_path, ActivationCurvatureMonitor(every_n_steps=1))
        with pytest.raises(UnsupportedRunError):
            trainer.fit(SmallNet(nn.Tanh), loader())

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
