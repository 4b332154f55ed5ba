"""Runs and arguments that the loss monitor refuses or warns of."""

import math

import pytest
import torch
from callback_helpers import FEATURES, SmallNet, collected_warnings, loader, quiet_trainer
from lightning.pytorch.strategies import SingleDeviceStrategy
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from torch import nn
from torch.nn import functional as F

from lit_gelu.callbacks import (
    LossCurvatureMonitor,
)
from lit_gelu.curvature.settings import OF_UPDATE
from lit_gelu.errors import ArgumentError, UnsupportedRunError


def refused(folder, error, module, **options):
    monitor = LossCurvatureMonitor(**options.pop("monitor", {}))
    with pytest.raises(error) as caught:
        quiet_trainer(folder, monitor, **options).fit(module, loader())
    return str(caught.value)


def test_runs_that_are_refused(tmp_path):
    class Manual(SmallNet):
        def __init__(self):
            super().__init__()
            self.automatic_optimization = False

    class Sharding(SingleDeviceStrategy):
        restore_checkpoint_after_setup = True

    frozen = SmallNet().requires_grad_(False)
    assert "logger=True" in refused(tmp_path, MisconfigurationException, SmallNet(), logger=False)
    assert "optimises by hand" in refused(tmp_path, ArgumentError, Manual())
    assert "None of the" in refused(tmp_path, ArgumentError, frozen)
    message = refused(tmp_path, UnsupportedRunError, SmallNet(), strategy=Sharding(torch.device("cpu")))
    assert "LossCurvatureMonitor(top_eigenvalue) does not work with Sharding" in message


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

    monitor = LossCurvatureMonitor(["top_eigenvalue", *OF_UPDATE], every_n_steps=2, samples=4)
    quiet_trainer(tmp_path, monitor, max_epochs=1).fit(Manual(), loader())
    assert monitor.schedule.events == 2
    assert math.isfinite(monitor.latest["directional_curvature"])


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"quantities": "sharpness"}, ArgumentError),
        ({"quantities": []}, ArgumentError),
        ({"operator": "fisher"}, ArgumentError),
        ({"method": "double_vjp"}, ArgumentError),
        ({"operator": "gauss_newton", "method": "one_sided_differences"}, ArgumentError),
        ({"lanczos_steps": 0}, ArgumentError),
        ({"trace_probes": 1}, ArgumentError),
        ({"max_trace_probes": 1}, ArgumentError),
        ({"trace_accuracy": 0}, ArgumentError),
        ({"quantities": ["top_eigenvalue", "smallest_eigenvalue"], "warm_steps": 1}, ArgumentError),
        ({"probe": "first"}, ArgumentError),
        ({"probe": []}, ArgumentError),
        ({"mode": "test"}, ArgumentError),
        ({"every_n_steps": 2, "at_steps": [1]}, ArgumentError),
        ({"fraction": 2.0}, ArgumentError),
        ({"fraction": "half"}, ArgumentError),
        ({"samples": 0}, ArgumentError),
    ],
)
def test_arguments_that_are_refused(arguments, error):
    with pytest.raises(error, match=list(arguments)[-1]):
        LossCurvatureMonitor(**arguments)


def test_half_precision_parameters_are_warned_of(tmp_path):
    class Plain(SmallNet):
        def __init__(self):
            super().__init__()
            self.net = nn.Linear(FEATURES, 3)

    monitor = LossCurvatureMonitor(at_steps=[0], lanczos_steps=2)
    with collected_warnings("are float16") as messages:
        quiet_trainer(tmp_path, monitor, max_epochs=1, precision="16-true").fit(Plain(), loader())
    assert len(messages) == 1
    assert "2 parameters are float16 (net.weight, ...)" in messages[0]
