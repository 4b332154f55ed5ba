"""The paper's unit-norm rows, and weights scaled for the activations that feed them."""

import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn
from torch.nn.utils import parametrizations

from lit_gelu.activations import create, gain, initialise_for_activations_, registry
from lit_gelu.activations.analysis.initialisation import fan_in, fed_layers, unit_norm_rows_
from lit_gelu.errors import ArgumentError


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


def test_the_generator_alone_decides_and_gradients_are_not_recorded():
    parameter = nn.Parameter(torch.zeros(3, 4))
    state = torch.random.get_rng_state()
    first = unit_norm_rows_(parameter, _generator(3)).detach().clone()
    assert torch.equal(first, unit_norm_rows_(torch.zeros(3, 4), _generator(3)))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert parameter.grad_fn is None


def _deep_net(name: str, depth: int, width: int) -> nn.Sequential:
    layers: list[nn.Module] = [nn.Linear(width, width)]
    for _ in range(depth - 1):
        layers += [create(name), nn.Linear(width, width)]
    return nn.Sequential(*layers)


def test_every_layer_is_drawn_with_the_gain_of_what_feeds_it():
    net = nn.Sequential(
        nn.Conv2d(3, 64, 5), nn.GELU(), nn.Conv2d(64, 64, 3), nn.ELU(0.5), nn.Flatten(), nn.Linear(6400, 300)
    )
    rows = initialise_for_activations_(net, generator=_generator())
    assert [(row.name, row.activation) for row in rows] == [("0", ""), ("2", "gelu"), ("5", "elu(alpha=0.5)")]
    for row, fan, expected in zip(rows, (75, 576, 6400), (1.0, gain("gelu"), gain("elu(alpha=0.5)")), strict=True):
        weight = net[int(row.name)].weight
        assert row.gain == pytest.approx(expected, rel=1e-12)
        assert row.weight_std == pytest.approx(expected / math.sqrt(fan), rel=1e-12)
        spread = 4 / math.sqrt(2 * weight.numel())
        assert weight.std().item() == pytest.approx(row.weight_std, rel=spread)
        assert abs(weight.mean().item()) < 4 * row.weight_std / math.sqrt(weight.numel())
        assert not net[int(row.name)].bias.any()
    sample = (net[5].weight.detach().flatten()[:20_000] / rows[2].weight_std).numpy()
    assert stats.kstest(sample, "norm").pvalue > 1e-3


def test_a_model_whose_activations_stand_between_no_layers_is_refused():
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.act = nn.Linear(8, 8), nn.Linear(8, 8), nn.GELU()  # act stands behind both

    with pytest.raises(ArgumentError):
        initialise_for_activations_(Net())


def test_an_activation_in_the_model_counts_with_its_present_parameters():
    """Leaky ReLU of slope a has E f^2 = (1 + a^2) / 2, and Swish is x / 2 as its slope goes to 0."""
    prelu, swish = nn.PReLU(3), create("swish(learnable=True)")
    net = nn.Sequential(nn.Linear(8, 3), prelu, nn.Linear(3, 8), swish, nn.Linear(8, 8))
    with torch.no_grad():
        prelu.weight.fill_(-1.0)
        swish.log_scale.fill_(-20.0)
    rows = initialise_for_activations_(net)
    assert [row.gain for row in rows] == pytest.approx([1.0, 1.0, 2.0], rel=1e-8)
    assert [row.activation for row in rows] == ["", "prelu(num_parameters=3)", "swish(learnable=True)"]
    with torch.no_grad():
        prelu.weight[0] = 0.5
    with pytest.raises(ArgumentError):
        initialise_for_activations_(net)


def test_16_bit_weights_are_those_of_32_bits_rounded():
    single, half = _deep_net("gelu", 2, 16), _deep_net("gelu", 2, 16).bfloat16()
    for net in (single, half):
        initialise_for_activations_(net, generator=_generator(9))
    assert torch.equal(half[2].weight, single[2].weight.bfloat16())
    assert half[2].weight.requires_grad
    assert half[2].weight.grad_fn is None


