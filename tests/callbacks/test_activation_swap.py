"""The swap in a Trainer: made at the right time, logged, refused early, and made again from checkpoints."""

import csv
import functools
import logging
import random

import numpy as np
import pytest
import torch
from callback_helpers import (
    InputKeeper,
    SaveEachEpoch,
    SmallNet,
    activations_of,
    collected_warnings,
    loader,
    quiet_trainer,
)
from lightning.pytorch import Callback
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from torch import nn

from lit_gelu import activations, surgery
from lit_gelu.activations.errors import OpaqueActivationError, UnknownActivationError
from lit_gelu.callbacks import ActivationCurvatureMonitor, ActivationSwap, ActivationSwapListener, CallbackArgumentError
from lit_gelu.curvature import STATISTICS, activation_statistics
from lit_gelu.errors import LitGeluError
from lit_gelu.surgery import NoMatchError

RELU_TO_GELU = {"activation:relu": "gelu"}
STEPS_AN_EPOCH = 4


class Witness(Callback):
    """Notes which activations each batch is trained with, by epoch and optimizer steps before it."""

    def __init__(self):
        self.seen = []

    def on_before_zero_grad(self, trainer, pl_module, optimizer):
        self.seen.append((trainer.current_epoch, trainer.global_step, activations_of(pl_module)[0]))


def fit(folder, *callbacks, model=None, ckpt_path=None, **options):
    model = model or SmallNet()
    trainer = quiet_trainer(folder, *callbacks, **({"max_epochs": 3} | options))
    trainer.fit(model, loader(), ckpt_path=ckpt_path)
    return trainer, model


def logged_rows(folder):
    with (folder / "logs" / "0" / "metrics.csv").open() as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("curvature", [False, True])
@pytest.mark.parametrize("trigger", [{"at_epoch": 0}, {"at_epoch": 1}, {"at_step": 0}, {"at_step": 6}])
def test_swaps_at_the_trigger(tmp_path, trigger, curvature):
    witness = Witness()
    swap = ActivationSwap(RELU_TO_GELU, **trigger, curvature=curvature)
    _, model = fit(tmp_path, swap, witness)
    first = trigger.get("at_step", STEPS_AN_EPOCH * trigger.get("at_epoch", 0))
    assert [name for _, _, name in witness.seen] == ["ReLU"] * first + ["GELU"] * (12 - first)
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


def test_steps_are_optimizer_steps_under_accumulation(tmp_path):
    witness = Witness()
    fit(tmp_path, ActivationSwap(RELU_TO_GELU, at_step=1), witness, accumulate_grad_batches=2, max_epochs=1)
    assert [(step, name) for _, step, name in witness.seen] == [(0, "ReLU"), (1, "GELU")]


@pytest.mark.parametrize(
    ("target", "replaced"),
    [
        ("*.5", ["ReLU", "SiLU"]),
        ("class:torch.nn.ReLU", ["SiLU", "SiLU"]),
        (nn.ReLU, ["SiLU", "SiLU"]),
        (surgery.by_activation("relu"), ["SiLU", "SiLU"]),
    ],
)
@pytest.mark.parametrize("wanted", ["silu", {"name": "silu"}, {"class_path": "torch.nn.SiLU"}, nn.SiLU])
def test_targets_and_activations_in_every_form(tmp_path, target, replaced, wanted):
    _, model = fit(tmp_path, ActivationSwap({target: wanted}, at_step=0), max_epochs=1)
    assert activations_of(model) == replaced


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


def test_works_without_a_logger(tmp_path):
    _, model = fit(tmp_path, ActivationSwap(RELU_TO_GELU, at_epoch=1), logger=False)
    assert activations_of(model) == ["GELU", "GELU"]


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
    with pytest.raises(MisconfigurationException, match="leave curvature out"):
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


@pytest.mark.parametrize(
    "extract",
    [lambda batch: batch["x"], lambda batch: (batch["x"], 1.0), lambda batch: {"x": batch["x"], "scale": 1.0}],
)
def test_the_input_of_other_batches_is_what_the_caller_says(tmp_path, extract):
    swap = ActivationSwap(RELU_TO_GELU, at_step=2, curvature=True, input_from_batch=extract)
    quiet_trainer(tmp_path, swap, max_epochs=1).fit(DictBatches(), DictLoader())
    [row] = [row for row in logged_rows(tmp_path) if row["activation_swap/replaced"]]
    assert float(row["activation_swap/jump/relative"]) > 0


