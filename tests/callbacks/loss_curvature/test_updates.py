"""Quantities along the update where the optimizer or the precision is unusual."""

import pytest
import torch
from callback_helpers import collected_warnings, quiet_trainer
from lightning.pytorch import Callback
from loss_monitor_nets import History, Net, Witness, data, fit, loss_monitor
from probe_nets import CLASSES, FEATURES
from torch import nn

from lit_gelu.callbacks import ActivationSwap

SETTINGS = {"every_n_steps": 1, "fraction": None}


class Slopes(Callback):
    """Keeps g'u of each step of gradient descent: the learning rate times -g'g."""

    def __init__(self):
        self.seen = []

    def on_before_optimizer_step(self, trainer, pl_module, optimizer):
        gradients = [p.grad for group in optimizer.param_groups for p in group["params"]]
        self.seen.append(-0.5 * sum(gradient.square().sum().item() for gradient in gradients))


@pytest.mark.parametrize("monitor_first", [True, False])
@pytest.mark.parametrize(
    ("before", "after"), [(nn.ReLU, "prelu"), (nn.PReLU, "swish(learnable=True)"), (nn.PReLU, "gelu")]
)
def test_a_swap_of_parameters_is_no_update(tmp_path, before, after, monitor_first):
    """Figures along the update are those of the optimizer's step alone, or left out, which is said."""
    swap = ActivationSwap({"*": after}, at_step=2)
    monitor, slopes = loss_monitor("directional", **SETTINGS), Slopes()
    history = History(monitor)
    callbacks = [monitor, history, swap] if monitor_first else [swap, monitor, history]
    with collected_warnings("directional is left out") as said:
        trainer = quiet_trainer(tmp_path, *callbacks, slopes, max_epochs=1, precision="64-true")
        trainer.fit(Net(before), data(48))
    measured = {step for step, row in history.figures.items() if "directional_slope" in row}
    assert len(history.figures) == 6
    assert measured >= {0, 1, 4, 5}
    assert len(said) == (len(measured) < 6)
    for step in measured:
        assert history.figures[step]["directional_slope"] == pytest.approx(slopes.seen[step], rel=1e-6), step


def curvature_along(witness, number):
    update = witness.updates[number]
    return (update @ witness.befores[number] @ update / (update @ update)).item()


class Bent(Net):
    """Kinks, batch statistics, and steps so long that the loss is far from quadratic along them."""

    def __init__(self):
        super().__init__()
        width = 16
        layers = [nn.Linear(FEATURES, width), nn.ReLU(), nn.BatchNorm1d(width), nn.Linear(width, width), nn.ReLU()]
        self.net = nn.Sequential(*layers, nn.Linear(width, CLASSES))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


@pytest.mark.full
def test_the_curvature_is_that_of_the_hessian_where_the_loss_is_far_from_quadratic(tmp_path):
    class InTraining(Witness):
        def hessian(self, pl_module, batch):
            buffers = {name: buffer.clone() for name, buffer in pl_module.named_buffers()}
            matrix = super().hessian(pl_module, batch)
            pl_module.load_state_dict(buffers, strict=False)
            return matrix

    witness = InTraining()
    figures = fit(tmp_path, loss_monitor("directional", **SETTINGS), witness, model=Bent())
    assert list(figures) == [0, 1, 2, 3]
    for number, row in figures.items():
        curvature, slope = curvature_along(witness, number), witness.gradients[number] @ witness.updates[number]
        length = witness.updates[number].square().sum()
        assert row["directional_curvature"] == pytest.approx(curvature, rel=1e-6)
        assert row["directional_slope"] == pytest.approx(slope.item(), rel=1e-8)
        assert row["directional_stability"] == pytest.approx((curvature * length / -2 / slope).item(), rel=1e-6)
