"""Which graph optimisation of onnxruntime causes a difference: planted ones must be named."""

from dataclasses import replace

import onnx
import pytest
import torch
from parity_files import ON_CPU, model, node
from torch import nn

from lit_gelu.export import ParityError, check_parity, export_onnx
from lit_gelu.export.parity.activation_census import optimized_graph
from lit_gelu.export.parity.causes.culprit import OPTIMIZATIONS, _smallest, find_culprit

APPROXIMATED = {"optimization.enable_gelu_approximation": "1"}
SAMPLE = torch.zeros(2, 5, 6)


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
    with pytest.raises(ParityError, match="onnxruntime's GeluApproximation") as caught:
        check_parity(net, path, input_sample=SAMPLE, session_config=APPROXIMATED)
    report = caught.value.report
    # BiasGeluFusion restores parity too when it is left out, but only prepares what the other spoils.
    assert report.culprit.names == ("GeluApproximation",)
    assert report.culprit.kind == "graph optimisation"
    assert report.culprit.level == "ENABLE_EXTENDED"
    assert report.culprit.change == "1 BiasGelu -> 1 FastGelu"
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


def test_two_optimisations_that_do_it_together_are_both_named():
    guilty = {"QuickGeluFusion", "ConvAddFusion"}

    def restores(left_out):
        return guilty <= set(left_out)

    assert set(_smallest(OPTIMIZATIONS, restores)) == guilty


@pytest.mark.parametrize("guilty", ["GeluFusionL1", "Avx2WeightS8ToU8Transformer", "NoopElimination"])
def test_one_of_all_is_found_in_few_tries(guilty):
    tries = []

    def restores(left_out):
        tries.append(left_out)
        return guilty in left_out

    assert _smallest(OPTIMIZATIONS, restores) == [guilty]
    assert len(tries) < 40


def test_the_fusion_of_silu_is_found_by_its_trace_in_the_graph(tmp_path):
    """Nothing is wrong with it here: a setup counts as outside the limit if its optimised graph has a QuickGelu."""
    path = tmp_path / "silu.onnx"
    onnx.save(model([node("Sigmoid", ["x"], "s"), node("Mul", ["x", "s"], "y")]), path)

    def excess(setup):
        return 2.0 if any(n.op_type == "QuickGelu" for n in optimized_graph(path, setup).graph.node) else 0.5

    found = find_culprit(path, ON_CPU, excess)
    assert found.names == ("QuickGeluFusion",)
    assert found.level == "ENABLE_EXTENDED"
    assert found.change == "1 Mul, 1 Sigmoid -> 1 QuickGelu(alpha=1)"
    assert find_culprit(path, replace(ON_CPU, disabled=("QuickGeluFusion",)), excess) is None
    assert find_culprit(path, replace(ON_CPU, level="ENABLE_BASIC"), excess) is None
