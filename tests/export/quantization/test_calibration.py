"""The rows that a file is calibrated on."""

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from torch import nn

from lit_gelu.data import DigitsData
from lit_gelu.export import ModelInputError, OnnxPredictor, export_onnx
from lit_gelu.export.quantization import quantize_onnx
from lit_gelu.export.quantization.calibration import calibration_feeds


def rows_of(feeds):
    return np.concatenate([next(iter(feed.values())) for feed in feeds])


def test_a_data_modules_training_rows_are_drawn_by_the_seed(digits):
    predictor = OnnxPredictor(digits.path)
    torch.manual_seed(99)  # none of the seeds below
    state = torch.get_rng_state()
    drawn = {seed: rows_of(calibration_feeds(DigitsData(), predictor, 100, seed)) for seed in (0, 1)}
    again = rows_of(calibration_feeds(DigitsData(), predictor, 100, 0))
    assert torch.equal(torch.get_rng_state(), state)
    assert drawn[0].shape == (100, 1, 28, 28)
    assert np.array_equal(drawn[0], again)
    assert not np.array_equal(drawn[0], drawn[1])
    data = DigitsData()
    data.setup()
    training = {image.tobytes() for image in data.train_set.images.numpy()}
    others = {image.tobytes() for image in torch.cat([data.val_set.images, data.test_set.images]).numpy()} - training
    assert all(row.tobytes() in training for row in drawn[0])
    assert others
    assert len({row.tobytes() for row in drawn[0]}) == 100


def test_tensors_batches_and_dicts(digits):
    predictor, images = OnnxPredictor(digits.path), torch.rand(10, 1, 28, 28)
    for data in (images, (images, torch.zeros(10)), {"images": images, "labels": 0}, list(images.split(3))):
        assert np.array_equal(rows_of(calibration_feeds(data, predictor, 8, 0)), images[:8].numpy())
    assert len(rows_of(calibration_feeds(images, predictor, 512, 0))) == 10


