"""The first layer that differs: weights changed inside the file must be found."""

import itertools

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from torch import nn

from lit_gelu.export import check_parity, export_onnx

LAYERS = 7
SAMPLE = torch.zeros(2, 6)


def deep_net():
    torch.manual_seed(0)
    widths = [6, *[12] * LAYERS]
    pairs = [(nn.Linear(a, b), nn.GELU()) for a, b in itertools.pairwise(widths)]
    return nn.Sequential(*[layer for pair in pairs for layer in pair], nn.Linear(12, 3))


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    net, path = deep_net(), tmp_path_factory.mktemp("divergence") / "net.onnx"
    export_onnx(net, path, SAMPLE)
    return net, onnx.load(path)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("wrong", range(LAYERS + 1))
def test_a_changed_weight_is_found_in_its_layer(exported, tmp_path, wrong):
    net, file = exported
    changed = onnx.ModelProto()
    changed.CopyFrom(file)
    for tensor in changed.graph.initializer:
        if tensor.name == f"{2 * wrong}.bias":
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor) + np.float32(0.05), tensor.name))
    onnx.save(changed, tmp_path / "net.onnx")
    report = check_parity(net, tmp_path / "net.onnx", input_sample=SAMPLE, strict=False)
    found = report.divergence
    assert (found.layer.site if found.layer else None) == (f"{2 * wrong + 1}" if wrong < LAYERS else None)
    assert (found.after.site if found.after else None) == (f"{2 * wrong - 1}" if wrong else None)
    assert found.nodes[0] == f"Gemm({2 * wrong}.weight, {2 * wrong}.bias)"
    assert report.culprit.kind == "file"
    outside = [layer.site for layer in report.layers if layer.error > layer.limit]
    assert outside == [f"{2 * i + 1}" for i in range(wrong, LAYERS)]


def test_the_errors_layer_by_layer_are_those_of_a_float64_net_by_hand(exported, tmp_path):
    net, file = exported
    onnx.save(file, tmp_path / "net.onnx")
    report = check_parity(net, tmp_path / "net.onnx", input_sample=SAMPLE)
    assert [layer.site for layer in report.layers] == [f"{2 * i + 1}" for i in range(LAYERS)]
    # Every value is rounded to float32 once at least, and a dozen products do not lose more than a dozen roundings.
    assert all(0 < layer.error < 12 * 2**-24 for layer in report.layers)
    assert all(0 < layer.own < 12 * 2**-24 for layer in report.layers)


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.c = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 3)
        self.act = nn.GELU()

    def forward(self, x):
        return self.c(self.act(self.b(self.act(self.a(x)))))


def test_the_second_call_of_a_module_is_told_from_the_first(tmp_path):
    net, path = Twice(), tmp_path / "net.onnx"
    export_onnx(net, path, SAMPLE)
    with torch.no_grad():
        net.b.bias += 0.05
    found = check_parity(net, path, input_sample=SAMPLE, strict=False).divergence
    assert (found.layer.site, found.layer.call) == ("act", 1)
    assert (found.after.site, found.after.call) == ("act", 0)
    assert "act, call 2" in str(found)


class Wasteful(Twice):
    """Its first call of the activation is for nothing; the graph does not have it."""

    def forward(self, x):
        self.act(3 * self.a(x))
        return super().forward(x)


class InPlanes(nn.Module):
    """A convolution between activations, whose values the file may keep in another layout."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.act, self.last = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 4, 3), nn.GELU(), nn.GELU()

    def forward(self, x):
        return self.last(self.b(self.act(self.a(x))).mean((2, 3)))


class Named(nn.Module):
    """Two activations that are equal, called in one order or the other."""

    def __init__(self, order):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.c = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 3)
        self.one, self.two, self.order = nn.GELU(), nn.GELU(), order

    def forward(self, x):
        first, second = (getattr(self, name) for name in self.order)
        return self.c(second(self.b(first(self.a(x)))))


def spoilt(net, layer):
    with torch.no_grad():
        getattr(net, layer).weight.mul_(1.1)
    return net


def test_a_call_that_the_graph_does_not_have_is_not_compared_with_another(tmp_path):
    net, path = Wasteful().eval(), tmp_path / "net.onnx"
    export_onnx(net, path, SAMPLE)
    report = check_parity(net, path, input_sample=SAMPLE)
    assert [(layer.site, layer.call) for layer in report.layers] == [("act", 1), ("act", 2)]
    assert all(layer.error <= layer.limit for layer in report.layers)
    found = check_parity(spoilt(net, "c"), path, input_sample=SAMPLE, strict=False).divergence
    assert (found.layer, found.after.call) == (None, 2)


def test_values_in_another_layout_are_left_out(tmp_path):
    x = torch.randn(2, 3, 9, 9)
    export_onnx(InPlanes(), tmp_path / "net.onnx", x, target="ort-cuda", layout="nhwc")
    report = check_parity(InPlanes(), tmp_path / "net.onnx", input_sample=x)
    assert [layer.site for layer in report.layers] == ["last"]
    found = check_parity(spoilt(InPlanes(), "b"), tmp_path / "net.onnx", input_sample=x, strict=False).divergence
    assert found.layer.site == "last"


def test_activations_that_are_called_by_each_others_names(tmp_path):
    path = tmp_path / "net.onnx"
    export_onnx(Named(["one", "two"]), path, SAMPLE)
    other = Named(["two", "one"])
    report = check_parity(other, path, input_sample=SAMPLE)
    assert [layer.site for layer in report.layers] == ["two", "one"]
    assert all(layer.error <= layer.limit for layer in report.layers)
    found = check_parity(spoilt(other, "c"), path, input_sample=SAMPLE, strict=False).divergence
    assert (found.layer, found.after.site) == (None, "one")
