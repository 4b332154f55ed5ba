"""`ActivationSwap(curvature=True)`: its figures are right, cover all ranks, and leave no trace in the training."""

import random

import numpy as np
import pytest
import torch
from callback_helpers import (
    InputKeeper,
    SmallNet,
    loader,
    quiet_trainer,
)
from lightning.pytorch import Callback
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from swap_runs import RELU_TO_GELU, STEPS_AN_EPOCH, Witness, fit, logged_rows
from torch import nn

from lit_gelu.callbacks import (
    ActivationCurvatureMonitor,
    ActivationSwap,
)
from lit_gelu.curvature import STATISTICS, activation_statistics
from lit_gelu.errors import ArgumentError, UnsupportedRunError


def weights_after(folder, *callbacks, seed=5, **options):
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - the global generator is what must be left alone
    trainer, model = fit(folder, *callbacks, **options)
    state = [tensor for row in trainer.optimizers[0].state_dict()["state"].values() for tensor in row.values()]
    drawn = torch.tensor([random.random(), np.random.random()])  # noqa: NPY002
    return [*model.state_dict().values(), *state, torch.tensor(model.losses), torch.get_rng_state(), drawn]


class Draws(SmallNet):
    """Draws from every generator in forward, and counts its calls in a buffer."""

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        torch.rand(()), random.random(), np.random.random()  # noqa: NPY002
        return super().forward(x)


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_measuring_leaves_no_trace_in_the_training(tmp_path, precision):
    runs = [
        weights_after(
            tmp_path / str(curvature),
            ActivationSwap(RELU_TO_GELU, at_epoch=1, curvature=curvature),
            model=Draws(),
            precision=precision,
        )
        for curvature in (False, True)
    ]
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))


def test_measured_figures_equal_a_direct_computation(tmp_path):
    class Before(Callback):
        """Computes the figures by itself, on the batch before which the swap is made."""

        def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
            if trainer.global_step == 6:
                self.before = self.observe(pl_module, batch[0], "relu")

        def on_activations_swapped(self, trainer, pl_module, report):
            self.after = self.observe(pl_module, self.batch, "gelu")

        def observe(self, pl_module, x, activation):
            self.batch = x
            pl_module.eval()
            with torch.no_grad():
                inputs = {site: pl_module.net[: int(site[-1])](x) for site in ("net.1", "net.5")}
                output = pl_module(x)
            pl_module.train()
            return {site: activation_statistics(activation, inputs[site]) for site in inputs}, output

    witness = Before()
    fit(tmp_path, witness, ActivationSwap(RELU_TO_GELU, at_step=6, curvature=True), model=SmallNet(dropout=0.5))
    [row] = [row for row in logged_rows(tmp_path) if row["activation_swap/replaced"]]
    for moment, (figures, _) in (("before", witness.before), ("after", witness.after)):
        for site in ("net.1", "net.5"):
            logged = {name: float(row[f"activation_swap/{site}/{moment}/{name}"]) for name in STATISTICS}
            assert logged == pytest.approx(figures[site], rel=1e-6)
    old, new = witness.before[1].double(), witness.after[1].double()
    assert float(row["activation_swap/jump/relative"]) == pytest.approx(
        ((new - old).norm() / old.norm()).item(), rel=1e-6
    )
    assert float(row["activation_swap/jump/max_absolute"]) == pytest.approx((new - old).abs().max().item(), rel=1e-6)
    assert row["step"] == "6"


def test_measuring_needs_a_logger(tmp_path):
    with pytest.raises(UnsupportedRunError):
        fit(tmp_path, ActivationSwap(RELU_TO_GELU, at_step=0, curvature=True), logger=False)


class DictBatches(SmallNet):
    def forward(self, x, scale=1.0):
        return super().forward(x * scale)

    def training_step(self, batch, batch_idx):
        return super().training_step((batch["x"], batch["y"]), batch_idx)


