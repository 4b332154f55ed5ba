"""`RunReport`: the page has what the loggers have, and is written whatever becomes of the run."""

import csv
import math
from importlib.metadata import version

import pytest
import torch
from callback_helpers import SmallNet, collected_warnings, loader, quiet_trainer
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import ModelCheckpoint
from swap_runs import TwoOptimizers
from torch import nn

from lit_gelu.callbacks import (
    ActivationCurvatureMonitor,
    ActivationSwap,
    LossCurvatureMonitor,
    RunReport,
)
from lit_gelu.errors import ArgumentError, SwapError, UnsupportedRunError
from lit_gelu.files import UnwritablePathError
from lit_gelu.report import read_report
from lit_gelu.report.site_figures import spec_at


class Fails(Callback):
    def __init__(self, error):
        self.error = error

    def on_train_epoch_end(self, trainer, pl_module):
        raise self.error


def logged(folder):
    """The points of a CSVLogger's table by name, as Python's csv reads them."""
    points = {}
    with (folder / "logs" / "0" / "metrics.csv").open() as file:
        for row in csv.DictReader(file):
            for name, text in row.items():
                if text and name != "step":
                    points.setdefault(name, {})[int(row["step"])] = float(text)
    return points


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    swap = ActivationSwap({"net.1": "gelu"}, at_epoch=1)
    report = RunReport(title="<b>")
    monitor = ActivationCurvatureMonitor(every_n_steps=2)
    trainer = quiet_trainer(folder, report, swap, monitor)  # first in the list
    net = SmallNet()
    trainer.fit(net, loader())
    trainer.test(net, loader(), verbose=False)
    return folder, read_report(folder / "logs" / "0" / "report.html"), report, trainer


def test_the_same_points_as_the_logger(run):
    folder, found, _, _ = run
    curves = {curve.name: dict(zip(curve.steps, curve.values, strict=True)) for curve in found.curves}
    expected = logged(folder)
    assert {"train_loss", "test_loss", "curvature/net.1/share_linear"} <= expected.keys()
    assert expected.keys() == curves.keys() - {"learning_rate/AdamW"}
    for name, points in expected.items():
        assert curves[name] == pytest.approx(points, rel=1e-6, nan_ok=True), name


def test_what_else_it_says(run):
    _, found, report, trainer = run
    assert (found.status, found.steps, found.epochs, found.environment_of) == ("finished", 8, 2, "run")
    assert [(site.name, site.at_start, site.at_end) for site in found.sites] == [
        ("net.1", "relu", "gelu"),
        ("net.5", "relu", "relu"),
    ]
    assert [(swap.step, swap.epoch) for swap in found.swaps] == [(4, 1)]
    assert found.curve("learning_rate/AdamW").values == (0.01,) * 8
    assert (found.optimizers[0].name, found.optimizers[0].plain) == ("AdamW", False)
    assert found.configuration["Module"]["class"].endswith("SmallNet")
    assert found.environment["torch"] == version("torch")
    assert (found.title, report.report.title) == ("<b>", "<b>")
    assert report.written.name == "report.html"
    assert len(trainer.loggers) == 1


@pytest.mark.pictures
def test_without_a_logger_and_without_a_trace(tmp_path):
    weights = []
    for others in ([], [RunReport(), ActivationCurvatureMonitor(every_n_steps=2)]):
        checkpoint = ModelCheckpoint(save_last=True)
        options = {"logger": False, "enable_checkpointing": True}
        folder = tmp_path / str(len(others))
        net = SmallNet()
        trainer = quiet_trainer(folder, *others[::-1], checkpoint, **options)
        trainer.fit(net, loader())
        weights.append(net.state_dict())
        assert checkpoint.dirpath == str(folder / "checkpoints")
        assert (trainer.logger, trainer.loggers) == (None, [])
    assert all(torch.equal(one, other) for one, other in zip(*(w.values() for w in weights), strict=True))
    found = read_report(tmp_path / "2" / "report.html")
    assert len(found.curve("train_loss").steps) == 8
    assert len(found.curve("curvature/net.5/mean").steps) == 4
    assert not list((tmp_path / "2").glob("*.png"))


