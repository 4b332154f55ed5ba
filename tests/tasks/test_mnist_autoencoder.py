"""MNISTAutoencoder: the paper's net, its loss, its optimizer, checkpoints, export, and its figures on the real data."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from lightning.pytorch.loggers import CSVLogger
from small_task import SmallData, quiet_trainer
from torch import nn

from lit_gelu import activations
from lit_gelu.data import InMemoryImages, MNISTData
from lit_gelu.errors import LitGeluError
from lit_gelu.export import check_parity, export_onnx
from lit_gelu.tasks import MNISTAutoencoder, TaskInputError

WIDTHS = [784, 1000, 500, 250, 30, 250, 500, 1000, 784]


def hidden_layers(model):
    return [*model.encoder, *model.decoder]


def linears(model):
    return [module for module in model.modules() if isinstance(module, nn.Linear)]


def gelu_tanh(x):
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def transcribed(weights, images, activation):
    values = images.flatten(1)
    for weight, bias in zip(weights[0:-2:2], weights[1:-2:2], strict=True):
        values = activation(values @ weight.T + bias)
    return values @ weights[-2].T + weights[-1]


def test_the_parameter_count_of_the_paper():
    assert sum(parameter.numel() for parameter in MNISTAutoencoder().parameters()) == 2_837_314


def test_shapes_at_each_layer():
    model, shapes = MNISTAutoencoder(), []
    for linear in linears(model):
        linear.register_forward_hook(lambda _, inputs, outputs: shapes.append((inputs[0].shape, outputs.shape)))
    model(torch.rand(5, 1, 28, 28))
    assert shapes == [((5, fed), (5, width)) for fed, width in pairwise(WIDTHS)]


def test_structure_and_names():
    model = MNISTAutoencoder()
    layers = hidden_layers(model)
    assert len(layers) == len({id(layer.activation) for layer in layers}) == 7
    assert {str(activations.spec_of(layer.activation)) for layer in layers} == {"gelu(approximate='tanh')"}
    assert not model.is_noisy
    assert isinstance(model.get_submodule("encoder.3.activation"), nn.GELU)
    assert isinstance(model.output, nn.Linear)


def test_forward_and_encode_are_the_transcribed_net():
    model = MNISTAutoencoder("relu").eval().double()
    images = torch.rand(3, 1, 28, 28, dtype=torch.float64)
    weights = [parameter.detach() for parameter in model.parameters()]
    expected = transcribed(weights, images, lambda x: x.clamp(min=0))
    torch.testing.assert_close(model(images), expected.reshape(3, 1, 28, 28))
    code = transcribed(weights[:8], images, lambda x: x.clamp(min=0)).clamp(min=0)
    torch.testing.assert_close(model.encode(images), code)


def test_rows_have_length_one_and_biases_are_zero():
    for linear in linears(MNISTAutoencoder()):
        torch.testing.assert_close(linear.weight.norm(dim=1), torch.ones(linear.out_features))
        assert not linear.bias.any()


FUNCTIONS = {
    "relu": lambda z: np.maximum(z, 0),
    "elu": lambda z: np.where(z > 0, z, np.expm1(np.minimum(z, 0))),
    "gelu_tanh": lambda z: z / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z**3))),
}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("activation", FUNCTIONS)
def test_initial_pre_activations(activation):
    """Their mean squares by layer against those of a net with infinitely many units in each hidden layer.

    A row is a random direction: a pre-activation of an input x has mean square q = |x|^2 / 784 over the draw of the
    row, that of the next layer E f(z)^2 with z normal of variance q, and so on; here integrated in float64. Four
    standard errors of the mean over 20 nets are allowed; those nets' finite width shows less than that.
    """
    inputs = 0.112**0.5 * torch.randn(100, 784, generator=torch.Generator().manual_seed(0))  # MNIST's mean square
    nodes, weights = np.polynomial.hermite_e.hermegauss(201)
    q, expected = inputs.double().square().mean(dim=1).numpy(), []
    for _ in range(8):
        expected.append(q.mean())
        q = (FUNCTIONS[activation](np.sqrt(q)[:, None] * nodes) ** 2 * weights).sum(axis=1) / weights.sum()
    nets = []
    for seed in range(20):
        torch.manual_seed(seed)
        model, squares = MNISTAutoencoder(activation), []
        for linear in linears(model):
            linear.register_forward_hook(lambda _, __, z, squares=squares: squares.append(z.square().mean()))
        with torch.no_grad():
            model(inputs)
        nets.append(torch.stack(squares))
    measured = torch.stack(nets).double()
    deviation = (measured.mean(dim=0) - torch.tensor(expected)).abs()
    assert (deviation < 4 * measured.std(dim=0) / math.sqrt(20)).all()
    assert (measured.std(dim=0) / math.sqrt(20) < 0.12 * measured.mean(dim=0)).all()  # narrow enough to tell


def test_two_steps_of_adam_against_a_transcription_in_float64():
    """Kingma and Ba 2015, algorithm 1, on the net and the loss written out; gradients by autograd."""
    torch.manual_seed(0)
    model, data = MNISTAutoencoder(), SmallData()
    weights = [parameter.detach().double().requires_grad_() for parameter in model.parameters()]
    data.setup("fit")
    images, labels = data.train_set.images[:8].double(), data.train_set.labels[:8]
    moments = [(torch.zeros_like(weight), torch.zeros_like(weight)) for weight in weights]
    for step in range(1, 3):
        loss = ((transcribed(weights, images, gelu_tanh) - images.flatten(1)) ** 2).sum() / (8 * 784)
        gradients = torch.autograd.grad(loss, weights)
        with torch.no_grad():
            for weight, gradient, (m, v) in zip(weights, gradients, moments, strict=True):
                m.mul_(0.9).add_(0.1 * gradient)
                v.mul_(0.999).add_(0.001 * gradient**2)
                weight -= 1e-3 * (m / (1 - 0.9**step)) / ((v / (1 - 0.999**step)).sqrt() + 1e-8)

    data.train_set = InMemoryImages(images, labels)
    trainer = quiet_trainer(max_steps=2, precision="64-true", limit_val_batches=0)
    trainer.fit(model, datamodule=data)
    assert trainer.logged_metrics["train_loss"].item() == pytest.approx(loss.item(), rel=1e-6)
    for ours, reference in zip(model.parameters(), weights, strict=True):
        torch.testing.assert_close(ours.detach(), reference.detach(), rtol=0, atol=1e-8)


@pytest.mark.parametrize("stage", ["val", "test"])
def test_the_loss_of_a_set_is_the_mean_over_its_pixels(stage):
    """The batches differ in size (19 and 21 samples in eights), the mean is over samples all the same."""
    model, data = MNISTAutoencoder("elu"), SmallData()
    trainer = quiet_trainer()
    evaluate = trainer.validate if stage == "val" else trainer.test
    (result,) = evaluate(model, datamodule=data, verbose=False)
    images = (data.val_set if stage == "val" else data.test_set).images.double()
    weights = [parameter.detach().double() for parameter in model.parameters()]
    outputs = transcribed(weights, images, lambda x: torch.where(x > 0, x, torch.expm1(x)))
    expected = (outputs - images.flatten(1)).pow(2).mean().item()
    assert result == {f"{stage}_loss": pytest.approx(expected, rel=1e-5)}


class WithoutValidation(SmallData):
    def load_train_and_val(self):
        train, val = super().load_train_and_val()
        return train, InMemoryImages(val.images[:0], val.labels[:0])


@pytest.mark.parametrize(("data", "names"), [(SmallData, {"val_loss"}), (WithoutValidation, set())])
def test_logged_names(tmp_path, data, names):
    quiet_trainer(max_epochs=1, logger=CSVLogger(tmp_path)).fit(MNISTAutoencoder(), datamodule=data())
    header = (tmp_path / "lightning_logs/version_0/metrics.csv").read_text().splitlines()[0].split(",")
    assert set(header) == {"epoch", "step", "train_loss"} | names


def test_training_loss_of_a_stochastic_activation_is_measured_without_noise():
    model = MNISTAutoencoder("zero_identity_map")
    images, labels = torch.rand(4, 1, 28, 28), torch.zeros(4, dtype=torch.int64)
    assert model.is_noisy
    assert model.mean_loss(images, labels) != model.mean_loss(images, labels)
    expected = (model.eval()(images) - images).square().mean()
    torch.testing.assert_close(model.train().noise_free_loss(images, labels), expected.detach())
    assert model.training


def test_checkpoint_and_export(tmp_path):
    model, data = MNISTAutoencoder("swish(beta=1.5, learnable=True)", learning_rate=1e-4), SmallData()
    trainer = quiet_trainer(max_epochs=1, enable_checkpointing=True, default_root_dir=tmp_path)
    trainer.fit(model, datamodule=data)
    loaded = MNISTAutoencoder.load_from_checkpoint(trainer.checkpoint_callback.best_model_path, weights_only=True)
    assert dict(loaded.hparams) == {
        "activation": "swish(beta=1.5, learnable=True)",
        "learning_rate": 1e-4,
        "fused_optimizer": False,
    }
    images = torch.rand(4, 1, 28, 28)
    assert torch.equal(loaded.eval()(images), model.eval()(images))
    export_onnx(loaded, tmp_path / "autoencoder.onnx")
    assert check_parity(loaded, tmp_path / "autoencoder.onnx", data).passed


def test_exports_the_forms_of_gelu(tmp_path):
    model = MNISTAutoencoder()
    export_onnx(model, tmp_path / "tanh.onnx", approximate="tanh", lowering="native")
    assert check_parity(model, tmp_path / "tanh.onnx").passed


def test_what_was_never_registered_is_refused_in_checkpoints(tmp_path):
    trainer = quiet_trainer(max_epochs=1, enable_checkpointing=True, default_root_dir=tmp_path)
    with pytest.raises(LitGeluError, match=r"(?s)never registered.*Trainer\(enable_checkpointing=False\)"):
        trainer.fit(MNISTAutoencoder(nn.Softsign), datamodule=SmallData())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"learning_rate": 0.0}, "learning_rate=0.0 is not accepted"),
        ({"activation": nn.GLU}, r"turns shape \[2, 1000\] into \[2, 500\]"),
    ],
)
def test_refused_arguments(arguments, message):
    with pytest.raises(LitGeluError, match=message):
        MNISTAutoencoder(**arguments)


def test_refused_images():
    with pytest.raises(TaskInputError, match=r"accepted: \[batch, 1, 28, 28\] or \[batch, 784\]"):
        MNISTAutoencoder()(torch.zeros(4, 3, 28, 28))
    with pytest.raises(TaskInputError, match=r"torch\.uint8 given"):
        MNISTAutoencoder()(torch.zeros(4, 784, dtype=torch.uint8))


def loss_after_ten_epochs(activation, seed=0):
    torch.manual_seed(seed)
    model, data = MNISTAutoencoder(activation), MNISTData(batch_size=64, validation=0)
    trainer = quiet_trainer(max_epochs=10)
    trainer.fit(model, datamodule=data)
    assert trainer.global_step == 9370
    (result,) = trainer.test(model, datamodule=data, verbose=False)
    return result["test_loss"]


@pytest.mark.full
@pytest.mark.realdata
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("activation", "published"), [("gelu_tanh", 0.0074), ("elu", 0.0101)])
def test_reconstruction_error_after_ten_epochs(activation, published, record_property):
    """The test loss of an independent implementation at epoch 10, LR 1e-3 (the paper's figure: .0075, .0104)."""
    loss = loss_after_ten_epochs(activation)
    record_property("test_loss", loss)
    assert loss == pytest.approx(published, rel=0.1)


@pytest.mark.full
@pytest.mark.realdata
@pytest.mark.timeout(3600)
def test_reconstruction_error_with_relu_is_a_matter_of_chance(record_property):
    """One run of an independent implementation ended at .0109, the paper's figure, a median of three, at .0116.

    Of the 30 ReLUs of the code, 10 to 20 are dead after some ten steps of Adam, with either placement of its epsilon,
    and how many decides: seeds 0 to 6 ended at .0129, .0121, .0145, .0117, .0096, .0118 and .0112, median .0118. One
    run takes minutes, so this is the range that single runs have.
    """
    loss = loss_after_ten_epochs("relu")
    record_property("test_loss", loss)
    assert 0.0095 < loss < 0.0160
