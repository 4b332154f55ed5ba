"""The proof's reference is the module as inference calls it, on the caller's own values."""

import onnx
import pytest
import torch
from onnx import TensorProto
from torch import nn
from torch.nn import functional as F

from lit_gelu.export import OnnxPredictor, ParityError, check_parity, export_onnx


class Padded(nn.Module):
    """An encoder of padded sequences; pooled over all places, or over those that are no padding."""

    def __init__(self, pool, *, nested=True):
        super().__init__()
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(16, 2, 32, activation="gelu", batch_first=True)
        self.encoder, self.pool = nn.TransformerEncoder(layer, 2, enable_nested_tensor=nested), pool

    def forward(self, x, padding):
        y = self.encoder(x, src_key_padding_mask=padding)
        kept = (~padding).to(y.dtype).unsqueeze(-1)
        return {"all": y.mean(1), "none": y, "kept": (y * kept).sum(1) / kept.sum(1)}[self.pool]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors", "ignore:enable_nested_tensor is True")
@pytest.mark.parametrize(
    ("pool", "nested", "agrees"),
    [
        ("all", True, False),
        pytest.param("kept", True, True, marks=pytest.mark.full),
        pytest.param("none", True, False, marks=pytest.mark.full),
        pytest.param("all", False, True, marks=pytest.mark.full),
    ],
)
def test_places_that_are_0_in_inference_and_not_in_the_file(tmp_path, pool, nested, agrees):
    net, path = Padded(pool, nested=nested).eval(), tmp_path / "net.onnx"
    x, padding = torch.randn(3, 6, 16), torch.arange(6).expand(3, 6) >= torch.tensor([[4], [3], [6]])
    report = export_onnx(net, path, (x, padding))
    proof = check_parity(net, path, input_sample=(x, padding), strict=False)
    with torch.no_grad():
        off = (OnnxPredictor(path)(x, padding) - net(x, padding)).abs().max()
    assert (off < 1e-5) == proof.passed == agrees
    assert any("nested" in note for note in report.notes) != agrees


class Seconds(nn.Module):
    """Times in seconds since 1970, of which float32 keeps two minutes."""

    def __init__(self, dtype):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.wide = nn.Linear(3, 4, dtype=dtype), dtype == torch.float64

    def forward(self, times):
        minutes = (times - 1.7e9) / 60
        return F.gelu(self.layer(minutes if self.wide else minutes.float()))


TIMES = 1.7e9 + 6000 * torch.rand(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
def test_float64_inputs_stay_where_forward_takes_them(tmp_path, dtype):
    net, path = Seconds(torch.float32).eval(), tmp_path / "net.onnx"
    export_onnx(net, path, TIMES, dtype=dtype)
    assert onnx.load(path).graph.input[0].type.tensor_type.elem_type == TensorProto.DOUBLE
    if dtype == "fp32":
        assert check_parity(net, path, TIMES, input_sample=TIMES).passed
    exact = net.double()
    exact.wide = True
    y, expected = OnnxPredictor(path)(TIMES).double(), exact(TIMES).detach()
    assert (y - expected).abs().max() <= {"fp32": 1e-5, "fp16": 4e-3}[dtype] * expected.abs().max()


def test_a_module_in_float64_is_proved_on_the_callers_values(tmp_path):
    net, path = Seconds(torch.float64).eval(), tmp_path / "net.onnx"
    report = export_onnx(net, path, TIMES - 1.7e9)  # small enough for float32
    assert any("float64" in note for note in report.notes)
    assert check_parity(net, path, input_sample=TIMES - 1.7e9).passed
    with pytest.raises(ParityError, match="rounding float64 inputs"):
        check_parity(net, path, [TIMES], input_sample=TIMES - 1.7e9)


class Windowed(nn.Module):
    """Attention within a window, whose two masks add up to another thing in float32 than in float64."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.tokens, self.inner, self.head = nn.Embedding(11, 8), nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, ids, mask):
        places, x = torch.arange(ids.shape[1]), self.tokens(ids)
        far = (places[:, None] - places).abs() > 1
        scores = x @ x.mT + (1 - mask[:, None].to(x.dtype)) * torch.finfo(x.dtype).min
        return self.head(F.gelu(self.inner(torch.softmax(scores + far * torch.finfo(torch.float32).min, -1) @ x)))


def test_inputs_of_two_meanings_widen_no_limit_but_their_own(tmp_path):
    net, path = Windowed().eval(), tmp_path / "net.onnx"
    sample = (torch.randint(11, (2, 8)), torch.ones(2, 8, dtype=torch.long))
    export_onnx(net, path, sample)
    report = check_parity(net, path, input_sample=sample)
    assert any("rows were left out" in note for note in report.notes)
    assert all(row.limit <= 1e-4 for row in report.rows if row.inputs in {"sample", "random, batch 32"} and row.limit)
    with torch.no_grad():
        net.head.weight[0, 0] += 1e-2
    failures = {row.inputs for row in check_parity(net, path, input_sample=sample, strict=False).failures}
    assert {"sample", "random, batch 32"} <= failures
