"""Runs and arguments that the loss monitor refuses or warns of."""

import math

import pytest
import torch
from callback_helpers import SmallNet, loader, quiet_trainer
from lightning.pytorch.strategies import SingleDeviceStrategy
from loss_monitor_nets import loss_monitor
from torch.nn import functional as F

from lit_gelu.callbacks import (
    LossCurvatureMonitor,
)
from lit_gelu.errors import ArgumentError, UnsupportedRunError


def test_runs_that_are_refused(tmp_path):
    class Manual(SmallNet):
        def __init__(self):
            super().__init__()
            self.automatic_optimization = False

    class Sharding(SingleDeviceStrategy):
        restore_checkpoint_after_setup = True

    quiet = {"logger": False}
    for module, error, options in [
        (SmallNet(), UnsupportedRunError, quiet),
        (Manual(), ArgumentError, {}),
        (SmallNet().requires_grad_(False), ArgumentError, {}),
        (SmallNet(), UnsupportedRunError, {"strategy": Sharding(torch.device("cpu"))}),
    ]:
        with pytest.raises(error):
            quiet_trainer(tmp_path, LossCurvatureMonitor(), **options).fit(module, loader())


def test_a_manual_module_with_a_loss_of_its_own_is_measured(tmp_path):
    class Manual(SmallNet):
        def __init__(self):
            super().__init__()
            self.automatic_optimization = False

        def training_step(self, batch, batch_idx):
            self.manual_backward(self.curvature_loss(batch))
            self.optimizers().step()
            self.optimizers().zero_grad()

        def curvature_loss(self, batch):
            return F.cross_entropy(self(batch[0]), batch[1])

    monitor = loss_monitor(["top_eigenvalue", "directional"], every_n_steps=2, fraction=1 / 2)
    quiet_trainer(tmp_path, monitor, max_epochs=1).fit(Manual(), loader())
    assert monitor.schedule.events == 2
    assert math.isfinite(monitor.latest["directional_curvature"])
