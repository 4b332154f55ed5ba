"""A model's activations on batches, and dead units against a look back over all events."""

import math

import numpy as np
import pytest
import torch
from lightning.pytorch import LightningModule
from torch import nn
from torch.nn import functional

from lit_gelu.activations import registry
from lit_gelu.curvature import DeadUnitWindow
from lit_gelu.curvature.activation_measurement import statistics_on
from lit_gelu.errors import ArgumentError

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
    report = statistics_on(model, [BATCH], registry, BATCH[0][:2])
    layer, x = model.encoder.layers[0].double(), BATCH[0].double()
    with torch.no_grad():
        inputs = layer.linear1(layer.norm1(x + layer.self_attn(x, x, x)[0]))
    bend = inputs.square().mul(-0.5).exp() / math.sqrt(2 * math.pi) * (2 - inputs.square())  # of GELU
    (row,) = report.measured.values()
    assert report.refused == {}
    assert row["mean"] == pytest.approx(inputs.mean().item(), abs=1e-5)
    assert row["standard_deviation"] == pytest.approx(inputs.std(correction=0).item(), rel=1e-4)
    expected = 0.0 if activation == "relu" else bend.abs().mean().item()
    assert row["mean_abs_second_derivative"] == pytest.approx(expected, rel=1e-4)


class PartlyUsed(Encoder):
    """Has an activation that the loss does not need."""

    def __init__(self):
        super().__init__("gelu")
        self.act, self.other = nn.GELU(), nn.SiLU()

    def forward(self, x):
        return self.head(self.act(x).mean(1))


def test_what_is_never_called_is_refused_with_that_reason():
    report = statistics_on(PartlyUsed(), [BATCH], registry)
    assert list(report.measured) == list(report.gaussian) == ["act"]
    assert report.refused["other"].startswith("it was not called")


class Scales(PartlyUsed):
    """Writes into its batch, and into itself."""

    def training_step(self, batch, index):
        batch[0].div_(10)
        self.seen = index
        return super().training_step(batch, index)


def test_neither_batches_nor_the_model_keep_what_a_step_writes():
    batch, model = [BATCH[0].clone(), BATCH[1]], Scales()
    report = statistics_on(model, [batch, batch], registry)
    assert torch.equal(batch[0], BATCH[0])
    assert not hasattr(model, "seen")
    assert report.measured["act"]["mean"] == pytest.approx(BATCH[0].mean().item() / 10, rel=1e-4)


def test_layers_that_know_their_size_from_the_pass_are_real_behind_it():
    model = PartlyUsed()
    model.head = nn.LazyLinear(3)
    statistics_on(model, [BATCH], registry)
    assert model(BATCH[0]).shape == (len(BATCH[0]), 3)


def test_counts_are_those_of_a_look_back_over_all_events():
    rng = np.random.default_rng(0)
    masks = rng.random((40, 9)) < np.array([0, 0.02, 0.1, 0.3, 0.5, 1, 0.05, 0, 0.2])
    window = DeadUnitWindow(5, [4, 0, 5])
    for event in range(40):
        window.update(torch.tensor(masks[event]))
        assert window.is_full == (event >= 4)
        if window.is_full:
            dead = ~masks[event - 4 : event + 1].any(0)
            expected = [dead[:4].mean(), math.nan, dead[4:].mean()]
            assert window.shares().tolist() == pytest.approx(expected, nan_ok=True)


def test_refuses_no_window():
    with pytest.raises(ArgumentError):
        DeadUnitWindow(0, [1])


def test_a_site_that_comes_later_begins_its_own_window():
    window = DeadUnitWindow(2, [2, 0])
    for _ in range(3):
        window.update(torch.tensor([False, True]))
    grown = window.grown([2, 3])
    assert grown.shares().tolist() == pytest.approx([0.5, math.nan], nan_ok=True)
    again = DeadUnitWindow(2, [2, 3])
    again.load_state_dict(grown.state_dict())
    for each in (grown, again):
        each.update(torch.tensor([False, True, False, False, True]))
        assert each.shares().tolist() == pytest.approx([0.5, math.nan], nan_ok=True)
        each.update(torch.tensor([False, True, False, False, False]))
        assert each.shares().tolist() == pytest.approx([0.5, 2 / 3])
