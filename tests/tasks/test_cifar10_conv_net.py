"""CIFAR10ConvNet: the paper's net and its Table 1, its start, its steps, its schedule in a Trainer, and its export."""

import math

import pytest
import torch
from lightning.pytorch.callbacks import Callback, LearningRateMonitor
from lightning.pytorch.loggers import CSVLogger
from small_task import COLOUR, SmallData, quiet_trainer
from torch import nn
from torch.nn import functional
from wide_res_net_by_hand import gelu_tanh

from lit_gelu.data import InMemorySamples
from lit_gelu.tasks import AdamEpsilonInsideRoot, CIFAR10ConvNet
from lit_gelu.tasks.cifar10_conv_net import ConvLayer, GaussianNoise

SMALL = (4, 6)


def weights(model, *suffixes):
    return [p for name, p in model.named_parameters() if name.rpartition(".")[2] in suffixes and "norm" not in name]


def test_parameters_and_multiplications_of_the_paper():
    model, counts = CIFAR10ConvNet(), []
    norms = [p.numel() for name, p in model.named_parameters() if "norm" in name]
    assert sum(p.numel() for p in weights(model, "weight")) == 1_405_344
    assert sum(norms) == 2_900
    assert sum(p.numel() for p in model.parameters()) == 1_408_244
    for module in model.modules():
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            module.register_forward_hook(lambda m, _, out: counts.append(m.weight.numel() * out[0, 0].numel()))
    model.eval()(torch.zeros(1, 3, 32, 32))
    assert counts == [
        *(2_654_208, 84_934_656, 84_934_656),
        *(42_467_328, 84_934_656, 84_934_656),
        *(11_943_936, 1_327_104, 1_327_104),
        1_920,
    ]
    assert sum(counts) == 399_460_224


# Table 1 of arXiv 1606.08415 (the layers of Salimans and Kingma's table, with another activation): type of the layer,
# channels, size of x and y; what comes before the net, raw input and whitening, is left out.
TABLE_1 = [
    (GaussianNoise, 3, 32),
    *[(ConvLayer, 96, 32)] * 3,
    (nn.MaxPool2d, 96, 16),
    (nn.Dropout, 96, 16),
    *[(ConvLayer, 192, 16)] * 3,
    (nn.MaxPool2d, 192, 8),
    (nn.Dropout, 192, 8),
    *[(ConvLayer, 192, 6)] * 3,
    (nn.AdaptiveAvgPool2d, 192, 1),
]


def test_layers_are_the_papers_table_1():
    model, rows = CIFAR10ConvNet().eval(), []
    for module in (model.noise, *model.features, model.pool):
        module.register_forward_hook(lambda layer, _, outputs: rows.append((type(layer), *outputs.shape[1:3])))
    model(torch.zeros(1, 3, 32, 32))
    assert rows == TABLE_1
    kernels = [layer.conv.kernel_size for layer in model.features if isinstance(layer, ConvLayer)]
    assert kernels == [(3, 3)] * 7 + [(1, 1)] * 2
    assert [layer.p for layer in model.features if isinstance(layer, nn.Dropout)] == [0.5, 0.5]


def test_weights_are_glorot_uniform_and_norms_start_as_the_identity():
    """Glorot and Bengio 2010: uniform within sqrt(6 / (n_in + n_out)), with the variance 2 / (n_in + n_out)."""
    torch.manual_seed(0)
    model = CIFAR10ConvNet()
    for weight in weights(model, "weight"):
        places = weight[0, 0].numel()
        bound = math.sqrt(6 / ((weight.shape[0] + weight.shape[1]) * places))
        assert weight.abs().max().item() <= bound
        assert weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=4 / math.sqrt(weight.numel()))
        assert abs(weight.mean().item()) < 4 * bound / math.sqrt(3 * weight.numel())
    for name, parameter in model.named_parameters():
        if "norm" in name:
            assert parameter.eq(1 if name.endswith("weight") else 0).all()


def transcribed(params, images, activation, statistics=None):
    """The net in training without noise and dropout; with ``statistics`` of each norm, in evaluation."""
    params = iter(params)
    taken = iter(statistics or ())

    def normalised(values):
        scale, shift = next(params), next(params)
        dims = [0, *range(2, values.ndim)]
        mean, variance = next(taken) if statistics else (values.mean(dims), values.var(dims, correction=0))
        shape = (1, -1, *[1] * (values.ndim - 2))
        outputs = (values - mean.reshape(shape)) / (variance.reshape(shape) + 1e-4).sqrt()
        return outputs * scale.reshape(shape) + shift.reshape(shape)

    values = images
    for index, padding in enumerate((1, 1, 1, 1, 1, 1, 0, 0, 0)):
        values = activation(normalised(functional.conv2d(values, next(params), padding=padding)))
        if index in {2, 5}:
            values = values.unfold(2, 2, 2).unfold(3, 2, 2).amax((4, 5))
    return normalised(values.mean((2, 3)) @ next(params).T)


