"""Input samples are handed to a module as the Trainer hands it batches."""

import pytest
import torch
from callback_helpers import SmallNet, loader, quiet_trainer

from lit_gelu.callbacks import ActivationCurvatureMonitor, ActivationSwap


@pytest.mark.parametrize("precision", ["bf16-true", "64-true", "32-true"])
def test_in_the_dtype_that_the_precision_gives_the_module(tmp_path, precision):
    sample = torch.zeros(2, 6)
    model = SmallNet()
    model.example_input_array = sample
    swap = ActivationSwap({"activation:relu": "gelu"}, at_epoch=1, input_sample="example_input_array")
    monitor = ActivationCurvatureMonitor(every_n_steps=1, input_sample=sample)
    quiet_trainer(tmp_path, swap, monitor, max_epochs=2, precision=precision).fit(model, loader())
    assert isinstance(model.net[1], torch.nn.GELU)
    assert sample.dtype == torch.float32