def test_with_two_optimizer_steps_a_batch_the_swap_is_where_the_curves_have_it(tmp_path):
    report = RunReport(tmp_path / "report.html")
    callbacks = [report, ActivationSwap({"net.1": "gelu"}, at_epoch=1), ActivationCurvatureMonitor(every_n_steps=1)]
    quiet_trainer(tmp_path, *callbacks).fit(TwoOptimizers(), loader())
    (swap,) = report.report.swaps
    kinks = report.report.curve("curvature/net.1/kink_mass")  # of ReLU alone
    assert swap.step == next(step for step, value in zip(kinks.steps, kinks.values, strict=True) if value == 0) == 4
    assert spec_at("net.1", 3, report.report) == "relu"
    assert spec_at("net.1", 4, report.report) == spec_at("net.1", 7, report.report) == "gelu"


class OneCall(SmallNet):
    """A net with activation modules, and a call of a function behind them."""

    def forward(self, x):
        return torch.nn.functional.relu(super().forward(x))


def test_what_a_swapped_call_was_before(tmp_path):
    swaps = [
        ActivationSwap({old: new}, at_epoch=epoch, input_sample=torch.zeros(1, 6))
        for epoch, old, new in ((0, ":relu", "silu"), (1, "activation:silu", "mish"))
    ]
    report = RunReport(tmp_path / "report.html")
    quiet_trainer(tmp_path, report, *swaps, max_epochs=2).fit(OneCall(), loader())
    (site,) = [site for site in report.report.sites if site.name == ":relu"]
    assert (site.at_start, site.at_end) == ("relu", "mish")


def test_a_test_of_a_checkpoint_from_before_a_swap_leaves_the_fits_swaps(tmp_path):
    report, saving = RunReport(tmp_path / "report.html"), ModelCheckpoint(tmp_path / "saved", "{epoch}", save_top_k=-1)
    callbacks = [ActivationSwap({"net.1": "gelu"}, at_epoch=1), report, saving]
    trainer = quiet_trainer(tmp_path, *callbacks, enable_checkpointing=True)
    net = SmallNet()
    trainer.fit(net, loader())
    trainer.test(net, loader(), ckpt_path=tmp_path / "saved" / "epoch=0.ckpt", verbose=False)
    assert isinstance(net.net[1], nn.ReLU)
    found = read_report(tmp_path / "report.html")
    assert [(site.at_start, site.at_end) for site in found.sites] == [("relu", "gelu"), ("relu", "relu")]
    assert [(swap.step, swap.epoch) for swap in found.swaps] == [(4, 1)]
    assert found.curve("test_loss")


def test_monitors_without_either_are_refused(tmp_path):
    with pytest.raises(UnsupportedRunError, match=r"nowhere to log to.* or the callback RunReport"):
        quiet_trainer(tmp_path, LossCurvatureMonitor(), logger=False).fit(SmallNet(), loader())


@pytest.mark.parametrize(
    ("error", "ended", "status"),
    [(RuntimeError("</script>"), RuntimeError, "failed"), (KeyboardInterrupt(), SystemExit, "interrupted")],
    ids=["error", "interrupt"],
)
def test_a_run_that_does_not_end_well(error, ended, status, tmp_path, monkeypatch):
    monkeypatch.setattr("signal.signal", lambda *_: None)  # Lightning turns Ctrl-C off
    with pytest.raises(ended):
        quiet_trainer(tmp_path, Fails(error), RunReport(str(tmp_path / "page.html"))).fit(SmallNet(), loader())
    found = read_report(tmp_path / "page.html")
    assert (found.status, found.steps) == (status, 4)
    assert found.failure == ("RuntimeError: </script>" if status == "failed" else "")
    assert found.findings[0].topic == f"{status} run"


