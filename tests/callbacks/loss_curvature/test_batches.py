"""Batches that training changes, moves, transforms or skips, and batches of unusual make."""

import pytest
import torch
from callback_helpers import collected_warnings
from lightning.pytorch import Callback
from loss_monitor_nets import EXACT, Net, fit, loss_monitor
from probe_nets import CLASSES, FEATURES, batch_of, full_hessian
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_sequence
from torch.utils.data import DataLoader

from lit_gelu.errors import ArgumentError


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
