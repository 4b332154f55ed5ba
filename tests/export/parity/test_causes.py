"""The first layer that differs and what causes it: planted ones must be named."""

import pytest
import torch
from torch import nn

from lit_gelu.export import ParityError, check_parity, export_onnx

APPROXIMATED = {"optimization.enable_gelu_approximation": "1"}


SAMPLE, ROWS = torch.zeros(2, 5, 6), torch.zeros(2, 6)


class FeedForward(nn.Module):
    def __init__(self, *activations):
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(6, 16)
        self.blocks = nn.ModuleList([nn.Sequential(act, nn.Linear(16, 16)) for act in activations])

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return x


def test_the_approximation_of_gelu_is_named_where_it_acts(tmp_path):
    net, path = FeedForward(nn.SiLU(), nn.GELU()), tmp_path / "net.onnx"
    export_onnx(net, path, SAMPLE)
    assert check_parity(net, path, input_sample=SAMPLE).culprit is None
    with pytest.raises(ParityError) as caught:
        check_parity(net, path, input_sample=SAMPLE, session_config=APPROXIMATED)
    report = caught.value.report
    # BiasGeluFusion restores parity too when it is left out, but only prepares what the other spoils.
    assert report.culprit.names == ("GeluApproximation",)
    assert report.culprit.kind == "graph optimisation"
    assert report.culprit.level == "ENABLE_EXTENDED"
    assert report.culprit.excess_with > 10 > 1 > report.culprit.excess_without
    assert report.divergence.layer.site == "blocks.1.0"
    assert report.divergence.after.site == "blocks.0.0"
    assert report.divergence.nodes[-1] == "Gelu(none)"
    assert "Cause: onnxruntime's GeluApproximation" in report.to_markdown()


def test_a_breach_on_extremes_is_told_by_the_limits_of_extremes(tmp_path):
    net, path = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 3)).eval(), tmp_path / "net.onnx"
    export_onnx(net, path, SAMPLE[:, 0])
    clipped = nn.Sequential(net, nn.Hardtanh(-50, 50))
    report = check_parity(clipped, path, input_sample=SAMPLE[:, 0], strict=False)
    assert {row.extreme for row in report.failures} == {True}
    assert report.culprit.kind == "file"
    assert report.culprit.excess_with == max(row.excess for row in report.failures)


def test_a_wrong_file_is_not_blamed_on_an_optimisation(tmp_path):
    net, path = FeedForward(nn.GELU()), tmp_path / "net.onnx"
    export_onnx(net, path, SAMPLE)
    with torch.no_grad():
        net.blocks[0][1].bias += 1e-2
    report = check_parity(net, path, input_sample=SAMPLE, strict=False)
    assert report.culprit.kind == "file"
    assert report.divergence.layer is None
    assert report.divergence.after.site == "blocks.0.0"
    assert report.divergence.nodes[-1] == "Add(blocks.0.1.bias)"


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
    export_onnx(net, path, ROWS)
    with torch.no_grad():
        net.b.bias += 0.05
    divergence = check_parity(net, path, input_sample=ROWS, strict=False).divergence
    assert (divergence.layer.site, divergence.layer.call) == ("act", 1)
    assert (divergence.after.site, divergence.after.call) == ("act", 0)


class Mapped(nn.Module):
    """Calls its parts under vmap, so that what they give has no values of its own."""

    def __init__(self, activation):
        super().__init__()
        self.layer, self.activation = nn.Linear(6, 4), activation

    def forward(self, x):
        return torch.vmap(lambda row: self.activation(self.layer(row)))(x)


@pytest.mark.parametrize("activation", [nn.functional.gelu, nn.GELU(), nn.SiLU()], ids=str)
def test_a_breach_in_parts_that_vmap_calls(tmp_path, activation):
    net, path = Mapped(activation), tmp_path / "net.onnx"
    export_onnx(net, path, ROWS)
    assert check_parity(net, path, input_sample=ROWS).passed
    with torch.no_grad():
        net.layer.bias += 0.1
    report = check_parity(net, path, input_sample=ROWS, strict=False)
    assert not report.passed
    assert report.divergence is not None


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


def test_activations_that_are_called_by_each_others_names(tmp_path):
    path = tmp_path / "net.onnx"
    export_onnx(Named(["one", "two"]), path, ROWS)
    other = Named(["two", "one"])
    assert check_parity(other, path, input_sample=ROWS).passed
    divergence = check_parity(spoilt(other, "c"), path, input_sample=ROWS, strict=False).divergence
    assert (divergence.layer, divergence.after.site) == (None, "one")
