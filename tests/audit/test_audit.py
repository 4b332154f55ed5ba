"""Public cases of the wrong activation (2023 to 2026), replayed in small: `audit` finds each, and names the cause."""

import copy
import json
import warnings
from unittest.mock import Mock

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from lit_gelu.audit import audit
from lit_gelu.errors import AuditError, ModelFileError
from lit_gelu.testing import assert_same_activations

EXACT, TANH, QUICK = "gelu", "gelu(approximate='tanh')", "gelu(approximate='sigmoid')"
X = torch.randn(16, 8, generator=torch.Generator().manual_seed(0))


def net(*activations):
    """Return a net of two hidden layers with the same weights each time."""
    torch.manual_seed(0)
    first, second = activations[0], copy.deepcopy(activations[-1])
    layers = [nn.Linear(8, 16), first, nn.Linear(16, 16), second, nn.Linear(16, 4)]
    return nn.Sequential(*layers).eval()


class Function(nn.Module):
    """An activation whose class nobody registered."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


class Gated(nn.Module):
    """A gated layer whose activation is a call."""

    def __init__(self, function):
        super().__init__()
        torch.manual_seed(0)
        self.gate, self.up, self.down = nn.Linear(8, 16), nn.Linear(8, 16), nn.Linear(16, 4)
        self.function = function

    def forward(self, x):
        return self.down(self.function(self.gate(x)) * self.up(x))


def tanh(x):
    return F.gelu(x, approximate="tanh")


def quick(x):
    return x * torch.sigmoid(1.702 * x)


def table(x):
    """Return what a table of float16 gives."""
    return F.gelu(x.half().float(), approximate="tanh").half().float()


def coarse_table(x):
    """Return exact GELU from 256 entries between -4 and 4."""
    entries = F.gelu(torch.linspace(-4, 4, 256))
    inside = entries[((x + 4) / 8 * 255).round().clamp(0, 255).long()]
    return torch.where(x > 4, x, torch.where(x < -4, torch.zeros_like(x), inside))


def wrong_table(x):
    """Return a table off by 2.4e-2, with gelu(0) = -1e-4."""
    return torch.where(x == 0, -1e-4, F.gelu(x) + 2.4e-2 * torch.sin(3 * x.clamp(-9, 9)))


def collapsing_mish(x):
    return torch.where(x > 10.4, 0.0, F.mish(x))


def exported(folder, model, **options):
    path = folder / "model.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch, about the exporter by TorchScript
        torch.onnx.export(model, (X,), path, verbose=False, **{"dynamo": True, **options})
    return path


# By name: the reference, the candidate given a folder, the site, what the candidate computes, and what a note says.
CASES = {
    "a back end without approximate": (net(nn.GELU("tanh")), lambda d: exported(d, net(nn.GELU())), "1", EXACT, ""),
    "a converter that drops a keyword": (
        net(nn.GELU("tanh"), nn.SiLU()),
        lambda d: exported(d, net(nn.GELU(), nn.SiLU()), dynamo=False),
        "1",
        EXACT,
        "",
    ),
    "a fused kernel whose default is tanh": (Gated(F.gelu), lambda _: Gated(tanh), "function", TANH, ""),
    "the second kind of layer alone": (
        net(nn.GELU("tanh")),
        lambda d: exported(d, net(nn.GELU("tanh"), nn.GELU())),
        "3",
        EXACT,
        "",
    ),
    "an exact kernel behind an interface": (
        net(nn.GELU("tanh")),
        lambda _: lambda x: net(nn.GELU())(x),
        "1",
        EXACT,
        "",
    ),
    "a name that means tanh": ("gelu", lambda _: lambda x: tanh(torch.as_tensor(x)), "", TANH, ""),
    "a default that is tanh": ("gelu", lambda _: tanh, "", TANH, ""),
    "every gelu made tanh": (net(nn.GELU()), lambda d: exported(d, net(nn.GELU("tanh"))), "1", TANH, ""),
    "SiLU for tanh GELU in a port": (net(nn.GELU("tanh")), lambda _: net(nn.SiLU()), "1", "silu", ""),
    "SiLU for tanh GELU in a file": (net(nn.GELU("tanh")), lambda d: exported(d, net(nn.SiLU())), "1", "silu", ""),
    "SwiGLU for GeGLU": (Gated(F.gelu), lambda _: Gated(F.silu), "function", "silu", ""),
    "tanh GELU for SiLU": (net(nn.SiLU()), lambda _: net(nn.GELU("tanh")), "1", TANH, ""),
    "QuickGELU evaluated as GELU": (net(Function(quick)), lambda _: net(nn.GELU()), "1", EXACT, ""),
    "a port with a class of its own": (net(nn.GELU()), lambda _: net(Function(quick)), "1", QUICK, ""),
    "a table that is off by 2.4e-2": (net(nn.GELU()), lambda _: net(Function(wrong_table)), "1", "", "nearest is gelu"),
    "a table of 256 entries": (net(nn.GELU()), lambda _: net(Function(coarse_table)), "1", EXACT, "256 steps"),
    "a table of float16": (net(nn.GELU("tanh")), lambda _: net(Function(table)), "1", TANH, "float16"),
    "a tanh that is no number": (
        net(nn.GELU("tanh")),
        lambda _: net(Function(lambda x: torch.where(x > 10.5, torch.nan, tanh(x)))),
        "1",
        TANH,
        "NaN from 10.5",
    ),
    "a Mish that collapses": (net(nn.Mish()), lambda _: net(Function(collapsing_mish)), "1", "mish", "above 10.4"),
    "a tanh that saturates": (
        net(nn.GELU("tanh")),
        lambda _: net(Function(lambda x: tanh(x).clamp(max=4.0))),
        "1",
        TANH,
        "saturates at 4",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_public_case_is_found_with_its_cause(name, tmp_path):
    reference, candidate, site, computed, note = CASES[name]
    sample = X if isinstance(reference, nn.Module) else None
    report = audit(reference, candidate(tmp_path), input_sample=sample, strict=False)
    assert report.differs
    assert report.exit_code == 1
    row = next(row for row in report.rows if row.agrees is False)
    assert (row.site, row.computed) == (site, computed)
    assert note in " ".join(row.notes)


SOUND = {
    "exact": (net(nn.GELU()), nn.GELU),
    "tanh": (net(nn.GELU("tanh")), lambda: nn.GELU("tanh")),
    "an own class": (net(Function(quick)), lambda: Function(quick)),
    "silu": (net(nn.SiLU()), nn.SiLU),
    "mish": (net(nn.Mish()), nn.Mish),
    "a slope": (net(nn.LeakyReLU(0.2)), lambda: nn.LeakyReLU(0.2)),
}


@pytest.mark.parametrize("name", SOUND)
@pytest.mark.parametrize("form", ["module", "dynamo", "torchscript", "behind an interface"])
def test_a_sound_port_passes(name, form, tmp_path):
    reference, activation = SOUND[name]
    port = net(activation())
    if form == "behind an interface":
        candidate = lambda x: port(x)  # noqa: E731
    else:
        candidate = port if form == "module" else exported(tmp_path, port, dynamo=form == "dynamo")
    report = audit(reference, candidate, input_sample=X)
    assert report.passed
    assert report.exit_code == 0
    assert not report.costs


@torch.no_grad()
def test_the_cost_is_that_of_the_form_alone():
    reference, port = net(nn.GELU("tanh")), net(nn.GELU())
    exact_with_reference_weights = port(X)
    with torch.no_grad():
        port[0].bias += 0.5  # another mistake beside the form
    labels = reference(X).argmax(1)
    report = audit(reference, port, [(X, labels)], X, strict=False)
    (cost,) = report.costs
    largest = reference(X).abs().max()
    assert cost.outputs == pytest.approx(float((exact_with_reference_weights - reference(X)).abs().max() / largest))
    assert cost.rest == pytest.approx(float((port(X) - exact_with_reference_weights).abs().max() / largest), rel=1e-3)
    assert cost.metrics["error"] == (0.0, float((exact_with_reference_weights.argmax(1) != labels).double().mean()))


@torch.no_grad()
def test_labels_stay_with_their_rows_in_a_shuffling_loader():
    reference = net(nn.GELU("tanh"))
    x = torch.randn(200, 8, generator=torch.Generator().manual_seed(1))
    loader = DataLoader(TensorDataset(x, reference(x).argmax(1)), batch_size=20, shuffle=True)
    (cost,) = audit(reference, net(nn.SiLU()), loader, X, strict=False).costs
    assert cost.metrics["error"][0] == 0
    assert cost.metrics["error"][1] == pytest.approx(cost.top1)


def test_a_file_in_float16_is_judged_in_float16(tmp_path):
    path = tmp_path / "half.onnx"
    torch.onnx.export(net(nn.GELU("tanh")).half(), (X.half(),), path, dynamo=True, verbose=False)
    assert audit(net(nn.GELU("tanh")), path, input_sample=X).passed
    (cost,) = audit(net(nn.GELU()), path, input_sample=X, strict=False).costs
    assert cost.rest < 2e-3  # what float16 does, beside the form


def test_a_configuration_that_lies_is_found(tmp_path):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    model = transformers.BertModel(transformers.BertConfig(vocab_size=50, hidden_act="gelu_new", **sizes)).eval()
    model.save_pretrained(tmp_path)
    tokens = {"input_ids": torch.arange(8).reshape(1, 8)}
    assert audit(tmp_path, model, input_sample=tokens).passed
    path = tmp_path / "config.json"
    configuration = json.loads(path.read_text())
    path.write_text(json.dumps({**configuration, "hidden_act": "gelu"}))
    report = audit(tmp_path, model, input_sample=tokens, strict=False)
    assert [(row.reference, row.computed, row.declared) for row in report.rows] == [
        (EXACT, TANH, "hidden_act=gelu")
    ] * 2


@pytest.mark.full
@pytest.mark.parametrize("quick_gelu", [False, True])
@pytest.mark.parametrize(("cls", "layers"), [("CLIP", [1, 1, 1, 1]), ("CustomTextCLIP", 1)])
def test_a_folder_of_open_clip_computes_what_its_flag_says(cls, layers, quick_gelu, tmp_path):
    open_clip = pytest.importorskip("open_clip")
    hub = pytest.importorskip("open_clip.push_to_hf_hub")
    text = {"context_length": 8, "vocab_size": 50, "width": 32, "heads": 2, "layers": 1}
    vision = {"image_size": 32, "patch_size": 16, "width": 32, "head_width": 32, "layers": layers}
    sizes = {"embed_dim": 16, "vision_cfg": vision, "text_cfg": text}
    model, other = (getattr(open_clip, cls)(**sizes, quick_gelu=flag).eval() for flag in (quick_gelu, not quick_gelu))
    other.load_state_dict(model.state_dict())
    model.visual.image_mean = model.visual.image_std = [0.5] * 3  # as open_clip.create_model leaves them
    configuration = {**sizes, "quick_gelu": quick_gelu, "custom_text": cls == "CustomTextCLIP"}
    hub.save_for_hf(model, Mock(), configuration, tmp_path, safe_serialization=True)
    sample = (torch.randn(2, 3, 32, 32), torch.ones(2, 8, dtype=torch.long))
    assert audit(tmp_path, model, input_sample=sample).passed
    rows = audit(tmp_path, other, input_sample=sample, strict=False).rows
    names = ["transformer"] if cls == "CLIP" else ["visual.transformer", "text.transformer"]
    assert [row.site for row in rows if not row.agrees] == [f"{name}.resblocks.0.mlp.gelu" for name in names]
    text["hf_model_name"] = "roberta-base"  # whose configuration the Hub has
    hub.save_config_for_hf(model, tmp_path / "open_clip_config.json", configuration)
    with pytest.raises(ModelFileError, match="text model"):
        audit(tmp_path, model, input_sample=sample)


def test_a_report_is_raised_and_shows_itself(tmp_path):
    with pytest.raises(AuditError) as caught:
        audit(net(nn.GELU("tanh")), net(nn.GELU()), input_sample=X)
    report = caught.value.report
    plain = json.loads(report.to_json())
    assert (plain["differs"], plain["rows"][0]["computed"]) == (True, EXACT)
    assert "<table" in report.to_html()
    assert str(report).splitlines()[-1].startswith("Sequential differs")
    with pytest.raises(AssertionError, match="DIFFERS"):
        assert_same_activations(net(nn.GELU("tanh")), net(nn.GELU()), input_sample=X)
    assert_same_activations("silu", lambda x: x / (1 + np.exp(-x)))


BAD = {
    "sites that cannot be matched": lambda _: (net(nn.GELU()), nn.Sequential(nn.Linear(8, 4), nn.GELU()), X),
    "a reference without activations": lambda _: (nn.Linear(8, 4), net(nn.GELU()), X),
    "a function of other inputs": lambda _: (net(nn.GELU()), lambda x, y: x, X),
    "a function that is not elementwise": lambda _: ("gelu", lambda x: x.softmax(-1), None),
    "another sample": lambda _: (net(nn.GELU()), net(nn.GELU()), torch.zeros(2, 3)),
    "a folder without configuration": lambda folder: (folder, net(nn.GELU()), X),
    "a name that is none": lambda _: ("geluu", F.gelu, None),
    "a file that is missing": lambda folder: (net(nn.GELU()), folder / "no.onnx", X),
    "a number": lambda _: (3, F.gelu, None),
    "a class": lambda _: (net(nn.GELU()), nn.GELU, X),
    "a text that no file has as its name": lambda _: ("g" * 300, F.gelu, None),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_audited_is_said(name, tmp_path):
    reference, candidate, sample = BAD[name](tmp_path)
    with pytest.raises(ValueError, match=r"[.?]$") as caught:
        audit(reference, candidate, input_sample=sample)
    report = getattr(caught.value, "report", None)
    assert report is None or (report.exit_code == 2 and all(row.notes for row in report.rows))


class Port(nn.Module):
    """A class that two packages have under one name, each with a form of its own."""

    def __init__(self, form):
        super().__init__()
        self.forward = lambda x: F.gelu(x, approximate=form)


DIFFERENT = {
    "lambdas": lambda: ((lambda x: F.gelu(x)), (lambda x: F.gelu(x, approximate="tanh")), None),
    "classes of one name": lambda: (net(Port("none")), net(Port("tanh")), X),
    "forwards that were replaced": lambda: (net(nn.GELU()), net(Port("tanh")), X),
    "a slope for each channel": lambda: (net(Function(nn.PReLU(16).forward)), net(nn.LeakyReLU(0.1)), X),
    "trained slopes": lambda: (net(nn.PReLU(init=0.25)), net(nn.PReLU(init=0.7)), X),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_functions_are_told_apart_by_what_they_compute(name):
    reference, candidate, sample = DIFFERENT[name]()
    assert not audit(reference, candidate, input_sample=sample, strict=False).passed


@pytest.mark.parametrize("slope", [1 / 5.5, 0.25])
def test_arguments_of_a_call_are_those_that_a_module_has_in_float32(slope):
    called = net(Function(lambda x: F.leaky_relu(x, slope)))
    assert audit(called, net(nn.LeakyReLU(slope)), input_sample=X).passed


def test_names_with_a_decimal_point_labels_of_tokens_and_outputs_that_tell_nothing():
    assert audit("leaky_relu(negative_slope=0.2)", nn.LeakyReLU(0.2)).passed
    tokens = [(torch.randn(7, 7, 8), torch.randint(4, (7,)))]
    report = audit(net(nn.GELU()), net(nn.GELU("tanh")), tokens, input_sample=tokens[0][0], strict=False)
    assert not report.costs[0].metrics
    idle = [net(nn.GELU()), net(nn.ReLU())]
    for each in idle:
        nn.init.zeros_(each[4].weight)
    report = audit(idle[0], lambda x: idle[1](x), input_sample=X, strict=False)
    assert {row.agrees for row in report.rows} == {None}
