"""The monitor in a Trainer: right figures, at the right steps, without a trace in the training."""

import copy
from typing import ClassVar

import pytest
import torch
from callback_helpers import InputKeeper, SmallNet
from dispatched import Operations
from lightning.pytorch import Callback
from monitor_helpers import SITES, agrees, fit, logged_rows
from torch import nn

from lit_gelu.callbacks import ActivationCurvatureMonitor
from lit_gelu.curvature import STATISTICS, activation_statistics
from lit_gelu.curvature.activation.gaussian_prediction import PREDICTED


@pytest.mark.parametrize("activation", [nn.ReLU, nn.GELU, nn.PReLU])
def test_figures_equal_a_direct_computation(tmp_path, activation):
    monitor, keeper = ActivationCurvatureMonitor(every_n_steps=1, sample_rows=None), InputKeeper()
    models = {}

    class Snapshot(Callback):
        def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
            models[trainer.global_step] = {site: copy.deepcopy(pl_module.get_submodule(site)) for site in SITES}

    class Compare(Callback):
        steps = 0

        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            step = trainer.global_step - 1
            for site in SITES:
                # With the parameters of the forward pass: by now the optimizer has moved a PReLU's.
                expected = activation_statistics(models[step][site].double(), keeper.inputs[step][site][0].double())
                assert agrees(monitor.latest[site], expected)
            Compare.steps += 1

    fit(tmp_path, Snapshot(), keeper, monitor, Compare(), model=SmallNet(activation))
    assert Compare.steps == 8


def test_logged_at_lightnings_own_steps(tmp_path):
    class LogsItself(SmallNet):
        def training_step(self, batch, batch_idx):
            self.log("own", 1.0)
            return super().training_step(batch, batch_idx)

    monitor = ActivationCurvatureMonitor(every_n_steps=3, gaussian=True)
    fit(tmp_path, monitor, model=LogsItself(), log_every_n_steps=3, max_epochs=3)
    rows = logged_rows(tmp_path)
    steps = [row["step"] for row in rows if row["own"]]
    ours = [row["step"] for row in rows if row["curvature/net.1/mean"]]
    assert ours == steps == ["2", "5", "8", "11"]
    expected = {f"curvature/{site}/{statistic}" for site in SITES for statistic in STATISTICS}
    expected |= {f"curvature/{site}/gaussian/{statistic}" for site in SITES for statistic in PREDICTED}
    expected |= {"curvature/activations/seconds", "curvature/activations/interval"}
    assert expected == {key for key in rows[0] if key.startswith("curvature/")}
    missing = {key for row in rows if row["curvature/net.1/mean"] for key in expected if not row[key]}
    assert not missing


@pytest.mark.parametrize("sample_rows", [4, None])
def test_an_event_reads_no_scalars(tmp_path, sample_rows):
    class Counted(ActivationCurvatureMonitor):
        names: ClassVar[list[list[str]]] = []

        def on_train_batch_end(self, *arguments):
            with Operations() as reads:
                super().on_train_batch_end(*arguments)
            Counted.names.append(reads.names)

    fit(tmp_path, Counted(every_n_steps=1, sample_rows=sample_rows), max_epochs=1)
    assert len(Counted.names) == 4
    assert all("_local_scalar_dense" not in names for names in Counted.names)


def test_manual_optimization_with_two_backward_passes_is_seen_whole(tmp_path):
    class Manual(SmallNet):
        def __init__(self):
            super().__init__()
            self.automatic_optimization = False

        def training_step(self, batch, batch_idx):
            optimizer = self.optimizers()
            for factor in (1, 2):
                optimizer.zero_grad()
                self.manual_backward(self(factor * batch[0]).square().mean())
                optimizer.step()

    monitor, keeper = ActivationCurvatureMonitor(every_n_steps=1, sample_rows=None), InputKeeper()
    fit(tmp_path, keeper, monitor, model=Manual(), max_epochs=1)
    calls = list(keeper.inputs.values())[-1]["net.1"]
    assert len(calls) == 2
    assert agrees(monitor.latest["net.1"], activation_statistics("relu", torch.cat(calls)))
