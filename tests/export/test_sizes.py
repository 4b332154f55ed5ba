"""Open sizes of inputs: what `dynamic_shapes` takes, what it refuses, and what the file then says."""

import onnx
import pytest
import torch
from export_zoo import Tokens
from torch import nn
from torch.export import Dim

from lit_gelu.errors import ArgumentError, ModelInputError
from lit_gelu.export import ExportError, OnnxPredictor, check_parity, export_onnx
from lit_gelu.export.inputs import open_sizes, take_apart


class Net(nn.Module):
    """Convolutions, and a mean over places."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.act, self.head = nn.Conv2d(3, 4, 3, padding=1), nn.GELU(), nn.Linear(4, 2)

    def forward(self, pixels):
        return self.head(self.act(self.conv(pixels)).mean((2, 3)))


IDS = torch.arange(10).reshape(2, 5)
SAMPLE = {"input_ids": IDS, "attention_mask": torch.ones_like(IDS)}
BOTH = {"input_ids": {1: "sequence"}, "attention_mask": {1: "sequence"}}
SEQUENCE = Dim("sequence")


def dims(path):
    return {
        value.name: [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]
        for value in (*onnx.load(path).graph.input, *onnx.load(path).graph.output)
    }


@pytest.mark.parametrize(
    "shapes",
    [
        BOTH,
        {"input_ids": {"1": "sequence"}, "attention_mask": {"1": "sequence"}},
        {"input_ids": {0: "batch", 1: SEQUENCE}, "attention_mask": ("batch", SEQUENCE)},
        ({1: SEQUENCE}, {1: SEQUENCE}),
        {"input_ids": {1: "sequence"}, "attention_mask": {0: Dim.AUTO, 1: "sequence"}},
    ],
)
def test_every_form_gives_torch_the_same(shapes):
    call = take_apart(Tokens(), SAMPLE)
    sizes = open_sizes(shapes, call, ["input_ids", "attention_mask"])
    axes = {(call.names[size.place], size.axis): (size.name, size.dim.__name__) for size in sizes}
    assert axes == {(name, axis): (size, size) for name in SAMPLE for axis, size in enumerate(["batch", "sequence"])}


def test_the_file_names_its_sizes_and_takes_any(tmp_path):
    path = tmp_path / "net.onnx"
    report = export_onnx(Tokens(), path, SAMPLE, dynamic_shapes=BOTH)
    assert dims(path) == {
        "input_ids": ["batch", "sequence"],
        "attention_mask": ["batch", "sequence"],
        "output": ["batch", 3],
    }
    assert report.metadata.dynamic_shapes == BOTH
    file, model = OnnxPredictor(path), Tokens().eval()
    for rows, length in [(1, 1), (2, 5), (3, 2), (1, 64), (5, 7)]:
        ids = torch.randint(50, (rows, length), generator=torch.Generator().manual_seed(length))
        mask = torch.ones_like(ids)
        mask[:, length // 2 + 1 :] = 0
        torch.testing.assert_close(file(ids, mask), model(ids, mask).detach())


def test_a_sample_of_one_place_leaves_the_length_open(tmp_path):
    path = tmp_path / "net.onnx"
    sample = {name: tensor[:1, :1] for name, tensor in SAMPLE.items()}
    export_onnx(Tokens(), path, sample, dynamic_shapes=BOTH)
    torch.testing.assert_close(OnnxPredictor(path)(IDS, torch.ones_like(IDS)), Tokens()(**SAMPLE).detach())


def test_image_sizes_and_names_of_torchs_hints(tmp_path):
    path, model = tmp_path / "net.onnx", Net().eval()
    export_onnx(model, path, torch.randn(2, 3, 8, 6), dynamic_shapes={"pixels": {2: "height", 3: "width"}})
    assert dims(path)["pixels"] == ["batch", 3, "height", "width"]
    x = torch.randn(3, 3, 5, 9)
    torch.testing.assert_close(OnnxPredictor(path)(x), model(x).detach())
    for shapes in ({"pixels": {2: Dim.DYNAMIC, 3: Dim.AUTO}}, {"pixels": (Dim.AUTO, None, Dim.AUTO, Dim.DYNAMIC)}):
        report = export_onnx(model, path, torch.randn(2, 3, 8, 6), dynamic_shapes=shapes)
        assert dims(path)["pixels"] == ["batch", 3, "pixels_2", "pixels_3"]
        assert report.metadata.dynamic_shapes == {"pixels": {2: "pixels_2", 3: "pixels_3"}}


class OneRow(nn.Module):
    """Keeps a state of one row, as streams do."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("state", torch.ones(1, 2, 4))

    def forward(self, x):
        return nn.functional.gelu(self.linear(torch.cat([self.state, x], 1)))


@pytest.mark.parametrize("sizes", [{"x": {0: None, 1: "time"}}, [(Dim.STATIC, "time")], {"x": {0: 1, 1: "time"}}])
def test_a_batch_that_is_fixed(tmp_path, sizes):
    path, net, x = tmp_path / "net.onnx", OneRow().eval(), torch.randn(1, 3, 4)
    with pytest.raises(ModelInputError, match=r"\{0: None\}"):
        export_onnx(net, path, x)
    report = export_onnx(net, path, x, dynamic_shapes=sizes)
    assert dims(path)["x"] == [1, "time", 4]
    assert any("fixed at 1" in note for note in report.notes)
    assert check_parity(net, path, input_sample=x).row("gaussian, batch 1").count == 32
    other = torch.randn(1, 7, 4)
    torch.testing.assert_close(OnnxPredictor(path)(other), net(other).detach())


