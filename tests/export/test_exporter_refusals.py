"""What `export_onnx` refuses: options, models and samples; what was at the path stays."""

import math
from dataclasses import dataclass

import numpy as np
import onnx
import pytest
import torch
from export_cases import gelu_net
from torch import nn
from torch.nn import functional as F

from lit_gelu.errors import LitGeluError
from lit_gelu.export import (
    ExportError,
    ExportOptionError,
    ModelInputError,
    check_parity,
    export_onnx,
)

SAMPLE = torch.zeros(1, 6)


@pytest.mark.parametrize(
    ("option", "value", "hint"),
    [
        ("approximate", "tahn", "Did you mean 'tanh'"),
        ("lowering", "primitive", "Did you mean 'primitives'"),
        ("target", "ort_cuda", "Did you mean 'ort-cuda'"),
        ("dtype", torch.int8, "Accepted: 'fp32', 'fp16', 'bf16'"),
        ("policy", "lenient", "Accepted: 'strict', 'fast'"),
        ("opset", "twenty", "Accepted: 18 to 23"),
        ("opset", True, "Accepted: 18 to 23"),
    ],
)
def test_unknown_values_name_what_is_accepted(tmp_path, option, value, hint):
    with pytest.raises(ExportOptionError, match=hint):
        export_onnx(gelu_net(), tmp_path / "net.onnx", SAMPLE, **{option: value})


def test_a_model_without_gelu_cannot_be_given_a_form(tmp_path):
    with pytest.raises(ExportOptionError, match=r"needs a GELU, and.*1: relu; 4: relu"):
        export_onnx(gelu_net("relu"), tmp_path / "net.onnx", SAMPLE, approximate="tanh")


class DataDependent(nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x


class Median(nn.Module):
    def forward(self, x):
        return F.gelu(x).median(1).values


class Random(nn.Module):
    def forward(self, x):
        return F.dropout(x, 0.5, training=True)


class RandomInPython(nn.Module):
    def __init__(self):
        super().__init__()
        self.act = nn.Sigmoid()  # not 0 at the sample, which is

    def forward(self, x):
        return self.act(x) * float(np.random.default_rng().random())


class CountsInABuffer(nn.Module):
    def __init__(self):
        super().__init__()
        self.act = nn.GELU()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        return self.act(x + 1) / self.calls


class CountsInANumber(nn.Module):
    calls = 0

    def __init__(self):
        super().__init__()
        self.part, self.part.calls = nn.GELU(), 0

    def forward(self, x):
        self.part.calls += 1
        return self.part(x + 1) / self.part.calls


class KeepsWhatItSaw(nn.Module):
    def __init__(self):
        super().__init__()
        self.act, self.limit = nn.GELU(), float("nan")
        self.register_buffer("seen", None)

    def forward(self, x):
        self.seen = self.act(x + 1) if self.seen is None else self.seen + 1
        return self.seen


class KeepsAList(CountsInANumber):
    def __init__(self):
        super().__init__()
        self.kept = []

    def forward(self, x):
        if len(self.kept) != self.part.calls:
            raise RuntimeError("other calls than kept ones")
        self.kept.append(x)
        return super().forward(x)


class CountsAndDraws(CountsInABuffer):
    def forward(self, x):
        return super().forward(x) + torch.rand(6)


@dataclass
class Scores:
    logits: torch.Tensor


@dataclass(slots=True)
class SlottedScores:
    logits: torch.Tensor


class ReturnsSlots(nn.Module):
    def forward(self, x):
        return SlottedScores(F.gelu(x))


class ReturnsADataclass(nn.Module):
    def forward(self, x):
        return Scores(F.gelu(x))


class FrozenBatch(nn.Module):
    def forward(self, x):
        return x.reshape(int(x.shape[0]), -1)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (DataDependent(), "cannot translate DataDependent: Could not guard .* depends on values in tensors"),
        (
            Median(),
            r"cannot translate Median: No ONNX function found for .*aten\.median.*\. Write that part of forward",
        ),
        (Random(), r"Random draws random numbers in evaluation mode \(Dropout\)"),
        (RandomInPython(), r"RandomInPython draws random numbers in evaluation mode \(output\)"),
        (
            CountsInABuffer(),
            r"CountsInABuffer.forward changes calls in evaluation mode.*only where self.training",
        ),
        (CountsInANumber(), "CountsInANumber.forward changes part.calls in evaluation mode"),
        (CountsAndDraws(), r"CountsAndDraws draws random numbers in evaluation mode \(output\)"),
        (KeepsWhatItSaw(), "KeepsWhatItSaw.forward changes seen in evaluation mode"),
        (KeepsAList(), "KeepsAList draws random numbers in evaluation mode"),
        (ReturnsSlots(), r"returns SlottedScores, a dataclass .* call torch.export.register_dataclass"),
        (ReturnsADataclass(), r"returns Scores, a dataclass .* call torch.export.register_dataclass\(Scores\) once"),
        (FrozenBatch(), "batch of x, output is fixed at the sample's 2 rows"),
    ],
)
def test_what_has_no_graph_is_refused_and_the_old_file_stays(tmp_path, model, message, capfd):
    path = tmp_path / "net.onnx"
    path.write_bytes(b"what was there")
    with pytest.raises(ExportError, match=message) as caught:
        export_onnx(model, path, SAMPLE)
    assert isinstance(caught.value, LitGeluError)
    assert caught.value.__cause__ is not None or not isinstance(model, DataDependent)
    assert path.read_bytes() == b"what was there"
    assert list(tmp_path.iterdir()) == [path]
    assert capfd.readouterr() == ("", "")  # torch's exporter prints graphs and logs its attempts