class DictLoader:
    def __iter__(self):
        return ({"x": x, "y": y} for x, y in loader())

    def __len__(self):
        return STEPS_AN_EPOCH


def test_a_batch_without_clear_input_is_refused_at_the_first_batch(tmp_path):
    swap, witness = ActivationSwap(RELU_TO_GELU, at_step=3, curvature=True), Witness()
    with pytest.raises(ArgumentError):
        quiet_trainer(tmp_path, swap, witness, max_epochs=1).fit(DictBatches(), DictLoader())
    assert witness.seen == []


def assert_same(figures, expected):
    """The windows of the kink mass are as wide as each rank's input, or the measurement before, says."""
    assert figures.pop("kink_mass") == pytest.approx(expected.pop("kink_mass"), rel=0.25, abs=1e-12)
    assert figures == pytest.approx(expected, rel=1e-6, abs=1e-7)


@pytest.mark.parametrize("swap_first", [True, False])
def test_swap_and_monitor_in_one_trainer_with_two_loggers(tmp_path, swap_first):
    class Compare(Callback):
        checked = 0

        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            step = trainer.global_step - 1
            for site, name in (("net.1", "relu" if step < 5 else "gelu"), ("net.5", "relu" if step < 5 else "silu")):
                expected = activation_statistics(name, keeper.inputs[step][site][0].double())
                assert_same(dict(monitor.latest[site]), expected)
            Compare.checked += 1

    keeper, monitor = InputKeeper(), ActivationCurvatureMonitor(every_n_steps=1, sample_rows=None)
    swap = ActivationSwap({"net.1": "gelu", "net.5": "silu"}, at_step=5, curvature=True)
    loggers = [CSVLogger(tmp_path, name="logs", version="0"), TensorBoardLogger(tmp_path, name="board", version="0")]
    order = [swap, keeper, monitor] if swap_first else [monitor, swap, keeper]
    fit(tmp_path, *order, Compare(), logger=loggers)
    assert Compare.checked == 12
    rows = logged_rows(tmp_path)
    assert [row["step"] for row in rows if row["curvature/net.1/mean"]] == [str(step) for step in range(12)]
    assert len([row for row in rows if row["activation_swap/net.5/after/mean_gate"]]) == 1


@pytest.mark.forks
@pytest.mark.filterwarnings("ignore:.*trains in processes of its own")
def test_measured_figures_cover_the_batches_of_both_ranks(tmp_path):
    class KeepBatches(Callback):
        def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
            if trainer.global_step == 1:
                torch.save((batch[0], pl_module.state_dict()), tmp_path / f"rank{trainer.global_rank}.pt")

    swap = ActivationSwap(RELU_TO_GELU, at_step=1, curvature=True)
    fit(tmp_path, KeepBatches(), swap, strategy="ddp_fork", devices=2, max_epochs=1)
    kept = [torch.load(tmp_path / f"rank{rank}.pt") for rank in (0, 1)]
    [row] = [row for row in logged_rows(tmp_path) if row["activation_swap/replaced"]]
    outputs = {}
    for moment, name, activation in (("before", "relu", nn.ReLU), ("after", "gelu", nn.GELU)):
        model, inputs, outputs[moment] = SmallNet(activation).eval(), [], []
        for x, state in kept:  # each rank has batch statistics of its own
            model.load_state_dict(state)
            inputs.append(model.net[:5](x))
            outputs[moment].append(model(x).double())
        expected = activation_statistics(name, torch.cat(inputs))
        logged = {key: float(row[f"activation_swap/net.5/{moment}/{key}"]) for key in STATISTICS}
        assert_same(logged, expected)
    old, new = torch.cat(outputs["before"]), torch.cat(outputs["after"])
    assert float(row["activation_swap/jump/max_absolute"]) == pytest.approx((new - old).abs().max().item(), rel=1e-5)
    relative = (new - old).norm() / old.norm()
    assert float(row["activation_swap/jump/relative"]) == pytest.approx(relative.item(), rel=1e-5)