class Lookup(nn.Module):
    """Compares rows with a table that has no batch."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x, table):
        return nn.functional.gelu(self.layer(x)) @ table.t()


def test_an_input_without_a_batch_stays_whole(tmp_path):
    path, table = tmp_path / "net.onnx", torch.randn(100, 8)
    export_onnx(Lookup(), path, (torch.zeros(4, 8), table))
    data = [(torch.randn(32, 8), table) for _ in range(3)]
    feeds = calibration_feeds(data, OnnxPredictor(path), 70, 0)
    assert [(len(feed["x"]), len(feed["table"])) for feed in feeds] == [(32, 100), (32, 100), (6, 100)]
    assert quantize_onnx(path, tmp_path / "int8.onnx", data, samples=70).record.rows == 70


class Adds(Lookup):
    """Adds a state that has the batch on its second axis."""

    def forward(self, x, state):
        return nn.functional.gelu(self.layer(x)) + state.sum(0)


def test_a_state_is_cut_on_the_axis_that_is_the_batch(tmp_path):
    path = tmp_path / "net.onnx"
    export_onnx(Adds(), path, (torch.zeros(4, 8), torch.zeros(2, 4, 8)), dynamic_shapes={"state": {1: "batch"}})
    data = [(torch.randn(32, 8), torch.randn(2, 32, 8)) for _ in range(3)]
    feeds = calibration_feeds(data, OnnxPredictor(path), 70, 0)
    assert [feed["state"].shape for feed in feeds] == [(2, 32, 8), (2, 32, 8), (2, 6, 8)]
    assert np.array_equal(feeds[2]["state"], data[2][1][:, :6].numpy())
    assert quantize_onnx(path, tmp_path / "int8.onnx", data, samples=70).record.rows == 70


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], "hold no row"),
        (torch.zeros(0, 1, 28, 28), "hold no row"),
        (torch.full((2, 1, 28, 28), float("nan")), "NaN or infinite values in 'images'"),
        (torch.full((2, 1, 28, 28), float("inf")), "NaN or infinite values in 'images'"),
        (torch.zeros(2, 28, 28), r"has shape \(2, 28, 28\)"),
        (torch.zeros(2, 1, 28, 28, dtype=torch.float64), "is float64, the file takes float32"),
        ({"pictures": torch.zeros(2, 1, 28, 28)}, "missing: images"),
        (7, "holds no batches"),
    ],
)
def test_data_that_cannot_be_calibrated_on(digits, data, message):
    with pytest.raises(ModelInputError, match=message):
        calibration_feeds(data, OnnxPredictor(digits.path), 8, 0)


class ProcessedDigits(DigitsData):
    """Digits whose raw training images cannot be had."""

    raw_train_inputs = None


def test_a_file_that_takes_raw_pixels_is_calibrated_on_raw_pixels(digits, tmp_path):
    path = tmp_path / "raw.onnx"
    export_onnx(digits.model, path, preprocessing=DigitsData().preprocessing())
    with pytest.raises(ModelInputError, match="ProcessedDigits has no raw_train_inputs"):
        quantize_onnx(path, tmp_path / "raw-int8.onnx", ProcessedDigits())
    rows = rows_of(calibration_feeds(DigitsData(), OnnxPredictor(path), 100, 0))
    assert rows.shape == (100, 1, 8, 8)
    known = {image.tobytes() for image in DigitsData().raw_train_inputs().numpy()}
    assert known.issuperset(row.tobytes() for row in rows.astype(np.uint8))


@pytest.mark.parametrize("method", ["entropy", "percentile"])
def test_other_methods_cut_the_range_off(digits, tmp_path, method):
    result = quantize_onnx(digits.path, tmp_path / "net.onnx", DigitsData(), method=method)
    assert result.record.method == method
    assert result.record.difference <= 0.05


def test_one_outlier_in_many_widens_the_range_but_for_percentiles(tmp_path):
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(50, 4), torch.nn.GELU())
    export_onnx(net, tmp_path / "net.onnx", torch.zeros(2, 50))
    x = torch.randn(4000, 50)
    x[0, 0] = 1000
    scales = {}
    for method in ("minmax", "percentile"):
        quantize_onnx(tmp_path / "net.onnx", tmp_path / f"{method}.onnx", x, method=method, samples=4000)
        stored = {t.name: numpy_helper.to_array(t) for t in onnx.load(tmp_path / f"{method}.onnx").graph.initializer}
        scales[method] = float(stored["input_scale"])
    assert scales["minmax"] == pytest.approx((1000 - float(x.min())) / 255, rel=1e-5)
    assert scales["percentile"] < 0.1 * scales["minmax"]


def input_range(folder, batches, **options):
    """Return the range that a file with one layer takes for its input."""
    torch.manual_seed(0)
    export_onnx(nn.Sequential(nn.Linear(50, 4), nn.GELU()), folder / "net.onnx", torch.zeros(2, 50))
    quantize_onnx(folder / "net.onnx", folder / "int8.onnx", batches, samples=4000, **options)
    stored = {t.name: numpy_helper.to_array(t) for t in onnx.load(folder / "int8.onnx").graph.initializer}
    scale, zero = float(stored["input_scale"]), stored["input_zero_point"]
    limits = np.iinfo(zero.dtype)
    return np.array([limits.min - int(zero), limits.max - int(zero)]) * scale


@pytest.mark.parametrize("outlier", [1e4, -1e30])
@pytest.mark.parametrize("rows", [4000, 1500])
def test_percentiles_are_those_of_the_numbers_however_large_an_outlier(tmp_path, outlier, rows):
    torch.manual_seed(0)
    x = torch.randn(4000, 50)
    x[-1, 0] = outlier
    wanted = np.quantile(x.double().numpy(), [1 / 200_000, 1 - 1 / 200_000], method="nearest")
    found = input_range(tmp_path, list(x.split(rows)), method="percentile")
    assert np.abs(found - wanted).max() <= 2 * (wanted[1] - wanted[0]) / 255  # 0 is one of the 256 numbers
    wanted = np.quantile(np.abs(x.double().numpy()), 1 - 1 / 100_000, method="nearest")
    found = input_range(tmp_path, list(x.split(rows)), method="percentile", target="ort-cuda")
    assert found[1] == pytest.approx(wanted, rel=1e-3)


def test_percentiles_are_those_of_the_numbers_whatever_batch_is_the_smallest(tmp_path):
    torch.manual_seed(0)
    x = torch.randn(4000, 50)
    x[0, :2] = 1e4  # of 200,000 numbers one is cut off: the second stays
    found = input_range(tmp_path, [x[:2], x[2:]], method="percentile")
    assert found[1] == pytest.approx(1e4, rel=1e-2)


class RowsAndSequence(nn.Module):
    """Its two inputs have sizes that do not follow each other."""

    def __init__(self):
        super().__init__()
        self.rows, self.sequence = nn.Linear(50, 4), nn.Linear(8, 4)

    def forward(self, x, sequence):
        return nn.functional.gelu(self.rows(x)) + self.sequence(sequence).mean(1)


@pytest.mark.parametrize("order", [1, -1])
def test_percentiles_are_those_of_the_numbers_where_the_largest_batch_is_another_one_for_each_value(tmp_path, order):
    torch.manual_seed(0)
    net, rows = RowsAndSequence(), torch.randn(4004, 50)
    rows[0, :2] = 1e4  # of 200,200 numbers one is cut off: the second stays
    export_onnx(
        net, tmp_path / "net.onnx", (rows[:2], torch.zeros(2, 3, 8)), dynamic_shapes={"sequence": {1: "length"}}
    )
    batches = [(rows[:4], torch.randn(4, 20_000, 8)), (rows[4:], torch.randn(4000, 2, 8))][::order]
    quantize_onnx(tmp_path / "net.onnx", tmp_path / "int8.onnx", batches, method="percentile", samples=4004)
    stored = {t.name: numpy_helper.to_array(t) for t in onnx.load(tmp_path / "int8.onnx").graph.initializer}
    assert float(stored["x_scale"]) == pytest.approx((1e4 - float(rows.min())) / 255, rel=1e-3)


def sqnr(y, exact):
    """Return the ratio of signal to noise in decibels."""
    y, exact = np.asarray(y, np.float64), np.asarray(exact, np.float64)
    return 10 * np.log10((exact**2).sum() / ((y - exact) ** 2).sum())


def one_in_ten():
    return (torch.rand(500, 50) < 0.1).float()


def one_hot():
    return torch.eye(50)[torch.randint(0, 50, (500,))]


def counts():
    return torch.poisson(torch.full((500, 50), 0.3))


def normal():
    return torch.randn(500, 50)


@pytest.mark.parametrize("target", ["portable", "ort-cuda"])
@pytest.mark.parametrize("draw", [one_in_ten, one_hot, counts, normal])
def test_entropy_leaves_a_signal_of_few_numbers_or_behind_a_relu_whole(tmp_path, draw, target):
    """Against torch in float32: what the search alone cuts away cost up to 36 dB."""
    torch.manual_seed(2)
    net = nn.Sequential(nn.Linear(50, 32), nn.ReLU(), nn.Linear(32, 4)).eval()
    x, found = draw(), {}
    export_onnx(net, tmp_path / "net.onnx", x[:2])
    for method in ("minmax", "entropy"):
        quantize_onnx(tmp_path / "net.onnx", tmp_path / "int8.onnx", x, method=method, target=target)
        y = OnnxPredictor(tmp_path / "int8.onnx", ["CPUExecutionProvider"])(x.numpy())
        found[method] = sqnr(y, net(x).detach())
    assert found["entropy"] >= found["minmax"] - 1.0


def test_entropy_cuts_an_outlier_off_where_the_rest_gains_more(tmp_path):
    torch.manual_seed(0)
    x = torch.randn(4000, 50)
    x[0, 0] = 10.0
    noise = {}
    for method in ("minmax", "entropy"):
        low, high = input_range(tmp_path, x, method=method)
        step = (high - low) / 255
        numbers = x.double().numpy()
        noise[method] = sqnr(low + step * np.round((numbers.clip(low, high) - low) / step), numbers)
    assert noise["entropy"] > noise["minmax"] + 0.5


def test_the_order_of_batches_is_no_matter_for_entropy(tmp_path):
    torch.manual_seed(0)
    x = torch.randn(4000, 50)
    x[0, 0] = 10.0
    found = input_range(tmp_path, x, method="entropy")
    assert found[1] < 9.0
    for batches in (x.split(1000), x[x.abs().amax(1).argsort()].split(1000)):
        np.testing.assert_allclose(input_range(tmp_path, list(batches), method="entropy"), found, rtol=1e-6)


@pytest.mark.parametrize("method", ["entropy", "percentile"])
def test_a_quiet_first_batch_takes_no_more_memory(tmp_path, method):
    """Bins as wide as the first batch's would be 1e14 here."""
    torch.manual_seed(0)
    x = torch.randn(128, 50)
    x[:64] *= 1e-12
    low, high = input_range(tmp_path, list(x.split(64)), method=method)
    assert -5.0 < low < -2.0
    assert 2.0 < high < 5.0