@pytest.mark.parametrize("call", [export_onnx, check_parity])
def test_a_path_in_the_place_of_the_module(tmp_path, call):
    for path in (str(tmp_path / "net.onnx"), tmp_path / "net.onnx"):
        with pytest.raises(ModelInputError, match=r"The module comes first.* given are \w+ and Sequential"):
            call(path, gelu_net(), SAMPLE)


def test_a_sample_that_does_not_fit(tmp_path):
    path = tmp_path / "net.onnx"
    with pytest.raises(ModelInputError, match="has no example_input_array"):
        export_onnx(gelu_net(), path)
    with pytest.raises(
        ModelInputError, match=r"fails on the input sample \(input \(2, 5\) .*; the first size is the batch\)"
    ):
        export_onnx(gelu_net(), path, torch.zeros(1, 5))
    with pytest.raises(ModelInputError, match=r"does not fit Sequential\.forward"):
        export_onnx(gelu_net(), path, (SAMPLE, SAMPLE))
    with pytest.raises(ModelInputError, match="first dimension is the batch"):
        export_onnx(gelu_net(), path, torch.tensor(1.0))
    with pytest.raises(ExportError, match=r"Only a torch\.nn\.Module"):
        export_onnx(F.gelu, path, SAMPLE)


def test_a_model_that_the_checker_refuses_is_not_written(tmp_path, monkeypatch):
    path = tmp_path / "net.onnx"
    path.write_bytes(b"what was there")

    def refuse(*_, **__):
        raise onnx.checker.ValidationError("no such operator")

    monkeypatch.setattr(onnx.checker, "check_model", refuse)
    with pytest.raises(ExportError, match="checker refuses"):
        export_onnx(gelu_net(), path, SAMPLE)
    assert path.read_bytes() == b"what was there"
    assert list(tmp_path.iterdir()) == [path]


class ByHand(nn.Module):
    """A GELU that is written by hand, beside one that is a module."""

    def __init__(self):
        super().__init__()
        self.act = nn.GELU()
        self.inner = WrittenOut()

    def forward(self, x):
        return self.inner(self.act(x))


class WrittenOut(nn.Module):
    def forward(self, x):
        return x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0)))


@pytest.mark.parametrize(
    ("model", "approximate"),
    [
        (WrittenOut, "tanh"),
        (WrittenOut, {"*": "tanh"}),
        (ByHand, "tanh"),
        (ByHand, {"*": "tanh"}),
        (ByHand, {"act": "tanh", "inner": "sigmoid"}),
    ],
)
def test_a_gelu_that_is_written_by_hand_does_not_keep_its_form_in_silence(tmp_path, model, approximate):
    path = tmp_path / "net.onnx"
    with pytest.raises(
        ExportOptionError, match=r"has another form: (inner)?:gelu\(approximate='none'\) \(none\).*by hand"
    ):
        export_onnx(model(), path, torch.zeros(2, 3), approximate=approximate)
    assert not path.exists()


def test_patterns_that_leave_a_hand_written_gelu_alone(tmp_path):
    report = export_onnx(ByHand(), tmp_path / "net.onnx", torch.zeros(2, 3), approximate={"act": "tanh"})
    assert [(site.site, site.row) for site in report.sites] == [
        ("act", "gelu(approximate='tanh')"),
        ("inner:gelu(approximate='none')", "gelu(approximate='none')"),
    ]


def test_an_input_that_is_as_long_as_the_batch_by_chance(tmp_path):
    class Mixes(nn.Module):
        def forward(self, x, table):
            return nn.functional.gelu(x) @ table

    message = (
        r"Or is 4 the size of something else by chance\? .* taken for a batch \(x, table\): give a sample with another"
    )
    with pytest.raises(ExportError, match=message):
        export_onnx(Mixes(), tmp_path / "net.onnx", (torch.randn(4, 4), torch.randn(4, 3)))
    export_onnx(Mixes(), tmp_path / "net.onnx", (torch.randn(5, 4), torch.randn(4, 3)))


def test_a_dataclass_that_is_registered_as_the_error_says_is_exported(tmp_path):
    @dataclass
    class Registered:
        logits: torch.Tensor

    class Net(nn.Module):
        def forward(self, x):
            return Registered(F.gelu(x))

    torch.export.register_dataclass(Registered)
    export_onnx(Net(), tmp_path / "net.onnx", SAMPLE)
    assert [output.name for output in onnx.load(tmp_path / "net.onnx").graph.output] == ["logits"]
