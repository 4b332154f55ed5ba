"""`export_onnx`: forms of GELU, the batch, and the names of inputs and outputs."""

from collections import Counter

import functional_nets
import numpy as np
import onnx
import pytest
import torch
from export_cases import GELU_ERF, GELU_TANH, gelu_net, gelu_net_by_hand, operators_by_site
from export_zoo import TwoInputs
from torch import nn
from torch.nn import functional as F

from lit_gelu.errors import ArgumentError
from lit_gelu.export import OnnxPredictor, check_parity, export_onnx

SAMPLE = torch.zeros(1, 6)


OPERATORS = {
    ("none", "native"): ["Gelu"],
    ("none", "primitives"): GELU_ERF,
    ("none", "contrib"): ["com.microsoft::Gelu"],
    ("tanh", "native"): ["Gelu"],
    ("tanh", "primitives"): GELU_TANH,
    ("tanh", "contrib"): ["com.microsoft::FastGelu"],
    ("sigmoid", "native"): ["Mul", "Sigmoid", "Mul"],
    ("sigmoid", "primitives"): ["Mul", "Sigmoid", "Mul"],
    ("sigmoid", "contrib"): ["com.microsoft::QuickGelu"],
}


@pytest.mark.parametrize(("form", "lowering"), OPERATORS)
def test_each_form_in_each_lowering_against_the_formula(tmp_path, form, lowering):
    net, path = gelu_net("gelu"), tmp_path / "net.onnx"
    report = export_onnx(net, path, SAMPLE, approximate=form, lowering=lowering)
    assert list(operators_by_site(path).values()) == [OPERATORS[form, lowering]] * 2
    assert report.activation_census == Counter(2 * OPERATORS[form, lowering])
    assert [site.spec for site in report.sites] == [{"none": "gelu"}.get(form, f"gelu(approximate={form!r})")] * 2
    x = np.random.default_rng(0).normal(scale=3, size=(64, 6)).astype(np.float32)
    assert np.abs(OnnxPredictor(path)(x) - gelu_net_by_hand(net, x, form)).max() < 2e-6


@pytest.mark.parametrize("rows", [1, 3])
def test_the_batch_is_dynamic_whatever_the_sample(tmp_path, rows):
    net, path = gelu_net(), tmp_path / "net.onnx"
    export_onnx(net, path, torch.zeros(rows, 6))
    model = onnx.load(path)
    for value in (model.graph.input[0], model.graph.output[0]):
        assert value.type.tensor_type.shape.dim[0].dim_param == "batch"
    assert (model.graph.input[0].name, model.graph.output[0].name) == ("input", "output")
    assert [OnnxPredictor(path)(np.zeros((n, 6), np.float32)).shape for n in (1, 2, 7)] == [(1, 3), (2, 3), (7, 3)]


def test_nested_inputs_and_outputs_have_names(tmp_path):
    rows = 3
    x, extra, mask = torch.randn(rows, 4), torch.randn(rows, 4), torch.ones(rows, 4)
    path = tmp_path / "two.onnx"
    sample = {"image": x, "parts": {"extra": extra}, "scale": 2.0, "mask": mask}
    export_onnx(TwoInputs(), path, sample)
    predictor = OnnxPredictor(path)
    assert predictor.input_names == ["image", "parts_extra", "mask"]
    assert predictor.output_names == ["logits", "parts_0"]
    shapes = [value.type.tensor_type.shape.dim[0].dim_param for value in onnx.load(path).graph.input]
    assert shapes == ["batch"] * 3
    assert check_parity(TwoInputs(), path, input_sample=sample).passed
    logits, _ = predictor(x, extra, mask=torch.zeros(rows, 4))
    assert torch.equal(logits, torch.zeros(rows, 4))


def test_further_positional_arguments_are_named_by_the_argument_that_gathers_them(tmp_path):
    class Sum(nn.Module):
        def forward(self, x, *others):
            return F.gelu(sum(others, x))

    export_onnx(Sum(), tmp_path / "sum.onnx", (SAMPLE, SAMPLE, SAMPLE))
    assert OnnxPredictor(tmp_path / "sum.onnx").input_names == ["x", "others_0", "others_1"]


class CallsFunction(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = nn.Sequential(nn.GELU())

    def forward(self, x):
        return self.block(F.gelu(x))


def test_calls_of_functions_take_the_chosen_form(tmp_path):
    net, path = CallsFunction(), tmp_path / "net.onnx"
    report = export_onnx(net, path, SAMPLE, approximate="tanh")
    assert {site.site: site.spec for site in report.sites} == dict.fromkeys(
        ["block.0", "gelu_call"], "gelu(approximate='tanh')"
    )
    x = torch.linspace(-4, 4, 60).reshape(10, 6)
    expected = F.gelu(F.gelu(x, approximate="tanh"), approximate="tanh")
    assert np.abs(OnnxPredictor(path)(x.numpy()) - expected.numpy()).max() < 2e-6
    assert check_parity(net, path, input_sample=SAMPLE).passed
    assert torch.equal(net(x), F.gelu(F.gelu(x)))
    assert [name for name, _ in net.named_modules()] == ["", "block", "block.0"]


def test_a_gelu_that_cannot_take_the_chosen_form_is_refused(tmp_path):
    path = tmp_path / "net.onnx"
    with pytest.raises(ArgumentError):
        export_onnx(functional_nets.ByHelper(), path, torch.zeros(1, 4), approximate="tanh")
    export_onnx(functional_nets.ByHelper(), path, torch.zeros(1, 4), approximate="none")
