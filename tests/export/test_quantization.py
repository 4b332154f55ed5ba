"""int8 files: what is kept of the float file, what they cost by counts of our own, what is refused."""

import json
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
import torch
from lightning.pytorch import Trainer
from onnx import numpy_helper
from saturating_sums import rows_by_hand, saturating_products, worst_inputs
from sklearn.metrics import accuracy_score
from torch import nn

from lit_gelu.data import DigitsData
from lit_gelu.errors import ArgumentError, ExportError, ModelFileError, ModelInputError, ParityError
from lit_gelu.export import OnnxPredictor, export_onnx
from lit_gelu.export.metadata import read_metadata
from lit_gelu.export.parity.report import TaskMetric
from lit_gelu.export.quantization import OutputNoise, check_quantized, criteria, quantize_onnx, read_record
from lit_gelu.files import UnwritablePathError
from lit_gelu.tasks import MNISTClassifier


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """A classifier trained on the bundled digits, its float32 file and its int8 file."""
    torch.manual_seed(0)
    model = MNISTClassifier(activation="gelu", hidden_layers=2)
    options = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    Trainer(max_epochs=3, accelerator="cpu", enable_model_summary=False, **options).fit(model, datamodule=DigitsData())
    folder = tmp_path_factory.mktemp("digits")
    export_onnx(model, folder / "net.onnx", labels=[f"digit {i}" for i in range(10)])
    result = quantize_onnx(folder / "net.onnx", folder / "int8.onnx", DigitsData())
    return SimpleNamespace(model=model.eval(), path=folder / "net.onnx", int8=folder / "int8.onnx", result=result)


def test_names_batch_labels_and_activations_are_those_of_the_float_file(digits):
    before, after = OnnxPredictor(digits.path), OnnxPredictor(digits.int8)
    assert (after.ports, after.output_ports) == (before.ports, before.output_ports)
    images = torch.rand(7, 1, 28, 28)
    assert torch.equal(after(images)[:1], after(images[:1]))
    old, new = (read_metadata(predictor.metadata, "the file") for predictor in (before, after))
    assert (old.dtype, new.dtype, new.io_dtype, new.parity) == ("fp32", "int8", "fp32", {})
    assert (new.labels, new.sites, new.model_class) == (old.labels, old.sites, old.model_class)
    assert read_record(after.metadata, "it") == digits.result.record
    assert digits.result.record.layers == ("hidden.0.linear", "hidden.1.linear", "output")
    assert digits.int8.stat().st_size < 0.35 * digits.path.stat().st_size


def test_the_figures_are_those_counted_by_hand(digits):
    report = check_quantized(digits.model, digits.int8, DigitsData())
    data = DigitsData()
    data.setup("test")
    images, labels = data.test_set.inputs, data.test_set.labels.numpy()
    with torch.no_grad():
        y, int8 = digits.model(images).double().numpy(), OnnxPredictor(digits.int8)(images).double().numpy()
    (output,) = report.outputs
    assert output.rows == len(labels) == 360
    assert output.sqnr == pytest.approx(10 * np.log10((y**2).sum() / ((y - int8) ** 2).sum()), abs=0.01)
    assert output.sqnr > 30
    assert output.changed == pytest.approx(1 - accuracy_score(y.argmax(1), int8.argmax(1)))
    metric = {metric.name: metric for metric in report.metrics}["test_error"]
    assert metric.file == pytest.approx(1 - accuracy_score(labels, int8.argmax(1)), abs=1e-6)
    (criterion,) = report.criteria
    assert criterion.value == pytest.approx(metric.file - metric.pytorch)
    assert criterion.value <= 0.01
    assert report.passed
    assert json.loads(report.to_json())["passed"] is True
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert check_quantized(digits.model, digits.int8, DigitsData()).outputs == report.outputs


class Net(nn.Module):
    """Convolutions with a ReLU behind them, a clip that leaves out 0, a shared layer, SiLU in primitives."""

    def __init__(self):
        super().__init__()
        self.first = nn.Sequential(
            nn.Conv2d(3, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 8, 3, groups=2), nn.SiLU()
        )
        self.shared, self.gelu = nn.Linear(8, 8), nn.GELU("tanh")
        self.head = nn.Sequential(nn.Hardtanh(0.5, 6.0), nn.Linear(8, 5))

    def forward(self, x):
        y = self.first(x).flatten(1)
        return self.head(self.gelu(self.shared(self.gelu(self.shared(y)))))


