"""The swap in a Trainer: made at the right time, in every form, told to others, and refused early."""

import functools
import logging

import pytest
import torch
from callback_helpers import InputKeeper, SaveEachEpoch, SmallNet, activations_of, logged_rows
from lightning.pytorch import Callback
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from swap_runs import RELU_TO_GELU, STEPS_AN_EPOCH, Witness, chain, fit

from lit_gelu import activations
from lit_gelu.callbacks import ActivationCurvatureMonitor, ActivationSwap, ActivationSwapListener
from lit_gelu.curvature import activation_statistics
from lit_gelu.errors import ArgumentError, LitGeluError, SpecError, SwapError, UnknownActivationError


@pytest.mark.parametrize("trigger", [{"at_epoch": 0}, {"at_epoch": 1}, {"at_step": 0}, {"at_step": 6}])
def test_swaps_at_the_trigger(tmp_path, trigger):
    witness = Witness()
    swap = ActivationSwap(RELU_TO_GELU, **trigger)
    _, model = fit(tmp_path, swap, witness)
    first = trigger.get("at_step", STEPS_AN_EPOCH * trigger.get("at_epoch", 0))
    assert witness.names == ["ReLU"] * first + ["GELU"] * (12 - first)
    assert activations_of(model) == ["GELU", "GELU"]
    assert [(row.name, str(row.old), str(row.new)) for row in swap.report.rows] == [
        ("net.1", "relu", "gelu"),
        ("net.5", "relu", "gelu"),
    ]


def test_the_modules_own_hook_of_the_epoch_sees_the_new_activations(tmp_path):
    class Looks(SmallNet):
        seen = ()

        def on_train_epoch_start(self):
            self.seen = (*self.seen, activations_of(self)[0])

    _, model = fit(tmp_path, ActivationSwap(RELU_TO_GELU, at_epoch=1), model=Looks())
    assert model.seen == ("ReLU", "GELU", "GELU")


def test_steps_are_optimizer_steps_under_accumulation_and_no_logger_is_needed(tmp_path):
    witness, swap = Witness(), ActivationSwap(RELU_TO_GELU, at_step=1)
    fit(tmp_path, swap, witness, accumulate_grad_batches=2, max_epochs=1, logger=False)
    assert [(step, name) for _, step, name in witness.seen] == [(0, "ReLU"), (1, "GELU")]


def test_one_line_and_one_record_say_what_was_replaced(tmp_path, caplog):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    loggers = [CSVLogger(tmp_path, name="logs", version="0"), TensorBoardLogger(tmp_path, name="board", version="0")]
    with caplog.at_level(logging.INFO, logger="lightning.pytorch.utilities.rank_zero"):
        fit(tmp_path, ActivationSwap(RELU_TO_GELU, at_epoch=1), logger=loggers)
    lines = [record.getMessage() for record in caplog.records if "ActivationSwap" in record.getMessage()]
    assert lines == ["ActivationSwap at epoch 1, step 4: relu -> gelu at net.1, net.5"]
    rows = [row for row in logged_rows(tmp_path) if row["activation_swap/replaced"]]
    assert [(row["step"], float(row["activation_swap/replaced"])) for row in rows] == [("4", 2.0)]
    hyperparameters = (tmp_path / "logs" / "0" / "hparams.yaml").read_text()
    board = EventAccumulator(str(tmp_path / "board" / "0")).Reload()
    for site in ("net.1", "net.5"):
        assert f"activation_swap/step_4/{site}: relu -> gelu" in hyperparameters
        [event] = board.Tensors(f"activation_swap/step_4/{site}/text_summary")
        assert (event.step, list(event.tensor_proto.string_val)) == (4, [b"relu -> gelu"])
    events = board.Scalars("activation_swap/replaced")
    assert [(event.step, event.value) for event in events] == [(4, 2.0)]


