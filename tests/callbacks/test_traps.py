"""What goes wrong when a callback simply replaces modules during training, and does not here.

Every test runs with `ActivationSwap`, and in `make test-full` with `NaiveSwap`, which fails it: what it shows is no
matter of taste.
"""

import pytest
import torch
from callback_helpers import SaveEachEpoch, SmallNet, activations_of, collected_warnings, loader, quiet_trainer
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import BaseFinetuning, WeightAveraging
from torch import nn

from lit_gelu import activations
from lit_gelu.callbacks import (
    ActivationSwap,
    load_from_checkpoint,
)
from lit_gelu.errors import CheckpointError, UnsupportedRunError

# Lightning's helper for new groups does say that it leaves out the second of two equal parameters.
pytestmark = pytest.mark.filterwarnings("ignore:The provided params to be frozen already exist")
SITES = ("net.1", "net.5")


class NaiveSwap(Callback):
    """Sets the modules, gives new parameters to the first optimizer, and makes the swap again from its own state."""

    def __init__(self, swaps, at_step):
        self.wanted, self.at_step, self.applied = next(iter(swaps.values())), at_step, False

    @property
    def state_key(self):
        return f"NaiveSwap to {self.wanted}"

    def swap(self, pl_module):
        for name in SITES:
            pl_module.set_submodule(name, activations.create(self.wanted))
        self.applied = True

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        if trainer.global_step >= self.at_step and not self.applied:
            self.swap(pl_module)
            for name in SITES:
                BaseFinetuning.unfreeze_and_add_param_group(pl_module.get_submodule(name), trainer.optimizers[0])

    def state_dict(self):
        return {"applied": self.applied}

    def on_load_checkpoint(self, trainer, pl_module, checkpoint):
        if checkpoint.get("callbacks", {}).get(self.state_key, {}).get("applied"):
            self.swap(pl_module)


class FinetuningSwap(NaiveSwap):
    """The same; new parameters go in a group by themselves, as Lightning's own helper is used most."""

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        if trainer.global_step >= self.at_step and not self.applied:
            self.swap(pl_module)
            new = [parameter for name in SITES for parameter in pl_module.get_submodule(name).parameters()]
            if new:
                trainer.optimizers[0].add_param_group({"params": new})


def naive_fails(**options):
    return pytest.mark.parametrize(
        "swap",
        [
            pytest.param(ActivationSwap, id="ours"),
            pytest.param(NaiveSwap, id="naive", marks=[pytest.mark.full, pytest.mark.xfail(strict=True, **options)]),
        ],
    )


def fit(folder, *callbacks, model=None, ckpt_path=None, compiled=False, **options):
    model = model or SmallNet(dropout=0)
    trainer = quiet_trainer(folder, *callbacks, **({"max_epochs": 3} | options))
    trainer.fit(torch.compile(model, backend="aot_eager") if compiled else model, loader(), ckpt_path=ckpt_path)
    return trainer, model


def to(wanted, swap, at_step=2):
    return swap({"*": wanted}, at_step=at_step)


# --- Checkpoints ---


@naive_fails(raises=RuntimeError)
def test_a_run_with_new_parameters_can_be_resumed(tmp_path, swap):
    """Weights are loaded before a callback hears of the checkpoint: "Unexpected key(s)"."""
    _, whole = fit(tmp_path, to("prelu", swap), SaveEachEpoch(tmp_path))
    _, resumed = fit(tmp_path / "b", to("prelu", swap), ckpt_path=tmp_path / "epoch1.ckpt")
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), resumed.parameters(), strict=True))


@pytest.mark.parametrize(
    ("swap", "load"),
    [
        pytest.param(ActivationSwap, load_from_checkpoint, id="ours"),
        pytest.param(
            NaiveSwap,
            lambda cls, path: cls.load_from_checkpoint(path),
            id="naive",
            marks=[pytest.mark.full, pytest.mark.xfail(strict=True, raises=RuntimeError)],
        ),
    ],
)
def test_a_checkpoint_with_new_parameters_can_be_loaded_without_a_trainer(tmp_path, swap, load):
    fit(tmp_path, to("prelu", swap), SaveEachEpoch(tmp_path))
    assert activations_of(load(SmallNet, tmp_path / "epoch2.ckpt")) == ["PReLU", "PReLU"]


@naive_fails(raises=AssertionError)
def test_weights_alone_come_with_their_activations(tmp_path, swap):
    """Callbacks' states are not in a checkpoint of the weights only."""
    trainer, _ = fit(tmp_path, to("softplus", swap))
    trainer.save_checkpoint(tmp_path / "weights.ckpt", weights_only=True)
    model = SmallNet()
    with collected_warnings(""):
        quiet_trainer(tmp_path / "b", to("softplus", swap)).test(
            model, loader(), ckpt_path=tmp_path / "weights.ckpt", verbose=False
        )
    assert activations_of(model) == ["Softplus", "Softplus"]


