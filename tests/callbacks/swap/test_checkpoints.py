"""Checkpoints with swapped activations: loaded with and without a Trainer, refused where activations differ."""

import pytest
import torch
from callback_helpers import SaveEachEpoch, SmallNet, activations_of, collected_warnings, loader, quiet_trainer
from swap_runs import fit
from torch import nn

from lit_gelu import surgery
from lit_gelu.callbacks import ActivationSwap, load_from_checkpoint
from lit_gelu.errors import CheckpointError

TO_PRELU = {"activation:relu": "prelu(num_parameters=16)"}


def outputs(model):
    with torch.no_grad():
        return model.eval()(torch.linspace(-2, 2, 12).reshape(2, 6))


def test_the_modules_own_hooks_run_after_the_activations_are_there(tmp_path):
    class Base(SmallNet):
        def on_save_checkpoint(self, checkpoint):
            checkpoint["own"] = 3

        def on_load_checkpoint(self, checkpoint):
            self.record = checkpoint["own"], activations_of(self)

    class Derived(Base):
        def on_load_checkpoint(self, checkpoint):
            super().on_load_checkpoint(checkpoint)

    fit(tmp_path, ActivationSwap(TO_PRELU, at_epoch=1), SaveEachEpoch(tmp_path), model=Derived())
    for built in (Base, Derived):
        assert load_from_checkpoint(built, tmp_path / "epoch2.ckpt").record == (3, ["PReLU", "PReLU"])
    resumed = Base()
    trainer = quiet_trainer(tmp_path / "b", ActivationSwap(TO_PRELU, at_epoch=1), max_epochs=4)
    trainer.fit(resumed, loader(), ckpt_path=tmp_path / "epoch2.ckpt")
    assert resumed.record == (3, ["PReLU", "PReLU"])


def test_a_checkpoint_that_names_no_activations_is_refused(tmp_path):
    fit(tmp_path, SaveEachEpoch(tmp_path))
    with pytest.raises(CheckpointError):
        load_from_checkpoint(SmallNet, tmp_path / "epoch0.ckpt")


def test_a_silent_mismatch_is_refused(tmp_path):
    fit(tmp_path, ActivationSwap({"*": "softplus"}, at_epoch=1), SaveEachEpoch(tmp_path), model=SmallNet(nn.SiLU))
    model = SmallNet()  # ReLU instead of SiLU: the weights fit
    trainer = quiet_trainer(tmp_path / "t", ActivationSwap({"*": "softplus"}, at_epoch=1))
    with pytest.raises(CheckpointError):
        trainer.test(model, loader(), ckpt_path=tmp_path / "epoch0.ckpt", verbose=False)


def test_a_checkpoint_of_swaps_that_are_not_here_is_refused_and_names_them(tmp_path):
    fit(tmp_path, ActivationSwap({"*": "gelu"}, at_epoch=1), SaveEachEpoch(tmp_path))
    other = quiet_trainer(tmp_path / "b", ActivationSwap({"*": "silu"}, at_epoch=1))
    with collected_warnings(""), pytest.raises(CheckpointError):
        other.test(SmallNet(), loader(), ckpt_path=tmp_path / "epoch2.ckpt", verbose=False)


def test_a_record_of_another_structure_is_refused(tmp_path):
    trainer, _ = fit(tmp_path, ActivationSwap(TO_PRELU, at_epoch=1))
    trainer.save_checkpoint(tmp_path / "end.ckpt")

    class Wider(SmallNet):
        def __init__(self):
            super().__init__()
            self.more = nn.GELU()

    with pytest.raises(CheckpointError):
        load_from_checkpoint(Wider, tmp_path / "end.ckpt")


SWAP = {"activation:relu": "silu"}


@pytest.mark.parametrize("swap", [SWAP, TO_PRELU])
@pytest.mark.parametrize("weights_only", [False, True])
def test_plain_lightning_refuses_a_swapped_checkpoint_that_ours_takes(tmp_path, weights_only, swap):
    path = tmp_path / "end.ckpt"
    trainer, model = fit(tmp_path, ActivationSwap(swap, at_epoch=1))
    trainer.save_checkpoint(path, weights_only=weights_only)
    with pytest.raises(RuntimeError):
        SmallNet.load_from_checkpoint(path)
    for run in ("test",) if weights_only else ("test", "fit"):  # Lightning resumes from no file of weights
        with pytest.raises(RuntimeError, match="needs_ActivationSwap_or_lit_gelu_callbacks_load_from_checkpoint"):
            getattr(quiet_trainer(tmp_path / run), run)(SmallNet(), loader(), ckpt_path=path, weights_only=True)
    again = quiet_trainer(tmp_path / "b", ActivationSwap(swap, at_epoch=1))
    again.test(other := SmallNet(), loader(), ckpt_path=path, verbose=False, weights_only=True)
    loaded = load_from_checkpoint(SmallNet, path, map_location="cpu", weights_only=True, dropout=0.1)
    assert loaded.net[3].p == 0.1
    for each in (loaded, other):
        assert torch.equal(outputs(each), outputs(model))


def test_a_model_that_was_swapped_before_its_run_resumes_where_it_is_swapped_alike(tmp_path):
    def resume(model, folder):
        trainer = quiet_trainer(tmp_path / folder, ActivationSwap({"*": "mish"}, at_epoch=3), max_epochs=4)
        trainer.fit(model, loader(), ckpt_path=tmp_path / "end.ckpt", weights_only=True)

    surgery.swap(model := SmallNet(), SWAP)
    trainer, _ = fit(tmp_path, model=model)
    trainer.save_checkpoint(tmp_path / "end.ckpt")
    surgery.swap(other := SmallNet(), SWAP)
    resume(other, "alike")
    assert activations_of(other) == ["Mish", "Mish"]
    with pytest.raises(RuntimeError, match="needs_ActivationSwap"):
        resume(SmallNet(), "other")
    with pytest.raises(CheckpointError):
        load_from_checkpoint(SmallNet, tmp_path / "end.ckpt")