def test_every_listener_is_told_and_others_are_left_alone(tmp_path):
    class Listener(Callback):
        reports = ()

        def on_activations_swapped(self, trainer, pl_module, report):
            assert activations_of(pl_module) == ["GELU", "GELU"]
            self.reports = (*self.reports, report)

    listener = Listener()
    swap = ActivationSwap(RELU_TO_GELU, at_step=2)
    assert isinstance(listener, ActivationSwapListener)
    assert not isinstance(swap, ActivationSwapListener)
    fit(tmp_path, listener, swap)
    assert listener.reports == (swap.report,)


def test_no_match_is_refused_before_training_and_lists_the_sites(tmp_path):
    witness = Witness()
    with pytest.raises(SwapError):
        fit(tmp_path, ActivationSwap({"encoder.*": "gelu"}, at_epoch=2), witness)
    assert witness.seen == []


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({}, ArgumentError),
        ({"swaps": {"*": "gleu"}, "at_epoch": 1}, UnknownActivationError),
        ({"swaps": {"*": torch.sinh}, "at_epoch": 1}, SpecError),
        ({"when": "val_loss", "mode": "smallest"}, ArgumentError),
        ({"when": "val_loss", "patience": 0}, ArgumentError),
        ({"at_epoch": 1, "patience": 2}, ArgumentError),
        ({"swaps": {}, "at_epoch": 1}, LitGeluError),
        ({"swaps": {"class:torch.nn.Nothing": "gelu"}, "at_epoch": 1}, LitGeluError),
        ({"swaps": {3: "gelu"}, "at_epoch": 1}, LitGeluError),
        ({"swaps": ["gelu"], "at_epoch": 1}, ArgumentError),
    ],
)
def test_wrong_arguments_are_refused_at_once(arguments, error):
    with pytest.raises(error):
        ActivationSwap(**({"swaps": RELU_TO_GELU} | arguments))


def test_what_no_other_swap_can_bring_is_refused_at_the_swap(tmp_path):
    with pytest.raises(SwapError):
        fit(tmp_path, chain()[0], ActivationSwap({"activation:mish": "silu"}, at_epoch=2))


def test_one_swap_serves_one_model_after_another(tmp_path):
    swap = ActivationSwap(RELU_TO_GELU, at_epoch=1)
    for number in range(2):
        witness = Witness()
        fit(tmp_path / str(number), swap, witness)
        assert witness.names == ["ReLU"] * 4 + ["GELU"] * 8


def test_a_custom_registry_is_used_throughout(tmp_path):
    registry = activations.ActivationRegistry()

    @registry.register("half")
    def half(x):
        return x / 2

    make = functools.partial(ActivationSwap, {"activation:relu": "half"}, registry=registry)
    _, model = fit(tmp_path, make(at_epoch=1), SaveEachEpoch(tmp_path))
    assert str(registry.spec_of(model.net[1])) == "half"
    resumed = SmallNet()
    fit(tmp_path / "b", make(at_epoch=1), model=resumed, ckpt_path=tmp_path / "epoch1.ckpt")
    assert str(registry.spec_of(resumed.net[1])) == "half"
    with pytest.raises(UnknownActivationError):
        ActivationSwap({"activation:relu": "half"}, at_epoch=1)


@pytest.mark.parametrize("swap_first", [True, False])
def test_a_monitor_beside_it_measures_the_new_activations(tmp_path, swap_first):
    class Compare(Callback):
        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            step = trainer.global_step - 1
            for site, name in (("net.1", "relu" if step < 5 else "gelu"), ("net.5", "relu" if step < 5 else "silu")):
                expected = activation_statistics(name, keeper.inputs[step][site][0].double())
                figures = {key: monitor.latest[site][key] for key in expected if key != "kink_mass"}
                assert figures == pytest.approx({key: expected[key] for key in figures}, rel=1e-6, abs=1e-7)

    keeper, monitor = InputKeeper(), ActivationCurvatureMonitor(every_n_steps=1, sample_rows=None)
    swap = ActivationSwap({"net.1": "gelu", "net.5": "silu"}, at_step=5)
    fit(tmp_path, *([swap, keeper, monitor] if swap_first else [monitor, swap, keeper]), Compare())
    rows = logged_rows(tmp_path)
    assert [row["step"] for row in rows if row["curvature/net.1/mean"]] == [str(step) for step in range(12)]
