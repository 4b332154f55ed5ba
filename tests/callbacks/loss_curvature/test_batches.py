"""Batches that training changes, transforms or skips; runs that are refused; unusual layers and updates."""

import pytest
import torch
from callback_helpers import History, SmallNet, collected_warnings, loader, quiet_trainer
from lightning.pytorch import Callback
from lightning.pytorch.strategies import SingleDeviceStrategy
from loss_monitor_nets import EXACT, Net, data, fit, loss_monitor
from probe_nets import CLASSES, batch_of, full_hessian
from torch import nn
from torch.nn import functional as F

from lit_gelu.callbacks import ActivationSwap, LossCurvatureMonitor
from lit_gelu.errors import ArgumentError, UnsupportedRunError


class ChangesItsBatch(Net):
    """Its loss is that of `Net`, bit by bit: scaled by powers of two."""

    def training_step(self, batch, batch_idx):
        x, y = batch
        x /= 256
        return F.cross_entropy(self(x * 256), y)


class KeepsBatches(Callback):
    """Keeps the batches before the training step, and the full Hessian after it of one of them."""

    def __init__(self, probe="fresh"):
        self.probe, self.batches, self.tops = probe, [], {}

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        self.batches.append(tuple(tensor.clone() for tensor in batch))

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        x, y = self.batches[-1 if self.probe == "fresh" or batch_idx == 0 else 1]
        hessian = full_hessian(pl_module, lambda outputs: F.cross_entropy(outputs, y), x)
        self.tops[batch_idx] = torch.linalg.eigvalsh(hessian)[-1].item()


@pytest.mark.parametrize("probe", ["fresh", "fixed"])
def test_a_training_step_may_change_its_batch(tmp_path, probe):
    witness = KeepsBatches(probe)
    figures = fit(tmp_path, loss_monitor(probe=probe, **EXACT), witness, model=ChangesItsBatch())
    assert list(figures) == [1, 3]
    for step, row in figures.items():
        assert row["top_eigenvalue"] == pytest.approx(witness.tops[step], rel=1e-8)


class Transforms(Net):
    """Its hooks do what cannot be done twice."""

    def __init__(self):
        super().__init__()
        self.hooks = []

    def on_before_batch_transfer(self, batch, dataloader_idx):
        self.hooks.append("before")
        return batch[0] * 3, batch[1]

    def on_after_batch_transfer(self, batch, dataloader_idx):
        self.hooks.append("after")
        return batch[0] + 1, F.one_hot(batch[1], CLASSES).double()


@pytest.mark.parametrize("probe", ["fresh", "fixed", "given"])
def test_a_probe_went_through_the_hooks_of_a_batch_once(tmp_path, probe):
    x, y = batch_of(8, seed=5, dtype=torch.float64) if probe == "given" else batch_of(32, dtype=torch.float64)
    expected = {1: (x[8:16], y[8:16]), 3: (x[24:], y[24:]) if probe == "fresh" else (x[8:16], y[8:16])}
    if probe == "given":
        expected = dict.fromkeys((1, 3), (x, y))
    model = Transforms()
    tops = {}

    class Oracle(Callback):
        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            if batch_idx in expected:
                inputs, targets = expected[batch_idx]
                hessian = full_hessian(model, lambda outputs: F.cross_entropy(outputs, targets), inputs * 3 + 1)
                tops[batch_idx] = torch.linalg.eigvalsh(hessian)[-1].item()

    original = x.clone()
    monitor = loss_monitor(probe=[(x, y)] if probe == "given" else probe, **EXACT)
    figures = fit(tmp_path, monitor, Oracle(), model=model)
    assert {step: row["top_eigenvalue"] for step, row in figures.items()} == pytest.approx(tops, rel=1e-8)
    assert model.hooks.count("before") == model.hooks.count("after") == 4  # the model's list is as it was, too
    assert torch.equal(original, x)


def test_a_step_without_a_loss_is_left_out_and_said_once(tmp_path):
    class Skips(Net):
        def training_step(self, batch, batch_idx):
            return None if batch_idx in {1, 2} else super().training_step(batch, batch_idx)

    with collected_warnings("nothing is logged at step") as messages:
        figures = fit(tmp_path, loss_monitor(every_n_steps=1, lanczos_steps=3), model=Skips())
    assert list(figures) == [0, 3]
    assert len(messages) == 1


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
    with collected_warnings("directional is left out") as messages:
        trainer = quiet_trainer(tmp_path, *callbacks, slopes, max_epochs=1, precision="64-true")
        trainer.fit(Net(before), data(48))
    measured = {step for step, row in history.figures.items() if "directional_slope" in row}
    assert len(history.figures) == 6
    assert measured >= {0, 1, 4, 5}
    assert len(messages) == (len(measured) < 6)
    for step in measured:
        assert history.figures[step]["directional_slope"] == pytest.approx(slopes.seen[step], rel=1e-6), step


class Lazy(Net):
    def __init__(self):
        super().__init__()
        layers = (nn.LazyLinear(width, dtype=torch.float64) for width in (5, CLASSES))
        self.net = nn.Sequential(next(layers), nn.GELU(), next(layers))


def test_the_first_step_of_lazy_layers_has_no_update_to_measure(tmp_path):
    monitor = loss_monitor(["top_eigenvalue", "directional"], fraction=None, at_steps=[0, 1])
    with collected_warnings("directional is left out") as messages:
        figures = fit(tmp_path, monitor, model=Lazy())
    assert len(messages) == 1
    assert ["directional_curvature" in figures[step] for step in (0, 1)] == [False, True]
    assert all("top_eigenvalue" in row for row in figures.values())
