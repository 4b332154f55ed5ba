"""A run resumed from any checkpoint goes on as the one that wrote it."""

import random

import numpy as np
import pytest
import torch
from callback_helpers import SmallNet, collected_warnings, dataset, loader, quiet_trainer
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import EarlyStopping, GradientAccumulationScheduler
from torch.utils.data import DataLoader

from lit_gelu.callbacks import (
    ActivationSwap,
    ExactResume,
)
from lit_gelu.data import (
    ResumableDataLoader,
)
from lit_gelu.errors import CheckpointError, UnsupportedRunError


class Drawing(SmallNet):
    """Dropout, and noise out of Python's and NumPy's generators; counts its validations and epochs."""

    def __init__(self):
        super().__init__()
        self.events = []
        self.steps = []  # as loggers count them

    def training_step(self, batch, batch_idx):
        x, y = batch
        self.steps.append(self.trainer.fit_loop.epoch_loop._batches_that_stepped)
        return super().training_step((x + random.random() + np.random.random(), y), batch_idx)  # noqa: NPY002

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", torch.nn.functional.cross_entropy(self(batch[0]), batch[1]))

    def note(self, name):
        self.events.append((name, self.trainer.current_epoch, self.trainer.global_step))

    def on_train_epoch_start(self):
        self.note("start")

    def on_train_epoch_end(self):
        self.note("end")

    def on_validation_end(self):
        if not self.trainer.sanity_checking:
            self.note("validated")


class Early(Drawing):
    """Asks for the loader while its optimizer is set up, if told so."""

    def __init__(self, asks=False):
        super().__init__()
        self.asks = asks

    def configure_optimizers(self):
        if self.asks:
            assert self.trainer.estimated_stepping_batches
        return super().configure_optimizers()


class SaveEverywhere(Callback):
    def __init__(self, folder):
        self.folder = folder
        self.seen = {}  # by checkpoint, how many events of the module it is behind

    def save(self, trainer, name):
        path = self.folder / f"{name}{trainer.fit_loop.total_batch_idx + 1}.ckpt"
        trainer.save_checkpoint(path)
        self.seen[path] = len(trainer.lightning_module.events) + (name != "batch")  # the module's hook is the next

    def on_train_batch_end(self, trainer, *arguments):
        self.save(trainer, "batch")

    def on_train_epoch_end(self, trainer, *arguments):
        self.save(trainer, "epoch")

    def on_validation_end(self, trainer, *arguments):
        if not trainer.sanity_checking:
            self.save(trainer, "validation")


def run(folder, options, *callbacks, validated=False, ckpt_path=None, seed=3, swapped=True, net=Drawing, first=()):
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    swaps = [
        ActivationSwap({"net.1": "prelu"}, at_step=5, learning_rate=3e-3),
        ActivationSwap({"net.5": "swish(learnable=True)"}, at_step=7, anneal_steps=4),
    ]
    trainer = quiet_trainer(folder, *first, *(swaps if swapped else ()), ExactResume(), *callbacks, **options)
    model = net()
    training = ResumableDataLoader(dataset(), batch_size=8, shuffle=True)
    with collected_warnings(""):
        trainer.fit(model, training, loader(16) if validated else None, ckpt_path=ckpt_path)
    return model


STEPS = {"max_epochs": None, "max_steps": 16}


def test_double_precision_is_resumed_with_all_its_digits(tmp_path):
    """Lightning alone loads the weights into the module as it was built, in float32."""
    options = {"max_epochs": 4, "precision": "64-true"}
    whole = run(tmp_path, options, SaveEverywhere(tmp_path))
    for path in sorted(tmp_path.glob("*.ckpt"))[::4]:
        resumed = run(tmp_path, options, ckpt_path=path, seed=9)
        assert all(p.dtype == torch.float64 for p in resumed.parameters())
        for name, value in whole.state_dict().items():
            assert torch.equal(resumed.state_dict()[name], value), (path.name, name)
        resumed.float().load_state_dict(whole.state_dict())
        assert next(resumed.parameters()).dtype == torch.float32  # nothing is left that converts


