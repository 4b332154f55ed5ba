"""Statistics of a model's activations on batches: what torch's fused kernels hide, and what is never called."""

import math

import pytest
import torch
from lightning.pytorch import LightningModule
from torch import nn
from torch.nn import functional

from lit_gelu.activations import registry
from lit_gelu.curvature.activation_measurement import statistics_on

BATCH = (torch.randn(8, 5, 16, generator=torch.Generator().manual_seed(0)), torch.arange(8) % 3)


class Encoder(LightningModule):
    """An encoder of torch, which in evaluation computes a layer in one kernel."""

    def __init__(self, activation):
        super().__init__()
        torch.manual_seed(1)
        layer = nn.TransformerEncoderLayer(16, 4, 32, activation=activation, batch_first=True)
        self.encoder, self.head = nn.TransformerEncoder(layer, 1), nn.Linear(16, 3)

    def forward(self, x):
        return self.head(self.encoder(x).mean(1))

    def training_step(self, batch, _):
        return functional.cross_entropy(self(batch[0]), batch[1])


@pytest.mark.parametrize("activation", ["gelu", "relu", nn.GELU()], ids=str)
def test_the_fused_kernel_of_an_encoder_hides_no_activation(activation):
    model = Encoder(activation).eval()
    found = statistics_on(model, [BATCH], registry, BATCH[0][:2])
    layer, x = model.encoder.layers[0].double(), BATCH[0].double()
    with torch.no_grad():
        given = layer.linear1(layer.norm1(x + layer.self_attn(x, x, x)[0]))
    bend = given.square().mul(-0.5).exp() / math.sqrt(2 * math.pi) * (2 - given.square())  # of GELU
    (row,) = found.measured.values()
    assert found.refused == {}
    assert row["mean"] == pytest.approx(given.mean().item(), abs=1e-5)
    assert row["standard_deviation"] == pytest.approx(given.std(correction=0).item(), rel=1e-4)
    expected = 0.0 if activation == "relu" else bend.abs().mean().item()
    assert row["mean_abs_second_derivative"] == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("enabled", [True, False])
def test_the_switch_of_the_kernel_is_put_back(enabled):
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(enabled)
    try:
        statistics_on(Encoder("gelu").eval(), [BATCH], registry, BATCH[0][:2])
        assert torch.backends.mha.get_fastpath_enabled() is enabled
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


class PartlyUsed(Encoder):
    """Has an activation that the loss does not need."""

    def __init__(self):
        super().__init__("gelu")
        self.act, self.other = nn.GELU(), nn.SiLU()

    def forward(self, x):
        return self.head(self.act(x).mean(1))


def test_what_is_never_called_is_refused_with_that_reason():
    found = statistics_on(PartlyUsed(), [BATCH], registry)
    assert list(found.measured) == list(found.gaussian) == ["act"]
    assert found.refused["other"].startswith("it was not called")
