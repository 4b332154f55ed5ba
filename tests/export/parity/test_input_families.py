"""What a file is compared on: data in every form, extremes, and other sizes of open dimensions."""

import export_zoo
import numpy as np
import onnx
import pytest
import torch
from export_cases import gelu_net
from lightning.pytorch import LightningDataModule
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from lit_gelu.export import ModelInputError, ParityError, check_parity, export_onnx
from lit_gelu.export.input_kinds import Indices, Mask, OfSample, integer_kinds
from lit_gelu.export.inputs import take_apart
from lit_gelu.export.parity.input_families import batches_in, other_lengths

SAMPLE = torch.zeros(2, 6)


@pytest.fixture(scope="module")
def exported():
    return gelu_net(), export_zoo.exported("gelu")[1]


class Batches(LightningDataModule):
    def setup(self, stage):
        self.data = TensorDataset(torch.randn(20, 6), torch.zeros(20, dtype=torch.int64))

    def test_dataloader(self):
        return DataLoader(self.data, batch_size=8)


class ValidationOnly(LightningDataModule):
    def setup(self, stage):
        assert stage == "validate"

    def val_dataloader(self):
        return DataLoader(torch.randn(5, 6), batch_size=2)


class TrainingOnly(LightningDataModule):
    def train_dataloader(self):
        return DataLoader(torch.randn(5, 6))


class Several(ValidationOnly):
    def val_dataloader(self):
        one, other = super().val_dataloader(), DataLoader(torch.randn(4, 6), batch_size=3)
        return {"one": one, "others": (other, [one])}


@pytest.mark.parametrize(
    ("data", "rows"),
    [
        (Several(), 14),
        (torch.randn(7, 6), 7),
        (DataLoader(TensorDataset(torch.randn(9, 6), torch.zeros(9)), batch_size=4), 9),
        ({"one": DataLoader(torch.randn(3, 6)), "others": (DataLoader(torch.randn(2, 6)),)}, 5),
        ({"input": torch.randn(4, 6), "label": torch.zeros(4)}, 4),
        (Batches(), 20),
        (ValidationOnly(), 5),
    ],
)
def test_data_come_as_tensor_loader_dict_or_data_module(exported, data, rows):
    net, path = exported
    counts = {row.count for row in check_parity(net, path, data).rows if row.inputs == "data"}
    assert counts == {rows}


@pytest.mark.parametrize(
    "data",
    [
        torch.randn(7, 2, 6),
        torch.zeros(7, 6, dtype=torch.int64),
        [],
        3,
        DataLoader([{"wrong": torch.zeros(6)}]),
        TrainingOnly(),
        [np.zeros((3, 6), np.float32)],
    ],
)
def test_data_that_do_not_fit(exported, data):
    net, path = exported
    with pytest.raises(ModelInputError):
        check_parity(net, path, data)


STEPS = torch.arange(12, dtype=torch.float32).reshape(2, 3, 2)


def sizes_of_image(height, width, refuses):
    call = take_apart(nn.Identity(), torch.zeros(2, 3, height, width))
    others, _ = other_lengths(call, [["n", 3, "h", "w"]], lambda t: "no" if refuses(*t[0].shape[2:]) else "")
    return [tuple(other.tensors[0].shape[2:]) for other in others]


def test_sizes_that_depend_on_each_other_change_together():
    assert sizes_of_image(6, 6, lambda h, w: h != w) == [(10, 10), (3, 3), (1, 1), (7, 7)]
    assert sizes_of_image(48, 32, lambda h, w: h % 16 or w % 16) == [(16, 64), (96, 96), (144, 128), (192, 16)]
    assert sizes_of_image(6, 6, lambda h, w: (h, w) != (6, 6)) == []


def test_a_file_that_is_right_at_the_samples_length_alone_is_caught(tmp_path):
    """A mean that divides by the sample's three steps, in a file that says it takes any number of them."""

    class Mean(nn.Module):
        def __init__(self, steps=None):
            super().__init__()
            torch.manual_seed(0)
            self.linear, self.act, self.steps = nn.Linear(2, 4), nn.GELU(), steps

        def forward(self, x):
            return self.act(self.linear(x)).sum(1) / (self.steps or x.shape[1])

    path = tmp_path / "net.onnx"
    export_onnx(Mean(3), path, STEPS)
    assert check_parity(Mean(), path, input_sample=STEPS).passed  # the file takes three steps only
    model = onnx.load(path)
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "time"
    del model.graph.value_info[:]
    onnx.save(model, path)
    report = check_parity(Mean(), path, input_sample=STEPS, strict=False)
    assert {row.inputs for row in report.failures} == {f"gaussian, x [{steps}, 2]" for steps in (1, 4, 5, 6)}
    assert check_parity(Mean(3), path, input_sample=STEPS).passed