def test_a_run_that_is_refused_before_its_start_leaves_no_logger_behind(tmp_path):
    swap = ActivationSwap({"nowhere": "gelu"}, at_step=1)
    trainer = quiet_trainer(tmp_path, swap, RunReport())
    before = list(trainer.loggers)
    with pytest.raises(SwapError):
        trainer.fit(SmallNet(), loader())
    assert trainer.loggers == before


def test_the_error_of_the_run_is_raised_where_the_page_cannot_be_written(tmp_path, monkeypatch):
    monkeypatch.setattr("lit_gelu.callbacks.run_report.page", lambda run: 1 / 0)
    with collected_warnings("the page was not written") as messages, pytest.raises(RuntimeError, match="mine"):
        quiet_trainer(tmp_path, Fails(RuntimeError("mine")), RunReport()).fit(SmallNet(), loader())
    assert ["ZeroDivisionError" in message for message in messages] == [True]


def test_a_loss_that_is_no_number(tmp_path):
    class Diverges(SmallNet):
        def training_step(self, batch, batch_idx):
            loss = super().training_step(batch, batch_idx)
            self.log("train_loss_of_nan", math.nan)
            return loss

    report = RunReport(str(tmp_path / "page.html"))
    quiet_trainer(tmp_path, report, max_epochs=1).fit(Diverges(), loader())
    assert ("alarm", "loss not finite") in {(f.level, f.topic) for f in read_report(tmp_path / "page.html").findings}


@pytest.mark.filterwarnings("ignore:.*configure_optimizers. returned .None.")
def test_a_run_without_an_optimizer(tmp_path):
    class Fixed(SmallNet):
        def configure_optimizers(self):
            return None

    report, monitor = RunReport(), LossCurvatureMonitor(["top_eigenvalue"], every_n_steps=1, fraction=None)
    quiet_trainer(tmp_path, report, monitor, max_epochs=1).fit(Fixed(dropout=0), loader())
    found = read_report(report.written)
    assert (found.status, found.optimizers) == ("finished", ())
    assert "Optimizers" not in found.configuration
    assert [finding.level for finding in found.findings if finding.topic == "sharpness"] == ["note"]


def test_nothing_after_a_trial_run(tmp_path):
    report = RunReport()
    quiet_trainer(tmp_path, report, fast_dev_run=True).fit(SmallNet(), loader())
    assert report.written is None
    assert not list(tmp_path.rglob("*.html"))


def test_refusals(tmp_path):
    with pytest.raises(ArgumentError, match=r"must end in \.html"):
        RunReport("page.pdf")
    with pytest.raises(ArgumentError, match="a list of paths"):
        RunReport(onnx_files="net.onnx")
    (tmp_path / "file").touch()
    with pytest.raises(UnwritablePathError):
        quiet_trainer(tmp_path, RunReport(str(tmp_path / "file" / "page.html"))).fit(SmallNet(), loader())


class FailsEarly(Callback):
    def on_fit_start(self, trainer, pl_module):
        raise ZeroDivisionError


