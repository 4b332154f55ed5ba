"""Swaps by a metric, and swaps that are annealed."""

import math

import pytest
import torch
from callback_helpers import SmallNet, activations_of, collected_warnings, dataset, loader, quiet_trainer
from lightning.pytorch import Callback
from swap_runs import TwoOptimizers
from torch import nn

from lit_gelu.callbacks import (
    ActivationSwap,
    ExactResume,
    load_from_checkpoint,
)
from lit_gelu.callbacks.swap.schedule import MetricTrigger
from lit_gelu.data import ResumableDataLoader
from lit_gelu.errors import ArgumentError, SwapError
from lit_gelu.surgery import (
    without_marks,
)
from lit_gelu.surgery.blend import Blend, blends

RELU_TO_GELU = {"activation:relu": "gelu"}
STEPS_AN_EPOCH = 4


class Scripted(SmallNet):
    """Logs the validation losses that a test gives, one a validation."""

    def __init__(self, values, name="val_loss"):
        super().__init__(dropout=0)
        self.values, self.name = values, name

    def validation_step(self, batch, batch_idx):
        if batch_idx == 0:
            self.log(self.name, torch.tensor(self.values[self.trainer.global_step // STEPS_AN_EPOCH - 1]))


class Seen(Callback):
    """The activation that each step is made with."""

    def __init__(self):
        self.names = []

    def on_before_zero_grad(self, trainer, pl_module, optimizer):
        self.names.append(activations_of(pl_module)[0])


class SaveEveryStep(Callback):
    def __init__(self, folder):
        self.folder = folder

    def on_train_batch_end(self, trainer, pl_module, *arguments):
        trainer.save_checkpoint(self.folder / f"step{trainer.global_step}.ckpt")


def fit(folder, model, *callbacks, ckpt_path=None, **options):
    trainer = quiet_trainer(folder, *callbacks, **({"max_epochs": 6} | options))
    with collected_warnings(""):  # loaders without workers
        training = ResumableDataLoader(dataset(), batch_size=8)
        trainer.fit(model, training, loader() if hasattr(model, "values") else None, ckpt_path=ckpt_path)
    return trainer


# --- The rule ---


def test_stops_improving_as_early_stopping_counts():
    from lightning.pytorch.callbacks import EarlyStopping

    values = torch.rand(60, generator=torch.Generator().manual_seed(1)).tolist()
    for mode in ("min", "max"):
        ours = MetricTrigger(mode, patience=4, threshold=0.05)
        theirs = EarlyStopping("loss", min_delta=0.05, patience=4, mode=mode, check_finite=False)
        for value in values:
            stop, _ = theirs._evaluate_stopping_criteria(torch.tensor(value, dtype=torch.float64))
            assert ours.check(value) == stop
            if stop:
                break
        assert stop


def test_nan_is_no_improvement_and_a_first_nan_no_best():
    trigger = MetricTrigger(patience=2)
    assert [trigger.check(value) for value in (float("nan"), 1.0, float("nan"), float("nan"))] == [False] * 3 + [True]


def test_reaches_a_value():
    rising, falling = MetricTrigger("max", reaches=0.5), MetricTrigger("min", reaches=0.5)
    assert [rising.check(value) for value in (0.4, 0.5, 0.1)] == [False, True, True]
    assert [falling.check(value) for value in (0.6, float("nan"), 0.5)] == [False, False, True]


# --- In a Trainer ---


@pytest.mark.parametrize(
    ("rule", "first"),
    [
        ({"patience": 2}, 4),  # best in epoch 1, not better in 2 and 3: from epoch 4 on
        ({"patience": 1, "threshold": 0.3}, 2),
        ({"reaches": 0.85}, 5),
        ({"patience": 1, "mode": "max"}, 2),
    ],
)
def test_swaps_before_the_batch_after_the_metric_says_so(tmp_path, rule, first):
    model, seen = Scripted([1.0, 0.9, 0.95, 0.9, 0.8, 0.8]), Seen()
    fit(tmp_path, model, ActivationSwap(RELU_TO_GELU, when="val_loss", **rule), seen)
    assert seen.names == ["ReLU"] * STEPS_AN_EPOCH * first + ["GELU"] * STEPS_AN_EPOCH * (6 - first)


def test_a_training_metric_at_the_end_of_the_epoch(tmp_path):
    class Training(SmallNet):
        def training_step(self, batch, batch_idx):
            self.log("loss_of_epoch", float(self.trainer.current_epoch), on_epoch=True, on_step=False)
            return super().training_step(batch, batch_idx)

    seen = Seen()
    fit(tmp_path, Training(), ActivationSwap(RELU_TO_GELU, when="loss_of_epoch", patience=2), seen)
    assert seen.names.count("ReLU") == 3 * STEPS_AN_EPOCH


def test_a_metric_that_is_not_logged_is_named(tmp_path):
    with pytest.raises(ArgumentError):
        fit(tmp_path, Scripted([1.0] * 6), ActivationSwap(RELU_TO_GELU, when="val_los"))


@pytest.mark.parametrize("step", [6, 8, 11, 13, 17])
def test_resumes_with_what_the_checks_have_come_to(tmp_path, step):
    values = [1.0, 0.9, 0.95, 0.9, 0.8, 0.8]
    whole, swap = Scripted(values), {"when": "val_loss", "patience": 2}
    fit(tmp_path, whole, ActivationSwap(RELU_TO_GELU, **swap), ExactResume(), SaveEveryStep(tmp_path))
    resumed = Scripted(values)
    resumed_swap = ActivationSwap(RELU_TO_GELU, **swap)
    fit(tmp_path / "b", resumed, resumed_swap, ExactResume(), ckpt_path=tmp_path / f"step{step}.ckpt")
    assert resumed_swap.record.step == 16
    assert activations_of(resumed) == ["GELU", "GELU"]


# --- Annealed ---


class Blended(Callback):
    """The output of every site at each step, against the mixture computed by hand."""

    def __init__(self):
        self.shares = []

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        site = pl_module.net[1]
        x = torch.linspace(-3, 3, 32).reshape(2, 16)
        with torch.no_grad():
            output = site(x)
        share = trainer.global_step / 5 - 3 / 5
        if 3 <= trainer.global_step < 8:
            expected = (1 - share) * torch.relu(x).double() + share * nn.functional.gelu(x.double())
            torch.testing.assert_close(output.double(), expected, rtol=0, atol=1e-6)
        expected_type = nn.ReLU if share < 0 else Blend if share < 1 else nn.GELU
        self.shares.append(type(site) is expected_type)


def annealed(target="activation:relu", wanted="gelu", at_step=3, steps=5):
    return ActivationSwap({target: wanted}, at_step=at_step, anneal_steps=steps)


def test_the_new_activation_comes_step_by_step_and_ends_as_the_plain_module(tmp_path):
    model, watch = SmallNet(dropout=0), Blended()
    fit(tmp_path, model, annealed(), watch, max_epochs=3)
    assert watch.shares == [True] * 12
    plain, weights = SmallNet(nn.GELU, dropout=0), model.state_dict()
    without_marks(weights)
    plain.load_state_dict(weights)
    x = torch.randn(5, 6)
    assert torch.equal(model.eval()(x), plain.eval()(x))
    assert list(weights) == list(plain.state_dict())


def test_a_run_that_ends_with_the_last_step_has_the_plain_modules(tmp_path):
    model = SmallNet(dropout=0)
    fit(tmp_path, model, annealed(at_step=3, steps=5), max_epochs=2)
    assert activations_of(model) == ["GELU", "GELU"]


def test_a_run_that_ends_before_warns(tmp_path):
    with collected_warnings("left halfway") as messages:
        quiet_trainer(tmp_path, annealed(at_step=3, steps=6), max_epochs=2).fit(SmallNet(), loader())
    assert len(messages) == 1


def test_another_trainer_goes_on_where_the_blend_is(tmp_path):
    class Shares(Callback):
        def __init__(self):
            self.seen = []

        def on_train_batch_start(self, trainer, pl_module, *arguments):
            self.seen += [round(float(blend.progress), 6) for blend in blends(pl_module).values()]

    model, swap, shares = SmallNet(dropout=0), annealed("net.1", at_step=2, steps=5), Shares()
    with collected_warnings("left halfway"):
        quiet_trainer(tmp_path / "a", swap, shares, max_epochs=1).fit(model, loader())
    assert shares.seen == [0, 0.2]  # of the steps 2 and 3
    shares.seen.clear()
    fit(tmp_path / "b", model, swap, shares, max_epochs=2)
    assert shares.seen == [0.4, 0.6, 0.8]
    assert isinstance(model.net[1], nn.GELU)
    assert not swap.record.annealing


def test_another_trainer_has_the_step_in_logs_that_its_batches_have(tmp_path):
    model, swap = TwoOptimizers(), ActivationSwap({"net.1": "gelu"}, at_step=4, anneal_steps=20)
    first = quiet_trainer(tmp_path / "a", swap, max_epochs=1)
    first.fit(model, loader())
    made_at = (swap.record.step, swap.record.step_in_logs)
    assert made_at == (4, 2)  # two steps a batch
    other = quiet_trainer(tmp_path / "b", swap)
    other.test(model, loader(), verbose=False)
    assert swap.record.step_in_logs == 0  # before the first batch of that Trainer
    first.fit_loop.max_epochs = 2
    first.fit(model, loader())
    assert (swap.record.step, swap.record.step_in_logs) == made_at


def test_both_halves_are_trained_and_the_old_one_leaves_the_optimizer(tmp_path):
    class Look(Callback):
        def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
            held = {id(p) for group in trainer.optimizers[0].param_groups for p in group["params"]}
            assert held == {id(parameter) for parameter in pl_module.parameters()}
            names = [name for name, _ in pl_module.named_parameters() if name.startswith("net.1")]
            blended = 3 <= trainer.global_step < 8
            wanted = ["net.1.old.weight", "net.1.new.log_scale"]
            assert names == (wanted if blended else ["net.1.weight" if trainer.global_step < 3 else "net.1.log_scale"])

    look = Look()
    swap = annealed("activation:prelu", "swish(learnable=True)")
    fit(tmp_path, SmallNet(nn.PReLU, dropout=0), swap, look, max_epochs=3)  # looks after the swap


@pytest.mark.parametrize("step", [2, 3, 4, 6, 7, 8, 10])
def test_resumes_in_the_middle(tmp_path, step):
    def swaps():
        return [annealed("net.1", "swish(learnable=True)"), annealed("net.5", "prelu", at_step=6, steps=4)]

    whole = SmallNet(dropout=0)
    fit(tmp_path, whole, *swaps(), SaveEveryStep(tmp_path), max_epochs=4)
    resumed = SmallNet(dropout=0)
    fit(tmp_path / "b", resumed, *swaps(), max_epochs=4, ckpt_path=tmp_path / f"step{step}.ckpt")
    assert resumed.losses == whole.losses[step:]
    for (name, a), b in zip(whole.state_dict().items(), resumed.state_dict().values(), strict=True):
        assert torch.equal(a, b), name


def test_a_checkpoint_from_the_middle_loads_without_a_trainer(tmp_path):
    class Outputs(Callback):
        def on_train_batch_end(self, trainer, pl_module, *arguments):
            if trainer.global_step == 5:
                pl_module.eval()
                with torch.no_grad():
                    self.output = pl_module(torch.ones(2, 6))
                pl_module.train()

    outputs = Outputs()
    fit(tmp_path, SmallNet(dropout=0), annealed(), outputs, SaveEveryStep(tmp_path), max_epochs=2)
    model = load_from_checkpoint(SmallNet, tmp_path / "step5.ckpt", weights_only=True)
    assert isinstance(model.net[1], Blend)
    assert model.net[1].progress == torch.tensor(2 / 5)
    assert torch.equal(model.eval()(torch.ones(2, 6)), outputs.output)


def test_a_site_that_is_being_annealed_cannot_be_swapped(tmp_path):
    with pytest.raises(SwapError):
        fit(tmp_path, SmallNet(), annealed(), ActivationSwap({"*": "silu"}, at_step=5), max_epochs=3)


def test_hooks_of_the_site_see_the_blend_once(tmp_path):
    model, calls = SmallNet(dropout=0), []
    model.net[1].register_forward_hook(lambda module, args, output: calls.append(type(module)))
    fit(tmp_path, model, annealed(), max_epochs=3)
    assert calls == [nn.ReLU] * 3 + [Blend] * 5 + [nn.GELU] * 4


def test_an_activation_that_overwrites_its_input_is_given_its_own(tmp_path):
    blend = Blend(nn.ReLU(inplace=True), nn.Identity())
    blend.progress.fill_(0.5)
    x = torch.tensor([-2.0, 2.0])
    assert blend(x).tolist() == [-1.0, 2.0]
    assert x.tolist() == [-2.0, 2.0]


def test_the_fused_path_of_a_transformer_is_off_meanwhile(tmp_path):
    from lit_gelu import surgery
    from lit_gelu.callbacks.swap.history import LiveSwap

    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, activation=nn.ReLU()).eval()
    plan = surgery.plan_swap(layer, {"activation": "gelu"})
    live = LiveSwap.make(plan, plan.apply, 0, annealing=True)
    live.annealing.set_progress(0.5)
    x = torch.randn(1, 3, 8)
    with torch.no_grad():
        fused = layer(x)
    torch.testing.assert_close(fused, layer(x.requires_grad_()).detach(), rtol=1e-5, atol=1e-6)
    live.finish_annealing()
    assert layer.activation_relu_or_gelu == 2


def test_a_metric_that_is_never_a_number_does_not_improve():
    trigger = MetricTrigger(patience=3)
    assert [trigger.check(math.nan) for _ in range(4)] == [False, False, True, True]
