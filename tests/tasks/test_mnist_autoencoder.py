"""MNISTAutoencoder: the paper's net, its loss, its optimizer, checkpoints, export, and its figures on the real data."""

import pytest
import torch
from small_task import SmallData, quiet_trainer

from lit_gelu.data import MNISTData
from lit_gelu.tasks import MNISTAutoencoder


def transcribed(weights, images, activation):
    values = images.flatten(1)
    for weight, bias in zip(weights[0:-2:2], weights[1:-2:2], strict=True):
        values = activation(values @ weight.T + bias)
    return values @ weights[-2].T + weights[-1]


def test_forward_and_encode_are_the_transcribed_net():
    model = MNISTAutoencoder("relu").eval().double()
    images = torch.rand(3, 1, 28, 28, dtype=torch.float64)
    weights = [parameter.detach() for parameter in model.parameters()]
    expected = transcribed(weights, images, lambda x: x.clamp(min=0))
    torch.testing.assert_close(model(images), expected.reshape(3, 1, 28, 28))
    code = transcribed(weights[:8], images, lambda x: x.clamp(min=0)).clamp(min=0)
    torch.testing.assert_close(model.encode(images), code)


@pytest.mark.parametrize("stage", ["val", "test"])
def test_the_loss_of_a_set_is_the_mean_over_its_pixels(stage):
    """The batches differ in size (19 and 21 samples in eights), the mean is over samples all the same."""
    model, data = MNISTAutoencoder("elu"), SmallData()
    trainer = quiet_trainer()
    evaluate = trainer.validate if stage == "val" else trainer.test
    (result,) = evaluate(model, datamodule=data, verbose=False)
    images = (data.val_set if stage == "val" else data.test_set).inputs.double()
    weights = [parameter.detach().double() for parameter in model.parameters()]
    outputs = transcribed(weights, images, lambda x: torch.where(x > 0, x, torch.expm1(x)))
    expected = (outputs - images.flatten(1)).pow(2).mean().item()
    assert result == {f"{stage}_loss": pytest.approx(expected, rel=1e-5)}


@pytest.mark.full
@pytest.mark.realdata
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("activation", "published"), [("gelu_tanh", 0.0074), ("elu", 0.0101)])
def test_reconstruction_error_after_ten_epochs(activation, published, record_property):
    """The test loss of an independent implementation at epoch 10, LR 1e-3 (the paper's figure: .0075, .0104)."""
    torch.manual_seed(0)
    model, data = MNISTAutoencoder(activation), MNISTData(batch_size=64, validation=0)
    trainer = quiet_trainer(max_epochs=10)
    trainer.fit(model, datamodule=data)
    assert trainer.global_step == 9370
    (result,) = trainer.test(model, datamodule=data, verbose=False)
    record_property("test_loss", result["test_loss"])
    assert result["test_loss"] == pytest.approx(published, rel=0.1)