def test_a_fit_that_failed_before_it_began_has_no_page_from_a_later_test(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    report, model = RunReport(), SmallNet()
    trainer = quiet_trainer(tmp_path, FailsEarly(), report)
    with pytest.raises(ZeroDivisionError):
        trainer.fit(model, loader())
    trainer.test(model, loader(), verbose=False)
    assert report.written is None
    assert list(tmp_path.rglob("*.html")) == []


class FailsTesting(Callback):
    failing = True

    def on_test_start(self, trainer, pl_module):
        if self.failing:
            raise ValueError("no test data")


def test_a_test_behind_a_failed_fit_says_that_it_failed(tmp_path, monkeypatch):
    page = tmp_path / "page.html"
    trainer = quiet_trainer(tmp_path, Fails(RuntimeError("boom")), RunReport(str(page)))
    net = SmallNet()
    with pytest.raises(RuntimeError, match="boom"):
        trainer.fit(net, loader())
    trainer.test(net, loader(), verbose=False)
    found = read_report(page)
    assert (found.status, found.failure, found.findings[0].topic) == ("failed", "RuntimeError: boom", "failed run")
    assert "test_loss" in {curve.name for curve in found.curves}


def test_a_failed_test_behind_a_finished_fit(tmp_path):
    page, net, failing = tmp_path / "page.html", SmallNet(), FailsTesting()
    trainer = quiet_trainer(tmp_path, failing, RunReport(str(page)))
    trainer.fit(net, loader())
    seconds = read_report(page).seconds
    with pytest.raises(ValueError, match="no test data"):
        trainer.test(net, loader(), verbose=False)
    found = read_report(page)
    assert (found.status, found.failure, found.seconds) == ("failed", "ValueError: no test data", seconds)
    failing.failing = False
    trainer.test(net, loader(), verbose=False)
    assert read_report(page).status == "finished"


def test_the_curvature_of_the_loss_is_no_loss_that_was_logged(tmp_path):
    class Silent(SmallNet):
        def training_step(self, batch, batch_idx):
            return nn.functional.cross_entropy(self(batch[0]), batch[1])

    report = RunReport(str(tmp_path / "page.html"))
    quiet_trainer(tmp_path, LossCurvatureMonitor(at_steps=[1], fraction=None), report, max_epochs=1).fit(
        Silent(), loader()
    )
    assert any(said.startswith("Losses: the module logged none") for said in report.report.missing)


class RateWitness(Callback):
    """Reads the learning rate of every group as a batch begins."""

    def __init__(self):
        self.rates = []

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        self.rates.append([group["lr"] for group in trainer.optimizers[0].param_groups])


class Scheduled(SmallNet):
    """Plain SGD, with a rate for the first layer and one for all others, both times a factor at each step."""

    def __init__(self, first, others, factor):
        super().__init__(nn.GELU, dropout=0.0)
        self.rates, self.factor = (first, others), factor

    def configure_optimizers(self):
        layers = [list(layer.parameters()) for layer in (self.net[0], self.net[2:])]
        groups = [{"params": each, "lr": rate} for each, rate in zip(layers, self.rates, strict=True)]
        alone = self.rates[0] is None
        optimizer = torch.optim.SGD(self.parameters() if alone else groups, lr=self.rates[1])
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, self.factor)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


@pytest.mark.parametrize(
    ("first", "others", "factor", "levels"),
    [
        (None, 20.0, lambda step: 1e-3 if step < 5 else 1.0, {"warning"}),  # a warm-up, over between logging steps
        (None, 0.5, lambda step: 1.0 if step < 5 else 1e-3, {"good"}),
        (1e-3, 0.5, lambda _: 1.0, {"good", "note"}),  # groups
    ],
    ids=["up", "down", "groups"],
)
def test_the_sharpness_is_judged_by_the_rate_of_its_step(tmp_path, first, others, factor, levels):
    monitor, witness = LossCurvatureMonitor(["top_eigenvalue", "critical_sharpness"], at_steps=[3, 7]), RateWitness()
    report = RunReport(str(tmp_path / "page.html"))
    trainer = quiet_trainer(tmp_path, witness, monitor, report, log_every_n_steps=5, max_epochs=1)
    trainer.fit(Scheduled(first, others, factor), loader(256, 32))
    (found,) = [each for each in report.report.findings if each.topic == "edge of stability"]
    (critical,) = [each for each in report.report.findings if each.topic == "critical learning rate"]
    true = max(witness.rates[7])
    assert found.figures["limit"] == pytest.approx(2 / true)
    assert found.figures["ratio"] == pytest.approx(monitor.latest["top_eigenvalue"] * true / 2)
    assert critical.figures["learning_rate"] == witness.rates[7][0]  # the update is divided by the first group's rate
    assert found.level in levels