def test_a_length_at_which_the_file_does_not_run_is_a_failed_row(tmp_path, capfd):
    class Three(nn.Module):
        """The first three steps, or as many zeros as are missing where there may be fewer."""

        def __init__(self, padded):
            super().__init__()
            torch.manual_seed(0)
            self.act, self.head, self.padded = nn.GELU(), nn.Linear(6, 4), padded

        def forward(self, x):
            if self.padded:
                x = nn.functional.pad(x, (0, 0, 0, max(0, 3 - x.shape[1])))[:, :3]
            return self.act(self.head(x.flatten(1)))

    path = tmp_path / "net.onnx"
    export_onnx(Three(padded=False), path, STEPS)
    model = onnx.load(path)
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "time"
    del model.graph.value_info[:]
    onnx.save(model, path)
    report = check_parity(Three(padded=True), path, input_sample=STEPS, strict=False)
    assert not report.passed
    assert {row.inputs for row in report.failures} == {f"gaussian, x [{steps}, 2]" for steps in (1, 4, 5, 6)}
    assert all(row.error == float("inf") for row in report.failures)
    unrun = {row.inputs for row in report.failures if "onnxruntime failed while it ran" in str(row)}
    assert unrun == {f"gaussian, x [{steps}, 2]" for steps in (1, 4, 5)}  # six steps are two rows of three
    assert capfd.readouterr().err == ""
    assert report.repeats is not None
    assert all("onnxruntime failed while it ran" in text for text in (str(report), report.to_json()))
    assert report.to_html()
    with pytest.raises(ParityError):
        check_parity(Three(padded=True), path, input_sample=STEPS)


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

    kinds, notes = integer_kinds(call, run, call.whole_numbers(raw=False))
    named = {call.names[place]: kind for place, kind in kinds.items()}
    length = named.pop("length")
    assert isinstance(length, OfSample)
    assert length.values.tolist() == [3, 5]
    assert named == {
        "words": Indices(11),
        "types": Indices(3),
        "places": Indices(7),
        "row": Indices(7),
        "one_hot": Indices(4),
        "mask": Mask(0),
        "kept": Mask(1),
    }
    assert [note.split("'")[1] for note in notes] == ["length", "number"]


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


TOKENS = {"tokens": torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]]), "mask": torch.ones(2, 4, dtype=torch.int64)}


def test_a_file_that_ignores_its_mask_fails_though_the_samples_mask_is_all_ones(tmp_path):
    """With the sample's mask it differs by nothing."""
    path = tmp_path / "net.onnx"
    export_onnx(Masked(ignore=True), path, TOKENS)
    report = check_parity(Masked(), path, input_sample=TOKENS, strict=False)
    assert report.row("sample").passed
    assert {row.inputs for row in report.failures} == {"random, batch 32", "random, batch 1", "random, batch 2"}
    assert check_parity(Masked(ignore=True), path, input_sample=TOKENS).passed


@pytest.mark.parametrize("refuse", ["fails", "infinite"])
def test_a_mask_that_the_module_cannot_take_keeps_the_samples_values_and_that_is_said(tmp_path, refuse):
    model, path = Masked(refuse=refuse), tmp_path / "net.onnx"
    export_onnx(Masked(refuse=refuse.replace("fails", "")), path, TOKENS)
    report = check_parity(model, path, input_sample=TOKENS)
    assert any("'mask' was not varied" in note for note in report.notes)
    assert report.row("random, batch 32").passed


class OfSpectrum(nn.Module):
    """Takes a function of its input that is not defined everywhere, as front ends for speech do."""

    def __init__(self, function=torch.log):
        super().__init__()
        self.net, self.function = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4)), function

    def forward(self, x):
        return self.net(self.function(x))


def test_values_that_the_module_takes_are_drawn(tmp_path):
    model, path, sample, family = OfSpectrum(), tmp_path / "net.onnx", torch.rand(64, 16) + 0.1, "sample's values"
    export_onnx(model, path, sample)
    report = check_parity(model, path, input_sample=sample)
    row = report.row(f"{family}, batch 32")
    assert (row.count, row.nonfinite) == (32, 0)
    assert row.scale > 0.1
    assert len(report.notes) == 1
    with torch.no_grad():
        model.net[2].weight[1] += 0.01
    verdict = check_parity(model, path, input_sample=sample, strict=False)
    assert not verdict.row(f"{family}, batch 32").passed


def test_batches_of_all_that_a_trainer_takes():
    x, y = torch.randn(4, 3), torch.arange(4)
    loader = DataLoader(TensorDataset(x, y), batch_size=4)
    for dataloaders in (loader, [loader], {"first": [loader]}, [(x, y)], [{"x": x, "y": y}]):
        first = next(iter(batches_in(dataloaders)))
        assert torch.equal(first["x"] if isinstance(first, dict) else first[0], x)
    assert [*batches_in(None)] == [*batches_in([])] == []
