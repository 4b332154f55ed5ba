"""Runs of a file and of its module: sessions, whether two runs agree, and which nets' rows see each other."""

import threading

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from lit_gelu.export import check_parity, export_onnx, inspect_onnx
from lit_gelu.export.inputs import FlatModule, take_apart
from lit_gelu.export.metadata import ROWS_DEPEND
from lit_gelu.export.open_axes import rows_depend
from lit_gelu.export.parity.runs import SessionSetup, open_predictor
from lit_gelu.export.runtime import CPU, CUDA

ROWS = torch.zeros(2, 4)


class Computed(nn.Module):
    """A layer, and then what is computed of its rows."""

    def __init__(self, computed, layer=None):
        super().__init__()
        self.layer, self.computed = layer or nn.Linear(4, 4), computed

    def forward(self, *x):
        return self.computed(self.layer(*x))


class MostLikely(nn.Module):
    """Rounded and counted: rounding decides, but never the other rows."""

    def forward(self, x):
        return (x * 1e4).round().remainder(2), x.argmax(-1)


class LastState(nn.Module):
    """The batch is the second axis of what it gives."""

    def __init__(self):
        super().__init__()
        self.net = nn.LSTM(4, 3, 2, batch_first=True)

    def forward(self, x):
        return self.net(x)[1][0]


class Cached(nn.Module):
    """Keeps a mask of the size of the last batch."""

    def __init__(self):
        super().__init__()
        self.act, self.mask = nn.GELU(), None

    def forward(self, x):
        if self.mask is None or self.mask.shape[0] != x.shape[0]:
            self.mask = torch.ones(x.shape[0], 4)
        return self.act(x) * self.mask


class Doubles(nn.Module):
    """Does not run in float64, and its rows see nothing of each other."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])

    def forward(self, x):
        for layer in self.layers:
            x = layer(x.float()).softmax(-1) * 1e3
        return x


class Locked(nn.Module):
    """Has what `copy.deepcopy` refuses once it has run."""

    def forward(self, x):
        self.lock = threading.Lock()
        return x - x.mean(0)


def of_a_small_column(y):
    return torch.cat([1e5 * y[:, :1], (y - y.mean(0))[:, 1:]], 1)


def beside_rounding(y):
    return torch.cat([y, y.softmax(-1).sum(-1, keepdim=True) - 1], 1)


def small_in_float32(y):
    """What is left of numbers of the size of 1, added in float32 also where the rest is in float64."""
    total = (y.float().softmax(-1) @ torch.ones(y.shape[-1], 1)).to(y.dtype)
    return torch.cat([y, total - 1], 1)


def of_positive(x):
    return (x - 1).log()


DEPENDENT = {
    "time first": (lambda: nn.TransformerEncoderLayer(8, 2, 16, activation="gelu"), torch.zeros(5, 2, 8)),
    "less the mean": (lambda: Computed(lambda y: y - y.mean(0)), ROWS),
    "softmax over rows": (lambda: Computed(lambda y: F.gelu(y).softmax(0)), ROWS),
    "sum of the rows behind": (lambda: Computed(lambda y: y.flip(0).cumsum(0).flip(0)), ROWS),
    "tokens": (lambda: Computed(lambda y: y - y.mean(0), nn.Embedding(11, 3)), torch.tensor([[1, 2, 3, 4, 5]])),
    "statistics of the batch": (lambda: nn.BatchNorm1d(4, track_running_stats=False), ROWS),
    "less its mirror": (lambda: Computed(lambda y: y - y.flip(0)), ROWS),
    "in units of the largest of all": (lambda: Computed(lambda y: y / y.abs().max()), ROWS),
    "beside a column 1e5 times as large": (lambda: Computed(of_a_small_column), ROWS),
    "a lock": (Locked, ROWS),
}


INDEPENDENT = {
    "convolution": (lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.GELU()), torch.zeros(1, 3, 8, 8)),
    "batch first": (lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), torch.zeros(2, 5, 8)),
    "rounded": (lambda: Computed(MostLikely(), nn.Linear(4, 64)), ROWS),
    "deep": (lambda: nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.GELU()) for _ in range(30))), ROWS),
    "state": (LastState, torch.zeros(2, 5, 4)),
    "equal tokens": (lambda: nn.Sequential(nn.Embedding(11, 3), nn.GELU()), torch.zeros(2, 5, dtype=torch.int64)),
    "all rows with all": (lambda: Computed(lambda y: y @ y.T), ROWS),
    "only float32": (Doubles, ROWS),
    "no finite outputs of random rows": (lambda: Computed(of_positive, nn.Softplus()), torch.full((2, 4), 3.0)),
    "a cache": (Cached, torch.zeros(5, 4)),
    "a column of what rounding leaves": (lambda: Computed(beside_rounding), torch.zeros(2, 4)),
    "a small column of float32": (lambda: Computed(small_in_float32, nn.Linear(4, 64)), ROWS),
}


def flat(build, sample):
    torch.manual_seed(0)
    net = build().eval()
    return FlatModule(net, take_apart(net, sample))


@pytest.mark.parametrize("name", DEPENDENT)
def test_rows_that_see_each_other_are_found(name):
    assert rows_depend(flat(*DEPENDENT[name]))


@pytest.mark.parametrize("name", INDEPENDENT)
def test_rows_that_do_not_are_no_false_alarm(name):
    assert not rows_depend(flat(*INDEPENDENT[name]))


@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
def test_file_export_and_proof_say_so(tmp_path, dtype):
    path, x = tmp_path / "net.onnx", torch.randn(5, 2, 8)
    torch.manual_seed(0)
    net = nn.TransformerEncoderLayer(8, 2, 16, activation="gelu").eval()
    record = export_onnx(net, path, x, dtype=dtype)
    assert record.metadata.rows_depend
    assert ROWS_DEPEND in str(record)
    assert ROWS_DEPEND in str(inspect_onnx(path))
    report = check_parity(net, path, input_sample=x)
    assert report.passed
    (note,) = report.notes
    assert note.startswith(ROWS_DEPEND)


@pytest.mark.parametrize("providers", [(CUDA, CPU), ((CUDA, {"use_tf32": 1, "device_id": 0}), CPU)])
def test_tf32_is_off_for_a_float32_file_alone(providers, monkeypatch, tmp_path):
    monkeypatch.setattr(SessionSetup, "open", lambda setup, path: setup.providers)
    assert open_predictor(tmp_path, providers, {}, torch.float32)[0][0][1]["use_tf32"] == 0
    assert open_predictor(tmp_path, providers, {}, torch.float16)[0] == providers[:1]
