"""Which activation feeds which layer, and how many products a layer sums."""

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from lit_gelu.activations import ActivationArgumentError, registry
from lit_gelu.activations.analysis.fed_layers import fan_in, fed_layers


def _feeds(model):
    return [str(row.activation) for row in fed_layers(model, registry)]


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
    assert _feeds(net) == ["None", "relu", "leaky_relu(negative_slope=0.2)", "None", "None"]
    assert [row.name for row in fed_layers(net, registry)] == ["0", "4.0", "6", "7", "10"]


def test_an_activation_that_stands_in_two_places_feeds_both_and_a_shared_layer_counts_once():
    act, layer = nn.SiLU(), nn.Linear(4, 4)
    net = nn.Sequential(nn.Linear(4, 4), act, layer, act, layer, act, nn.Linear(4, 1))
    assert _feeds(net) == ["None", "silu", "silu"]


def test_activations_of_other_registries_count_there():
    with registry.scope():
        registry.register("soft_sign")(nn.Softsign)
        assert _feeds(nn.Sequential(nn.Linear(2, 2), nn.Softsign(), nn.Linear(2, 2))) == ["None", "soft_sign"]
    assert _feeds(nn.Sequential(nn.Linear(2, 2), nn.Softsign(), nn.Linear(2, 2))) == ["None", "None"]


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Linear(7, 3), (7,)),
        (nn.Conv1d(4, 6, 5, groups=2), (4, 9)),
        (nn.Conv2d(4, 6, (3, 2), stride=2), (4, 9, 9)),
        (nn.Conv3d(2, 3, 2), (2, 4, 4, 4)),
        (nn.ConvTranspose1d(4, 6, 3, stride=1), (4, 30)),
        (nn.ConvTranspose1d(4, 6, 4, stride=2, groups=2), (4, 30)),
        (nn.ConvTranspose2d(4, 6, 2, stride=2), (4, 10, 10)),
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
    with pytest.raises(ActivationArgumentError, match="'0' has no shape yet"):
        fed_layers(nn.Sequential(nn.LazyLinear(3)), registry)
    with pytest.raises(ActivationArgumentError, match="weight of '1' is computed from other parameters"):
        fed_layers(nn.Sequential(nn.ReLU(), parametrizations.weight_norm(nn.Linear(3, 3))), registry)
