"""What inputs may hold: found by following them through the module, drawn so that no part of it is left out."""

import pytest
import torch
from torch import nn

from lit_gelu.export import ParityError, check_parity, export_onnx
from lit_gelu.export.inputs import take_apart
from lit_gelu.export.parity.drawn_values import Between, Indices, Mask, integer_kinds


class Reads(nn.Module):
    """Reads tables in every way, behind operators that hand indices on."""

    def __init__(self):
        super().__init__()
        self.words, self.types = nn.Embedding(11, 4), nn.Embedding(3, 4)
        self.places = nn.Embedding(9, 4)
        self.register_buffer("rows", torch.randn(7, 4))

    def forward(self, words, types, places, row, one_hot, mask, length, kept, number):
        y = self.words(words.int()[:, None].squeeze(1)) + self.types(types.clamp(min=0)) + self.places(places + 2)
        y = y + self.rows[row.view(-1)].view(y.shape) + nn.functional.one_hot(one_hot.long(), 4).float()
        y = y.masked_fill(mask.unsqueeze(-1), 0.0) * kept.unsqueeze(-1)
        return y.sum(1) / length.unsqueeze(-1) + number.unsqueeze(-1)


def reads_sample():
    ones = torch.ones(2, 5, dtype=torch.int64)
    return {
        **{name: ones.clone() for name in ("words", "types", "places", "row", "one_hot")},
        "mask": torch.zeros(2, 5, dtype=torch.bool),
        "length": torch.tensor([3, 5]),
        "kept": ones,
        "number": torch.tensor([7, 7]),
    }


def test_what_each_input_may_hold():
    model, sample = Reads(), reads_sample()
    call = take_apart(model, sample)

    def run(tensors):
        args, kwargs = call.arguments(tensors)
        return model(*args, **kwargs)

    kinds, notes = integer_kinds(call, run)
    assert {call.names[place]: kind for place, kind in kinds.items()} == {
        "words": Indices(11),
        "types": Indices(3),
        "places": Indices(7),
        "row": Indices(7),
        "one_hot": Indices(4),
        "mask": Mask(0),
        "length": Between(3, 5),
        "kept": Mask(1),
    }
    assert [note.split("'")[1] for note in notes] == ["length", "number"]


@pytest.mark.parametrize("size", [1, 5, 300])
def test_indices_are_all_tried_before_one_comes_again(size):
    y = Indices(size).draw(torch.Size([8, 16]), torch.Generator().manual_seed(0))
    assert y.shape == (8, 16)
    counts = torch.bincount(y.flatten(), minlength=size)
    assert len(counts) == size
    assert counts.max() - counts.min() <= 1


@pytest.mark.parametrize("shape", [(32, 7), (1, 4), (4, 6, 6), (2, 2), (3, 1), (5,)])
@pytest.mark.parametrize("kept", [0, 1])
def test_masks_have_both_values_and_no_row_without_a_kept_place(shape, kept):
    for seed in range(20):
        y = Mask(kept).draw(torch.Size(shape), torch.Generator().manual_seed(seed))
        assert y.shape == shape
        assert (y[..., 0] == kept).all()
        assert len(y.unique()) == min(2, shape[-1])


class Masked(nn.Module):
    """Tokens and a mask, which a file may ignore."""

    def __init__(self, ignore=False, refuse=""):
        super().__init__()
        torch.manual_seed(0)
        self.table, self.act, self.head = nn.Embedding(50, 8), nn.GELU(), nn.Linear(8, 3)
        self.ignore, self.refuse = ignore, refuse

    def forward(self, tokens, mask):
        if self.refuse == "fails" and not torch.compiler.is_compiling() and not bool(mask.all()):
            raise ValueError("padding is not supported")
        weights = torch.ones_like(mask).float() if self.ignore else mask.float()
        weights = weights.log() if self.refuse == "infinite" else weights
        return self.head((self.act(self.table(tokens)) * weights.unsqueeze(-1)).sum(1))


SAMPLE = {"tokens": torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]]), "mask": torch.ones(2, 4, dtype=torch.int64)}


def test_a_file_that_ignores_its_mask_fails_though_the_samples_mask_is_all_ones(tmp_path):
    """With the sample's mask it differs by nothing."""
    path = tmp_path / "net.onnx"
    export_onnx(Masked(ignore=True), path, SAMPLE)
    report = check_parity(Masked(), path, input_sample=SAMPLE, strict=False)
    assert report.row("sample").passed
    assert {row.inputs for row in report.failures} == {"random, batch 32", "random, batch 1", "random, batch 2"}
    assert check_parity(Masked(ignore=True), path, input_sample=SAMPLE).passed


@pytest.mark.parametrize("refuse", ["fails", "infinite"])
def test_a_mask_that_the_module_cannot_take_keeps_the_samples_values_and_that_is_said(tmp_path, refuse):
    model, path = Masked(refuse=refuse), tmp_path / "net.onnx"
    export_onnx(Masked(refuse=refuse.replace("fails", "")), path, SAMPLE)
    report = check_parity(model, path, input_sample=SAMPLE)
    assert any("'mask' was not varied" in note for note in report.notes)
    assert report.row("random, batch 32").passed


def test_how_much_of_a_large_table_was_tried_is_said(tmp_path):
    model, path = nn.Sequential(nn.Embedding(1000, 4), nn.GELU()), tmp_path / "net.onnx"
    export_onnx(model, path, SAMPLE["tokens"])
    report = check_parity(model, path, input_sample=SAMPLE["tokens"])
    assert len(report.notes) == 1
    assert "128 of 1,000" in report.notes[0]


class OfSpectrum(nn.Module):
    """Takes a function of its input that is not defined everywhere, as front ends for speech do."""

    def __init__(self, function=torch.log):
        super().__init__()
        self.net, self.function = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4)), function

    def forward(self, x):
        return self.net(self.function(x))


@pytest.mark.parametrize(
    ("function", "sample", "family"),
    [
        (torch.log, torch.rand(64, 16) + 0.1, "sample's values"),
        (torch.logit, torch.rand(8, 16) * 0.98 + 0.01, "sample's values"),
        (torch.sqrt, torch.ones(2, 16), "|gaussian|"),
    ],
)
def test_values_that_the_module_takes_are_drawn(tmp_path, function, sample, family):
    model, path = OfSpectrum(function), tmp_path / "net.onnx"
    export_onnx(model, path, sample)
    report = check_parity(model, path, input_sample=sample)
    row = report.row(f"{family}, batch 32")
    assert (row.count, row.nonfinite) == (32, 0)
    assert row.scale > 0.1
    assert len(report.notes) == 1
    with torch.no_grad():
        model.net[2].weight[1] += 0.01
    found = check_parity(model, path, input_sample=sample, strict=False)
    assert not found.row(f"{family}, batch 32").passed


def test_a_module_that_gives_nan_on_its_sample_fails(tmp_path):
    model, path = OfSpectrum(torch.sin), tmp_path / "net.onnx"
    with torch.no_grad():
        model.net[2].bias[0] = float("nan")
    export_onnx(model, path, torch.rand(2, 16))
    with pytest.raises(ParityError):
        check_parity(model, path, input_sample=torch.rand(2, 16))
