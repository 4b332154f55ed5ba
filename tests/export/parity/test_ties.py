"""Integer outputs: ties are excused, wrong indices are not."""

import numpy as np
import onnx
import pytest
import torch
from torch import nn

from lit_gelu.export import check_parity, export_onnx
from lit_gelu.export.parity.ties import Candidates, without_ties

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
    assert without_ties(np.array(y), reference, Candidates(VALUES, 1), None, torch.float32, 1e-5).tolist() == expected
    assert without_ties(np.array(y), reference, None, None, torch.float32, 1e-5).tolist() == y


def test_what_pytorch_is_off_by_makes_a_tie():
    y, reference = np.array([3, 1]), np.array([2, 1])
    exact, own = (np.array([[0.0, 0.1, 1.0, 0.99], [0.0, 1.0, 0.2, 0.1]]) for _ in range(2))
    assert without_ties(y, reference, Candidates(exact, 1), Candidates(own, 1), torch.float32, 1e-5).tolist() == [3, 1]
    own[0, 0] = 0.003  # 4 times that is 0.012
    assert without_ties(y, reference, Candidates(exact, 1), Candidates(own, 1), torch.float32, 1e-5).tolist() == [2, 1]


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
