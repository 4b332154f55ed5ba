"""One monitor in several runs, several monitors in one run, and checkpoints that are saved when a run is over."""

import pytest
from callback_helpers import SmallNet, loader, quiet_trainer
from monitor_helpers import SITES, fit, logged_rows
from torch import nn

from lit_gelu.callbacks import ActivationCurvatureMonitor
from lit_gelu.errors import ArgumentError, UnsupportedRunError


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