FLOAT_LAYERS = {"portable": [], "ort-cuda": [], "tensorrt": ["shared"]}  # two calls of one weight are refused there


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    torch.manual_seed(0)
    net, rows, folder = Net().eval(), torch.randn(300, 3, 8, 8), tmp_path_factory.mktemp("net")
    paths = {target: folder / f"{target}.onnx" for target in FLOAT_LAYERS}
    for target, path in paths.items():
        export_onnx(net, path, rows[:2], target=target)
    return SimpleNamespace(net=net, rows=rows, path=paths["portable"], paths=paths)


@pytest.mark.parametrize("target", FLOAT_LAYERS)
def test_each_target_stays_near_the_module(exported, tmp_path, target):
    int8, kept = tmp_path / "int8.onnx", FLOAT_LAYERS[target]
    record = quantize_onnx(exported.paths[target], int8, exported.rows[:200], float_layers=kept).record
    count = 3 if kept else 5
    assert (record.target, record.rows, len(record.layers)) == (target, 200, count)
    assert record.activations == ("uint8" if target == "portable" else "int8")
    report = check_quantized(exported.net, int8, exported.rows[200:], max_difference=0.1)
    assert not report.faults
    with torch.no_grad():
        y = exported.net(exported.rows[200:]).double().numpy()
    error = y - OnnxPredictor(int8, ["CPUExecutionProvider"])(exported.rows[200:]).numpy()
    assert report.outputs[0].sqnr == pytest.approx(10 * np.log10((y**2).sum() / (error**2).sum()), abs=0.05)


def test_sums_of_products_hold_in_16_bits_but_for_tensorrt_which_adds_in_32(exported, tmp_path):
    """Whatever the inputs, the arithmetic of a processor without VNNI gives what 32 bits give."""
    wrong = {}
    for target in ("portable", "tensorrt"):
        int8, kept = tmp_path / "int8.onnx", FLOAT_LAYERS[target]
        record = quantize_onnx(exported.paths[target], int8, exported.rows[:64], float_layers=kept).record
        model = onnx.load(int8)
        stored = {
            t.name: numpy_helper.to_array(t) for t in model.graph.initializer if t.data_type == onnx.TensorProto.INT8
        }
        read = {node.output[0]: node.input[0] for node in model.graph.node if node.op_type == "DequantizeLinear"}
        weights = [
            rows_by_hand(node, stored[read[node.input[1]]])
            for node in model.graph.node
            if node.op_type in {"Conv", "Gemm", "MatMul"} and read.get(node.input[1]) in stored
        ]
        assert len(weights) == (3 if kept else 5)
        inputs = [worst_inputs(weight) for weight in weights]
        exact = [x.astype(np.int64) @ weight.T.astype(np.int64) for x, weight in zip(inputs, weights, strict=True)]
        sums = [saturating_products(x, weight) for x, weight in zip(inputs, weights, strict=True)]
        wrong[record.bounded] = sum(not np.array_equal(a, b) for a, b in zip(sums, exact, strict=True))
    assert wrong[True] == 0
    assert wrong[False] > 0


def test_layers_that_are_named_stay_in_float(exported, digits, tmp_path):
    record = quantize_onnx(digits.path, tmp_path / "a.onnx", DigitsData(), float_layers=["hidden.*"]).record
    assert (record.layers, record.float_layers) == (("output",), ("hidden.0.linear", "hidden.1.linear"))
    weights = {tensor.name for tensor in onnx.load(tmp_path / "a.onnx").graph.initializer}
    assert {"hidden.0.linear.weight", "hidden.1.linear.weight", "output.weight_quantized"} <= weights
    record = quantize_onnx(
        exported.path, tmp_path / "b.onnx", exported.rows, float_layers=["node_conv2d", "first.3"]
    ).record
    assert not any("first" in name for name in record.layers)


def test_a_fault_is_named_where_the_file_is_of_another_module(digits):
    other = MNISTClassifier(activation="gelu_tanh", hidden_layers=2)
    other.load_state_dict(digits.model.state_dict())
    report = check_quantized(other, digits.int8, DigitsData(), strict=False)
    assert len(report.faults) == 2
    with pytest.raises(ParityError) as raised:
        check_quantized(other, digits.int8, DigitsData())
    assert raised.value.report.faults == report.faults


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
    report = check_quantized(net, tmp_path / "int8.onnx", x[200:], x[:2], max_difference=0.05)
    assert [criterion.kind for criterion in report.criteria] == ["at most", "at least", "at most"]
    with torch.no_grad():
        classes = OnnxPredictor(tmp_path / "int8.onnx")(x[200:])[2]
        assert report.criteria[2].value == float((classes != net(x[200:])["class"]).double().mean())
        net.boxes.weight.neg_()
    spoilt = check_quantized(net, tmp_path / "int8.onnx", x[200:], x[:2], max_difference=0.05, strict=False)
    assert [criterion.passed for criterion in spoilt.criteria] == [True, False, True]