@pytest.mark.parametrize(
    "each", [3, pytest.param(1, marks=pytest.mark.full)]
)  # third, so that all kinds are among them
@pytest.mark.parametrize(
    ("options", "validated", "checkpoints"),
    [
        ({"max_epochs": 4}, False, 20),
        ({"max_epochs": 4}, True, 24),
        ({"max_epochs": 4, "val_check_interval": 0.5}, True, 28),
        ({"max_epochs": 4, "val_check_interval": 2}, True, 28),
        ({"max_epochs": 4, "check_val_every_n_epoch": 2}, True, 22),
        ({"max_epochs": 4, "check_val_every_n_epoch": None, "val_check_interval": 3}, True, 25),
        (STEPS, False, 20),
        (STEPS, True, 24),
        # No validation behind an epoch's last batch.
        ({**STEPS, "val_check_interval": 0.75}, True, 24),
        ({**STEPS, "val_check_interval": 3, "max_steps": 18}, True, 27),
        ({**STEPS, "check_val_every_n_epoch": 2}, True, 22),
        ({**STEPS, "check_val_every_n_epoch": None, "val_check_interval": 3}, True, 25),
        ({"max_epochs": 4, "limit_train_batches": 3}, False, 16),
        ({**STEPS, "max_steps": 12, "limit_train_batches": 3}, False, 16),
        # Between the batches of one step, too: there the gradients so far are in the checkpoint.
        ({"max_epochs": 5, "accumulate_grad_batches": 2}, True, 30),
        ({"max_epochs": 5, "accumulate_grad_batches": 3, "val_check_interval": 0.5}, True, 35),
        ({**STEPS, "max_steps": 9, "accumulate_grad_batches": 3}, False, 24),
    ],
)
def test_every_checkpoint_leads_to_the_same_end(tmp_path, options, validated, checkpoints, each):
    saving = SaveEverywhere(tmp_path)
    whole = run(tmp_path, options, saving, validated=validated)
    saved = sorted(tmp_path.glob("*.ckpt"))
    assert len(saved) == checkpoints
    for number, path in enumerate(saved[::each]):
        # Another seed: what was drawn before the resume does not matter.
        resumed = run(tmp_path / path.stem, options, validated=validated, ckpt_path=path, seed=number)
        assert resumed.losses == whole.losses[len(whole.losses) - len(resumed.losses) :], path.stem
        assert resumed.steps == whole.steps[len(whole.steps) - len(resumed.steps) :], path.stem
        if resumed.losses or "max_steps" not in options:  # of a run that has reached max_steps nothing is left
            assert resumed.events == whole.events[saving.seen[path] :], path.stem
        for (name, a), b in zip(whole.state_dict().items(), resumed.state_dict().values(), strict=True):
            assert torch.equal(a, b), (path.stem, name)


class OnPlateau(Drawing):
    """A rate that falls at the end of every epoch, by what validation or training found."""

    monitor = "val_loss"
    frequency = 1

    def rates(self):
        return [group["lr"] for group in self.trainer.optimizers[0].param_groups]

    def configure_optimizers(self):
        optimizer = super().configure_optimizers()
        self.first_rates = [group["lr"] for group in optimizer.param_groups]
        scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=10.0)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "monitor": self.monitor, "frequency": self.frequency},
        }

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.log("mean_loss", loss, on_step=False, on_epoch=True)
        return loss


class OnTraining(OnPlateau):
    monitor = "mean_loss"


class EverySecond(OnPlateau):
    frequency = 2


class AtTheEnd(OnPlateau):
    """What it looks at is logged in the module's last hook."""

    monitor = "late"

    def on_train_epoch_end(self):
        super().on_train_epoch_end()
        self.log("late", 1.0 + self.trainer.current_epoch)