@naive_fails()
def test_weights_of_other_activations_are_not_loaded_without_a_word(tmp_path, swap):
    """They fit: the same checkpoint gives another loss and no message."""
    fit(tmp_path, to("softplus", swap), SaveEachEpoch(tmp_path))
    other = quiet_trainer(tmp_path / "b", swap({"*": "tanh"}, at_step=3))
    with collected_warnings(""), pytest.raises(CheckpointError):
        other.test(SmallNet(), loader(), ckpt_path=tmp_path / "epoch2.ckpt", verbose=False)


# --- Optimizers ---


@naive_fails(raises=AssertionError)
def test_of_two_equal_parameters_both_are_trained(tmp_path, swap):
    """Lightning's helper compares by value: the second of two new PReLUs is "in the optimizer" already."""
    _, model = fit(tmp_path, to("prelu", swap))
    assert all(model.get_submodule(site).weight.item() != 0.25 for site in SITES)


@naive_fails(raises=AssertionError)
def test_new_parameters_are_not_decayed(tmp_path, swap):
    trainer, _ = fit(tmp_path, to("prelu", swap))
    assert [group["weight_decay"] for group in trainer.optimizers[0].param_groups] == [0.01, 0.0]


@naive_fails(raises=AssertionError)
def test_parameters_that_went_are_not_in_the_optimizer(tmp_path, swap):
    """Composer's users met optimizers that point at replaced parameters."""
    trainer, model = fit(tmp_path, to("gelu", swap), model=SmallNet(nn.PReLU, dropout=0))
    held = {id(p) for group in trainer.optimizers[0].param_groups for p in group["params"]}
    assert held == {id(parameter) for parameter in model.parameters()}


class Scheduled(SmallNet):
    def configure_optimizers(self):
        optimizer = super().configure_optimizers()
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.9**step)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


@naive_fails()
def test_a_scheduler_goes_on_with_a_new_group(tmp_path, swap):
    """``LambdaLR`` has one function a group."""
    trainer, _ = fit(tmp_path, to("prelu", swap), model=Scheduled())
    rates = [group["lr"] for group in trainer.optimizers[0].param_groups]
    assert rates == [pytest.approx(1e-2 * 0.9**12)] * 2


# --- Strategies and other callbacks ---


class Ends(Callback):
    def __init__(self, folder):
        self.folder = folder

    def on_train_end(self, trainer, pl_module):
        torch.save(list(pl_module.parameters()), self.folder / f"rank{trainer.global_rank}.pt")


@pytest.mark.forks
@pytest.mark.filterwarnings("ignore:.*trains in processes of its own")
@pytest.mark.parametrize(
    "swap",
    [
        pytest.param(ActivationSwap, id="ours"),
        pytest.param(
            FinetuningSwap, id="naive", marks=[pytest.mark.full, pytest.mark.xfail(strict=True, raises=AssertionError)]
        ),
    ],
)
def test_ranks_do_not_part_without_a_word(tmp_path, swap):
    """``DistributedDataParallel`` reduces the gradients that it knew at wrapping."""
    try:
        fit(tmp_path, to("prelu", swap), Ends(tmp_path), strategy="ddp_fork", devices=2)
    except Exception as error:  # noqa: BLE001 - the launcher wraps it
        assert UnsupportedRunError.__name__ in str(error)  # noqa: PT017
        return
    first, second = (torch.load(tmp_path / f"rank{rank}.pt", weights_only=False) for rank in (0, 1))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@naive_fails()
def test_averaging_of_weights_fails_before_training_or_not_at_all(tmp_path, swap):
    """It pairs the parameters of a copy, made before the swap, with the model's by their order."""
    model = SmallNet(dropout=0)
    with pytest.raises(UnsupportedRunError):
        fit(tmp_path, to("prelu", swap), WeightAveraging(), model=model)
    assert model.losses == []


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # dynamo looks at it itself
@naive_fails(raises=AssertionError)
def test_more_activations_than_the_compiler_keeps_graphs_of_are_told(tmp_path, swap):
    """After ``recompile_limit`` graphs the model runs eagerly, without a word."""
    torch._dynamo.reset()
    names = ["gelu", "silu", "mish", "elu", "selu", "softplus", "tanh", "relu6"]
    chain = [swap({"*": name}, at_step=step) for step, name in enumerate(names, start=1)]
    with collected_warnings("recompile_limit") as messages:
        fit(tmp_path, *chain, compiled=True, max_steps=1)
    assert messages