def test_rates_are_kept_where_they_change(tmp_path):
    report, witness = RunReport(str(tmp_path / "page.html")), RateWitness()
    trainer = quiet_trainer(tmp_path, witness, report, log_every_n_steps=8, max_epochs=1)
    trainer.fit(Scheduled(None, 0.1, lambda step: 0.5 ** (step // 3)), loader(64))
    curve = report.report.curve("learning_rate/SGD")
    assert curve.steps == (0, 3, 6, 7)  # the last as the Trainer logs there
    assert curve.values == tuple(witness.rates[step][0] for step in curve.steps)


def test_figures_from_before_a_swap_are_those_of_the_activation_before(tmp_path):
    report, net = RunReport(str(tmp_path / "page.html")), SmallNet(nn.SiLU, dropout=0.0)
    net.net[0].bias.data -= 4  # SiLU is flat there: E f'^2 is far from that of a normal input
    swap = ActivationSwap({"activation:silu": "relu"}, at_step=3)
    monitor = ActivationCurvatureMonitor(at_steps=[1])
    quiet_trainer(tmp_path, monitor, swap, report, max_epochs=1).fit(net, loader())
    gains = [found.text for found in report.report.findings if (found.topic, found.where) == ("backward gain", "net.1")]
    assert len(gains) == 1
    assert "of silu is" in gains[0]


class Validated(SmallNet):
    """Logs a loss on validation data that is 1, 2, 3, ... of one pass after another."""

    passes = 0

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", float(self.passes))

    def on_validation_epoch_start(self):
        self.passes += 1


def test_a_validation_behind_the_fit_is_not_the_end_of_its_curve(tmp_path):
    page, net = tmp_path / "page.html", Validated()
    trainer = quiet_trainer(tmp_path, RunReport(str(page)), max_epochs=4)
    trainer.fit(net, loader(), loader())
    before = read_report(page)
    assert before.curve("val_loss").values == (1.0, 2.0, 3.0, 4.0)
    assert "overfitting" in {found.topic for found in before.findings}
    net.passes = -1  # as the best of all checkpoints would have it
    for expected in (0.0, 1.0):
        trainer.validate(net, loader(), verbose=False)
        found = read_report(page)
        assert (found.curve("val_loss"), found.findings) == (before.curve("val_loss"), before.findings)
        assert found.curve("after_fit/val_loss").values == (expected,)
        assert "<dt>val_loss, last</dt><dd>4</dd>" in page.read_text()


def test_a_validation_behind_a_fit_without_one_has_its_own_name(tmp_path):
    page, net = tmp_path / "page.html", Validated()
    trainer = quiet_trainer(tmp_path, RunReport(str(page)), max_epochs=1, limit_val_batches=0)
    trainer.fit(net, loader(), loader())
    trainer.limit_val_batches = 1
    trainer.validate(net, loader(), verbose=False)
    assert read_report(page).curve("val_loss").values == (1.0,)


def test_a_validation_behind_a_failed_fit_is_kept_apart(tmp_path):
    page, net = tmp_path / "page.html", Validated()
    trainer = quiet_trainer(tmp_path, Fails(RuntimeError("boom")), RunReport(str(page)))
    with pytest.raises(RuntimeError, match="boom"):
        trainer.fit(net, loader(), loader())
    trainer.validate(net, loader(), verbose=False)
    found = read_report(page)
    assert [found.curve(name).values for name in ("val_loss", "after_fit/val_loss")] == [(1.0,), (2.0,)]


@pytest.mark.filterwarnings("ignore:The number of training batches")
def test_losses_between_the_steps_at_which_the_trainer_logs_are_not_called_missing(tmp_path):
    report = RunReport(str(tmp_path / "page.html"))
    quiet_trainer(tmp_path, report, log_every_n_steps=50).fit(SmallNet(), loader())
    assert report.report.curve("train_loss") is None
    (said,) = [said for said in report.report.missing if said.startswith("Losses")]
    assert "the module logs train_loss" in said
    assert "in 8 steps" in said
    assert "every 50 steps, its log_every_n_steps" in said