def test_refuses_arguments_that_do_not_fit():
    for name, kind, error in (
        ("gelu", "fan_in", ArgumentError),
        ("mega_laplace(mu=50.0)", "forward", ArgumentError),  # it is dead
    ):
        net = _deep_net(name, 2, 4)
        before = net[0].weight.detach().clone()
        with pytest.raises(error):
            initialise_for_activations_(net, kind)
        assert torch.equal(net[0].weight, before)
    assert initialise_for_activations_(_deep_net("silu", 2, 8), "backward")[1].gain == gain("silu", "backward")
    with pytest.raises(ArgumentError):
        initialise_for_activations_(nn.GELU())


def test_the_last_activation_before_a_layer_feeds_it():
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Sequential(nn.Conv2d(8, 8, 3), nn.LeakyReLU(0.2), nn.Identity(), nn.Dropout()),
        nn.Flatten(),
        nn.Linear(8, 8),
        nn.Linear(8, 4),
        nn.GELU(),
        nn.LayerNorm(4),
        nn.Linear(4, 2),
    )
    rows = [(row.name, row.text) for row in fed_layers(net, registry)]
    assert rows[:3] == [("0", ""), ("4.0", "relu"), ("6", "leaky_relu(negative_slope=0.2)")]
    assert rows[3:] == [("7", ""), ("10", "")]


def test_an_activation_that_stands_in_two_places_feeds_both_and_a_shared_layer_counts_once():
    act, layer = nn.SiLU(), nn.Linear(4, 4)
    net = nn.Sequential(nn.Linear(4, 4), act, layer, act, layer, act, nn.Linear(4, 1))
    assert [row.text for row in fed_layers(net, registry)] == ["", "silu", "silu"]


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Linear(7, 3), (7,)),
        (nn.Conv1d(4, 6, 5, groups=2), (4, 9)),
        (nn.Conv2d(4, 6, (3, 2), stride=2), (4, 9, 9)),
        (nn.ConvTranspose1d(4, 6, 4, stride=2, groups=2), (4, 30)),
        (nn.ConvTranspose2d(4, 6, 3, stride=2), (4, 31, 31)),
        (nn.ConvTranspose3d(2, 3, 2, stride=2), (2, 4, 4, 4)),
    ],
    ids=str,
)
def test_fan_in_is_the_number_of_products_that_an_output_sums(layer, shape):
    """With weights and inputs of 1 and no bias, an output is the number of its products."""
    nn.init.ones_(layer.weight)
    nn.init.zeros_(layer.bias)
    y = layer(torch.ones(1, *shape))[0]
    if isinstance(layer, (nn.ConvTranspose1d, nn.ConvTranspose2d)):
        border = max(layer.kernel_size)
        period = max(layer.stride)
        steps = (y.shape[-1] - 2 * border) // period * period
        y = y[..., border : border + steps]
        if y.dim() == 3:
            y = y[..., border : border + steps, :]
    assert fan_in(layer) == pytest.approx(y.double().mean().item(), rel=1e-6)


def test_refuses_weights_that_cannot_be_set():
    with pytest.raises(ArgumentError):
        fed_layers(nn.Sequential(nn.LazyLinear(3)), registry)
    with pytest.raises(ArgumentError):
        fed_layers(nn.Sequential(nn.ReLU(), parametrizations.weight_norm(nn.Linear(3, 3))), registry)


def test_a_shared_weight_is_drawn_once():
    first, second = nn.Linear(300, 300), nn.Linear(300, 300)
    second.weight = first.weight
    (row,) = initialise_for_activations_(nn.Sequential(first, nn.ReLU(), second))
    assert row.weight_std == pytest.approx(300**-0.5)
    assert first.weight.std().item() == pytest.approx(row.weight_std, rel=0.02)