def test_a_batch_without_clear_input_is_refused_at_the_first_batch(tmp_path):
    swap, witness = ActivationSwap(RELU_TO_GELU, at_step=3, curvature=True), Witness()
    with pytest.raises(CallbackArgumentError, match="input_from_batch="):
        quiet_trainer(tmp_path, swap, witness, max_epochs=1).fit(DictBatches(), DictLoader())
    assert witness.seen == []


@pytest.mark.parametrize("swap_first", [True, False])
def test_swap_and_monitor_in_one_trainer_with_two_loggers(tmp_path, swap_first):
    class Compare(Callback):
        checked = 0

        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            step = trainer.global_step - 1
            for site, name in (("net.1", "relu" if step < 5 else "gelu"), ("net.5", "relu" if step < 5 else "silu")):
                expected = activation_statistics(name, keeper.inputs[step][site][0].double())
                assert monitor.latest[site] == pytest.approx(expected, rel=1e-6, abs=1e-7)
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


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # dynamo looks at it itself
def test_swap_and_monitor_on_a_compiled_module(tmp_path):
    def run(folder, module):
        monitor = ActivationCurvatureMonitor(every_n_steps=3, sample_rows=None)
        swap = ActivationSwap(RELU_TO_GELU, at_step=2, curvature=True)
        quiet_trainer(folder, monitor, swap, max_epochs=1).fit(module, loader())
        [row] = [row for row in logged_rows(folder) if row["activation_swap/replaced"]]
        swapped = {key: float(value) for key, value in row.items() if key.startswith("activation_swap") and value}
        return monitor.latest, swapped

    figures, swapped = run(tmp_path / "plain", SmallNet(dropout=0))
    model = SmallNet(dropout=0)
    compiled_figures, compiled_swapped = run(tmp_path / "compiled", torch.compile(model, backend="aot_eager"))
    assert activations_of(model) == ["GELU", "GELU"]
    assert compiled_swapped == pytest.approx(swapped, rel=1e-4, abs=1e-5)
    for site in figures:
        assert compiled_figures[site] == pytest.approx(figures[site], rel=1e-4, abs=1e-5)


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
        assert logged == pytest.approx(expected, rel=1e-6)
    old, new = torch.cat(outputs["before"]), torch.cat(outputs["after"])
    assert float(row["activation_swap/jump/max_absolute"]) == pytest.approx((new - old).abs().max().item(), rel=1e-5)
    relative = (new - old).norm() / old.norm()
    assert float(row["activation_swap/jump/relative"]) == pytest.approx(relative.item(), rel=1e-5)


# --- Refused early -------------------------------------------------------------------------------------------------


def test_no_match_is_refused_before_training_and_lists_the_sites(tmp_path):
    witness = Witness()
    with pytest.raises(NoMatchError, match=r"'net.1' \(relu\)"):
        fit(tmp_path, ActivationSwap({"encoder.*": "gelu"}, at_epoch=2), witness)
    assert witness.seen == []


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"at_epoch": 1, "at_step": 1}, CallbackArgumentError),
        ({}, CallbackArgumentError),
        ({"at_epoch": -1}, CallbackArgumentError),
        ({"swaps": {"*": "gleu"}, "at_epoch": 1}, UnknownActivationError),
        ({"swaps": {"*": torch.sinh}, "at_epoch": 1}, OpaqueActivationError),
        ({"at_epoch": 1, "when": "val_loss"}, CallbackArgumentError),
        ({"when": "val_loss", "mode": "smallest"}, CallbackArgumentError),
        ({"when": "val_loss", "patience": 0}, CallbackArgumentError),
        ({"when": "val_loss", "threshold": -1.0}, CallbackArgumentError),
        ({"at_epoch": 1, "anneal_steps": -1}, CallbackArgumentError),
        ({"at_epoch": 1, "anneal_steps": 1.5}, CallbackArgumentError),
        ({"at_epoch": 1, "learning_rate": 0.0}, CallbackArgumentError),
        ({"at_epoch": 1, "weight_decay": -0.1}, CallbackArgumentError),
        ({"swaps": {}, "at_epoch": 1}, LitGeluError),
        ({"swaps": {"class:torch.nn.Nothing": "gelu"}, "at_epoch": 1}, LitGeluError),
        ({"swaps": {3: "gelu"}, "at_epoch": 1}, LitGeluError),
        ({"swaps": ["gelu"], "at_epoch": 1}, CallbackArgumentError),
    ],
)
def test_wrong_arguments_are_refused_at_once(arguments, error):
    with pytest.raises(error):
        ActivationSwap(**({"swaps": RELU_TO_GELU} | arguments))


