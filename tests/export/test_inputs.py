"""Names of tensors in nested arguments and outputs."""

from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

from lit_gelu.export import ModelInputError, export_onnx
from lit_gelu.export.inputs import named_outputs, take_apart

X = torch.zeros(2, 3)


class Pair(NamedTuple):
    left: Any
    right: Any


def names(output):
    return [name for name, _ in named_outputs(output)]


def test_other_outputs_are_named_as_pytree_names_them():
    output = {"logits": X, "pair": Pair(X, [X, {"deep": X}]), "number": 1, "empty": []}
    assert names(output) == ["logits", "pair_left", "pair_right_0", "pair_right_1_deep"]


def test_further_positional_arguments_are_named_by_the_argument_that_gathers_them():
    class Net(nn.Module):
        def forward(self, x, *others, mask=None):
            return sum(others, x)

    class Any(nn.Module):
        def forward(self, *tensors):
            return sum(tensors)

    assert take_apart(Net(), (X, X, X)).names == ("x", "others_0", "others_1")
    assert take_apart(Net(), {"x": X, "mask": X}).names == ("x", "mask")
    assert take_apart(Any(), (X, X)).names == ("tensors_0", "tensors_1")


def test_complex_inputs_are_refused_with_the_remedy(tmp_path):
    class Net(nn.Module):
        def forward(self, x, turns):
            return x * torch.view_as_real(turns)

    sample = (torch.zeros(2, 3, 2), torch.zeros(2, 3, dtype=torch.complex64))
    with pytest.raises(ModelInputError):
        export_onnx(Net(), tmp_path / "net.onnx", sample)
