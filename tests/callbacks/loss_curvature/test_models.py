"""The monitor on models that need care: compiled, checkpointed, with attention, without second derivatives."""

import copy

import pytest
import torch
from lightning.pytorch import Callback
from loss_monitor_nets import Net, Witness, fit, loss_monitor
from probe_nets import CLASSES, FEATURES
from torch import nn
from torch.utils.checkpoint import checkpoint


@pytest.mark.parametrize("how", ["compiled", "checkpointed", "attention"])
def test_models_that_need_care_are_measured_exactly(tmp_path, how):
    class Careful(Net):
        def __init__(self):
            super().__init__()
            if how == "attention":
                layer = nn.TransformerEncoderLayer(FEATURES, 2, 4, dropout=0.0, batch_first=True, activation="gelu")
                self.net = nn.Sequential(layer, nn.Linear(FEATURES, CLASSES))

        def forward(self, x):
            if how == "checkpointed":
                return self.net[1:](checkpoint(self.net[0], x, use_reentrant=False))
            return self.net(x.unsqueeze(1))[:, 0] if how == "attention" else self.net(x)

    model = Careful()
    if how == "compiled":
        model.compile(backend="aot_eager")
        model.net.compile(backend="aot_eager")
    witness = Witness()
    monitor = loss_monitor(fraction=None, at_steps=[1], lanczos_steps=150)
    figures = fit(tmp_path, monitor, OnlyAt(witness, 1), model=model, limit_train_batches=2)
    exact = torch.linalg.eigvalsh(witness.hessians[0])[-1].item()
    assert figures[1]["top_eigenvalue"] == pytest.approx(exact, rel=1e-8)


class OnlyAt(Callback):
    """Lets a witness look at one step."""

    def __init__(self, witness, step):
        self.witness, self.step = witness, step

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if batch_idx == self.step:
            plain = Net()
            plain.__class__ = type(pl_module)
            plain.net = copy.deepcopy(pl_module.net)
            for part in plain.modules():
                part._compiled_call_impl = None
            self.witness.hessians.append(self.witness.hessian(plain, batch))
