"""A fixed batch in checkpoints, whatever it is made of: they load without trust in the file."""

import dataclasses
from collections import UserDict
from typing import NamedTuple

import pytest
import torch
from callback_helpers import SaveEachEpoch, collected_warnings, quiet_trainer
from loss_monitor_nets import Net, data
from torch.nn import functional as F
from torch.utils.data import DataLoader

from lit_gelu.callbacks import LossCurvatureMonitor
from lit_gelu.curvature.probe.examples import from_plain, to_plain


@dataclasses.dataclass
class Record:
    x: torch.Tensor
    y: torch.Tensor


class Pair(NamedTuple):
    x: torch.Tensor
    y: torch.Tensor


class Encoding(UserDict):
    def __getattr__(self, name):
        if name == "data":
            raise AttributeError(name)
        return self.data[name]


class Opaque:
    def __init__(self, x, y):
        self.x, self.y = x, y


class OfFields(Net):
    def training_step(self, batch, batch_idx):
        self.kinds = {*getattr(self, "kinds", ()), type(batch)}
        return F.cross_entropy(self(batch.x), batch.y)


def make(kind):
    return lambda rows: kind(x=torch.stack([x for x, _ in rows]), y=torch.stack([y for _, y in rows]))


def run(folder, kind, epochs, checkpoint=None, at_steps=(1, 5, 7), fraction=0.5):
    monitor = LossCurvatureMonitor(at_steps=at_steps, probe="fixed", fraction=fraction, lanczos_steps=4)
    model, loader = OfFields(), DataLoader(data(dtype=torch.float32).dataset, batch_size=8, collate_fn=make(kind))
    losses = {}

    class Watch(SaveEachEpoch):
        def on_train_batch_end(self, trainer, *arguments):
            losses[trainer.global_step - 1] = monitor.latest.get("probe_loss")

    trainer = quiet_trainer(folder, monitor, Watch(folder), max_epochs=epochs)
    trainer.fit(model, loader, ckpt_path=checkpoint)
    assert model.kinds == {kind}
    return losses


@pytest.mark.parametrize("kind", [Record, Pair, Encoding])
def test_a_resumed_run_probes_the_same_batch_in_its_own_type(tmp_path, kind):
    whole = run(tmp_path / "whole", kind, 2)
    first = tmp_path / "whole" / "epoch0.ckpt"
    torch.load(first, weights_only=True)
    resumed = run(tmp_path / "resumed", kind, 2, first)
    assert {step: resumed[step] for step in (5, 7)} == {step: whole[step] for step in (5, 7)}
    assert whole[5] != whole[7]


def test_a_batch_that_no_checkpoint_can_hold_is_said_and_left_out(tmp_path):
    with collected_warnings("object of type Opaque") as messages:
        run(tmp_path, Opaque, 1, fraction=None)
    assert len(messages) == 1
    state = torch.load(tmp_path / "epoch0.ckpt", weights_only=True)["callbacks"]
    assert [row["batches"]["fixed"] for row in state.values() if "batches" in row] == [[None]]


@pytest.mark.parametrize(
    "batch",
    [
        [torch.ones(1), (3, "a", None, b"b", True)],
        {"a": Pair(torch.ones(1), [2.5]), 3: ({"b": 1},)},
        Record(torch.zeros(1), Encoding(x=1)),
        [Record(1, 2), Record(3, 4)],
    ],
)
def test_batches_come_back_as_they_were(tmp_path, batch):
    torch.save(to_plain(batch), tmp_path / "file")
    assert from_plain(torch.load(tmp_path / "file", weights_only=True), batch) == batch
