"""A file says what is computed, and not how a model that was trained to save memory computed it."""

import onnx
import torch
from torch import nn

from lit_gelu import activations
from lit_gelu.export import export_onnx

SPECS = ("gelu_sigmoid", "swish(beta=1.5)", "gaussian_gelu(mu=0.5)", "cauchy_linear")


def net(specs, **options):
    torch.manual_seed(0)
    layers = []
    for spec in specs:
        name = activations.resolve(spec)
        layers += [nn.Linear(8, 8), activations.create(name.name, **{**name.arguments, **options})]
    return nn.Sequential(*layers).eval()


def test_the_file_is_that_of_the_plain_model(tmp_path):
    files = []
    for options in ({}, {"memory": "recompute"}):
        path = tmp_path / "net.onnx"
        export_onnx(net(SPECS, **options), path, torch.zeros(2, 8))
        files.append(path.read_bytes())
    assert files[0] == files[1]
    assert b"memory" not in files[1]
    assert len(onnx.load_from_string(files[0]).graph.node) > 2 * len(SPECS) - 1
