"""Batches that training changes, transforms or skips; runs that are refused; unusual layers and updates."""

import math

import pytest
import torch
from callback_helpers import SmallNet, collected_warnings, loader, quiet_trainer
from lightning.pytorch import Callback
from lightning.pytorch.strategies import SingleDeviceStrategy
from loss_monitor_nets import EXACT, History, Net, data, fit, loss_monitor
from probe_nets import CLASSES, FEATURES, batch_of, full_hessian
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_sequence
from torch.utils.data import DataLoader

from lit_gelu.callbacks import (
    ActivationSwap,
    LossCurvatureMonitor,
)
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

    given = x.clone()
    monitor = loss_monitor(probe=[(x, y)] if probe == "given" else probe, **EXACT)
    figures = fit(tmp_path, monitor, Oracle(), model=model)
    assert {step: row["top_eigenvalue"] for step, row in figures.items()} == pytest.approx(tops, rel=1e-8)
    assert model.hooks.count("before") == model.hooks.count("after") == 4  # the model's list is as it was, too
    assert torch.equal(given, x)


def test_a_step_without_a_loss_is_left_out_and_said_once(tmp_path):
    class Skips(Net):
        def training_step(self, batch, batch_idx):
            return None if batch_idx in {1, 2} else super().training_step(batch, batch_idx)

    with collected_warnings("nothing is logged at step") as messages:
        figures = fit(tmp_path, loss_monitor(every_n_steps=1, lanczos_steps=3), model=Skips())
    assert list(figures) == [0, 3]
    assert len(messages) == 1


class Custom:
    def __init__(self, x):
        self.x = x


class OfObjects(Net):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(FEATURES, 3)

    def training_step(self, batch, batch_idx):
        content = batch.x if isinstance(batch, Custom) else batch.data
        content /= 4
        return self(content * 4).square().mean()

    def transfer_batch_to_device(self, batch, device, dataloader_idx):
        return batch


@pytest.mark.parametrize(
    ("collate", "kind", "count"),
    [(pack_sequence, "PackedSequence", 8), (lambda rows: Custom(torch.cat(rows)), "Custom", 1)],
)
def test_what_cannot_be_cut_is_refused_at_once_or_used_whole(tmp_path, collate, kind, count):
    rows = [torch.randn(9 - number, FEATURES, dtype=torch.float64) for number in range(8)]
    loader = DataLoader(rows, batch_size=8, collate_fn=collate)
    with pytest.raises(ArgumentError):
        fit(tmp_path / "a", loss_monitor(at_steps=[0], fraction=1 / 8), model=OfObjects(), loader=loader)

    tops = []

    class Oracle(Callback):
        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            hessian = full_hessian(pl_module, lambda outputs: outputs.square().mean(), torch.cat(rows))
            tops.append(torch.linalg.eigvalsh(hessian)[-1].item())

    monitor = loss_monitor(at_steps=[0], fraction=None, lanczos_steps=20)
    figures = fit(tmp_path / "b", monitor, Oracle(), model=OfObjects(), loader=loader)
    assert figures[0]["top_eigenvalue"] == pytest.approx(tops[0], rel=1e-8)
    assert figures[0]["examples"] == count


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


class Lazy(Net):
    """Has layers that wait for their first input; a dry run may give it to them."""

    def __init__(self, dry_run):
        super().__init__()
        layers = (nn.LazyLinear(width, dtype=torch.float64) for width in (5, CLASSES))
        self.net, self.dry_run = nn.Sequential(next(layers), nn.GELU(), next(layers)), dry_run

    def setup(self, stage):
        if self.dry_run:
            self.net(torch.zeros(2, FEATURES, dtype=torch.float64))


def test_the_first_step_of_lazy_layers_has_no_update_to_measure(tmp_path):
    monitor = loss_monitor(["top_eigenvalue", "directional"], fraction=None, at_steps=[0, 1])
    with collected_warnings("directional is left out") as messages:
        figures = fit(tmp_path, monitor, model=Lazy(False))
    assert len(messages) == 1
    assert ["directional_curvature" in figures[step] for step in (0, 1)] == [False, True]
    assert all("top_eigenvalue" in row for row in figures.values())


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
