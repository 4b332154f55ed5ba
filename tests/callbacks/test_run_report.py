"""`RunReport`: the page has what the loggers have, and is written whatever becomes of the run."""

import pytest
import torch
from callback_helpers import Fails, SmallNet, collected_warnings, loader, logged_rows, quiet_trainer
from lightning.pytorch.callbacks import ModelCheckpoint

from lit_gelu.callbacks import ActivationCurvatureMonitor, ActivationSwap, RunReport
from lit_gelu.errors import ArgumentError
from lit_gelu.files import UnwritablePathError
from lit_gelu.surgery import NoMatchError


def values(report, name):
    return report.curve(name).values


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    report = RunReport(title="<b>")
    callbacks = [report, ActivationSwap({"net.1": "gelu"}, at_epoch=1), ActivationCurvatureMonitor(every_n_steps=2)]
    trainer, net = quiet_trainer(folder, *callbacks), SmallNet()
    trainer.fit(net, loader())
    trainer.test(net, loader(), verbose=False)
    return folder, report, trainer


def test_the_page_has_the_same_points_as_the_logger(run):
    folder, report, _ = run
    logged = {}
    for row in logged_rows(folder):
        for name, text in row.items():
            if text and name != "step":
                logged.setdefault(name, {})[int(row["step"])] = float(text)
    curves = {curve.name: dict(zip(curve.steps, curve.values, strict=True)) for curve in report.report.curves}
    assert {"train_loss", "test_loss", "curvature/net.1/share_linear"} <= logged.keys()
    assert logged.keys() == curves.keys()
    for name, points in logged.items():
        assert curves[name] == pytest.approx(points, rel=1e-6, nan_ok=True), name


def test_the_page_says_what_was_run_and_swapped(run):
    folder, report, trainer = run
    record = report.report
    assert (record.status, record.steps, record.epochs, record.title) == ("finished", 8, 2, "<b>")
    assert [(site.name, site.at_start, site.at_end) for site in record.sites] == [
        ("net.1", "relu", "gelu"),
        ("net.5", "relu", "relu"),
    ]
    assert [(swap.step, swap.epoch) for swap in record.swaps] == [(4, 1)]
    assert (record.optimizers[0].name, record.optimizers[0].plain) == ("AdamW", False)
    assert record.configuration["Module"]["class"].endswith("SmallNet")
    assert report.written == folder / "logs" / "0" / "report.html"
    assert "<h1>&lt;b&gt;</h1>" in report.written.read_text()
    assert len(trainer.loggers) == 1


@pytest.mark.pictures
def test_training_is_the_same_to_the_bit_and_needs_no_logger(tmp_path):
    weights = []
    for others in ([], [RunReport(), ActivationCurvatureMonitor(every_n_steps=2)]):
        checkpoint, folder, net = ModelCheckpoint(save_last=True), tmp_path / str(len(others)), SmallNet()
        trainer = quiet_trainer(folder, *others[::-1], checkpoint, logger=False, enable_checkpointing=True)
        trainer.fit(net, loader())
        weights.append(net.state_dict())
        assert checkpoint.dirpath == str(folder / "checkpoints")
        assert (trainer.logger, trainer.loggers) == (None, [])
    assert all(torch.equal(one, other) for one, other in zip(*(w.values() for w in weights), strict=True))
    report = others[0].report
    assert (len(values(report, "train_loss")), len(values(report, "curvature/net.5/mean"))) == (8, 4)


@pytest.mark.parametrize(
    ("error", "ended", "status"),
    [(RuntimeError("</script>"), RuntimeError, "failed"), (KeyboardInterrupt(), SystemExit, "interrupted")],
    ids=["error", "interrupt"],
)
def test_a_run_that_does_not_end_well_has_a_page_that_says_so(error, ended, status, tmp_path, monkeypatch):
    monkeypatch.setattr("signal.signal", lambda *_: None)  # Lightning turns Ctrl-C off
    report, net = RunReport(str(tmp_path / "page.html")), SmallNet()
    trainer = quiet_trainer(tmp_path, Fails("on_train_epoch_end", error), report)
    with pytest.raises(ended):
        trainer.fit(net, loader())
    assert (report.report.status, report.report.steps) == (status, 4)
    assert report.report.findings[0].topic == f"{status} run"
    assert "</script>" not in report.written.read_text()
    if status == "failed":
        trainer.test(net, loader(), verbose=False)
        assert (report.report.status, report.report.failure) == ("failed", "RuntimeError: </script>")
        assert report.report.curve("test_loss")


def test_a_run_that_is_refused_or_fails_before_its_start_leaves_no_logger_and_no_page(tmp_path):
    for early, error in (
        (ActivationSwap({"nowhere": "gelu"}, at_step=1), NoMatchError),
        (Fails("on_fit_start", ZeroDivisionError()), ZeroDivisionError),
    ):
        report, model = RunReport(), SmallNet()
        trainer = quiet_trainer(tmp_path, early, report)
        before = list(trainer.loggers)
        with pytest.raises(error):
            trainer.fit(model, loader())
        assert (trainer.loggers, report.written) == (before, None)
    trainer.test(model, loader(), verbose=False)
    assert list(tmp_path.rglob("*.html")) == []


def test_the_error_of_the_run_is_raised_where_the_page_cannot_be_written(tmp_path, monkeypatch):
    monkeypatch.setattr("lit_gelu.callbacks.run_report.page", lambda run: 1 / 0)
    failing = Fails("on_train_epoch_end", RuntimeError("mine"))
    with collected_warnings("the page was not written") as messages, pytest.raises(RuntimeError, match="mine"):
        quiet_trainer(tmp_path, failing, RunReport()).fit(SmallNet(), loader())
    assert len(messages) == 1


def test_arguments_and_places_that_are_refused(tmp_path):
    with pytest.raises(ArgumentError):
        RunReport("page.pdf")
    (tmp_path / "file").touch()
    with pytest.raises(UnwritablePathError):
        quiet_trainer(tmp_path, RunReport(str(tmp_path / "file" / "page.html"))).fit(SmallNet(), loader())


class Validated(SmallNet):
    """Logs a loss on validation data that is 1, 2, 3, ... of one pass after another."""

    passes = 0

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", float(self.passes))

    def on_validation_epoch_start(self):
        self.passes += 1


def test_a_validation_behind_the_fit_is_not_the_end_of_its_curve(tmp_path):
    report, net = RunReport(str(tmp_path / "page.html")), Validated()
    trainer = quiet_trainer(tmp_path, report, max_epochs=4)
    trainer.fit(net, loader(), loader())
    before = report.report
    assert values(before, "val_loss") == (1.0, 2.0, 3.0, 4.0)
    net.passes = -1  # as the best of all checkpoints would have it
    for expected in (0.0, 1.0):
        trainer.validate(net, loader(), verbose=False)
        assert (report.report.curve("val_loss"), report.report.findings) == (before.curve("val_loss"), before.findings)
        assert values(report.report, "after_fit/val_loss") == (expected,)
    page, steps = (tmp_path / "page.html").read_bytes(), before.steps
    quiet_trainer(tmp_path / "trial", report, fast_dev_run=True).fit(net, loader(), loader())
    assert (tmp_path / "page.html").read_bytes() == page
    quiet_trainer(tmp_path / "other", report).validate(net, loader(), verbose=False)  # it took no step
    assert report.report.steps == steps
