"""LasagneBatchNorm against its formula in float64, torch's in training, and its exported graph."""

import numpy as np
import onnx
import pytest
import torch
from torch import nn

from lit_gelu.export import check_parity, export_onnx
from lit_gelu.tasks.layers import LasagneBatchNorm

SHAPES = [(7, 3), (4, 3, 5), (2, 3, 4, 5)]


def batches(shape, count=4):
    """Batches whose means and variances differ from channel to channel and from batch to batch."""
    generator = torch.Generator().manual_seed(0)
    scale = torch.tensor([0.01, 1.0, 20.0], dtype=torch.float64).reshape(-1, *[1] * (len(shape) - 2))
    return [torch.randn(shape, generator=generator, dtype=torch.float64) * scale * (n + 1) + n for n in range(count)]


@pytest.mark.parametrize("shape", SHAPES)
def test_training_and_evaluation_against_the_formula(shape):
    norm = LasagneBatchNorm(3).double()
    with torch.no_grad():
        norm.weight.copy_(torch.tensor([2.0, -1.0, 0.5]))
        norm.bias.copy_(torch.tensor([0.0, 3.0, -2.0]))
    weight, bias = (value.detach().numpy().reshape(-1, *[1] * (len(shape) - 2)) for value in (norm.weight, norm.bias))
    axes = (0, *range(2, len(shape)))
    running_mean, running_inverse = np.zeros_like(weight), np.ones_like(weight)
    for batch in batches(shape):
        x = batch.numpy()
        mean, inverse = x.mean(axes, keepdims=True)[0], 1 / np.sqrt(x.var(axes, keepdims=True)[0] + 1e-4)
        np.testing.assert_allclose(norm(batch).detach().numpy(), weight * (x - mean) * inverse + bias, rtol=1e-9)
        running_mean = 0.9 * running_mean + 0.1 * mean
        running_inverse = 0.9 * running_inverse + 0.1 * inverse
    np.testing.assert_allclose(norm.running_mean.numpy(), running_mean.ravel(), rtol=1e-12)
    np.testing.assert_allclose(norm.running_inverse_std.numpy(), running_inverse.ravel(), rtol=1e-12)
    x = batches(shape, 1)[0].numpy()
    evaluated = norm.eval()(torch.from_numpy(x)).detach().numpy()
    np.testing.assert_allclose(evaluated, weight * (x - running_mean) * running_inverse + bias, rtol=1e-9)


def test_trains_as_torchs_and_evaluates_otherwise():
    ours, reference = LasagneBatchNorm(3).double(), nn.BatchNorm2d(3, eps=1e-4).double()
    for batch in batches((2, 3, 4, 5)):
        outputs = []
        for norm in (ours, reference):
            norm.zero_grad()
            inputs = batch.clone().requires_grad_()
            result = norm(inputs)
            result.pow(3).sum().backward()
            outputs.append((result, inputs.grad, norm.weight.grad, norm.bias.grad))
        for one, other in zip(*outputs, strict=True):
            torch.testing.assert_close(one, other)
    difference = ours.eval()(batch) - reference.eval()(batch)
    assert difference.abs().max() > 1e-2


def test_is_one_batch_normalisation_in_the_exported_graph(tmp_path):
    net = nn.Sequential(nn.Conv2d(2, 3, 3, bias=False), LasagneBatchNorm(3))
    for _ in range(5):
        net(torch.randn(8, 2, 6, 6) * 3 + 1)
    net.eval()
    path = tmp_path / "net.onnx"
    sample = torch.randn(4, 2, 6, 6)
    export_onnx(net, path, input_sample=sample)
    kinds = {node.op_type for node in onnx.load(path).graph.node}
    assert kinds <= {"Conv", "BatchNormalization"}  # nothing is computed of the running values at run time
    assert check_parity(net, path, input_sample=sample).passed
