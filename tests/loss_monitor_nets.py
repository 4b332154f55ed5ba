"""A net whose full Hessian is cheap, and witnesses, for the tests of the loss monitor."""

import dataclasses

import torch
from callback_helpers import History, quiet_trainer
from lightning.pytorch import Callback, LightningModule
from probe_nets import CLASSES, FEATURES, batch_of, full_hessian
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from lit_gelu.callbacks import LossCurvatureMonitor
from lit_gelu.curvature import ProductBudget

BUDGET = {field.name for field in dataclasses.fields(ProductBudget)}

EXACT = {
    "fraction": None,
    "every_n_steps": 2,
    "lanczos_steps": 60,
    "warm_steps": 60,
    "accuracy": None,
    "trace_accuracy": None,
}


def loss_monitor(*quantities, kind=LossCurvatureMonitor, **options):
    """Make a monitor, the options of its budget among the others."""
    budget = {name: options.pop(name) for name in BUDGET & options.keys()}
    return kind(*quantities, budget=ProductBudget(**budget), **options)


class Net(LightningModule):
    """43 parameters."""

    def __init__(self, activation=nn.GELU):
        super().__init__()
        torch.manual_seed(1)
        self.net = nn.Sequential(nn.Linear(FEATURES, 5), activation(), nn.Linear(5, CLASSES))

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        return F.cross_entropy(self(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.5)


class Witness(Callback):
    """Computes the full Hessian of the batch at hand after each step, and keeps what the optimizer did."""

    def __init__(self, *batches):
        self.batches = batches
        self.hessians, self.befores, self.updates, self.gradients = [], [], [], []

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        self.before = torch.cat([p.detach().flatten() for p in pl_module.parameters()])
        self.befores.append(self.hessian(pl_module, batch))

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.hessians.append(self.hessian(pl_module, self.batches[0] if self.batches else batch))
        self.updates.append(torch.cat([p.detach().flatten() for p in pl_module.parameters()]) - self.before)
        self.gradients.append(torch.cat([p.grad.flatten() for p in pl_module.parameters()]))

    def hessian(self, pl_module, batch):
        x, y = batch
        return full_hessian(pl_module, lambda outputs: F.cross_entropy(outputs, y), x)


def data(examples=32, batch_size=8, dtype=torch.float64):
    return DataLoader(TensorDataset(*batch_of(examples, dtype=dtype)), batch_size=batch_size)


def fit(folder, monitor, *callbacks, model=None, loader=None, **options):
    history = History(monitor)
    options = {"precision": "64-true", "max_epochs": 1} | options
    trainer = quiet_trainer(folder, monitor, history, *callbacks, **options)
    trainer.fit(model or Net(), loader or data())
    return history.figures