@pytest.mark.parametrize(
    ("net", "options"),
    [
        (OnPlateau, {"max_epochs": 4}),
        (OnPlateau, {"max_epochs": 4, "val_check_interval": 2}),
        (OnPlateau, {**STEPS, "val_check_interval": 3}),
        (EverySecond, {"max_epochs": 4}),
        (EverySecond, STEPS),
        (AtTheEnd, {"max_epochs": 4}),
        (OnTraining, {"max_epochs": 4}),
        (OnTraining, {"max_epochs": 4, "check_val_every_n_epoch": 2}),
        (OnTraining, {**STEPS, "val_check_interval": 3}),
    ],
)
def test_a_scheduler_that_looks_at_a_metric_goes_on(tmp_path, net, options):
    whole = run(tmp_path, options, SaveEverywhere(tmp_path), validated=True, swapped=False, net=net)
    rates = whole.rates()
    assert rates == pytest.approx([0.1 ** (4 // net.frequency) * rate for rate in whole.first_rates])
    for path in sorted(tmp_path.glob("*.ckpt"))[::3]:
        if net is AtTheEnd and path.name == "epoch4.ckpt":
            continue  # saved before the module's hook has logged the first value
        resumed = run(tmp_path / path.stem, options, validated=True, swapped=False, net=net, ckpt_path=path, seed=5)
        if resumed.events:
            assert resumed.rates() == rates, path.stem
        for (name, a), b in zip(whole.state_dict().items(), resumed.state_dict().values(), strict=True):
            assert torch.equal(a, b), (path.stem, name)


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter(dataset())


def test_an_epoch_of_a_stream_that_ends_before_its_limit_is_over(tmp_path):
    def fit(ckpt_path=None, *callbacks):
        model = Drawing()
        trainer = quiet_trainer(tmp_path, ExactResume(), *callbacks, max_epochs=3, limit_train_batches=10)
        trainer.fit(model, ResumableDataLoader(Stream(), batch_size=8), ckpt_path=ckpt_path)
        return model

    with collected_warnings(""):
        whole = fit(None, SaveEverywhere(tmp_path))
        for epoch, name in enumerate(("epoch4", "epoch8", "epoch12")):
            resumed = fit(tmp_path / f"{name}.ckpt")
            assert resumed.losses == whole.losses[4 * (epoch + 1) :], name


@pytest.mark.parametrize("place", [2, 4])
def test_a_resumed_run_is_resumed_again(tmp_path, place):
    options, first, second = {"max_epochs": 2, "val_check_interval": 2}, tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    whole = run(tmp_path, options, SaveEverywhere(first), validated=True)
    saving = SaveEverywhere(second)
    resumed = run(second, options, saving, validated=True, ckpt_path=first / f"batch{place}.ckpt", seed=4)
    for path, behind in saving.seen.items():
        again = run(tmp_path / path.stem, options, validated=True, ckpt_path=path, seed=5)
        assert again.events == resumed.events[behind:], path.stem
        assert again.losses == whole.losses[len(whole.losses) - len(again.losses) :], path.stem


@pytest.mark.parametrize("place", ["validation4", "epoch4"])
@pytest.mark.parametrize("monitor", ["val_loss", "mean_loss"])
def test_a_metric_that_is_logged_no_longer_is_named(tmp_path, monitor, place):
    class Renamed(OnTraining):
        def validation_step(self, batch, batch_idx):
            self.log("valid_loss", torch.nn.functional.cross_entropy(self(batch[0]), batch[1]))

    options = {"max_epochs": 1, "val_check_interval": 2}
    run(tmp_path, options, SaveEverywhere(tmp_path), validated=True, swapped=False, net=OnTraining)
    stopping = EarlyStopping(monitor, patience=9, check_on_train_epoch_end=True)
    trainer = quiet_trainer(tmp_path, ExactResume(), stopping, max_epochs=4, val_check_interval=2)
    training = ResumableDataLoader(dataset(), batch_size=8, shuffle=True)
    with collected_warnings("nothing has logged it") as found:
        trainer.fit(Renamed(), training, loader(16), ckpt_path=tmp_path / f"{place}.ckpt")
    assert [text.split(" is of")[0] for text in found] == (["'val_loss'"] if monitor == "val_loss" else [])


def test_without_the_callback_the_run_is_another(tmp_path):
    """What the test above compares does depend on the callback."""
    whole = run(tmp_path, {"max_epochs": 2}, SaveEverywhere(tmp_path))
    resumed = Drawing()
    with collected_warnings(""):
        trainer = quiet_trainer(tmp_path / "b", ActivationSwap({"net.1": "prelu"}, at_step=5, learning_rate=3e-3))
        trainer.fit(
            resumed, ResumableDataLoader(dataset(), batch_size=8, shuffle=True), ckpt_path=tmp_path / "batch3.ckpt"
        )
    assert resumed.losses != whole.losses[3:]


def test_a_checkpoint_that_was_tested_is_not_resumed_by_a_later_fit(tmp_path):
    class Note(Callback):
        def on_train_start(self, trainer, pl_module):
            self.seen = torch.get_rng_state()

    run(tmp_path, {"max_epochs": 1}, SaveAfterTwo(tmp_path), swapped=False)
    kept = torch.load(tmp_path / "two.ckpt", weights_only=True)["callbacks"]["ExactResume"]["ranks"][0]
    model, note = Drawing(), Note()
    trainer = quiet_trainer(tmp_path, ExactResume(), note, max_epochs=1)
    with collected_warnings(""):
        trainer.test(model, loader(16), ckpt_path=tmp_path / "two.ckpt", verbose=False)
        torch.manual_seed(11)
        trainer.fit(model, loader())
    assert not torch.equal(note.seen, kept["generators"]["torch"])


class SaveAtTheEnd(SaveEverywhere):
    def on_train_batch_end(self, trainer, *arguments): ...

    def on_validation_end(self, trainer, *arguments): ...

    def on_train_end(self, trainer, *arguments):
        self.save(trainer, "train")


@pytest.mark.parametrize("steps", [6, 7, 8])  # in the midst of an epoch, where one validates and where not; at its end
@pytest.mark.parametrize("options", [{}, {"val_check_interval": 0.5}])
def test_a_run_that_max_steps_ended_goes_on_with_more(tmp_path, options, steps):
    options = {**STEPS, **options}
    whole = run(tmp_path / "whole", options, validated=True)
    run(tmp_path, {**options, "max_steps": steps}, SaveAtTheEnd(tmp_path), validated=True)
    for name in ("epoch", "train"):
        resumed = run(tmp_path / name, options, validated=True, ckpt_path=tmp_path / f"{name}{steps}.ckpt", seed=9)
        assert resumed.losses == whole.losses[steps:]
        assert resumed.steps == whole.steps[steps:]
        assert resumed.events == whole.events[len(whole.events) - len(resumed.events) :]
        assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), resumed.parameters(), strict=True))


