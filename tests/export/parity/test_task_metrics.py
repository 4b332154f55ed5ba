"""The module's own test metrics with the file in its place, against counts by hand."""

import numpy as np
import pytest
import torch
from lightning.pytorch import LightningDataModule, LightningModule
from sklearn.metrics import accuracy_score, log_loss
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from lit_gelu.data import DigitsData
from lit_gelu.export import OnnxPredictor, check_parity, export_onnx
from lit_gelu.export.parity.check import task_metrics
from lit_gelu.tasks import MNISTClassifier


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    torch.manual_seed(0)
    model, path = MNISTClassifier(hidden_layers=1), tmp_path_factory.mktemp("metrics") / "net.onnx"
    export_onnx(model, path, approximate="sigmoid")
    return model, path


def test_a_task_on_digits(exported):
    """The file has another form of GELU than the module: its loss is another one, and each is scikit-learn's."""
    model, path = exported
    data = DigitsData()
    report = check_parity(model, path, data)
    assert report.passed
    metrics = {metric.name: metric for metric in report.metrics}
    assert {"test_loss", "test_error"} <= set(metrics)
    data.setup("test")
    images, labels = data.test_set.images, data.test_set.labels
    with torch.no_grad():
        outputs = {"pytorch": model.eval()(images), "file": OnnxPredictor(path)(images)}
    for by, logits in outputs.items():
        chances = F.softmax(logits.double(), -1).numpy()
        error = 1 - accuracy_score(labels, logits.argmax(-1))
        assert getattr(metrics["test_loss"], by) == pytest.approx(log_loss(labels, chances, labels=range(10)), rel=1e-5)
        assert getattr(metrics["test_error"], by) == pytest.approx(error, abs=1e-6)
    assert metrics["test_loss"].difference != 0
    assert metrics["test_loss"].difference == metrics["test_loss"].file - metrics["test_loss"].pytorch


def test_the_data_modules_trainer_and_the_random_state_are_left_alone(exported):
    model, path = exported
    data = DigitsData()
    state = torch.get_rng_state()
    task_metrics(model, data, OnnxPredictor(path))
    assert data.trainer is None
    assert torch.equal(torch.get_rng_state(), state)


class Rows(LightningDataModule):
    def rows(self):
        return torch.randn(10, 6, generator=torch.Generator().manual_seed(0))

    def test_dataloader(self):
        return DataLoader(TensorDataset(self.rows(), torch.zeros(10)), batch_size=4)


class Bypassing(LightningModule):
    """Its test_step computes without forward."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 3), nn.GELU())

    def forward(self, x):
        return self.net(x)

    def test_step(self, batch, index):
        self.log("test_mean", self.net(batch[0]).mean())


class Scores(Bypassing):
    """Returns a dict, and logs a metric that depends on one of its entries."""

    def forward(self, x):
        return {"scores": self.net(x), "count": 7}

    def test_step(self, batch, index):
        output = self(batch[0])
        self.log("test_score", output["scores"].mean() + output["count"], batch_size=len(batch[0]))


def test_a_test_step_that_does_not_call_forward_cannot_be_compared(tmp_path):
    model = Bypassing()
    export_onnx(model, tmp_path / "net.onnx", torch.zeros(2, 6))
    report = check_parity(model, tmp_path / "net.onnx", Rows(), torch.zeros(2, 6))
    assert not report.metrics
    assert any("test_step" in note for note in report.notes)


def test_what_has_no_metrics(exported, tmp_path):
    model, path = exported
    assert task_metrics(nn.Linear(1, 1), DigitsData(), OnnxPredictor(path)) == ([], [])
    assert task_metrics(model, torch.zeros(1), OnnxPredictor(path)) == ([], [])
    assert task_metrics(model, None, OnnxPredictor(path)) == ([], [])

    class Untested(LightningModule):
        pass

    assert len(task_metrics(Untested(), DigitsData(), OnnxPredictor(path))[1]) == 1
    assert np.isfinite([metric.file for metric in task_metrics(model, DigitsData(), OnnxPredictor(path))[0]]).all()


def metrics_of(model, path, data, sample):
    """Export a module, and return its metrics and notes."""
    export_onnx(model, path, sample)
    return task_metrics(model, data, OnnxPredictor(path))


def test_entries_of_a_dict_are_the_files_and_hooks_are_refused(tmp_path):
    torch.manual_seed(0)
    model = Scores()
    ((metric,), notes), x = metrics_of(model, tmp_path / "net.onnx", Rows(), torch.zeros(2, 6)), Rows().rows()
    assert not notes
    assert [metric.pytorch, metric.file] == pytest.approx([float(model.net(x).detach().mean()) + 7] * 2, rel=1e-5)
    model.register_forward_hook(lambda _, __, output: output)
    metrics, notes = task_metrics(model, Rows(), OnnxPredictor(tmp_path / "net.onnx"))
    assert not metrics
    assert len(notes) == 1
