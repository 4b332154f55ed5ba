"""A graph is run at other sizes than the sample's before it is written: windows and tables may be numbers in it."""

import pytest
import torch
from torch import nn
from torch.export import Dim

from lit_gelu.export import ExportError, OnnxPredictor, check_parity, export_onnx


class Pooled(nn.Module):
    """Convolutions around a pooling to some cells, perhaps behind patches."""

    def __init__(self, cells, patch=1):
        super().__init__()
        torch.manual_seed(0)
        self.patches = nn.Conv2d(3, 4, patch, stride=patch)
        self.patch, self.pool = patch, nn.AdaptiveAvgPool2d(cells)
        self.head = nn.Conv2d(4, 3, 3, padding=1)

    def forward(self, pixels):
        if pixels.shape[2] % self.patch or pixels.shape[3] % self.patch:
            raise ValueError("no multiple of a patch")
        return self.head(self.pool(nn.functional.gelu(self.patches(pixels)))).mean((2, 3))


SIZES = {"pixels": {2: "height", 3: "width"}}
IMAGES = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(1))
TEXT = torch.randn(2, 8, 4, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    ("patch", "sample", "options"),
    [
        (4, torch.zeros(1, 3, 16, 16), {}),
        pytest.param(1, IMAGES, {"dtype": "bf16"}, marks=pytest.mark.full),
        (4, IMAGES, {"target": "ort-cuda", "dtype": "fp16"}),
    ],
)
def test_windows_that_are_numbers_in_the_graph_are_refused(tmp_path, patch, sample, options, capfd):
    path = tmp_path / "net.onnx"
    with pytest.raises(ExportError):
        export_onnx(Pooled(2, patch), path, sample, dynamic_shapes=SIZES, **options)
    assert not path.exists()
    assert capfd.readouterr() == ("", "")


def test_one_cell_and_sizes_of_the_sample_alone_are_written(tmp_path):
    for cells, patch, sizes in ((1, 1, [(17, 20), (5, 9)]), (1, 4, [(20, 8)]), (2, 1, [])):
        path, model = tmp_path / "net.onnx", Pooled(cells, patch).eval()
        report = export_onnx(model, path, IMAGES, dynamic_shapes=SIZES if sizes else ())
        assert all("the graph holds" in note for note in report.notes)  # from a patch's size on
        for height, width in sizes:
            x = torch.randn(3, 3, height, width)
            torch.testing.assert_close(OnnxPredictor(path)(x), model(x).detach())


def test_a_size_that_can_only_be_the_samples_is_noted(tmp_path):
    class Alone(nn.Module):
        def forward(self, x, y):
            if not torch.compiler.is_compiling() and x.shape[1] != 8:
                raise ValueError("eight and no other")
            return nn.functional.gelu(x) + y.mean(1, keepdim=True)

    sizes = {"x": {1: "length"}, "y": {1: "other"}}
    notes = export_onnx(Alone(), tmp_path / "net.onnx", (TEXT, TEXT), dynamic_shapes=sizes).notes
    assert [note for note in notes if "'length'" in note]
    assert not [note for note in notes if "'other'" in note]


class Branch(nn.Module):
    """Another scale beyond a size."""

    def forward(self, x):
        y = nn.functional.gelu(x)
        return 3 * y if x.shape[1] > 64 else y


@pytest.mark.parametrize("size", ["length", Dim.AUTO], ids=str)
def test_a_branch_beyond_the_sizes_that_are_tried_is_noted_with_the_bound(tmp_path, size):
    (note,) = export_onnx(Branch(), tmp_path / "net.onnx", TEXT, dynamic_shapes={"x": {1: size}}).notes
    assert "up to 64" in note


def test_an_empty_axis_in_the_sample_is_tried_at_other_sizes(tmp_path):
    class Past(nn.Module):
        def forward(self, x, past):
            return nn.functional.gelu(torch.cat([past, x], 1))

    sample = (torch.randn(2, 3, 4), torch.zeros(2, 0, 4))
    export_onnx(Past(), tmp_path / "net.onnx", sample, dynamic_shapes={"past": {1: "past"}})
    assert check_parity(Past(), tmp_path / "net.onnx", input_sample=sample).passed
