"""Calls of functions, swapped during training and found again in checkpoints."""

import functools

import pytest
import swap_runs
import torch
from callback_helpers import FEATURES, FunctionalNet, SaveEachEpoch
from torch.nn import functional

from lit_gelu.callbacks import ActivationSwap, load_from_checkpoint
from lit_gelu.errors import CheckpointError, SwapError

SAMPLE = torch.zeros(2, FEATURES)


Functional = functools.partial(FunctionalNet, dropout=0.0, example=SAMPLE)


def swaps(sample=SAMPLE):
    return [
        ActivationSwap({":gelu": "prelu", "act#1": "silu"}, at_step=3, input_sample=sample),
        ActivationSwap({"act": "silu", ":gelu": "swish(learnable=True)"}, at_step=6, input_sample=sample),
    ]


def fit(folder, *callbacks, model=None, **options):
    return swap_runs.fit(folder, *callbacks, model=model or Functional(), **({"max_epochs": 4} | options))


@pytest.mark.parametrize(("epoch", "sample"), [(0, SAMPLE), (1, None), (2, "example_input_array")])
def test_swapped_calls_are_there_after_a_resume(tmp_path, epoch, sample):
    trainer, model = fit(tmp_path, *swaps(sample), SaveEachEpoch(tmp_path))
    assert {name for name, _ in model.named_parameters() if "call" in name} == {"gelu_call.log_scale"}
    assert sum(len(group["params"]) for group in trainer.optimizers[0].param_groups) == len(list(model.parameters()))
    _, resumed = fit(tmp_path / "b", *swaps(), ckpt_path=tmp_path / f"epoch{epoch}.ckpt")
    for (name, a), b in zip(model.state_dict().items(), resumed.state_dict().values(), strict=True):
        assert torch.equal(a, b), name


def test_a_resume_without_the_sample_says_what_to_give(tmp_path):
    fit(tmp_path, *swaps(), SaveEachEpoch(tmp_path), max_epochs=2)
    with pytest.raises(CheckpointError):
        fit(tmp_path / "b", *swaps(None), ckpt_path=tmp_path / "epoch1.ckpt", model=Functional(example=None))


def test_loads_without_a_trainer_by_the_modules_own_sample(tmp_path):
    _, model = fit(tmp_path, *swaps(), SaveEachEpoch(tmp_path))
    for sample in (None, SAMPLE):
        loaded = load_from_checkpoint(FunctionalNet, tmp_path / "epoch3.ckpt", example=SAMPLE, input_sample=sample)
        assert torch.equal(loaded.eval()(SAMPLE + 1), model.eval()(SAMPLE + 1))

    with pytest.raises(CheckpointError):
        load_from_checkpoint(FunctionalNet, tmp_path / "epoch3.ckpt")


def test_a_call_that_cannot_be_swapped_stops_the_run_before_training(tmp_path):
    class Obstructed(FunctionalNet):
        def forward(self, x):
            return super().forward(x) + functional.gelu(*[self.net(x)])

    model = Obstructed()
    with pytest.raises(SwapError):
        fit(tmp_path, ActivationSwap({"*": "silu"}, at_step=3, input_sample=SAMPLE), model=model)
    assert model.losses == []
