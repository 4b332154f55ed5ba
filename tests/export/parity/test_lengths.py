"""Dimensions that a file leaves open are tried in several sizes."""

import onnx
import torch
from torch import nn

from lit_gelu.export import check_parity, export_onnx
from lit_gelu.export.inputs import take_apart
from lit_gelu.export.parity.input_families import other_lengths

SAMPLE = torch.arange(12, dtype=torch.float32).reshape(2, 3, 2)


def test_each_open_dimension_takes_three_other_sizes_and_one_name_has_one_size():
    class Two(nn.Module):
        def forward(self, x, mask):
            return x * mask[:, :, None]

    call = take_apart(Two(), (SAMPLE, torch.ones(2, 3)))
    found, notes = other_lengths(call, [["batch", "time", 2], ["batch", "time"]], lambda _: "")
    assert [[list(t.shape) for t in other.tensors] for other in found] == [
        [[2, 1, 2], [2, 1]],
        [[2, 4, 2], [2, 4]],
        [[2, 6, 2], [2, 6]],
    ]
    assert not notes
    assert torch.equal(found[1].tensors[0][:, 3], SAMPLE[:, 0])
    assert other_lengths(call, [["batch", 3, 2], ["batch", 3]], lambda _: "") == ([], [])


def test_sizes_that_the_module_does_not_take_are_said():
    call = take_apart(nn.Identity(), SAMPLE)
    found, notes = other_lengths(call, [["n", "t", 2]], lambda t: "forward fails" if t[0].shape[1] == 4 else "")
    assert len(found) == 2
    assert notes == ["the sizes input [2, 4, 2] were not tried: with them forward fails."]


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
    export_onnx(Mean(3), path, SAMPLE)
    assert check_parity(Mean(), path, input_sample=SAMPLE).passed  # the file takes three steps only
    model = onnx.load(path)
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "time"
    del model.graph.value_info[:]
    onnx.save(model, path)
    report = check_parity(Mean(), path, input_sample=SAMPLE, strict=False)
    assert {row.inputs for row in report.failures} == {f"gaussian, x [{steps}, 2]" for steps in (1, 4, 6)}
    assert check_parity(Mean(3), path, input_sample=SAMPLE).passed
