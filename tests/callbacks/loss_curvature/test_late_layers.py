"""Modules whose layers do not exist yet when Lightning calls the callbacks' `setup`."""

import pytest
import torch
from callback_helpers import collected_warnings
from loss_monitor_nets import EXACT, Net, Witness, fit, loss_monitor
from probe_nets import CLASSES, FEATURES
from torch import nn


class Late(Net):
    """Builds its layers in one of the hooks that Lightning has for it."""

    def __init__(self, hook, frozen=False):
        super().__init__()
        self.hook, self.frozen, self.net = hook, frozen, None

    def setup(self, stage):
        if self.hook == "setup":
            self.build()

    def configure_model(self):
        if self.hook == "configure_model" and self.net is None:
            self.build()

    def build(self):
        torch.manual_seed(1)
        self.net = nn.Sequential(nn.Linear(FEATURES, 5), nn.GELU(), nn.Linear(5, CLASSES))
        self.net.requires_grad_(not self.frozen)


class Lazy(Net):
    """Has layers that wait for their first input; a dry run may give it to them."""

    def __init__(self, dry_run):
        super().__init__()
        layers = (nn.LazyLinear(width, dtype=torch.float64) for width in (5, CLASSES))
        self.net, self.dry_run = nn.Sequential(next(layers), nn.GELU(), next(layers)), dry_run

    def setup(self, stage):
        if self.dry_run:
            self.net(torch.zeros(2, FEATURES, dtype=torch.float64))


@pytest.mark.parametrize(
    "model",
    [lambda: Late("setup"), lambda: Late("configure_model"), lambda: Lazy(True)],
    ids=["setup", "configure_model", "lazy"],
)
def test_layers_that_are_built_late_are_measured_exactly(tmp_path, model):
    witness = Witness()
    figures = fit(tmp_path, loss_monitor(**EXACT), witness, model=model())
    assert list(figures) == [1, 3]
    for step, row in figures.items():
        exact = torch.linalg.eigvalsh(witness.hessians[step])[-1].item()
        assert row["top_eigenvalue"] == pytest.approx(exact, rel=1e-8)


def test_the_first_step_of_lazy_layers_has_no_update_to_measure(tmp_path):
    monitor = loss_monitor(["top_eigenvalue", "directional"], fraction=None, at_steps=[0, 1])
    with collected_warnings("directional is left out") as messages:
        figures = fit(tmp_path, monitor, model=Lazy(False))
    assert len(messages) == 1
    assert ["directional_curvature" in figures[step] for step in (0, 1)] == [False, True]
    assert all("top_eigenvalue" in row for row in figures.values())
