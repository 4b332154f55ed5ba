"""Swaps are made again from checkpoints, or taken back, so that a resumed run is the run that was interrupted."""

import pytest
import torch
from callback_helpers import SaveEachEpoch, SmallNet, activations_of, collected_warnings, loader, quiet_trainer
from swap_runs import RELU_TO_GELU, STEPS_AN_EPOCH, Witness, chain, fit

from lit_gelu.callbacks import ActivationSwap


def make_swaps(kind):
    if kind == "chain":
        return chain()
    if kind == "chain reversed":
        return chain()[::-1]
    return (ActivationSwap(RELU_TO_GELU, **{kind: 1 if kind == "at_epoch" else 5}),)


@pytest.mark.parametrize(
    ("kind", "epoch"),
    [("at_epoch", 0), ("at_epoch", 1), ("at_step", 1), ("chain", 0), ("chain", 1), ("chain reversed", 2)],
)
def test_a_resumed_run_ends_bitwise_as_the_uninterrupted_one(tmp_path, kind, epoch):
    reference = SmallNet(dropout=0)
    fit(tmp_path, *make_swaps(kind), SaveEachEpoch(tmp_path), model=reference, max_epochs=4)
    resumed = SmallNet(dropout=0)
    fit(tmp_path / "resumed", *make_swaps(kind), model=resumed, max_epochs=4, ckpt_path=tmp_path / f"epoch{epoch}.ckpt")
    assert activations_of(resumed) == activations_of(reference)
    assert resumed.losses == reference.losses[STEPS_AN_EPOCH * (epoch + 1) :]
    for (name, a), b in zip(reference.state_dict().items(), resumed.state_dict().values(), strict=True):
        assert torch.equal(a, b), name


@pytest.mark.parametrize("verb", ["test", "validate", "predict"])
@pytest.mark.parametrize(("epoch", "expected"), [(0, "ReLU"), (1, "GELU"), (2, "SiLU")])
def test_evaluating_a_checkpoint_uses_the_activations_it_was_trained_with(tmp_path, verb, epoch, expected):
    fit(tmp_path, *chain(), SaveEachEpoch(tmp_path))

    class Evaluated(SmallNet):
        validation_step = SmallNet.test_step
        seen = None

        def predict_step(self, batch, batch_idx):
            return self(batch[0])

        def forward(self, x):
            self.seen = activations_of(self)[0]
            return super().forward(x)

    model = Evaluated()
    trainer = quiet_trainer(tmp_path / "evaluation", *chain())
    with collected_warnings(""):  # this loader has no workers
        getattr(trainer, verb)(model, loader(), ckpt_path=tmp_path / f"epoch{epoch}.ckpt")
    assert model.seen == expected


@pytest.mark.parametrize("reverse", [False, True])
def test_loading_checkpoints_in_one_process_goes_back_and_forth(tmp_path, reverse):
    swaps = chain()[::-1] if reverse else chain()
    trainer, model = fit(tmp_path, *swaps, SaveEachEpoch(tmp_path))
    relu_losses = {}
    for epoch in (0, 2, 1, 0, 1, 2):
        with collected_warnings(""):
            [result] = trainer.test(model, loader(), ckpt_path=tmp_path / f"epoch{epoch}.ckpt", verbose=False)
        assert activations_of(model) == [["ReLU", "GELU", "SiLU"][epoch]] * 2
        assert relu_losses.setdefault(epoch, result) == result
    assert len({tuple(result.values()) for result in relu_losses.values()}) == 3


def test_the_record_is_plain_data_and_tells_what_was_replaced(tmp_path):
    swap = ActivationSwap(RELU_TO_GELU, at_epoch=1)
    fit(tmp_path, swap, SaveEachEpoch(tmp_path))
    before, after = (
        torch.load(tmp_path / f"epoch{epoch}.ckpt", weights_only=True)["lit_gelu_activation_swaps"] for epoch in (0, 1)
    )
    assert before == []
    sites = {name: {"old": "relu", "new": "gelu"} for name in ("net.1", "net.5")}
    record = {"epoch": 1, "step": 4, "logged_step": 4, "order": 0, "sites": sites}
    assert after == [{"state_key": swap.state_key, "record": record}]


def test_a_run_resumed_beyond_the_trigger_without_record_swaps_at_once(tmp_path):
    fit(tmp_path, SaveEachEpoch(tmp_path))
    for trigger in ({"at_epoch": 1}, {"at_step": 3}):
        witness = Witness()
        fit(
            tmp_path / str(trigger),
            ActivationSwap(RELU_TO_GELU, **trigger),
            witness,
            ckpt_path=tmp_path / "epoch1.ckpt",
        )
        assert [(epoch, name) for epoch, _, name in witness.seen] == [(2, "GELU")] * 4
