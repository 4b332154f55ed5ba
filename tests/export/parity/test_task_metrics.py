"""The module's own test metrics with the file in its place, against counts by hand."""

import onnx
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


def test_a_task_on_digits(tmp_path):
    """The file has another form of GELU than the module: its loss is another one, and each is scikit-learn's."""
    torch.manual_seed(0)
    model, path, data = MNISTClassifier(hidden_layers=1), tmp_path / "net.onnx", DigitsData()
    export_onnx(model, path, approximate="sigmoid")
    state = torch.get_rng_state()
    report = check_parity(model, path, data)
    assert report.passed
    assert data.trainer is None
    assert torch.equal(torch.get_rng_state(), state)
    metrics = {metric.name: metric for metric in report.metrics}
    data.setup("test")
    images, labels = data.test_set.inputs, data.test_set.labels
    with torch.no_grad():
        outputs = {"pytorch": model.eval()(images), "file": OnnxPredictor(path)(images)}
    for by, logits in outputs.items():
        chances = F.softmax(logits.double(), -1).numpy()
        error = 1 - accuracy_score(labels, logits.argmax(-1))
        assert getattr(metrics["test_loss"], by) == pytest.approx(log_loss(labels, chances, labels=range(10)), rel=1e-5)
        assert getattr(metrics["test_error"], by) == pytest.approx(error, abs=1e-6)
    assert metrics["test_loss"].difference != 0


class Rows(LightningDataModule):
    def rows(self):
        return torch.randn(10, 6, generator=torch.Generator().manual_seed(0))

    def test_dataloader(self):
        return DataLoader(TensorDataset(self.rows(), torch.zeros(10)), batch_size=4)


class Scores(LightningModule):
    """Returns a dict, and logs a metric of one of its entries; or computes it without forward."""

    def __init__(self, bypass=False):
        super().__init__()
        self.net, self.bypass = nn.Sequential(nn.Linear(6, 3), nn.GELU()), bypass

    def forward(self, x):
        return {"scores": self.net(x), "count": 7}

    def test_step(self, batch, index):
        output = {"scores": self.net(batch[0]), "count": 7} if self.bypass else self(batch[0])
        self.log("test_score", output["scores"].mean() + output["count"], batch_size=len(batch[0]))


def test_entries_of_a_dict_are_the_files_and_what_the_file_cannot_replace_is_noted(tmp_path):
    torch.manual_seed(0)
    model, path, x = Scores(), tmp_path / "net.onnx", Rows().rows()
    export_onnx(model, path, torch.zeros(2, 6))
    (metric,), notes = task_metrics(model, Rows(), OnnxPredictor(path))
    assert not notes
    assert [metric.pytorch, metric.file] == pytest.approx([float(model.net(x).detach().mean()) + 7] * 2, rel=1e-5)
    hooked, bypassing = Scores(), Scores(bypass=True)
    hooked.register_forward_hook(lambda _, __, output: output)
    for other in (hooked, bypassing):
        metrics, notes = task_metrics(other, Rows(), OnnxPredictor(path))
        assert (metrics, len(notes)) == ([], 1)
    assert task_metrics(nn.Linear(1, 1), Rows(), OnnxPredictor(path)) == ([], [])


def test_outputs_of_another_exporter_in_another_order(tmp_path):
    class Two(Scores):
        def forward(self, x):
            return {"scores": self.net(x), "count": -self.net(x)}

        def test_step(self, batch, index):
            self.log("test_score", self(batch[0])["scores"].mean(), batch_size=len(batch[0]))

    model, path = Two().eval(), str(tmp_path / "net.onnx")
    batch = ({0: torch.export.Dim("batch")},)
    names = ["scores", "count"]
    torch.onnx.export(model, (torch.randn(2, 6),), path, dynamo=True, dynamic_shapes=batch, output_names=names)
    file = onnx.load(path)
    outputs = list(file.graph.output)[::-1]
    del file.graph.output[:]
    file.graph.output.extend(outputs)
    onnx.save(file, path)
    (metric,) = check_parity(model, path, Rows(), torch.randn(2, 6)).metrics
    assert metric.file == pytest.approx(metric.pytorch, rel=1e-5)
    del file.graph.output[1]  # of one output less the module makes no metrics
    onnx.save(file, path)
    assert not check_parity(model, path, Rows(), torch.randn(2, 6)).metrics
