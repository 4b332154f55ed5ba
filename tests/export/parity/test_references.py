"""What the module itself gives: its rounding, ties of indices, and references where forward refuses a dtype."""

import numpy as np
import onnx
import pytest
import torch
from torch import nn

from lit_gelu import activations
from lit_gelu.export import check_parity, export_onnx
from lit_gelu.export.inputs import take_apart
from lit_gelu.export.parity.comparison import without_ties
from lit_gelu.export.parity.runs import References, RoundedTo


def test_a_net_that_amplifies_rounding_is_moved_by_a_unit_in_the_last_place_and_left_as_it_was():
    """x + 1 - 1 in float32, for x = 2^-23 (1 + 1e-3): a move of the input rounds to one unit or to none."""

    class Amplifies(nn.Module):
        def __init__(self):
            super().__init__()
            self.one = nn.Parameter(torch.ones(()))

        def forward(self, x):
            return (x + self.one) - 1

    module, x = Amplifies(), torch.full((4, 1), 2.0**-24)
    references = References(module, take_apart(module, x), "as_trained", activations.registry)
    outputs = [varied[0] for varied, _ in references.varied((x,))]
    assert {float(v) for y in outputs for v in np.ravel(y)} >= {0.0, 2.0**-23}
    assert all(np.all(exact[0] == 2.0**-24) for _, exact in references.varied((x,)))
    assert float(references.baseline.one) == 1


VALUES = np.array([[1.0, 2.0, 2.0, 0.0], [5.0, 5.0 + 1e-7, 1.0, 4.0]])


@pytest.mark.parametrize(
    ("y", "expected"),
    [
        ([[2, 1], [0, 1]], [[1, 2], [1, 0]]),  # ties, exact and by rounding
        ([[1, 2], [1, 3]], [[1, 2], [1, 3]]),  # 4 is not 5
        ([[2, 2], [1, 0]], [[2, 2], [1, 0]]),  # one place twice
        ([[1, 9], [1, 0]], [[1, 9], [1, 0]]),  # no place at all
        ([[1, -2], [1, 0]], [[1, -2], [1, 0]]),
    ],
)
def test_only_ties_are_excused(y, expected):
    reference = np.array([[1, 2], [1, 0]])
    assert without_ties(np.array(y), reference, (VALUES, 1), None, torch.float32, 1e-5).tolist() == expected
    assert without_ties(np.array(y), reference, None, None, torch.float32, 1e-5).tolist() == y


class Best(nn.Module):
    """Three best of values that are often zero, the best one, and their order."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(6, 40)

    def forward(self, x):
        y = torch.relu(self.linear(x) - 1)
        best = torch.topk(y, 12, dim=-1)
        return {"values": best.values, "places": best.indices, "best": y.argmax(-1)}


def test_places_of_equal_values_may_be_others_and_of_smaller_values_not(tmp_path):
    net, path = Best(), tmp_path / "net.onnx"
    export_onnx(net, path, torch.zeros(2, 6))
    assert check_parity(net, path).passed
    model = onnx.load(path)
    for node in model.graph.node:
        if node.op_type == "ArgMax":
            node.op_type = "ArgMin"
    onnx.save(model, path)
    report = check_parity(net, path, strict=False)
    assert {row.output for row in report.failures} == {"best"}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    ("function", "is_exact"),
    [
        (nn.functional.gelu, False),
        (torch.sin, False),
        (lambda x: x * 3 + x, True),
        (lambda x: x.clone().mul_(1.1).add_(x), True),
        (lambda x: torch.softmax(x, -1), False),
        (lambda x: x.t()[1:].clone().reshape(-1)[::2] / 3, True),
        (lambda x: torch.max(x * 1.1, 1).values, True),
    ],
    ids=["gelu", "sin", "a sum", "in place", "softmax", "views", "two results"],
)
def test_values_are_those_of_the_dtype(dtype, function, is_exact):
    inputs = torch.randn(64, 32).to(dtype)
    with RoundedTo(dtype):
        values = function(inputs.float())
    assert values.dtype == torch.float32
    expected = function(inputs).float()
    # torch may compute erf, sin and exp by other polynomials in its loops of 16 bit: a value between two is rounded to
    # its other neighbour then, which happens once in some thousand.
    rounding = 0.0 if is_exact else torch.finfo(dtype).eps
    torch.testing.assert_close(values, expected, rtol=rounding, atol=rounding * torch.finfo(dtype).tiny)
    assert (values != expected).sum() <= values.numel() / 100


SAMPLE = torch.zeros(2, 6)


class Mixed(nn.Module):
    """Asks for float32 ahead of a layer, as embeddings of time steps do; in another dtype than that it fails."""

    def __init__(self):
        super().__init__()
        self.linear, self.act = nn.Linear(6, 3), nn.GELU()

    def forward(self, x):
        return self.act(self.linear(x.float() * torch.linspace(1, 2, 6)))


class OnlyFloat32(Mixed):
    """Fails in any other dtype, whatever is done about it."""

    def forward(self, x):
        if self.linear.weight.dtype != torch.float32:
            raise TypeError("float32 only")
        return super().forward(x)


def test_a_missing_float64_reference_is_said(tmp_path):
    path = tmp_path / "net.onnx"
    model = OnlyFloat32()
    export_onnx(model, path, SAMPLE)
    report = check_parity(model, path)
    assert report.passed
    assert any("no float64 reference" in note for note in report.notes)
    assert not any(row.comparison == "file vs PyTorch float64" for row in report.rows)


@pytest.mark.parametrize(("kind", "comparison"), [(Mixed, "float64"), (OnlyFloat32, "float32")])
def test_a_file_of_16_bits_is_compared_as_a_whole_though_its_module_fails_in_them(tmp_path, kind, comparison):
    path = tmp_path / "net.onnx"
    model = kind()
    export_onnx(model, path, SAMPLE, dtype="fp16", target="ort-cpu")
    report = check_parity(model, path)
    row = report.row("gaussian, batch 32", f"file vs PyTorch {comparison}")
    assert 0 < row.error <= row.limit < 5e-3
    assert any(note.startswith("PyTorch's own float16 is") for note in report.notes)
    with torch.no_grad():
        model.linear.weight += 0.05
    assert not check_parity(model, path, strict=False).row("sample", f"file vs PyTorch {comparison}").passed
