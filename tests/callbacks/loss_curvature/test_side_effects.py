"""Training is bitwise the same with and without the monitor, whatever it meets."""

import random

import numpy as np
import pytest
import torch
from callback_helpers import SmallNet, collected_warnings, loader, quiet_trainer
from lightning.pytorch.plugins.precision import MixedPrecision
from loss_monitor_nets import loss_monitor
from probe_nets import Untidy, batch_of
from torch.utils.data import DataLoader, TensorDataset

from lit_gelu.curvature.settings import QUANTITIES
from lit_gelu.sandbox import in_side_pass

CHEAP = {
    "lanczos_steps": 2,
    "warm_steps": 2,
    "trace_probes": 2,
    "trace_accuracy": None,
    "density_steps": 3,
    "fraction": 1 / 2,
    "every_n_steps": 3,
}


class Messy(Untidy):
    """Keeps what is left of each step; its validation is part of the story."""

    def on_before_optimizer_step(self, optimizer):
        self.trace.append([None if p.grad is None else p.grad.clone() for p in self.parameters()])

    def on_train_start(self):
        self.trace = []


def state_after(folder, *callbacks, **options):
    """Everything that a run leaves: weights, buffers, gradients, optimizer state, losses, metrics, generators."""
    torch.manual_seed(7)
    random.seed(7)
    np.random.mtrand._rand.seed(7)
    module = Messy()
    data = DataLoader(TensorDataset(*batch_of(64)), batch_size=8, shuffle=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20, growth_interval=3)
    if "plugins" in options:
        options = {"plugins": MixedPrecision("16-mixed", "cpu", scaler=scaler)}
    trainer = quiet_trainer(folder, *callbacks, **({"max_epochs": 3} | options))
    trainer.fit(module, data)
    optimizer = [tensor for row in trainer.optimizers[0].state_dict()["state"].values() for tensor in row.values()]
    logged = {name: value for name, value in trainer.logged_metrics.items() if "curvature" not in name}
    tensors = [
        *module.state_dict().values(),
        *[p.grad for p in module.parameters()],
        *[gradient for step in module.trace for gradient in step],
        *optimizer,
        *logged.values(),
        module.accuracy.tp,
        module.average,
        torch.tensor(module.losses, dtype=torch.float64),
        torch.get_rng_state(),
        module.generator.get_state(),
    ]
    plain = [
        scaler.state_dict(),
        random.random(),
        np.random.mtrand._rand.random(),
        module.counts,
        module.calls,
        sorted(logged),
    ]
    return tensors, plain


OPTIONS = {
    "plain": {},
    "scaled": {"precision": None, "plugins": "fp16 with a scaler"},
    "all": {"accumulate_grad_batches": 3, "precision": "bf16-mixed", "gradient_clip_val": 0.5},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_d1_d17_training_is_bitwise_the_same_with_the_monitor(tmp_path, name):
    without, plain_without = state_after(tmp_path / "without", **OPTIONS[name])
    names = QUANTITIES if name == "all" else [quantity for quantity in QUANTITIES if quantity != "spectral_density"]
    monitor = loss_monitor(names, **CHEAP)
    with_it, plain_with = state_after(tmp_path / "with", monitor, **OPTIONS[name])
    assert {"top_eigenvalue", "trace", "directional_curvature"} <= set(monitor.latest)
    assert (monitor.spectrum is not None) == (name == "all")
    assert plain_without == plain_with
    assert len(without) == len(with_it)
    torch.testing.assert_close(with_it, without, rtol=0, atol=0, equal_nan=True)  # gradients that overflowed are NaN
    steps = 9 if "accumulate_grad_batches" in OPTIONS[name] else 24
    assert monitor.schedule.events == steps // 3


class NoMemory(torch.OutOfMemoryError):
    """What a device says; a test says it itself."""


def test_out_of_memory_is_reported_and_training_goes_on(tmp_path):
    class Large(SmallNet):
        def training_step(self, batch, batch_idx):
            if in_side_pass() and len(batch[0]) > 3:
                raise NoMemory
            return super().training_step(batch, batch_idx)

    monitor = loss_monitor(fraction=None, every_n_steps=1, lanczos_steps=2)
    with collected_warnings("Memory ran out") as messages:
        quiet_trainer(tmp_path, monitor, max_epochs=1).fit(Large(), loader(32, 8))
    assert monitor.latest == {}
    assert monitor.schedule.events == 4
    assert len(messages) == 1  # said once


def test_a_loss_that_is_not_finite_is_reported_and_training_goes_on(tmp_path):
    class Explodes(SmallNet):
        def training_step(self, batch, batch_idx):
            loss = super().training_step(batch, batch_idx)
            return loss * float("nan") if in_side_pass() and self.global_step in {2, 3} else loss

    monitor = loss_monitor(every_n_steps=1, lanczos_steps=2, fraction=None)
    with collected_warnings("nothing is logged at step") as messages:
        quiet_trainer(tmp_path, monitor, max_epochs=2).fit(Explodes(dropout=0), loader())
    assert len(messages) == 1  # said once
    assert monitor.schedule.events == 8
