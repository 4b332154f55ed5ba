"""Functions that a module holds as an attribute, as torch's encoder layer holds ``F.relu``."""

import pytest
import torch
from callback_helpers import quiet_trainer
from lightning.pytorch import LightningModule
from torch import nn
from torch.utils.data import DataLoader

from lit_gelu.callbacks import ActivationSwap
from lit_gelu.errors import SwapError

RELU_TO_GELU = {"activation:relu": "gelu"}


class HoldsAFunction(LightningModule):
    """One encoder layer."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)

    def forward(self, inputs):
        return self.layer(inputs)

    def training_step(self, batch, batch_index):
        return self(batch).sin().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


def sequences():
    return DataLoader(torch.randn(8, 3, 8, generator=torch.Generator().manual_seed(2)), batch_size=2)


def test_with_the_measurement_of_curvature(tmp_path):
    """There is no module at the site before the swap, so only the loss beside it can be measured."""
    model = HoldsAFunction()
    trainer = quiet_trainer(tmp_path, ActivationSwap(RELU_TO_GELU, at_epoch=1, curvature=True), max_epochs=2)
    trainer.fit(model, sequences())
    assert isinstance(model.layer.activation, nn.Module)
    batch = next(iter(sequences()))
    hidden = model.layer.linear1(batch).double()
    expected = hidden * torch.special.ndtr(hidden)
    torch.testing.assert_close(model.layer.activation(hidden.float()).double(), expected, rtol=1e-5, atol=1e-6)


def test_annealing_is_refused_before_training(tmp_path):
    model = HoldsAFunction()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    trainer = quiet_trainer(tmp_path, ActivationSwap(RELU_TO_GELU, at_epoch=1, anneal_steps=4), max_epochs=2)
    with pytest.raises(SwapError):
        trainer.fit(model, sequences())
    assert trainer.global_step == 0
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert model.layer.activation is nn.functional.relu
