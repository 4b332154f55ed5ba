"""One activation's nodes alone: figures of onnxruntime's CPU kernels that were measured independently."""

import numpy as np
import pytest
import torch
from onnx import TensorProto
from parity_files import ON_CPU, activation, model, node
from torch import nn
from torch.nn import functional as F

from lit_gelu import activations
from lit_gelu.export import check_parity, export_onnx
from lit_gelu.export.parity.structure import activation_row, sweep_values
from lit_gelu.export.site_nodes import site_nodes


def check(operator, spec="gelu", dtype=torch.float32, opset=20, **attributes):
    element = {torch.float32: TensorProto.FLOAT, torch.float16: TensorProto.FLOAT16}[dtype]
    proto, entry = activation(operator, element, opset, **attributes)
    return activation_row(proto, entry, activations.create(spec), dtype, ON_CPU, label=spec)


@pytest.mark.parametrize(
    ("operator", "attributes", "largest"),
    [("com.microsoft::FastGelu", {}, 4.74e-4), ("com.microsoft::QuickGelu", {"alpha": 1.702}, 2.03e-2)],
)
def test_an_approximation_in_the_place_of_the_exact_function_fails(operator, attributes, largest):
    row = check(operator, **attributes)
    assert row.passed is False
    assert row.max_abs_error == pytest.approx(largest, rel=0.01)
    assert row.limit == 1e-5


def test_all_16_bit_inputs_of_the_exact_gelu():
    row = check("Gelu", dtype=torch.float16)
    assert row.count == 63_488
    assert row.passed
    assert row.max_abs_error == pytest.approx(9.76e-4, rel=0.01)
    assert row.limit == pytest.approx(max(1e-5 + 2**-11, 2 * row.own))
    x = np.arange(2**16, dtype=np.uint32).astype(np.uint16).view(np.float16)
    assert row.count == np.isfinite(x).sum()


def test_outputs_that_overflow_where_pytorchs_do_not_are_counted():
    """log(1 + exp(x)) is infinite from x = log(2^128) on; PyTorch's softplus is x there."""
    proto = model(
        [node("Exp", ["x"], "e"), node("Add", ["e", "one"], "p"), node("Log", ["p"], "y")], {"one": np.float32(1)}
    )
    (entry,) = site_nodes(proto, {"act": 1})
    row = activation_row(proto, entry, nn.Softplus(), torch.float32, ON_CPU, label="softplus")
    x = sweep_values(torch.float32).numpy().astype(np.float64)
    assert row.nonfinite == np.count_nonzero(x > 128 * np.log(2)) > 1000
    assert row.passed is False


def test_a_nan_that_does_not_stay_one_is_a_fault():
    clipped = model([node("Max", ["x", "zero"], "y")], {"zero": np.float32(0)})
    nodes = [node("IsNaN", ["x"], "lost"), node("Relu", ["x"], "r"), node("Where", ["lost", "zero", "r"], "y")]
    swallowed = model(nodes, {"zero": np.float32(0)})
    for proto, stays in ((clipped, True), (swallowed, False)):
        (entry,) = site_nodes(proto, {"act": 1})
        row = activation_row(proto, entry, nn.ReLU(), torch.float32, ON_CPU, label="relu")
        assert row.passed is stays
        assert row.nonfinite == (0 if stays else 1)


def test_one_value_a_channel_is_checked_on_the_first():
    slopes = np.array([0.25, 0.5], np.float32).reshape(2, 1)
    proto = model([node("PRelu", ["x", "slope"], "y")], {"slope": slopes}, shape=("n", 2, "w"))
    (entry,) = site_nodes(proto, {"act": 1})
    prelu = nn.PReLU(2)
    with torch.no_grad():
        prelu.weight.copy_(torch.tensor([0.25, 0.5]))
    assert activation_row(proto, entry, prelu, torch.float32, ON_CPU, label="prelu").passed
    with torch.no_grad():
        prelu.weight[0] = 0.26
    assert not activation_row(proto, entry, prelu, torch.float32, ON_CPU, label="prelu").passed


X = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))


class Called(nn.Module):
    def forward(self, x):
        return F.softplus(x, -2.0)


@pytest.mark.parametrize("model", [nn.Softplus(-2.0), Called()], ids=["module", "call"])
@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
def test_arguments_that_only_torch_takes_are_compared_with_torch_or_noted(tmp_path, model, dtype):
    path = tmp_path / "net.onnx"
    export_onnx(model, path, X, dtype=dtype)
    report = check_parity(model, path, input_sample=X)
    assert report.passed
    alone = any(row.comparison.startswith("operator alone") for row in report.rows)
    noted = any("could not be run alone" in note for note in report.notes)
    assert (alone, noted) == ((True, False) if dtype == "fp32" else (False, True))