def test_a_trigger_beyond_the_end_warns(tmp_path):
    for trigger, end in (({"at_epoch": 3}, "3 epochs"), ({"at_step": 12}, "12 steps")):
        with collected_warnings("will not be made: this run ends after " + end) as messages:
            fit(tmp_path / end, ActivationSwap(RELU_TO_GELU, **trigger))
        assert len(messages) == 1


def test_a_swap_that_changes_nothing_warns(tmp_path):
    with collected_warnings("will change nothing") as messages:
        fit(tmp_path, ActivationSwap({"*": "gelu"}, at_epoch=1), model=SmallNet(nn.GELU))
    assert len(messages) == 1


# --- One swap after another ------------------------------------------------------------------------------------------


def chain():
    return ActivationSwap(RELU_TO_GELU, at_epoch=1), ActivationSwap({"activation:gelu": "silu"}, at_epoch=2)


@pytest.mark.parametrize("reverse", [False, True])
def test_a_swap_may_wait_for_the_result_of_another(tmp_path, reverse):
    witness = Witness()
    fit(tmp_path, *(chain()[::-1] if reverse else chain()), witness)
    assert [name for _, _, name in witness.seen] == ["ReLU"] * 4 + ["GELU"] * 4 + ["SiLU"] * 4


def test_what_no_other_swap_can_bring_is_refused_at_the_swap(tmp_path):
    with pytest.raises(NoMatchError, match="mish"):
        fit(tmp_path, chain()[0], ActivationSwap({"activation:mish": "silu"}, at_epoch=2))


# --- Checkpoints -----------------------------------------------------------------------------------------------------


def make_swaps(kind):
    if kind == "chain":
        return chain()
    if kind == "chain reversed":
        return chain()[::-1]
    return (ActivationSwap(RELU_TO_GELU, **{kind: 1 if kind == "at_epoch" else 5}, curvature=True),)


@pytest.mark.parametrize("kind", ["at_epoch", "at_step", "chain", "chain reversed"])
@pytest.mark.parametrize("epoch", [0, 1, 2])
def test_a_resumed_run_ends_bitwise_as_the_uninterrupted_one(tmp_path, kind, epoch):
    whole = SmallNet(dropout=0)
    fit(tmp_path, *make_swaps(kind), SaveEachEpoch(tmp_path), model=whole, max_epochs=4)
    resumed = SmallNet(dropout=0)
    fit(
        tmp_path / "resumed",
        *make_swaps(kind),
        model=resumed,
        max_epochs=4,
        ckpt_path=tmp_path / f"epoch{epoch}.ckpt",
    )
    assert activations_of(resumed) == activations_of(whole)
    assert resumed.losses == whole.losses[STEPS_AN_EPOCH * (epoch + 1) :]
    for (name, a), b in zip(whole.state_dict().items(), resumed.state_dict().values(), strict=True):
        assert torch.equal(a, b), name


def test_a_checkpoint_in_the_middle_of_an_epoch_resumes_with_the_swap(tmp_path):
    class SaveAt(Callback):
        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            if trainer.global_step == 6:
                trainer.save_checkpoint(tmp_path / "middle.ckpt")

    fit(tmp_path, ActivationSwap(RELU_TO_GELU, at_step=5), SaveAt())
    witness = Witness()
    with collected_warnings("resuming from a checkpoint that ended before the epoch ended"):
        fit(tmp_path / "b", ActivationSwap(RELU_TO_GELU, at_step=5), witness, ckpt_path=tmp_path / "middle.ckpt")
    assert witness.seen
    assert {name for _, _, name in witness.seen} == {"GELU"}


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


