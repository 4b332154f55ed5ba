"""Files that take raw pixels: what is in them, what they compute, and how they are compared with PyTorch."""

import copy

import numpy as np
import onnx
import pytest
import torch
from lightning.pytorch import LightningDataModule
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from lit_gelu.errors import ArgumentError
from lit_gelu.export import ExportError, ModelInputError, OnnxPredictor, ParityError, check_parity, export_onnx


class Whiten(nn.Module):
    """As CIFAR-10's: scaled, centred, multiplied by a matrix of the whole image."""

    mean: Tensor
    matrix: Tensor

    def __init__(self, channels: int = 3, size: int = 4, seed: int = 0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        pixels = channels * size * size
        self.register_buffer("mean", torch.randn(pixels, generator=generator))
        self.register_buffer("matrix", torch.randn(pixels, pixels, generator=generator) / pixels**0.5)

    def forward(self, pixels: Tensor) -> Tensor:
        flat = (pixels.to(self.mean.dtype) - 127.5).div(128).flatten(1)
        return ((flat - self.mean) @ self.matrix).reshape(pixels.shape)


class ConvNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.norm, self.act = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.GELU()
        self.drop, self.out = nn.Dropout(), nn.Linear(16, 3)
        self.example_input_array = torch.zeros(2, 3, 4, 4)

    def forward(self, images: Tensor) -> Tensor:
        return self.out(self.drop(self.act(self.norm(self.conv(images)))).flatten(1))


class RawData(LightningDataModule):
    """Its loaders give preprocessed images, as those of `lit_gelu.data` do."""

    def __init__(self) -> None:
        super().__init__()
        self.pixels = torch.randint(0, 256, (300, 3, 4, 4), dtype=torch.uint8, generator=torch.Generator())

    def preprocessing(self) -> nn.Module:
        return Whiten()

    def raw_test_inputs(self) -> Tensor:
        return self.pixels

    def test_dataloader(self):
        return DataLoader(TensorDataset(Whiten()(self.pixels), torch.zeros(300)), batch_size=64)


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    net, path = ConvNet(), tmp_path_factory.mktemp("raw") / "net.onnx"
    return net, path, export_onnx(net, path, preprocessing=Whiten(), approximate="tanh")


def test_the_file_takes_unsigned_bytes_in_any_batch(exported):
    net, path, _ = exported
    (value,) = onnx.load(path).graph.input
    assert value.name == "images"
    assert value.type.tensor_type.elem_type == onnx.TensorProto.UINT8
    sizes = [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]
    assert sizes == ["batch", 3, 4, 4]
    onnx.checker.check_model(onnx.load(path), full_check=True)
    predictor = OnnxPredictor(path)
    for rows in (1, 2, 7):
        pixels = np.random.default_rng(rows).integers(0, 256, (rows, 3, 4, 4), dtype=np.uint8)
        step = Whiten()
        flat = ((pixels.astype(np.float64) - 127.5) / 128).reshape(rows, -1) - step.mean.double().numpy()
        fed = (flat @ step.matrix.double().numpy()).reshape(pixels.shape)
        twin = copy.deepcopy(net).double().eval()
        twin.act = nn.GELU(approximate="tanh")
        expected = twin(torch.from_numpy(fed)).detach().numpy()
        assert np.abs(predictor(pixels) - expected).max() < 2e-5
        torch.testing.assert_close(
            predictor(torch.from_numpy(pixels)), torch.from_numpy(expected).float(), atol=2e-5, rtol=0
        )


@pytest.mark.parametrize(
    ("data", "rows"),
    [
        (None, None),
        (torch.randint(0, 256, (9, 3, 4, 4), dtype=torch.uint8), 9),
        (DataLoader(TensorDataset(torch.full((9, 3, 4, 4), 7, dtype=torch.uint8), torch.zeros(9)), batch_size=4), 9),
        (RawData(), 300),
    ],
)
def test_parity_on_raw_pixels(exported, data, rows):
    net, path, _ = exported
    report = check_parity(net, path, data, preprocessing=Whiten())
    families = {row.inputs for row in report.rows if row.gating}
    assert families >= {"sample", *(f"random pixels, batch {n}" for n in (1, 2, 32)), "black", "white"}
    assert not any("gaussian" in family for family in families)
    assert {row.count for row in report.rows if row.inputs == "data"} == ({rows} if rows else set())
    assert {row.comparison for row in report.rows if row.inputs == "random pixels, batch 32"} == {
        "file vs PyTorch float64",
        "approximation gap: file vs module as trained",
    }
    assert not report.notes


def test_other_preprocessing_is_caught(exported):
    net, path, _ = exported
    changed = Whiten()
    changed.matrix[3, 5] += 3e-4
    with pytest.raises(ParityError):
        check_parity(net, path, preprocessing=changed)


class WithOffset(nn.Module):
    """Two inputs, the first of them an image; and a child that has the name of the preprocessing in the graph."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.preprocessing = Whiten(seed=3)
        self.out = nn.Linear(48, 2)
        self.example_input_array = (torch.zeros(2, 3, 4, 4), torch.ones(2, 2))

    def forward(self, images: Tensor, offset: Tensor) -> dict[str, Tensor]:
        return {"logits": self.out(self.preprocessing(images).flatten(1)) + offset}


def test_the_first_of_several_inputs_and_a_child_of_the_same_name(tmp_path):
    net, path = WithOffset(), tmp_path / "net.onnx"
    export_onnx(net, path, preprocessing=Whiten())
    assert [value.type for value in OnnxPredictor(path).session.get_inputs()] == ["tensor(uint8)", "tensor(float)"]
    assert check_parity(net, path, preprocessing=Whiten()).passed


class Random(nn.Module):
    def forward(self, pixels: Tensor) -> Tensor:
        return pixels.float() + torch.rand(pixels.shape)


class Fixed(nn.Module):
    def forward(self, pixels: Tensor) -> Tensor:
        return pixels.float().reshape(2, 3, 4, 4)


@pytest.mark.parametrize(
    ("preprocessing", "sample", "error"),
    [
        (lambda pixels: pixels / 255, None, ArgumentError),
        (Whiten(), torch.zeros(2, 3, 4, 4), ModelInputError),
        (Whiten(3, 5), None, ModelInputError),
        (nn.Identity(), None, ModelInputError),
        (Random(), None, ExportError),
        (Fixed(), None, ExportError),
        (nn.Sequential(Whiten(), nn.Flatten()), None, ModelInputError),
    ],
)
def test_what_is_refused_in_an_export(tmp_path, preprocessing, sample, error):
    with pytest.raises(error):
        export_onnx(ConvNet(), tmp_path / "net.onnx", sample, preprocessing=preprocessing)
    assert not (tmp_path / "net.onnx").exists()


def test_what_is_refused_in_a_comparison(tmp_path, exported):
    net, path, _ = exported
    with pytest.raises(ModelInputError):
        check_parity(net, path)
    with pytest.raises(ModelInputError):
        check_parity(net, path, torch.zeros(2, 3, 4, 4), preprocessing=Whiten())
    with pytest.raises(ModelInputError):
        OnnxPredictor(path)(np.zeros((2, 3, 4, 4), np.float32))
    with pytest.raises(ModelInputError):
        check_parity(net, path, preprocessing=Whiten(3, 5))
    export_onnx(net, tmp_path / "plain.onnx")
    with pytest.raises(ModelInputError):
        check_parity(net, tmp_path / "plain.onnx", preprocessing=Whiten())
