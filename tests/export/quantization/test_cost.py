"""`check_quantized`, against counts by hand on the digits."""

import json

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from sklearn.metrics import accuracy_score
from torch import nn

from lit_gelu.data import DigitsData
from lit_gelu.export import (
    ModelFileError,
    ModelInputError,
    OnnxPredictor,
    ParityError,
    check_parity,
    export_onnx,
)
from lit_gelu.export.proof import record_parity
from lit_gelu.export.quantization import check_quantized, quantize_onnx
from lit_gelu.tasks import MNISTClassifier


@pytest.fixture(scope="module")
def report(digits):
    return check_quantized(digits.model, digits.int8, DigitsData())


@pytest.fixture(scope="module")
def by_hand(digits):
    data = DigitsData()
    data.setup("test")
    images, labels = data.test_set.images, data.test_set.labels.numpy()
    with torch.no_grad():
        return digits.model(images).double().numpy(), OnnxPredictor(digits.int8)(images).double().numpy(), labels


def test_the_figures_are_those_counted_by_hand(report, by_hand):
    y, found, labels = by_hand
    (output,) = report.outputs
    assert output.rows == len(labels) == 360
    assert output.sqnr == pytest.approx(10 * np.log10((y**2).sum() / ((y - found) ** 2).sum()), abs=0.01)
    assert output.max_abs_error == pytest.approx(np.abs(y - found).max(), rel=1e-4)
    assert output.top1_agreement == accuracy_score(y.argmax(1), found.argmax(1))
    metric = {metric.name: metric for metric in report.metrics}["test_error"]
    assert metric.pytorch == pytest.approx(1 - accuracy_score(labels, y.argmax(1)), abs=1e-6)
    assert metric.file == pytest.approx(1 - accuracy_score(labels, found.argmax(1)), abs=1e-6)
    (criterion,) = report.criteria
    assert criterion.value == pytest.approx(metric.file - metric.pytorch)


def test_a_trained_classifier_keeps_its_accuracy(report):
    assert report.passed
    assert report.criteria[0].value <= 0.01
    assert report.outputs[0].top1_agreement >= 0.98
    assert report.outputs[0].sqnr > 30
    assert report.record.float_bytes > 2.8 * report.nbytes


def test_noise_within_the_net_and_what_runs_in_int8(report, digits):
    assert [layer.site for layer in report.layers] == ["hidden.0.activation", "hidden.1.activation"]
    assert report.worst_layer == min(report.layers, key=lambda layer: layer.sqnr)
    assert report.census["Gemm"] == 3
    assert report.optimized_census.get("com.microsoft::QGemm") == 3
    assert [str(fate) for fate in report.activations] == ["Gelu(none) -> Gelu(none)"] * 2
    data = DigitsData()
    data.setup("test")
    images = data.test_set.images[:128]  # the first four batches
    with torch.no_grad():
        y = digits.model.hidden[0](images.flatten(1)).double().numpy()
    stored = {t.name: numpy_helper.to_array(t).astype(np.float64) for t in onnx.load(digits.int8).graph.initializer}
    x = images.flatten(1).double().numpy()
    scale = next(stored[n] for n in stored if n.endswith("_scale") and n.startswith(("view", "images")))
    x = np.clip(np.rint(x / scale), 0, 255) * scale  # pixels from 0 on: the zero point is 0
    w = stored["hidden.0.linear.weight_quantized"] * stored["hidden.0.linear.weight_scale"][:, None]
    hidden = torch.nn.functional.gelu(torch.from_numpy(x @ w.T + digits.model.hidden[0].linear.bias.detach().numpy()))
    expected = 10 * np.log10((y**2).sum() / ((y - hidden.numpy()) ** 2).sum())
    assert report.layers[0].sqnr == pytest.approx(expected, abs=0.1)


def test_a_file_of_other_weights_is_a_breach(digits, tmp_path):
    model = onnx.load(digits.int8)
    (tensor,) = [t for t in model.graph.initializer if t.name == "output.weight_quantized"]
    tensor.CopyFrom(numpy_helper.from_array(np.roll(numpy_helper.to_array(tensor), 1, axis=0), tensor.name))
    onnx.save(model, tmp_path / "wrong.onnx")
    with pytest.raises(ParityError, match="costs more than it may") as caught:
        check_quantized(digits.model, tmp_path / "wrong.onnx", DigitsData())
    assert not caught.value.report.passed
    assert caught.value.report.criteria[0].value > 0.5
    assert str(caught.value.report).endswith("FAILED")