def test_another_number_of_ranks_or_loaders_is_refused(tmp_path):
    run(tmp_path, {"max_epochs": 1}, SaveEverywhere(tmp_path))
    path = tmp_path / "batch2.ckpt"
    other = DataLoader(dataset(), batch_size=8)
    with collected_warnings(""), pytest.raises(RuntimeError):  # Lightning's own
        quiet_trainer(tmp_path / "a", ExactResume()).fit(Early(), other, ckpt_path=path)
    with collected_warnings(""), pytest.raises(UnsupportedRunError):
        quiet_trainer(tmp_path / "a", ExactResume()).fit(Early(asks=True), other, ckpt_path=path)
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
    run(tmp_path / "whole", options, Apart(), Note(), SaveAfterTwo(tmp_path), swapped=False)
    run(tmp_path / "again", options, Note(), ckpt_path=tmp_path / "two.ckpt", seed=8, swapped=False)
    for rank in (0, 1):
        ((x, y), generator), ((x2, y2), generator2) = (
            torch.load(tmp_path / f"{name}-{rank}-2.pt") for name in ("whole", "again")
        )
        assert torch.equal(x, x2)
        assert torch.equal(y, y2)
        assert torch.equal(generator, generator2)


@pytest.mark.forks
def test_each_rank_goes_on_with_its_own_gradients(tmp_path):
    class SaveFirstAndLast(Callback):
        def on_train_batch_end(self, trainer, *arguments):
            if trainer.fit_loop.total_batch_idx == 0:
                trainer.save_checkpoint(tmp_path / "first.ckpt")

        def on_train_end(self, trainer, *arguments):
            trainer.save_checkpoint(f"{trainer.default_root_dir}.ckpt")

    options = {"strategy": "ddp_fork", "devices": 2, "max_epochs": 1, "accumulate_grad_batches": 2}
    run(tmp_path / "whole", options, SaveFirstAndLast(), swapped=False)
    first = torch.load(tmp_path / "first.ckpt", weights_only=True)
    one, other = (state["gradients"]["net.0.weight"] for state in first["callbacks"]["ExactResume"]["ranks"])
    assert not torch.equal(one, other)
    run(tmp_path / "again", options, SaveFirstAndLast(), ckpt_path=tmp_path / "first.ckpt", seed=8, swapped=False)
    whole, again = (
        torch.load(tmp_path / f"{name}.ckpt", weights_only=True)["state_dict"] for name in ("whole", "again")
    )
    assert all(torch.equal(a, b) for a, b in zip(whole.values(), again.values(), strict=True))