def test_state_is_plain_data_and_tells_what_was_replaced(tmp_path):
    swap = ActivationSwap(RELU_TO_GELU, at_epoch=1)
    fit(tmp_path, swap, SaveEachEpoch(tmp_path))
    before, after = (
        torch.load(tmp_path / f"epoch{epoch}.ckpt", weights_only=True)["callbacks"][swap.state_key] for epoch in (0, 1)
    )
    assert before == {"applied": False, "record": None}
    assert after["applied"]
    assert after["record"] == {
        "epoch": 1,
        "step": 4,
        "order": 0,
        "sites": {name: {"old": "relu", "new": "gelu"} for name in ("net.1", "net.5")},
    }


def test_state_keys_tell_swaps_apart_and_are_the_same_in_every_process():
    def key(swaps, **trigger):
        return ActivationSwap(swaps, **trigger).state_key

    assert key({nn.ReLU: "gelu"}, at_epoch=1) == key({"class:torch.nn.modules.activation.ReLU": nn.GELU}, at_epoch=1)
    assert key({surgery.by_activation("relu"): "gelu"}, at_epoch=1) == key(RELU_TO_GELU, at_epoch=1)
    assert "0x" not in key({surgery.by_activation(torch.relu): "gelu"}, at_epoch=1)
    keys = {
        key(RELU_TO_GELU, at_epoch=1),
        key(RELU_TO_GELU, at_epoch=2),
        key(RELU_TO_GELU, at_step=1),
        key({"activation:relu": "gelu_tanh"}, at_epoch=1),
        key({"*": "gelu"}, at_epoch=1),
    }
    assert len(keys) == 5


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


def test_a_checkpoint_that_says_nothing_warns_if_the_swap_was_made(tmp_path):
    fit(tmp_path / "other", SaveEachEpoch(tmp_path))
    trainer, model = fit(tmp_path, ActivationSwap(RELU_TO_GELU, at_epoch=1))
    with collected_warnings("says nothing of ActivationSwap") as messages:
        trainer.test(model, loader(), ckpt_path=tmp_path / "epoch0.ckpt", verbose=False)
    assert len(messages) == 1


def test_a_checkpoint_of_another_model_is_refused(tmp_path):
    swap = ActivationSwap(RELU_TO_GELU, at_epoch=1)
    fit(tmp_path, swap, SaveEachEpoch(tmp_path))

    class Renamed(SmallNet):
        def __init__(self):
            super().__init__()
            self.net[1] = nn.Identity()

    with pytest.raises(NoMatchError, match=r"'net\.1'"):
        fit(
            tmp_path / "b",
            ActivationSwap(RELU_TO_GELU, at_epoch=1),
            model=Renamed(),
            ckpt_path=tmp_path / "epoch1.ckpt",
        )


def test_one_swap_serves_one_model_after_another(tmp_path):
    swap = ActivationSwap(RELU_TO_GELU, at_epoch=1)
    for number in range(2):
        witness = Witness()
        fit(tmp_path / str(number), swap, witness)
        assert [name for _, _, name in witness.seen] == ["ReLU"] * 4 + ["GELU"] * 8


def test_state_loaded_by_hand_is_applied_at_the_start_of_the_fit(tmp_path):
    swap = ActivationSwap(RELU_TO_GELU, at_epoch=1)
    fit(tmp_path / "a", swap)
    other, witness = ActivationSwap(RELU_TO_GELU, at_epoch=1), Witness()
    other.load_state_dict(swap.state_dict())
    fit(tmp_path / "b", other, witness)
    assert {name for _, _, name in witness.seen} == {"GELU"}


def test_a_custom_registry_is_used_throughout(tmp_path):
    registry = activations.ActivationRegistry()

    @registry.register("half")
    def half(x):
        return x / 2

    make = functools.partial(ActivationSwap, {"activation:relu": "half"}, registry=registry, curvature=True)
    _, model = fit(tmp_path, make(at_epoch=1), SaveEachEpoch(tmp_path))
    assert str(registry.spec_of(model.net[1])) == "half"
    resumed = SmallNet()
    fit(tmp_path / "b", make(at_epoch=1), model=resumed, ckpt_path=tmp_path / "epoch1.ckpt")
    assert str(registry.spec_of(resumed.net[1])) == "half"
    with pytest.raises(UnknownActivationError):
        ActivationSwap({"activation:relu": "half"}, at_epoch=1)
