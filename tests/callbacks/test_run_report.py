"""`RunReport`: the page has what the loggers have, and is written whatever becomes of the run."""

import csv
import math
from importlib.metadata import version

import pytest
import torch
from callback_helpers import SmallNet, collected_warnings, loader, quiet_trainer
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn

from lit_gelu.callbacks import (
    ActivationCurvatureMonitor,
    ActivationSwap,
    CallbackArgumentError,
    LossCurvatureMonitor,
    NoLoggerError,
    RunReport,
)
from lit_gelu.files import UnwritablePathError
from lit_gelu.report import read_report
from lit_gelu.surgery import NoMatchError


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


def test_monitors_without_either_are_refused(tmp_path):
    with pytest.raises(NoLoggerError, match=r"nowhere to log to.* or the callback RunReport"):
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
    with pytest.raises(NoMatchError):
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


def test_nothing_after_a_trial_run(tmp_path):
    report = RunReport()
    quiet_trainer(tmp_path, report, fast_dev_run=True).fit(SmallNet(), loader())
    assert report.written is None
    assert not list(tmp_path.rglob("*.html"))


def test_refusals(tmp_path):
    with pytest.raises(CallbackArgumentError, match=r"must end in \.html"):
        RunReport("page.pdf")
    with pytest.raises(CallbackArgumentError, match="a list of paths"):
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