def test_an_input_that_is_as_long_as_the_batch_and_is_none(tmp_path):
    class Scored(nn.Module):
        def forward(self, x, table):
            return nn.functional.gelu(x) @ table.T

    path, sample = tmp_path / "net.onnx", (torch.randn(3, 4), torch.randn(3, 4))
    export_onnx(Scored(), path, sample, dynamic_shapes={"table": {0: 3}})
    assert dims(path) == {"x": ["batch", 4], "table": [3, 4], "output": ["batch", 3]}
    export_onnx(Scored(), path, sample, dynamic_shapes={"x": {0: 3}})
    assert dims(path) == {"x": [3, 4], "table": [3, 4], "output": [3, 3]}


class Branches(nn.Module):
    def __init__(self, axis):
        super().__init__()
        self.linear, self.axis = nn.Linear(4, 4), axis

    def forward(self, x):
        y = nn.functional.gelu(self.linear(x))
        return 2 * y if x.shape[self.axis] == 1 else y


def test_a_branch_where_a_size_is_one_is_named(tmp_path):
    path, x = tmp_path / "net.onnx", torch.randn(2, 3, 4)
    with pytest.raises(ExportError, match="where 'batch' is 1"):
        export_onnx(Branches(0), path, x)
    export_onnx(net := Branches(0), path, x[:1], dynamic_shapes={"x": {0: None}})
    assert check_parity(net, path, input_sample=x[:1]).passed
    (note,) = export_onnx(Branches(1), path, x, dynamic_shapes={"x": {1: "time"}}).notes
    assert "'time' from 2" in note


def test_names_and_the_batch_of_ones_own(tmp_path):
    path = tmp_path / "net.onnx"
    words = Dim("words", min=2, max=64)
    shapes = {"input_ids": {0: "rows", 1: words}, "attention_mask": {1: words}}
    report = export_onnx(Tokens(), path, SAMPLE, dynamic_shapes=shapes)
    assert dims(path) == {"input_ids": ["rows", "words"], "attention_mask": ["rows", "words"], "output": ["rows", 3]}
    assert report.metadata.dynamic_shapes == {"input_ids": {1: "words"}, "attention_mask": {1: "words"}}
    again = export_onnx(Tokens(), path, SAMPLE, dynamic_shapes=report.metadata.dynamic_shapes)
    assert again.metadata.dynamic_shapes == report.metadata.dynamic_shapes


class Nested(nn.Module):
    def forward(self, x, parts, scale=2.0):
        return x * parts["gate"][0] * scale


def test_nested_arguments_stand_as_in_forward_or_by_their_flat_name():
    call = take_apart(Nested(), (torch.zeros(2, 4), {"gate": [torch.zeros(2, 4)]}))
    expected = {"x": {1: "n"}, "parts_gate_0": {1: "n"}}

    def axes(shapes):
        sizes = open_sizes(shapes, call, ["x", "parts", "scale"])
        return [(call.names[size.place], size.axis, size.name) for size in sizes if size.axis]

    for shapes in (({1: "n"}, {"gate": [{1: "n"}]}), {"x": {1: "n"}, "parts": {"gate": ({1: "n"},)}}, expected):
        assert axes(shapes) == [("x", 1, "n"), ("parts_gate_0", 1, "n")]
    assert axes(({1: "n"}, None)) == [("x", 1, "n")]


@pytest.mark.parametrize(
    "shapes",
    [
        {"ids": {1: "n"}},
        {"input_ids": {2: "n"}},
        {"input_ids": {-1: "n"}},
        {"input_ids": {1: 7}},
        {"input_ids": {1: "7 of them"}},
        {"input_ids": "sequence"},
        {"input_ids": {1: Dim("n", max=4)}},
        {"input_ids": {0: "a"}, "attention_mask": {0: "b"}},
        {"input_ids": {1: "batch"}},
        "sequence",
        7,
        (None, None, None),
    ],
    ids=str,
)
def test_what_does_not_fit_is_refused_before_the_model_runs(tmp_path, shapes, monkeypatch):
    monkeypatch.setattr(Tokens, "forward", lambda self, input_ids, attention_mask: pytest.fail("ran"))
    with pytest.raises(ArgumentError):
        export_onnx(Tokens(), tmp_path / "net.onnx", SAMPLE, dynamic_shapes=shapes)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("model", "sample", "shapes"),
    [
        (nn.Linear(4, 2), torch.zeros(2, 4), {"input": {1: "width"}}),
        (Tokens(), SAMPLE, {"input_ids": {1: "n"}}),
        (Tokens(), SAMPLE, {"input_ids": {1: "n"}, "attention_mask": {1: "m"}}),
        (nn.Linear(4, 2), torch.zeros(2, 4), {"input": {1: Dim.DYNAMIC}}),
    ],
)
def test_a_size_that_the_model_fixes_or_ties_is_refused(tmp_path, model, sample, shapes, capfd):
    path = tmp_path / "net.onnx"
    path.write_bytes(b"what was there")
    with pytest.raises(ExportError):
        export_onnx(model, path, sample, dynamic_shapes=shapes)
    assert path.read_bytes() == b"what was there"
    assert capfd.readouterr() == ("", "")


def test_a_sum_in_a_product_keeps_its_brackets(tmp_path):
    class Twice(nn.Module):
        def forward(self, x, past, mask):
            return torch.cat([past, x], 1), mask.repeat(1, 2)

    sizes = {"x": {1: "sequence"}, "past": {1: "past"}, "mask": {1: "past + sequence"}}
    sample = (torch.randn(2, 3), torch.randn(2, 4), torch.randn(2, 7))
    export_onnx(Twice(), tmp_path / "net.onnx", sample, dynamic_shapes=sizes)
    dims = onnx.load(tmp_path / "net.onnx").graph.output[1].type.tensor_type.shape.dim
    assert eval(dims[1].dim_param, {"past": 4, "sequence": 3}) == 14
