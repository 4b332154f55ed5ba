"""Runs in which a swap would go wrong are refused before the first step."""

from types import SimpleNamespace

import pytest
import torch
from callback_helpers import SaveEachEpoch, SmallNet, activations_of, collected_warnings, loader, quiet_trainer
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import EMAWeightAveraging, ModelCheckpoint, StochasticWeightAveraging, WeightAveraging
from lightning.pytorch.strategies import FSDPStrategy, ModelParallelStrategy, SingleDeviceStrategy
from swap_runs import RELU_TO_GELU
from torch import nn

from lit_gelu.callbacks import (
    ActivationCurvatureMonitor,
    ActivationSwap,
    ExactResume,
    FusedActivations,
    load_from_checkpoint,
)
from lit_gelu.callbacks.swap import activation_swap
from lit_gelu.callbacks.swap.activation_swap import _refuse_strategy_and_averaging
from lit_gelu.errors import UnsupportedRunError
from lit_gelu.surgery import without_marks


def refused(folder, *callbacks, model=None, swap=None, **options):
    model = model or SmallNet()
    with pytest.raises(UnsupportedRunError):
        quiet_trainer(folder, swap or ActivationSwap(RELU_TO_GELU, at_epoch=1), *callbacks, **options).fit(
            model, loader()
        )
    assert model.losses == []


@pytest.mark.parametrize(
    "averaging", [WeightAveraging, lambda: EMAWeightAveraging(decay=0.9), lambda: StochasticWeightAveraging(1e-2)]
)
def test_averaging_of_weights(tmp_path, averaging):
    refused(tmp_path, averaging())


class LoadsLate(SingleDeviceStrategy):
    restore_checkpoint_after_setup = True


def test_strategies_that_load_after_wrapping(tmp_path):
    refused(tmp_path, strategy=LoadsLate(torch.device("cpu")), accelerator="auto")
    for strategy in (FSDPStrategy(), ModelParallelStrategy()):
        with pytest.raises(UnsupportedRunError):
            _refuse_strategy_and_averaging(SimpleNamespace(strategy=strategy))


@pytest.mark.parametrize(
    ("swap", "activation"), [({"activation:relu": "prelu"}, nn.ReLU), ({"activation:prelu": "gelu"}, nn.PReLU)]
)
def test_parameters_after_wrapping(tmp_path, swap, activation):
    swap = ActivationSwap(swap, at_epoch=1)
    refused(tmp_path, swap=swap, model=SmallNet(activation), strategy="ddp", devices=1)
    torch.distributed.destroy_process_group()


def test_other_lightning_packages_are_told_apart(tmp_path):
    import pytorch_lightning as other  # lightning itself brings it

    class Foreign(other.Callback):
        pass

    class ForeignModule(other.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(6, 3), nn.ReLU())

        training_step = configure_optimizers = lambda self, *arguments: None

    options = {"logger": False, "accelerator": "cpu", "enable_checkpointing": False, "enable_model_summary": False}
    for callback in (
        ActivationSwap(RELU_TO_GELU, at_epoch=1),
        ActivationCurvatureMonitor(),
        ExactResume(),
        FusedActivations(),
    ):
        with collected_warnings(""), pytest.raises(UnsupportedRunError):
            other.Trainer(callbacks=[callback], **options).fit(ForeignModule(), loader())
        with pytest.raises(UnsupportedRunError):
            quiet_trainer(tmp_path, callback, Foreign()).fit(SmallNet(), loader())


# --- Two ranks ---


class Spread(Callback):
    """Notes on each rank which step the swap came at, and the weights at the end."""

    def __init__(self, folder):
        self.folder, self.swapped = folder, []

    def on_activations_swapped(self, trainer, pl_module, report):
        self.swapped.append(trainer.global_step)

    def on_train_end(self, trainer, pl_module):
        state = {name: tensor for name, tensor in pl_module.state_dict().items() if "running" not in name}
        torch.save((self.swapped, state), self.folder / f"rank{trainer.global_rank}.pt")


