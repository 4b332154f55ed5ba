"""What `export_onnx` refuses: options, models and samples; what was at the path stays."""

import math
from dataclasses import dataclass

import pytest
import torch
from export_cases import gelu_net
from torch import nn
from torch.nn import functional as F

from lit_gelu.errors import ArgumentError, LitGeluError
from lit_gelu.export import ExportError, ModelInputError, export_onnx

SAMPLE = torch.zeros(1, 6)


def test_a_model_without_gelu_cannot_be_given_a_form(tmp_path):
    with pytest.raises(ArgumentError):
        export_onnx(gelu_net("relu"), tmp_path / "net.onnx", SAMPLE, approximate="tanh")


class WrittenOut(nn.Module):
    def forward(self, x):
        return x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0)))


def test_a_gelu_that_is_written_by_hand_does_not_keep_its_form_in_silence(tmp_path):
    path = tmp_path / "net.onnx"
    with pytest.raises(ArgumentError):
        export_onnx(nn.Sequential(nn.GELU(), WrittenOut()), path, torch.zeros(2, 3), approximate="tanh")
    assert not path.exists()


class DataDependent(nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x


class Random(nn.Module):
    def forward(self, x):
        return F.dropout(x, 0.5, training=True)


@dataclass(slots=True)
class Scores:
    logits: torch.Tensor


class ReturnsSlots(nn.Module):
    def forward(self, x):
        return Scores(F.gelu(x))


class FrozenBatch(nn.Module):
    def forward(self, x):
        return x.reshape(int(x.shape[0]), -1)


class WideInside(nn.Module):
    def forward(self, x):
        return F.softplus(x.double()).float()


REFUSED = [DataDependent(), Random(), ReturnsSlots(), FrozenBatch(), WideInside()]


@pytest.mark.parametrize("model", REFUSED, ids=lambda model: type(model).__name__)
def test_what_has_no_graph_is_refused_and_the_old_file_stays(tmp_path, model, capfd):
    path = tmp_path / "net.onnx"
    path.write_bytes(b"what was there")
    with pytest.raises(ExportError):
        export_onnx(model, path, SAMPLE)
    assert path.read_bytes() == b"what was there"
    assert list(tmp_path.iterdir()) == [path]
    assert capfd.readouterr() == ("", "")  # torch's exporter prints graphs and logs its attempts


def test_a_sample_that_does_not_fit(tmp_path):
    path = tmp_path / "net.onnx"
    for sample in (None, torch.zeros(1, 5), (SAMPLE, SAMPLE), torch.tensor(1.0)):
        with pytest.raises(ModelInputError):
            export_onnx(gelu_net(), path, sample)
    with pytest.raises(ModelInputError):
        export_onnx(nn.Identity(), path, SAMPLE.to(torch.complex64))
    with pytest.raises(ExportError):
        export_onnx(F.gelu, path, SAMPLE)


def test_an_input_that_is_as_long_as_the_batch_by_chance(tmp_path):
    class Mixes(nn.Module):
        def forward(self, x, table):
            return nn.functional.gelu(x) @ table

    with pytest.raises(ExportError):
        export_onnx(Mixes(), tmp_path / "net.onnx", (torch.randn(4, 4), torch.randn(4, 3)))
    export_onnx(Mixes(), tmp_path / "net.onnx", (torch.randn(5, 4), torch.randn(4, 3)))


class Mixed(nn.Module):
    def __init__(self, dtype):
        super().__init__()
        self.layer, self.head, self.dtype = nn.Linear(6, 6), nn.Linear(6, 3).to(dtype), dtype

    def forward(self, x):
        return self.head(F.gelu(self.layer(x)).to(self.dtype))


def prepared_for_quantisation():
    net = nn.Sequential(nn.Linear(6, 6), nn.ReLU()).train()
    net.qconfig = torch.ao.quantization.get_default_qat_qconfig("fbgemm")
    return torch.ao.quantization.prepare_qat(net)


def quantised():
    return torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(6, 6)), {nn.Linear})


@pytest.mark.filterwarnings("ignore")  # torch means to move its quantisation to torchao
@pytest.mark.parametrize(
    ("model", "remedy"),
    [
        (DataDependent(), r"in test_exporter_refusals\.py, line \d+: `"),
        (nn.LSTM(6, 4, proj_size=2, batch_first=True), "proj_size=0"),
        (Mixed(torch.bfloat16), r"head\.weight \(torch\.bfloat16\)"),
        (quantised, "quantize_onnx"),
        (prepared_for_quantisation, "quantize_onnx"),
    ],
    ids=lambda value: "" if isinstance(value, str) else getattr(value, "__name__", type(value).__name__),
)
def test_a_refusal_says_where_and_what_to_do(tmp_path, model, remedy):
    model = model if isinstance(model, nn.Module) else model()
    before = [name for name, _ in model.named_parameters()]
    with pytest.raises(LitGeluError, match=remedy):
        export_onnx(model, tmp_path / "net.onnx", SAMPLE)
    assert [name for name, _ in model.named_parameters()] == before