class Accumulating(Drawing):
    """Adds up the gradients of three batches by itself."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch, batch_idx):
        self.manual_backward(super().training_step(batch, batch_idx))
        if self.trainer.fit_loop.total_batch_idx % 3 == 2:
            self.optimizers().step()
            self.optimizers().zero_grad()


def test_manual_optimization_that_accumulates(tmp_path):
    options = {"max_epochs": 2}
    whole = run(tmp_path, options, SaveEverywhere(tmp_path), swapped=False, net=Accumulating)
    for batch in range(1, 8):
        path = tmp_path / f"batch{batch}.ckpt"
        resumed = run(tmp_path / path.stem, options, ckpt_path=path, seed=batch, swapped=False, net=Accumulating)
        assert resumed.losses == whole.losses[batch:]


def test_an_accumulation_that_changes_with_the_epoch(tmp_path):
    def schedule():
        return GradientAccumulationScheduler({0: 1, 1: 3})

    options = {"max_epochs": 3}
    whole = run(tmp_path, options, SaveEverywhere(tmp_path), swapped=False, first=[schedule()])
    for batch in (2, 5, 6, 7):
        path = tmp_path / f"batch{batch}.ckpt"
        resumed = run(tmp_path / path.stem, options, ckpt_path=path, seed=batch, swapped=False, first=[schedule()])
        assert resumed.losses == whole.losses[batch:]
    with pytest.raises(UnsupportedRunError):
        run(tmp_path / "after", options, schedule())


def test_gradients_that_do_not_fit_or_are_missing(tmp_path):
    options = {"max_epochs": 1, "accumulate_grad_batches": 2}
    run(tmp_path, options, SaveEverywhere(tmp_path), swapped=False)
    path = tmp_path / "batch1.ckpt"
    checkpoint = torch.load(path, weights_only=True)
    gradients = checkpoint["callbacks"]["ExactResume"]["ranks"][0]["gradients"]
    gradients["net.9.weight"] = gradients["net.0.weight"]
    torch.save(checkpoint, path)
    with pytest.raises(UnsupportedRunError):
        run(tmp_path / "other", options, ckpt_path=path, swapped=False)
    gradients.clear()
    torch.save(checkpoint, path)
    training = ResumableDataLoader(dataset(), batch_size=8)
    with collected_warnings("has no gradients of those that were done") as messages:
        quiet_trainer(tmp_path / "none", ExactResume(), **options).fit(Drawing(), training, ckpt_path=path)
    assert len(messages) == 1


class SaveAfterTwo(Callback):
    def __init__(self, folder):
        self.folder = folder

    def on_train_batch_end(self, trainer, *arguments):
        if trainer.global_step == 2:
            trainer.save_checkpoint(self.folder / "two.ckpt")


def _numpy_far_on(kept):
    kept["ranks"][0]["generators"]["numpy"]["state"]["pos"] = 10**6  # where NumPy would read beyond its numbers


DAMAGES = {
    "no ranks": lambda kept: kept.update(ranks=None),
    "ranks are text": lambda kept: kept.update(ranks="none"),
    "a rank is a list": lambda kept: kept.update(ranks=[[]]),
    "no generators": lambda kept: kept["ranks"][0].pop("generators"),
    "loaders are a mapping": lambda kept: kept["ranks"][0].update(loaders={}),
    "gradients are a list": lambda kept: kept["ranks"][0].update(gradients=[]),
    "a generator's state": lambda kept: kept["ranks"][0]["generators"].update(python=None),
    "a place outside": _numpy_far_on,
    "metrics are a list": lambda kept: kept["ranks"][0].update(metrics=[]),
    "a loader's state": lambda kept: kept["ranks"][0].update(loaders=[None]),
    "a loader's start": lambda kept: kept["ranks"][0].update(loaders=[{"taken": 1, "start": {}}]),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_what_was_kept_is_damaged(tmp_path, damage):
    run(tmp_path, {"max_epochs": 1, "limit_train_batches": 2}, SaveEverywhere(tmp_path), swapped=False)
    path = tmp_path / "batch1.ckpt"
    checkpoint = torch.load(path, weights_only=True)
    damage(checkpoint["callbacks"]["ExactResume"])
    torch.save(checkpoint, path)
    with pytest.raises(CheckpointError):
        run(tmp_path / "resumed", {"max_epochs": 1}, ckpt_path=path, swapped=False)


def test_a_gradient_that_is_none(tmp_path):
    options = {"max_epochs": 2, "accumulate_grad_batches": 2}
    run(tmp_path, options, SaveEverywhere(tmp_path), swapped=False)
    path = tmp_path / "batch1.ckpt"
    checkpoint = torch.load(path, weights_only=True)
    gradients = checkpoint["callbacks"]["ExactResume"]["ranks"][0]["gradients"]
    gradients[next(iter(gradients))] = "none"
    torch.save(checkpoint, path)
    with pytest.raises(UnsupportedRunError):
        run(tmp_path / "resumed", options, ckpt_path=path, swapped=False)
