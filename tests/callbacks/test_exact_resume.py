"""A run resumed from any checkpoint goes on as the one that wrote it."""

import random

import numpy as np
import pytest
import torch
from callback_helpers import Drawing, Fails, SaveEverywhere, collected_warnings, dataset, loader, quiet_trainer
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader

from lit_gelu.callbacks import ActivationSwap, ExactResume, exact_resume
from lit_gelu.data import ResumableDataLoader
from lit_gelu.errors import LitGeluError, UnsupportedRunError


class Early(Drawing):
    """Asks for the loader while its optimizer is set up."""

    def configure_optimizers(self):
        assert self.trainer.estimated_stepping_batches
        return super().configure_optimizers()


def run(folder, options, *callbacks, validated=False, ckpt_path=None, seed=3, swapped=True):
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    swaps = [
        ActivationSwap({"net.1": "prelu"}, at_step=5),
        ActivationSwap({"net.5": "swish(learnable=True)"}, at_step=7),
    ]
    trainer = quiet_trainer(folder, *(swaps if swapped else ()), ExactResume(), *callbacks, **options)
    model = Drawing()
    training = ResumableDataLoader(dataset(), batch_size=8, shuffle=True)
    with collected_warnings(""):
        trainer.fit(model, training, loader(16) if validated else None, ckpt_path=ckpt_path)
    return model


STEPS = {"max_epochs": None, "max_steps": 16}


@pytest.mark.parametrize("each", [5, pytest.param(1, marks=pytest.mark.full)])
@pytest.mark.parametrize(
    ("options", "validated"),
    [
        ({"max_epochs": 4}, False),
        ({"max_epochs": 4, "val_check_interval": 0.5}, True),
        (STEPS, True),
        ({"max_epochs": 4, "limit_train_batches": 3}, False),
    ],
)
def test_every_checkpoint_leads_to_the_same_end(tmp_path, options, validated, each):
    reference = run(tmp_path, options, SaveEverywhere(tmp_path), validated=validated)
    saved = sorted(tmp_path.glob("*.ckpt"))
    for number, path in enumerate(saved[::each]):
        # Another seed: what was drawn before the resume does not matter.
        resumed = run(tmp_path / path.stem, options, validated=validated, ckpt_path=path, seed=number)
        assert resumed.losses == reference.losses[len(reference.losses) - len(resumed.losses) :], path.stem
        for (name, a), b in zip(reference.state_dict().items(), resumed.state_dict().values(), strict=True):
            assert torch.equal(a, b), (path.stem, name)


@pytest.mark.parametrize(
    ("hook", "warned"),
    [
        ("on_train_batch_start", True),
        ("on_before_optimizer_step", True),
        ("on_validation_batch_start", True),
        ("on_train_batch_end", False),
    ],
)
def test_a_checkpoint_behind_an_error_is_exact_or_warned_of(tmp_path, monkeypatch, hook, warned):
    options = {"max_epochs": 4, "enable_checkpointing": True}
    reference = run(tmp_path, options, validated=True)
    saving = ModelCheckpoint(tmp_path / "saved", filename="error", save_on_exception=True, every_n_epochs=9)
    messages = []
    monkeypatch.setattr(exact_resume, "rank_zero_warn", messages.append)
    failing = Fails(hook, RuntimeError("as out of memory"), number=6)
    with pytest.raises(RuntimeError, match="out of memory"):
        run(tmp_path / "broken", options, failing, saving, validated=True)
    resumed = run(tmp_path / "resumed", options, validated=True, ckpt_path=tmp_path / "saved" / "error.ckpt", seed=8)
    assert any("leaves out a batch" in message for message in messages) == warned
    assert warned or all(map(torch.equal, reference.parameters(), resumed.parameters()))


def test_a_checkpoint_that_was_tested_is_not_resumed_by_a_later_fit(tmp_path):
    class Note(Callback):
        def on_train_start(self, trainer, pl_module):
            self.seen = torch.get_rng_state()

    run(tmp_path, {"max_epochs": 1}, SaveEverywhere(tmp_path), swapped=False)
    kept = torch.load(tmp_path / "batch2.ckpt", weights_only=True)["callbacks"]["ExactResume"]["ranks"][0]
    model, note = Drawing(), Note()
    trainer = quiet_trainer(tmp_path, ExactResume(), note, max_epochs=1)
    with collected_warnings(""):
        trainer.test(model, loader(16), ckpt_path=tmp_path / "batch2.ckpt", verbose=False)
        torch.manual_seed(11)
        trainer.fit(model, loader())
    assert not torch.equal(note.seen, kept["generators"]["torch"])


def test_another_number_of_ranks_or_loaders_is_refused(tmp_path):
    run(tmp_path, {"max_epochs": 1}, SaveEverywhere(tmp_path))
    path = tmp_path / "batch2.ckpt"
    other = DataLoader(dataset(), batch_size=8)
    with collected_warnings(""), pytest.raises(UnsupportedRunError):
        quiet_trainer(tmp_path / "a", ExactResume()).fit(Early(), other, ckpt_path=path)
    checkpoint = torch.load(path, weights_only=True)
    (key,) = (key for key in checkpoint["callbacks"] if "ExactResume" in key)
    checkpoint["callbacks"][key]["ranks"] *= 2
    torch.save(checkpoint, path)
    with pytest.raises(UnsupportedRunError):
        run(tmp_path / "b", {"max_epochs": 1}, ckpt_path=path)


@pytest.mark.forks
def test_each_rank_goes_on_with_its_own_numbers(tmp_path):
    class Note(Callback):
        def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
            if trainer.global_step >= 2:
                torch.save((batch, torch.get_rng_state()), tmp_path / self.name(trainer))

        def name(self, trainer):
            return f"{trainer.default_root_dir[-5:]}-{trainer.global_rank}-{trainer.global_step}.pt"

    class Apart(Callback):
        def on_train_start(self, trainer, pl_module):
            torch.manual_seed(trainer.global_rank)

    options = {"strategy": "ddp_fork", "devices": 2, "max_epochs": 2}
    run(tmp_path / "whole", options, Apart(), Note(), SaveEverywhere(tmp_path), swapped=False)
    run(tmp_path / "again", options, Note(), ckpt_path=tmp_path / "batch2.ckpt", seed=8, swapped=False)
    for rank in (0, 1):
        ((x, y), generator), ((x2, y2), generator2) = (
            torch.load(tmp_path / f"{name}-{rank}-2.pt") for name in ("whole", "again")
        )
        assert torch.equal(x, x2)
        assert torch.equal(y, y2)
        assert torch.equal(generator, generator2)


DAMAGES = {
    "no ranks": lambda kept: kept.update(ranks=None),
    "a rank is a list": lambda kept: kept.update(ranks=[[]]),
    "no generators": lambda kept: kept["ranks"][0].pop("generators"),
    "a loader's state": lambda kept: kept["ranks"][0].update(loaders=[None]),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_what_was_kept_is_damaged(tmp_path, damage):
    run(tmp_path, {"max_epochs": 1, "limit_train_batches": 2}, SaveEverywhere(tmp_path), swapped=False)
    path = tmp_path / "batch1.ckpt"
    checkpoint = torch.load(path, weights_only=True)
    damage(checkpoint["callbacks"]["ExactResume"])
    torch.save(checkpoint, path)
    with pytest.raises(LitGeluError):
        run(tmp_path / "resumed", {"max_epochs": 1}, ckpt_path=path, swapped=False)
