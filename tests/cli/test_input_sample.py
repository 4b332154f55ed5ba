"""What a model is called with, from a data module."""

import pytest
import torch
from lightning.pytorch import LightningDataModule
from torch import nn
from torch.utils.data import TensorDataset

from lit_gelu.cli.input_sample import evaluation_data, inputs_of_data


@pytest.mark.filterwarnings("ignore:.*pin_memory")
def test_a_data_module_of_from_datasets():
    x = torch.randn(5, 4)
    data = LightningDataModule.from_datasets(TensorDataset(torch.zeros(5, 4)), TensorDataset(x, torch.arange(5)))
    assert torch.equal(inputs_of_data(data, nn.Linear(4, 2)), x[:1])  # of its validation, in batches of 1
    assert evaluation_data(data) is data
    assert evaluation_data(LightningDataModule.from_datasets(TensorDataset(x))) is None