def test_evaluation_is_the_transcribed_net():
    torch.manual_seed(0)
    model = CIFAR10ConvNet("relu", channels=SMALL).double()
    images = torch.randn(3, 3, 32, 32, dtype=torch.float64)
    with torch.no_grad():
        model(images)  # moves the running statistics away from their start
    norms = [module for name, module in model.named_modules() if name.endswith("norm")]
    statistics = [(norm.running_mean, norm.running_var) for norm in norms]
    params = [parameter.detach() for parameter in model.parameters()]
    expected = transcribed(params, images, lambda x: x.clamp(min=0), statistics)
    torch.testing.assert_close(model.eval()(images), expected)


def test_two_steps_against_a_transcription_in_float64():
    """The net written out, gradients by autograd, and Adam with epsilon inside the root."""
    torch.manual_seed(0)
    model = CIFAR10ConvNet(channels=SMALL, keep=1.0, noise=0.0, learning_rate=1e-2)
    params = [parameter.detach().double().requires_grad_() for parameter in model.parameters()]
    images, labels = torch.randn(8, 3, 32, 32, dtype=torch.float64), torch.randint(10, (8,))
    moments = [(torch.zeros_like(param), torch.zeros_like(param)) for param in params]
    for step in range(1, 3):
        logits = transcribed(params, images, gelu_tanh)
        loss = (logits.exp().sum(1).log() - logits[torch.arange(8), labels]).mean()
        gradients = torch.autograd.grad(loss, params)
        with torch.no_grad():
            for param, gradient, (m, v) in zip(params, gradients, moments, strict=True):
                m.mul_(0.9).add_(0.1 * gradient)
                v.mul_(0.999).add_(0.001 * gradient**2)
                param -= 1e-2 * (m / (1 - 0.9**step)) / (v / (1 - 0.999**step) + 1e-8).sqrt()

    data = SmallData(COLOUR)
    data.setup("fit")
    data.train_set = InMemorySamples(images, labels)
    trainer = quiet_trainer(max_steps=2, precision="64-true", limit_val_batches=0)
    trainer.fit(model, datamodule=data)
    assert trainer.logged_metrics["train_loss"].item() == pytest.approx(loss.item(), rel=1e-6)
    assert trainer.logged_metrics["train_error"].item() == (logits.argmax(1) != labels).double().mean().item()
    for ours, reference in zip(model.parameters(), params, strict=True):
        torch.testing.assert_close(ours.detach(), reference.detach(), rtol=0, atol=1e-7)


def test_noise_is_added_to_the_input_in_training_only():
    torch.manual_seed(0)
    model, inputs = CIFAR10ConvNet(channels=SMALL), []
    model.features[0].register_forward_pre_hook(lambda _, args: inputs.append(args[0]))
    images = torch.zeros(16, 3, 32, 32)
    model.train()(images)
    model.eval()(images)
    assert inputs[0].std().item() == pytest.approx(0.15, rel=0.02)
    assert abs(inputs[0].mean().item()) < 4 * 0.15 / math.sqrt(images.numel())
    assert torch.equal(inputs[1], images)


class Losses(Callback):
    """Keeps what was descended and what was logged."""

    def __init__(self):
        self.descended, self.logged, self.errors = [], [], []

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.descended.append(outputs["loss"].item())
        self.logged.append(trainer.callback_metrics["train_loss"].item())
        self.errors.append(trainer.callback_metrics["train_error"].item())


def test_what_is_logged_is_what_was_descended_noise_and_all():
    model, losses = CIFAR10ConvNet(channels=SMALL, epochs=1), Losses()
    trainer = quiet_trainer(max_epochs=1, callbacks=[losses])
    trainer.fit(model, datamodule=SmallData(COLOUR))
    assert losses.logged == losses.descended
    assert trainer.callback_metrics["train_error_epoch"].item() == pytest.approx(sum(losses.errors) / 3)
    names = {"train_loss", "train_error", "train_error_epoch", "val_loss", "val_error"}
    assert set(trainer.callback_metrics) == names


def test_learning_rate_and_beta1_in_a_trainer_by_epochs(tmp_path):
    model = CIFAR10ConvNet(channels=SMALL, epochs=4)
    monitor = LearningRateMonitor(log_momentum=True)
    trainer = quiet_trainer(max_epochs=4, callbacks=[monitor], logger=CSVLogger(tmp_path), limit_val_batches=0)
    trainer.fit(model, datamodule=SmallData(COLOUR))
    (name,) = monitor.lrs
    assert monitor.lrs[name] == pytest.approx([1e-3, 1e-3, 1e-3, 5e-4])
    assert monitor.last_momentum_values[f"{name}-momentum"] == 0.5
    assert isinstance(trainer.optimizers[0], AdamEpsilonInsideRoot)