def test_a_nan_is_a_breach_whatever_the_limits(digits, tmp_path):
    model = onnx.load(digits.int8)
    (tensor,) = [t for t in model.graph.initializer if t.name == "output.weight_scale"]
    scale = numpy_helper.to_array(tensor).copy()
    scale[3] = np.nan
    tensor.CopyFrom(numpy_helper.from_array(scale, tensor.name))
    onnx.save(model, tmp_path / "nan.onnx")
    found = check_quantized(digits.model, tmp_path / "nan.onnx", DigitsData(), max_difference=1.0, strict=False)
    assert found.outputs[0].nonfinite == 360
    assert not found.passed
    json.loads(found.to_json())


def test_an_autoencoder_without_metrics_is_judged_by_its_noise(tmp_path):
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(20, 8), nn.GELU(), nn.Linear(8, 20), nn.Unflatten(1, (4, 5))), torch.randn(300, 20)
    export_onnx(net, tmp_path / "net.onnx", x[:2])
    quantize_onnx(tmp_path / "net.onnx", tmp_path / "int8.onnx", x[:200])
    found = check_quantized(net, tmp_path / "int8.onnx", x[200:], x[:2])
    assert [criterion.name for criterion in found.criteria] == ["SQNR of output, dB"]
    assert found.passed
    assert not check_quantized(net, tmp_path / "int8.onnx", x[200:], x[:2], min_sqnr=80, strict=False).passed


def test_preprocessing_and_softmax_are_compared_as_they_are_in_the_file(digits, tmp_path):
    path, data = tmp_path / "raw.onnx", DigitsData()
    export_onnx(digits.model, path, preprocessing=data.preprocessing(), softmax=True)
    assert quantize_onnx(path, tmp_path / "raw-int8.onnx", data, samples=300).record.rows == 300  # of its training data
    found = check_quantized(digits.model, tmp_path / "raw-int8.onnx", data)
    assert [criterion.name for criterion in found.criteria] == ["rows whose largest logit is another one"]
    assert found.outputs[0].rows == 360
    assert found.passed
    assert {"Resize", "Softmax"} <= set(found.census)


def test_parity_by_tolerance_is_refused(digits):
    with pytest.raises(ModelFileError, match=r"is in int8(.|\n)*check_quantized"):
        check_parity(digits.model, digits.int8, DigitsData())


def test_reports_and_the_proof_in_the_file(digits, report, tmp_path):
    plain = json.loads(report.to_json())
    assert (plain["schema"], plain["schema_version"], plain["passed"]) == ("lit-gelu-int8", 1, True)
    assert plain["outputs"][0]["sqnr"] == report.outputs[0].sqnr
    assert plain["record"]["method"] == "minmax"
    text = report.to_markdown()
    assert text.startswith("# int8 parity of ")
    assert f"| output | 360 | {report.outputs[0].sqnr:.3g} |" in text
    assert str(report).endswith("passed")
    copy = tmp_path / "copy.onnx"
    copy.write_bytes(digits.int8.read_bytes())
    record_parity(copy, report.proof())
    proof = json.loads(OnnxPredictor(copy).metadata["lit_gelu.parity"])
    assert proof["passed"] is True
    assert proof["outputs"][0]["top1_agreement"] == report.outputs[0].top1_agreement
    assert check_quantized(digits.model, copy, DigitsData()).passed


def test_what_cannot_be_compared(digits):
    with pytest.raises(ModelFileError, match="does not say how it was quantised"):
        check_quantized(digits.model, digits.path, DigitsData())
    with pytest.raises(ModelInputError, match="on data only"):
        check_quantized(digits.model, digits.int8, None)
    with pytest.raises(ModelInputError, match="hold no batch"):
        check_quantized(digits.model, digits.int8, [])


def test_autocast_around_the_comparison_is_the_callers(report, digits):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = check_quantized(digits.model, digits.int8, DigitsData())
    assert found.outputs == report.outputs


