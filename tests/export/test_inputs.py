"""Names of tensors in nested arguments and outputs."""

from collections import OrderedDict
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

from lit_gelu.export import ModelInputError, export_onnx
from lit_gelu.export.inputs import named_outputs, take_apart

X = torch.zeros(2, 3)


class Keyless(OrderedDict):
    """Registered as transformers 5.0 registers its outputs: without a function for the keys."""


class KeylessPair(list):
    """The same of something that is no mapping."""


pytree.register_pytree_node(Keyless, lambda x: (list(x.values()), list(x)), lambda v, k: Keyless(zip(k, v)))  # noqa: B905
pytree.register_pytree_node(KeylessPair, lambda x: (list(x), None), lambda v, _: KeylessPair(v))


class Pair(NamedTuple):
    left: Any
    right: Any


def names(output):
    return [name for name, _ in named_outputs(output)]


def test_a_mapping_that_is_registered_without_its_keys_names_its_tensors():
    output = Keyless(last=X, none=None, hidden=(X, X), inner=Keyless(a=X, b=KeylessPair([X, X])))
    assert names(output) == ["last", "hidden_0", "hidden_1", "inner_a", "inner_b_0", "inner_b_1"]
    assert names((X, output))[:2] == ["output_0", "output_1_last"]
    tensors = [leaf for leaf in pytree.tree_leaves(output) if leaf is not None]
    assert all(a is b for (_, a), b in zip(named_outputs(output), tensors, strict=True))


def test_other_outputs_are_named_as_pytree_names_them():
    output = {"logits": X, "pair": Pair(X, [X, {"deep": X}]), "number": 1, "empty": []}
    assert names(output) == ["logits", "pair_left", "pair_right_0", "pair_right_1_deep"]


def test_a_mapping_without_keys_as_an_argument():
    class Net(nn.Module):
        def forward(self, x, states):
            return x + states["a"]

    call = take_apart(Net(), (X, Keyless(a=X, b=(X,))))
    assert call.names == ("x", "states_a", "states_b_0")
    args, kwargs = call.arguments(call.tensors)
    assert isinstance(args[1], Keyless)
    assert not kwargs


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
