"""Which nets' rows see each other is known from how they are built; files, reports and what uses them say the same."""

import json

import onnx
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from lit_gelu.export import ModelFileError, check_parity, export_onnx, inspect_onnx
from lit_gelu.export.inputs import FlatModule, take_apart
from lit_gelu.export.metadata import read_metadata
from lit_gelu.export.parity.batch_dependence import NOTE, rows_depend

ROWS, TOKENS = torch.zeros(2, 4), torch.tensor([[1, 2, 3, 4, 5], [3, 3, 0, 9, 9]])


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


def of_positive(x):
    return (x - 1).log()


DEPENDENT = {
    "time first": (lambda: nn.TransformerEncoderLayer(8, 2, 16, activation="gelu"), torch.zeros(5, 2, 8)),
    "less the mean": (lambda: Computed(lambda y: y - y.mean(0)), ROWS),
    "softmax over rows": (lambda: Computed(lambda y: F.gelu(y).softmax(0)), ROWS),
    "sum of the rows before": (lambda: Computed(lambda y: y.cumsum(0)), ROWS),
    "sum of the rows behind": (lambda: Computed(lambda y: y.flip(0).cumsum(0).flip(0)), ROWS),
    "recurrent over rows": (lambda: Computed(lambda y: y[0], nn.LSTM(4, 3)), torch.zeros(2, 1, 4)),
    "statistics of the batch": (lambda: nn.BatchNorm1d(4, track_running_stats=False), ROWS),
    "tokens": (lambda: Computed(lambda y: y - y.mean(0), nn.Embedding(11, 3)), TOKENS[:1]),
    "largest of a column": (lambda: Computed(lambda y: (y - y.mean(0)).argmax(-1), nn.Linear(4, 64)), ROWS),
    "how many rows": (lambda: Computed(lambda y: y / y.shape[0]), ROWS),
    "one of two outputs": (lambda: Computed(lambda y: (y, y - y.mean(0))), ROWS),
}
INDEPENDENT = {
    "convolution": (lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.GELU()), torch.zeros(1, 3, 8, 8)),
    "batch first": (lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), torch.zeros(2, 5, 8)),
    "rounded": (lambda: Computed(MostLikely(), nn.Linear(4, 64)), ROWS),
    "deep": (lambda: nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.GELU()) for _ in range(30))), ROWS),
    "state": (LastState, torch.zeros(2, 5, 4)),
    "tokens": (lambda: nn.Sequential(nn.Embedding(11, 3), nn.GELU()), TOKENS),
    "all rows with all": (lambda: Computed(lambda y: y @ y.T), ROWS),
    "one number for all": (lambda: Computed(lambda y: y.mean()), ROWS),
    "only float32": (Doubles, ROWS),
    "no finite outputs of random rows": (lambda: Computed(of_positive, nn.Softplus()), torch.full((2, 4), 3.0)),
    "a cache": (Cached, torch.zeros(5, 4)),
}


def flat(made, sample):
    torch.manual_seed(0)
    net = made().eval()
    return FlatModule(net, take_apart(net, sample))


@pytest.mark.parametrize("name", DEPENDENT)
def test_rows_that_see_each_other_are_found(name):
    assert rows_depend(flat(*DEPENDENT[name]))


@pytest.mark.parametrize("name", INDEPENDENT)
def test_rows_that_do_not_are_no_false_alarm(name):
    assert not rows_depend(flat(*INDEPENDENT[name]))


def test_what_a_module_keeps_is_as_before():
    made = flat(Cached, ROWS)
    made.model(torch.zeros(7, 4))
    mask = made.model.mask
    assert not rows_depend(made)
    assert made.model.mask is mask


def test_it_costs_four_rows_and_two():
    made, seen = flat(*INDEPENDENT["convolution"]), []
    made.model.register_forward_pre_hook(lambda _, inputs: seen.append(len(inputs[0])))
    rows_depend(made)
    assert seen == [4, 2]


@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
def test_file_export_and_proof_say_so(tmp_path, dtype):
    path, x = tmp_path / "net.onnx", torch.randn(5, 2, 8)
    torch.manual_seed(0)
    net = nn.TransformerEncoderLayer(8, 2, 16, activation="gelu").eval()
    made = export_onnx(net, path, x, dtype=dtype)
    assert made.metadata.rows_depend
    assert NOTE in str(made)
    assert NOTE in str(inspect_onnx(path))
    report = check_parity(net, path, input_sample=x)
    assert report.passed
    (note,) = report.notes
    assert note.startswith(NOTE)
    assert "1 of 32 rows alone give 'output' with a difference of" in note


def test_nothing_is_said_of_rows_that_do_not(tmp_path):
    net, x = nn.Sequential(nn.Linear(4, 4), nn.GELU()), torch.zeros(2, 4)
    made = export_onnx(net, tmp_path / "net.onnx", x)
    assert not made.metadata.rows_depend
    assert made.notes == ()
    assert check_parity(net, tmp_path / "net.onnx", input_sample=x).notes == ()


def test_what_the_export_could_not_see_the_proof_measures(tmp_path):
    """Of equal tokens no mean differs from any of them."""
    path, tokens = tmp_path / "net.onnx", torch.zeros(2, 5, dtype=torch.int64)
    net = Computed(lambda y: F.gelu(y - y.mean(0)), nn.Embedding(11, 3))
    assert not export_onnx(net, path, tokens).metadata.rows_depend
    assert any(note.startswith(NOTE) for note in check_parity(net, path, input_sample=tokens).notes)


def test_older_files_say_nothing_and_others_are_refused(tmp_path):
    path = tmp_path / "net.onnx"
    properties = export_onnx(nn.GELU(), path, ROWS).metadata.to_properties()
    assert json.loads(properties.pop("lit_gelu.rows_depend")) is False
    assert read_metadata(properties, "a file").rows_depend is False
    model = onnx.load(path)
    onnx.helper.set_model_props(model, properties)
    onnx.save(model, path)
    assert check_parity(nn.GELU(), path, input_sample=ROWS).notes == ()
    with pytest.raises(ModelFileError, match=r"lit_gelu\.rows_depend holds 3, and should hold true or false"):
        read_metadata({**properties, "lit_gelu.rows_depend": "3"}, "a file")