class Disagreeing(SmallNet):
    """Its ranks log different losses: alone, rank 0 would see an improvement after the second epoch."""

    def validation_step(self, batch, batch_idx):
        if batch_idx == 0:
            values = [[1.0, 0.9, 0.9, 0.9, 0.9], [1.0, 1.2, 1.2, 1.2, 1.2]][self.trainer.global_rank]
            self.log("val_loss", values[self.trainer.current_epoch], sync_dist=False)


@pytest.mark.forks
def test_ranks_swap_at_the_same_step_and_stay_in_step(tmp_path):
    swaps = [
        ActivationSwap({"net.1": "gelu"}, when="val_loss", patience=2),
        ActivationSwap({"net.5": "silu"}, at_step=1),
    ]
    model, watch = Disagreeing(), Spread(tmp_path)
    trainer = quiet_trainer(tmp_path, *swaps, watch, strategy="ddp_fork", devices=2, max_epochs=5)
    with collected_warnings(""):
        trainer.fit(model, loader(), loader())
    (steps, first), (steps_of_second, second) = (torch.load(tmp_path / f"rank{rank}.pt") for rank in (0, 1))
    # The mean is 1, then 1.05: the second check without improvement is that of the third epoch, two batches each.
    assert steps == steps_of_second == [1, 6]
    assert all(torch.equal(a, b) for a, b in zip(first.values(), second.values(), strict=True))
    without_marks(first)
    assert first.keys() == {name for name in SmallNet(nn.GELU).state_dict() if "running" not in name}
    with torch.no_grad():
        fresh = SmallNet(nn.GELU)
        assert any(not torch.equal(a, b) for a, b in zip(first.values(), fresh.parameters(), strict=False))


@pytest.mark.forks
@pytest.mark.filterwarnings("ignore:.*trains in processes of its own")
def test_two_ranks_resume_from_a_checkpoint_with_a_swap(tmp_path):
    def run(folder, *callbacks, **options):
        folder.mkdir(exist_ok=True)
        swap = ActivationSwap({"net.1": "gelu"}, at_step=3)
        trainer = quiet_trainer(folder, swap, Spread(folder), *callbacks, strategy="ddp_fork", devices=2, max_epochs=4)
        trainer.fit(SmallNet(dropout=0), loader(), **options)
        return [torch.load(folder / f"rank{rank}.pt")[1] for rank in (0, 1)]

    reference = run(tmp_path / "whole", SaveEachEpoch(tmp_path))
    again = run(tmp_path / "again", ckpt_path=tmp_path / "epoch1.ckpt")
    for a, b in zip(reference, again, strict=True):
        assert all(torch.equal(x, y) for x, y in zip(a.values(), b.values(), strict=True))


@pytest.mark.forks
def test_a_swap_that_does_not_come_back_from_other_processes_is_told(tmp_path):
    swaps = ActivationSwap({"net.1": "gelu"}, at_epoch=0), ActivationSwap({"net.5": "gelu"}, at_epoch=1)
    saving = ModelCheckpoint(tmp_path / "saved", save_last=True)
    trainer = quiet_trainer(tmp_path, *swaps, saving, strategy="ddp_fork", devices=1, enable_checkpointing=True)
    model, written = SmallNet(dropout=0), tmp_path / "warnings.txt"

    def note(message, *_):
        with written.open("a") as file:  # from whatever process
            file.write(f"{message}\n")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(activation_swap, "rank_zero_warn", note)
        trainer.fit(model, loader())
    (message,) = written.read_text().splitlines()  # one for both
    assert "load_from_checkpoint" in message
    assert activations_of(model) == ["ReLU", "ReLU"]  # what the warning says of Lightning
    loaded = load_from_checkpoint(SmallNet, tmp_path / "saved" / "last.ckpt")  # what it advises
    assert activations_of(loaded) == ["GELU", "GELU"]
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), loaded.parameters(), strict=True))
