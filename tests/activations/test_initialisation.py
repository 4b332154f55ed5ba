"""The paper's unit-norm-rows initialisation."""

import math
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from lit_gelu.activations import functional
from lit_gelu.activations.errors import ActivationArgumentError
from lit_gelu.activations.initialisation import init_unit_norm_rows_, unit_norm_rows_

# Standard deviation of the pre-activations of layers 1 to 8 and of the logits, mean of 5 seeds, on MNIST.
PUBLISHED = {
    "relu": (0.334, 0.240, 0.167, 0.121, 0.084, 0.057, 0.037, 0.026, 0.018),
    "elu": (0.334, 0.300, 0.267, 0.242, 0.221, 0.203, 0.188, 0.177, 0.159),
    "gelu": (0.334, 0.183, 0.094, 0.047, 0.0235, 0.0117, 0.0059, 0.0029, 0.0014),
    "silu": (0.334, 0.174, 0.087, 0.043, 0.022, 0.011, 0.0054, 0.0027, 0.0013),
    "zero_identity_map": (0.334, 0.233, 0.166, 0.117, 0.083, 0.059, 0.041, 0.029, 0.021),
}


def _generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(128, 784), (10, 128), (16, 3, 3, 3), (4, 1)])
def test_every_row_has_norm_one(shape, dtype):
    weight = torch.empty(shape, dtype=dtype)
    assert unit_norm_rows_(weight, _generator()) is weight
    norms = weight.double().flatten(1).norm(dim=1)
    torch.testing.assert_close(norms, torch.ones_like(norms), rtol=0, atol=2 * torch.finfo(dtype).eps)


def test_entries_are_distributed_as_on_the_sphere():
    """An entry of a point uniform on the sphere in n dimensions: (1 + w) / 2 is Beta((n - 1) / 2, (n - 1) / 2)."""
    n = 20
    weight = unit_norm_rows_(torch.empty(5000, n, dtype=torch.float64), _generator())
    for column in (0, n - 1):
        test = stats.kstest((1 + weight[:, column].numpy()) / 2, stats.beta((n - 1) / 2, (n - 1) / 2).cdf)
        assert test.pvalue > 1e-3
    correlation = np.corrcoef(weight.numpy().T) - np.eye(n)
    assert np.abs(correlation).max() < 4.5 / math.sqrt(5000)


def test_a_pre_activation_varies_as_the_input_s_root_mean_square():
    """Over neurons, w . x has variance |x|**2 / fan_in: .3347 for MNIST's E[x**2] = .112."""
    x = torch.rand(784, generator=_generator(1), dtype=torch.float64)
    x *= math.sqrt(0.112) / x.square().mean().sqrt()
    pre_activation = unit_norm_rows_(torch.empty(20_000, 784, dtype=torch.float64), _generator()) @ x
    assert pre_activation.std().item() == pytest.approx(math.sqrt(0.112), rel=4 / math.sqrt(2 * 20_000))


def test_the_generator_alone_decides_and_gradients_are_not_recorded():
    parameter = nn.Parameter(torch.zeros(3, 4))
    state = torch.random.get_rng_state()
    first = unit_norm_rows_(parameter, _generator(3)).detach().clone()
    assert torch.equal(first, unit_norm_rows_(torch.zeros(3, 4), _generator(3)))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert parameter.grad_fn is None
    torch.manual_seed(3)
    assert torch.equal(first, unit_norm_rows_(torch.zeros(3, 4)))


def test_a_module_gets_unit_rows_in_every_linear_layer_and_no_other():
    net = nn.Sequential(nn.Linear(5, 4), nn.GELU(), nn.BatchNorm1d(4), nn.Sequential(nn.Linear(4, 3, bias=False)))
    other = [parameter.clone() for parameter in net[2].parameters()]
    assert init_unit_norm_rows_(net, _generator()) is net
    for layer in (net[0], net[3][0]):
        torch.testing.assert_close(layer.weight.norm(dim=1), torch.ones(layer.out_features))
    assert torch.equal(net[0].bias, torch.zeros(4))
    assert all(torch.equal(a, b) for a, b in zip(other, net[2].parameters(), strict=True))
    layer = nn.Linear(5, 4)
    assert torch.equal(init_unit_norm_rows_(layer, _generator()).weight, net[0].weight)


def test_refuses_what_has_no_rows():
    with pytest.raises(ActivationArgumentError, match=r"shape \(3,\).*at least two dimensions"):
        unit_norm_rows_(torch.zeros(3))
    with pytest.raises(ActivationArgumentError, match=r"torch\.int64"):
        unit_norm_rows_(torch.zeros(3, 3, dtype=torch.int64))
    with pytest.raises(ActivationArgumentError, match=r"Conv2d has no torch\.nn\.Linear"):
        init_unit_norm_rows_(nn.Conv2d(1, 1, 3))


def _deviations(name: str, inputs: torch.Tensor, seed: int) -> list[float]:
    """Return the standard deviation of each layer's pre-activations in the paper's net, freshly initialised."""
    generator = _generator(seed)
    deviations, x = [], inputs
    for sizes in [(784, 128), *[(128, 128)] * 7, (128, 10)]:
        weight = unit_norm_rows_(torch.empty(sizes[1], sizes[0]), generator)
        pre_activation = x @ weight.T
        deviations.append(pre_activation.std().item())
        arguments = {"generator": generator} if name == "zero_identity_map" else {}
        x = getattr(functional, name)(pre_activation, **arguments)
    return deviations


@pytest.mark.realdata
@pytest.mark.parametrize("name", PUBLISHED)
def test_pre_activations_on_mnist_have_the_published_deviations(name):
    """The spread between seeds grows from layer to layer, as weights multiply: 20 seeds, and six standard errors."""
    file = Path(os.environ["LIT_GELU_DATA"], "MNIST", "raw", "train-images-idx3-ubyte")
    pixels = np.fromfile(file, dtype=np.uint8, count=2000 * 784, offset=16)
    images = torch.from_numpy(pixels.reshape(2000, 784)) / 255
    measured = np.array([_deviations(name, images, seed) for seed in range(20)])
    mean, spread = measured.mean(axis=0), measured.std(axis=0, ddof=1)
    allowed = 3 * spread * math.sqrt(1 / 20 + 1 / 5) + 0.5 * 10.0 ** -np.array([_digits(v) for v in PUBLISHED[name]])
    assert (np.abs(mean - np.array(PUBLISHED[name])) <= allowed).all(), (mean, allowed)


def _digits(value: float) -> int:
    """Return how many decimals the published table gives."""
    return len(str(value).split(".")[1])