class SharedRelu(nn.Module):
    """One ReLU behind a convolution, which a range replaces, and again behind a sum, which none does."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.act = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU()
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        y = self.act(self.first(x))
        return self.head(self.act(self.second(y) + y).mean((2, 3)))


@pytest.mark.parametrize("kind", [SharedRelu, nn.ReLU, nn.ReLU6])
def test_a_rectifier_that_a_range_replaces_is_no_fault(tmp_path, kind):
    torch.manual_seed(0)
    plain = [nn.Conv2d(3, 8, 3, padding=1), kind(), nn.Flatten(), nn.Linear(392, 3)]
    net, x = SharedRelu() if kind is SharedRelu else nn.Sequential(*plain), torch.randn(400, 3, 7, 7)
    export_onnx(net, tmp_path / "net.onnx", x[:2])
    result = quantize_onnx(tmp_path / "net.onnx", tmp_path / "int8.onnx", x[:200])
    counts = [sum(made.get(name, 0) for name in ("Relu", "Clip")) for made in (result.census, result.quantized_census)]
    assert counts == ([2, 1] if kind is SharedRelu else [1, 0])
    found = check_quantized(net, tmp_path / "int8.onnx", x[200:], x[:2], max_difference=0.05)
    assert found.passed
    assert not found.faults


def test_a_fault_is_named_where_the_file_fails(digits):
    other = MNISTClassifier(activation="gelu_tanh", hidden_layers=2)
    other.load_state_dict(digits.model.state_dict())
    with pytest.raises(ParityError, match=r"FAILED \(hidden.0.activation is gelu(.|\n)*export it again"):
        check_quantized(other, digits.int8, DigitsData())


class TwoHeads(nn.Module):
    """Logits, boxes that are no logits, and the class."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 64), nn.GELU())
        self.logits, self.boxes = nn.Linear(64, 3), nn.Linear(64, 16)

    def forward(self, x):
        y = self.body(x)
        logits = self.logits(y)
        return {"logits": logits, "boxes": self.boxes(y).unflatten(1, (4, 4)), "class": logits.argmax(1)}


def test_every_output_is_judged(tmp_path):
    torch.manual_seed(0)
    net, x = TwoHeads(), torch.randn(400, 8)
    export_onnx(net, tmp_path / "net.onnx", x[:2])
    quantize_onnx(tmp_path / "net.onnx", tmp_path / "int8.onnx", x[:200])
    found = check_quantized(net, tmp_path / "int8.onnx", x[200:], x[:2], max_difference=0.05)
    assert [c.name for c in found.criteria][1:] == ["entries of class that differ", "SQNR of boxes, dB"]
    with torch.no_grad():
        classes = OnnxPredictor(tmp_path / "int8.onnx")(x[200:])[2]
        assert found.criteria[1].value == float((classes != net(x[200:])["class"]).double().mean())
        net.boxes.weight.neg_()
    spoilt = check_quantized(net, tmp_path / "int8.onnx", x[200:], x[:2], max_difference=0.05, strict=False)
    assert [c.name for c in spoilt.criteria if not c.passed] == ["SQNR of boxes, dB"]
    assert not spoilt.passed


class Wasteful(nn.Module):
    """Its first call of the activation is for nothing; the graph does not have it."""

    def __init__(self):
        super().__init__()
        self.first, self.shared, self.last = nn.Linear(8, 8), nn.GELU(), nn.GELU()

    def forward(self, x):
        self.shared(-3 * x)
        return self.last(self.first(self.shared(x)))


def test_noise_is_not_measured_against_another_call(tmp_path):
    torch.manual_seed(0)
    net, x = Wasteful(), torch.randn(400, 8)
    export_onnx(net, tmp_path / "net.onnx", x[:2])
    quantize_onnx(tmp_path / "net.onnx", tmp_path / "int8.onnx", x[:200])
    found = check_quantized(net, tmp_path / "int8.onnx", x[200:], x[:2], max_difference=0.1)
    assert [layer.site for layer in found.layers] == ["last"]
    assert found.worst_layer.sqnr > 20


def test_without_a_sample_one_is_made_from_the_files_inputs(tmp_path):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 4)).eval()
    export_onnx(net, tmp_path / "net.onnx", torch.zeros(2, 16))
    rows = torch.randn(300, 16)
    quantize_onnx(tmp_path / "net.onnx", tmp_path / "int8.onnx", rows[:200])
    found = check_quantized(net, tmp_path / "int8.onnx", rows[200:], strict=False)
    given = check_quantized(net, tmp_path / "int8.onnx", rows[200:], rows[:2], strict=False)
    assert found.outputs[0].rows == 100
    assert found.outputs == given.outputs
    y, int8 = net(rows[200:]).detach().double().numpy(), OnnxPredictor(tmp_path / "int8.onnx")(rows[200:]).numpy()
    assert found.outputs[0].sqnr == pytest.approx(10 * np.log10((y**2).sum() / ((y - int8) ** 2).sum()), abs=0.01)


def test_without_a_sample_the_first_rows_of_the_data_are_one(tmp_path):
    """The net takes no sound of fewer than five frames, which is open, and has no example_input_array."""
    torch.manual_seed(0)
    net, rows = nn.Sequential(nn.Conv1d(3, 8, 3), nn.GELU(), nn.Conv1d(8, 2, 3)), torch.randn(50, 3, 12)
    export_onnx(net, tmp_path / "net.onnx", rows[:2], dynamic_shapes={"input": {2: "time"}})
    quantize_onnx(tmp_path / "net.onnx", tmp_path / "int8.onnx", rows)
    report = check_quantized(net, tmp_path / "int8.onnx", rows, strict=False)
    assert not report.faults
    assert report.outputs[0].sqnr > 20