LOGITS = OutputNoise("output", 100, 35.0, 0, 0.03)
IMAGE = OutputNoise("image", 100, 18.0, 0, None)
NAN = OutputNoise("y", 1, float("nan"), 0, None)


@pytest.mark.parametrize(
    ("metrics", "outputs", "options", "verdicts"),
    [
        ([TaskMetric("test_loss", 1.0, 2.0), TaskMetric("test_error", 0.10, 0.08)], [LOGITS], {}, [True]),
        ([TaskMetric("test_error", 0.10, 0.111)], [LOGITS], {}, [False]),
        ([TaskMetric("test_loss", 0.004, 0.0041)], [IMAGE], {}, [False]),
        ([TaskMetric("test_loss", -2.0, -2.5)], [IMAGE], {}, [True]),
        ([TaskMetric("test_loss", 0.0, 1.0)], [], {}, [False]),
        ([TaskMetric("test_loss", 0.0, 0.0)], [], {}, [True]),
        ([], [LOGITS, IMAGE], {}, [False, False]),
        ([], [LOGITS, IMAGE], {"max_difference": 0.03}, [True, False]),
        ([], [NAN], {}, [False]),
    ],
)
def test_what_decides(metrics, outputs, options, verdicts):
    options = {"max_difference": 0.01, **options}
    assert [criterion.passed for criterion in criteria(metrics, outputs, **options)] == verdicts


def test_what_cannot_be_quantised_is_refused_and_nothing_is_written(tmp_path, digits):
    net, sample = nn.Sequential(nn.Linear(8, 8), nn.GELU()), torch.zeros(2, 8)
    rows, target = torch.randn(8, 8), tmp_path / "out.onnx"
    export_onnx(net, tmp_path / "half.onnx", sample, dtype="fp16")
    export_onnx(nn.GELU(), tmp_path / "gelu.onnx", sample)
    export_onnx(net, tmp_path / "net.onnx", sample)
    others = onnx.load(tmp_path / "net.onnx")
    others.ClearField("metadata_props")
    onnx.save(others, tmp_path / "others.onnx")
    storage = {"save_as_external_data": True, "location": "weights", "size_threshold": 0}
    onnx.save(onnx.load(tmp_path / "net.onnx"), tmp_path / "beside.onnx", **storage)
    (tmp_path / "text.onnx").write_text("no model")
    (tmp_path / "link.onnx").symlink_to(tmp_path / "net.onnx")
    files = {"half": ArgumentError, "gelu": ArgumentError, "others": ModelFileError, "beside": ModelFileError}
    for name, error in {**files, "text": ModelFileError, "none": ModelFileError}.items():
        with pytest.raises(error):
            quantize_onnx(tmp_path / f"{name}.onnx", target, rows)
    with pytest.raises(ArgumentError):
        quantize_onnx(digits.int8, target, rows)
    calls = [
        (ModelInputError, rows * np.nan, {}),
        (ModelInputError, [], {}),
        (ModelInputError, rows[:0], {}),
        (ModelInputError, torch.randn(8, 9), {}),
        (UnwritablePathError, rows, {"output": tmp_path}),
        (ArgumentError, rows, {"output": tmp_path / "link.onnx"}),
        (ArgumentError, rows, {"float_layers": ["head"]}),
        (ArgumentError, rows, {"float_layers": ["*"]}),
        (ArgumentError, rows, {"float_layers": "0"}),
    ]
    before = (tmp_path / "net.onnx").read_bytes()
    for error, data, options in calls:
        with pytest.raises(error):
            quantize_onnx(tmp_path / "net.onnx", data=data, **{"output": target, **options})
    assert not target.exists()
    assert (tmp_path / "net.onnx").read_bytes() == before


def test_a_quantizer_that_changes_activations_is_not_trusted(exported, tmp_path, monkeypatch):
    from lit_gelu.export import quantization

    real = quantization.quantize_static

    def changed(source, target, *arguments, **options):
        real(source, target, *arguments, **options)
        model = onnx.load(target)
        (gelu, *_) = [node for node in model.graph.node if node.op_type == "Gelu"]
        gelu.ClearField("attribute")
        onnx.save(model, target)

    monkeypatch.setattr(quantization, "quantize_static", changed)
    with pytest.raises(ExportError):
        quantize_onnx(exported.path, tmp_path / "int8.onnx", exported.rows)
    assert list(tmp_path.iterdir()) == []
