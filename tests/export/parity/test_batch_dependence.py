"""Which nets' rows see each other is known from how they are built; files, reports and what uses them say the same."""

import threading

import onnx
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from lit_gelu.export import ExportError, ModelFileError, check_parity, export_onnx, inspect_onnx
from lit_gelu.export.inputs import FlatModule, take_apart
from lit_gelu.export.metadata import read_metadata
from lit_gelu.export.parity import batch_dependence
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


class Brightness(nn.Module):
    """Numbers of pixels."""

    def forward(self, x):
        return x.float()


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
    "sum of the rows before": (lambda: Computed(lambda y: y.cumsum(0)), ROWS),
    "sum of the rows behind": (lambda: Computed(lambda y: y.flip(0).cumsum(0).flip(0)), ROWS),
    "recurrent over rows": (lambda: Computed(lambda y: y[0], nn.LSTM(4, 3)), torch.zeros(2, 1, 4)),
    "statistics of the batch": (lambda: nn.BatchNorm1d(4, track_running_stats=False), ROWS),
    "tokens": (lambda: Computed(lambda y: y - y.mean(0), nn.Embedding(11, 3)), TOKENS[:1]),
    "largest of a column": (lambda: Computed(lambda y: (y - y.mean(0)).argmax(-1), nn.Linear(4, 64)), ROWS),
    "how many rows": (lambda: Computed(lambda y: y / y.shape[0]), ROWS),
    "less its mirror": (lambda: Computed(lambda y: y - y.flip(0)), ROWS),
    "in units of the largest of all": (lambda: Computed(lambda y: y / y.abs().max()), ROWS),
    "in steps of the largest of all": (lambda: Computed(lambda y: (y * 127 / y.abs().max()).round()), ROWS),
    "beside a column 1e5 times as large": (lambda: Computed(of_a_small_column), ROWS),
    "equal tokens": (lambda: Computed(lambda y: y - y.mean(0), nn.Embedding(11, 3)), torch.zeros_like(TOKENS)),
    "a token a row": (lambda: Computed(lambda y: y - y.mean(0), nn.Embedding(11, 3)), torch.tensor([3])),
    "black images": (lambda: Computed(lambda y: y - y.mean(0), Brightness()), torch.zeros(2, 4, dtype=torch.uint8)),
    "a lock": (Locked, ROWS),
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
    "an output a row": (lambda: Computed(lambda y: list(y.unbind(0))), ROWS),
    "a column of what rounding leaves": (lambda: Computed(beside_rounding), torch.zeros(2, 4)),
    "a small column of float32": (lambda: Computed(small_in_float32, nn.Linear(4, 64)), ROWS),
    "equal tokens": (lambda: nn.Sequential(nn.Embedding(11, 3), nn.GELU()), torch.zeros_like(TOKENS)),
    "black images": (lambda: nn.Sequential(Brightness(), nn.GELU()), torch.zeros(2, 4, dtype=torch.uint8)),
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


def test_it_costs_nine_rows():
    made, seen = flat(*INDEPENDENT["convolution"]), []
    made.model.register_forward_pre_hook(lambda _, inputs: seen.append(len(inputs[0])))
    rows_depend(made)
    assert seen == [4, 2, 1, 2]


def test_no_room_for_a_copy_in_float64_is_no_error(monkeypatch):
    def refused(*_):
        raise MemoryError

    monkeypatch.setattr(batch_dependence, "evaluation_copy", refused)
    assert rows_depend(flat(*DEPENDENT["less the mean"]))
    assert not rows_depend(flat(*INDEPENDENT["deep"]))


@pytest.mark.one_in(2)
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


def test_what_the_export_cannot_see(tmp_path):
    """Something of all rows that comes seldom; docs/export.md says so."""
    net = Computed(lambda y: F.gelu(y) * torch.where((y > 100).any(), 2.0, 1.0))
    assert not export_onnx(net, tmp_path / "net.onnx", ROWS).metadata.rows_depend


def test_what_a_file_does_not_say_the_proof_measures(tmp_path):
    path, net = tmp_path / "net.onnx", Computed(lambda y: F.gelu(y - y.mean(0)))
    properties = export_onnx(net, path, ROWS).metadata.to_properties()
    assert properties.pop("lit_gelu.rows_depend") == "true"
    model = onnx.load(path)
    del model.metadata_props[:]
    onnx.helper.set_model_props(model, properties)
    onnx.save(model, path)
    (note,) = check_parity(net, path, input_sample=ROWS).notes
    assert note.startswith(NOTE)
    assert "1 of 32 rows alone give 'output' with a difference of" in note


def test_an_output_a_row_is_refused_by_what_the_module_does(tmp_path):
    with pytest.raises(ExportError, match="turns the batch size into a Python number"):
        export_onnx(Computed(lambda y: list(F.gelu(y).unbind(0))), tmp_path / "net.onnx", ROWS)


def test_a_lock_that_forward_sets_does_not_end_the_export(tmp_path):
    assert export_onnx(nn.Sequential(Locked(), nn.GELU()), tmp_path / "net.onnx", ROWS).metadata.rows_depend


def test_older_files_say_nothing_and_others_are_refused(tmp_path):
    path = tmp_path / "net.onnx"
    properties = export_onnx(nn.GELU(), path, ROWS).metadata.to_properties()
    assert "lit_gelu.rows_depend" not in properties  # older code refuses what it does not know
    assert read_metadata(properties, "a file").rows_depend is False
    model = onnx.load(path)
    onnx.helper.set_model_props(model, properties)
    onnx.save(model, path)
    assert check_parity(nn.GELU(), path, input_sample=ROWS).notes == ()
    with pytest.raises(ModelFileError, match=r"lit_gelu\.rows_depend holds 3, and should hold true or false"):
        read_metadata({**properties, "lit_gelu.rows_depend": "3"}, "a file")
