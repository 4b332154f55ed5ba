"""Does a file repeat itself: live dropout, and what a row's batch changes."""

import warnings
from dataclasses import replace
from functools import partial

import numpy as np
import onnx
import pytest
import torch
from export_cases import gelu_net
from lightning.pytorch import LightningModule
from onnx import TensorProto, helper
from parity_files import ON_CPU, model, node
from torch import nn

from lit_gelu.export import ParityError, check_parity, export_onnx
from lit_gelu.export.parity.execution import run_file
from lit_gelu.export.parity.repeatability import random_nodes, repeatability


class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 64), nn.GELU(), nn.Dropout(0.5), nn.Linear(64, 3))

    def forward(self, x):
        return self.net(x)


def test_lightnings_own_export_is_in_training_mode_and_does_not_repeat_itself(tmp_path):
    path = tmp_path / "lightning.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        Net().to_onnx(path, torch.randn(4, 6), dynamo=True, external_data=False, verbose=False)
    file = onnx.load(path)
    x = torch.randn(4, 6)
    optimised, plain = ON_CPU.open(path), replace(ON_CPU, level="DISABLE_ALL").open(path)
    runs = [partial(run_file, predictor) for predictor in (optimised, plain)]
    found = repeatability(*runs, [(x,)], plain.output_names, file)
    assert not found.identical
    assert repeatability(runs[0], runs[0], [(x,)], plain.output_names, file).identical  # it takes the Dropout out
    assert len(found.random_nodes) == 1
    assert found.random_nodes[0].startswith("Dropout")


def test_the_same_module_exported_here_repeats_itself(tmp_path):
    net = Net()
    assert net.training
    export_onnx(net, tmp_path / "net.onnx", torch.zeros(2, 6))
    report = check_parity(net, tmp_path / "net.onnx", input_sample=torch.zeros(2, 6))
    assert report.repeatability.identical
    assert not report.repeatability.random_nodes


def test_a_planted_dropout_fails_and_is_named(tmp_path):
    net, path = gelu_net(), tmp_path / "net.onnx"
    export_onnx(net, path, torch.zeros(2, 6))
    file = onnx.load(path)
    last = file.graph.node[-1]
    file.graph.initializer.extend([
        helper.make_tensor("ratio", TensorProto.FLOAT, [], [0.5]),
        helper.make_tensor("training", TensorProto.BOOL, [], [True]),
    ])
    dropout = helper.make_node("Dropout", [last.input[0], "ratio", "training"], ["dropped"], name="live")
    last.input[0] = "dropped"
    file.graph.node.insert(len(file.graph.node) - 1, dropout)
    onnx.save(file, path)
    with pytest.raises(ParityError, match="two runs on the same input differ") as caught:
        check_parity(net, path)
    report = caught.value.report
    assert report.repeatability.random_nodes == ("Dropout live",)
    assert "Nodes that draw random numbers: Dropout live." in report.to_markdown()


def test_a_report_whose_numbers_agree_fails_if_two_runs_differ(tmp_path):
    """Noise of 1e-9 is within every limit."""
    net, path = gelu_net(), tmp_path / "net.onnx"
    export_onnx(net, path, torch.zeros(2, 6))
    file = onnx.load(path)
    file.graph.node[-1].output[0] = "clean"
    file.graph.node.extend([
        helper.make_node("RandomNormalLike", ["clean"], ["noise"], name="noise", scale=1e-8),
        helper.make_node("Add", ["clean", "noise"], ["output"]),
    ])
    onnx.save(file, path)
    report = check_parity(net, path, strict=False)
    assert not report.failures
    assert not report.passed
    assert report.repeatability.random_nodes == ("RandomNormalLike noise",)


def test_a_dropout_that_is_off_is_not_random():
    constants = {"ratio": np.float32(0.5), "off": np.array(False), "on": np.array(True)}
    off = node("Dropout", ["x", "ratio", "off"], "y", None)
    bare = node("Dropout", ["x"], "y", None)
    on = node("Dropout", ["x", "ratio", "on"], "y", None)
    assert [random_nodes(model([dropout], constants)) for dropout in (off, bare, on)] == [[], [], ["Dropout node_y"]]
    computed = node("Dropout", ["x", "ratio", "flag"], "y", None)  # whether it is on is known when it runs
    assert random_nodes(model([computed], constants)) == ["Dropout node_y"]
    from_node = helper.make_node("Constant", [], ["flag"], value=helper.make_tensor("v", TensorProto.BOOL, [], [False]))
    assert not random_nodes(model([from_node, node("Dropout", ["x", "ratio", "flag"], "y", None)], constants))


def test_what_a_batch_changes_is_measured():
    """A file that subtracts the mean of its batch: a row alone becomes 0."""
    batch = torch.arange(4.0).reshape(4, 1)

    def run(inputs):
        return [(inputs[0] - inputs[0].mean(0)).numpy()]

    made = model([node("Identity", ["x"], "y", None)])
    found = repeatability(run, run, [(batch,), (batch[:1],), (batch[:2],)], ["y"], made)
    assert found.identical
    # rows are -1.5, -0.5, 0.5, 1.5; alone 0; two of them -0.5, 0.5
    assert [(part.rows, part.of, part.difference) for part in found.batches] == [(1, 4, 1.0), (2, 4, 1 / 1.5)]


class Similarities(nn.Module):
    """Of every image with every text of the batch, as CLIP's: the batch is both axes of the output."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.image = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 4))
        self.text = nn.Linear(5, 4)

    def forward(self, image, text):
        return self.image(image) @ self.text(text).T


def test_an_output_with_the_batch_on_both_axes_is_proved_and_cut_along_both(tmp_path):
    net, sample = Similarities(), (torch.randn(2, 6), torch.randn(2, 5))
    export_onnx(net, tmp_path / "net.onnx", sample)
    report = check_parity(net, tmp_path / "net.onnx", input_sample=sample)
    assert [(part.rows, part.of) for part in report.repeatability.batches] == [(1, 32), (2, 32)]
    assert all(part.difference < 1e-5 for part in report.repeatability.batches)
    with torch.no_grad():
        net.text.weight[0, 0] += 1
    assert not check_parity(net, tmp_path / "net.onnx", input_sample=sample, strict=False).passed


@pytest.mark.parametrize(
    ("output", "compared"),
    [
        (lambda x: x @ x.T, True),
        (lambda x: x[None], True),  # a state: the batch is axis 1
        (lambda x: torch.cat([x, x]), False),  # twice as many rows: which of them are a part's is not known
        (lambda x: x.sum(0), False),
        (lambda x: x @ x.T if len(x) == 4 else x.sum(), False),
    ],
)
def test_only_axes_as_long_as_the_batch_are_cut(output, compared):
    batch = torch.arange(12.0).reshape(4, 3)

    def run(inputs):
        return [output(inputs[0]).numpy()]

    made = model([node("Identity", ["x"], "y", None)])
    found = repeatability(run, run, [(batch,), (batch[:2],)], ["y"], made)
    assert [part.difference for part in found.batches] == [0.0] * compared
