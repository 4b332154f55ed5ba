"""Labels and a softmax inside the file."""

import json

import numpy as np
import onnx
import pytest
import torch
from export_cases import gelu_net, gelu_net_by_hand
from torch import nn

from lit_gelu.errors import ArgumentError
from lit_gelu.export import OnnxPredictor, check_parity, export_onnx

SAMPLE = torch.zeros(1, 6)
LABELS = ["zero", "one", "größer"]


def test_the_last_node_gives_the_probabilities_of_the_definition(tmp_path):
    path = tmp_path / "net.onnx"
    export_onnx(gelu_net(), path, SAMPLE, labels=LABELS, softmax=True)
    assert json.loads(OnnxPredictor(path).metadata["lit_gelu.labels"]) == LABELS
    graph = onnx.load(path).graph
    assert graph.node[-1].op_type == "Softmax"
    assert graph.node[-1].output[0] == graph.output[0].name == "output"
    x = np.random.default_rng(0).normal(scale=3, size=(64, 6)).astype(np.float32)
    logits = gelu_net_by_hand(gelu_net(), x, "none")
    powers = np.exp(logits - logits.max(1, keepdims=True))
    assert np.abs(OnnxPredictor(path)(x) - powers / powers.sum(1, keepdims=True)).max() < 1e-6


class TwoOutputs(nn.Module):
    def forward(self, x):
        return {"logits": x, "features": x + 1}


def test_only_the_first_output_and_in_16_bit(tmp_path):
    path = tmp_path / "net.onnx"
    report = export_onnx(TwoOutputs(), path, SAMPLE, softmax=True, dtype="fp16")
    assert report.census["Softmax"] == 1
    x = torch.randn(4, 6).half()
    logits, features = OnnxPredictor(path)(x)
    assert torch.allclose(logits.double(), x.double().softmax(1), atol=2**-11)
    assert torch.equal(features, x + 1)
    assert check_parity(TwoOutputs(), path, input_sample=SAMPLE).passed


class OneNumber(nn.Module):
    def forward(self, x):
        return x.sum(1)


@pytest.mark.parametrize(
    ("model", "options"),
    [
        (gelu_net(), {"labels": ["a", "b"]}),
        (gelu_net(), {"labels": ["a", "b", "\udcff"]}),
        (gelu_net(), {"labels": [0, 1, 2]}),
        (OneNumber(), {"softmax": True}),
    ],
)
def test_what_does_not_fit(tmp_path, model, options):
    with pytest.raises(ArgumentError):
        export_onnx(model, tmp_path / "net.onnx", SAMPLE, **options)
    assert list(tmp_path.iterdir()) == []
