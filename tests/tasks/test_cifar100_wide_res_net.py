"""CIFAR100WideResNet: the paper's net and its start, penalty, optimizer, schedule, logged loss, precision."""

import math

import pytest
import torch
from small_task import COLOUR, SmallData, quiet_trainer
from torch import nn
from torch.utils.flop_counter import FlopCounterMode
from wide_res_net_by_hand import Transcription, elu, gelu_tanh

from lit_gelu.data import InMemorySamples
from lit_gelu.tasks import CIFAR100WideResNet

SMALL = {"blocks_per_stage": 1, "width_factor": 1}


def layers(model, *kinds):
    return [module for module in model.modules() if isinstance(module, kinds)]


def parameter_count(model):
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.fixture(scope="module")
def paper():
    """The paper's net; tests do not train it."""
    torch.manual_seed(0)
    return CIFAR100WideResNet()


def test_the_parameter_counts_of_the_paper(paper):
    assert parameter_count(paper) == 8_972_884
    weighted = layers(paper, nn.Conv2d, nn.Linear)
    assert sum(layer.weight.numel() for layer in weighted) == 8_961_456
    biases = [layer.bias.numel() for layer in weighted if layer.bias is not None]
    assert (sum(biases), biases[-1]) == (5_476, 100)
    norms = layers(paper, nn.BatchNorm2d)
    assert len(norms) == 21
    assert sum(norm.weight.numel() + norm.bias.numel() for norm in norms) == 5_952


def test_40_convolutions_and_the_papers_multiplications(paper):
    assert len(layers(paper, nn.Conv2d)) == 6 * 6 + 4
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        paper.eval()(torch.zeros(1, 3, 32, 32))
    assert counter.get_total_flops() == 2 * 1_298_605_056


def test_initial_weights(paper):
    """He et al. normal, Glorot and Bengio uniform; means and deviations within five standard errors of the formula."""
    for layer in layers(paper, nn.Conv2d, nn.Linear):
        weight = layer.weight.detach().double()
        fan_in = weight[0].numel()
        is_uniform = isinstance(layer, nn.Conv2d) and layer.kernel_size == (1, 1)
        if is_uniform:
            variance = 2 / (fan_in + len(weight))
            assert weight.abs().max() <= math.sqrt(3 * variance)
        else:
            variance = (1 if isinstance(layer, nn.Linear) else 2) / fan_in
            assert weight.abs().max() > 2.5 * math.sqrt(variance)
        fourth_moment = 1.8 if is_uniform else 3.0  # of the distribution with variance 1
        assert abs(weight.mean()) < 5 * math.sqrt(variance / weight.numel())
        relative_error = math.sqrt((fourth_moment - 1) / weight.numel())
        assert weight.square().mean().item() == pytest.approx(variance, rel=5 * relative_error)
        assert layer.bias is None or not layer.bias.any()
    assert paper.head.output.weight.std().item() == pytest.approx(0.0625, rel=0.03)
    for norm in layers(paper, nn.BatchNorm2d):
        assert norm.weight.eq(1).all()
        assert not norm.bias.any()


def test_what_an_activation_holds_is_not_initialised_and_does_not_decay():
    class Gate(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(1, 1)
            nn.init.constant_(self.inner.weight, 3.0)

        def forward(self, inputs):
            return inputs * self.inner.weight

    model = CIFAR100WideResNet(Gate, **SMALL)
    inner = [module.weight for name, module in model.named_modules() if name.endswith(".inner")]
    assert len(inner) == 2 + 2 * 3
    assert all(weight.item() == 3 for weight in inner)
    assert not {id(weight) for weight in inner} & {id(weight) for weight in model.decayed_parameters()}


@pytest.mark.parametrize(("activation", "function"), [("gelu_tanh", gelu_tanh), ("elu", elu)])
def test_forward_is_the_transcribed_net(activation, function):
    model = CIFAR100WideResNet(activation, blocks_per_stage=2, width_factor=1, dropout=0.0)
    transcription = Transcription(model, function)
    images = torch.randn(3, 3, 32, 32, dtype=torch.float64)
    torch.testing.assert_close(model.double()(images), transcription.logits(images), rtol=1e-9, atol=1e-9)


class Triple(nn.Module):
    """Stands in for dropout, to show where it is."""

    def forward(self, inputs):
        return 3 * inputs


def test_dropout_is_between_activation_and_second_convolution_of_every_block():
    model = CIFAR100WideResNet(**SMALL)
    dropouts = layers(model, nn.Dropout)
    assert [dropout.p for dropout in dropouts] == [0.3] * 3
    for stage in model.stages:
        stage[0].dropout = Triple()
    images = torch.randn(3, 3, 32, 32, dtype=torch.float64)
    expected = Transcription(model, gelu_tanh, factor=3).logits(images)
    torch.testing.assert_close(model.double()(images), expected, rtol=1e-9, atol=1e-9)


def cross_entropy(logits, labels):
    return (logits.exp().sum(1).log() - logits[torch.arange(len(labels)), labels]).mean()


def decays_by_hand(name):
    """Weights of convolutions and the linear layer, and gammas, whose module is called norm: no biases, no betas."""
    return name.endswith("weight")


def test_two_optimizer_steps_against_a_transcription_in_float64():
    """The net, the loss + 5e-4 sum w^2 of Lasagne, Nesterov momentum in its form and the cosine, all written out."""
    torch.manual_seed(0)
    model = CIFAR100WideResNet(dropout=0.0, epochs=5, **SMALL)  # of one step each
    transcription = Transcription(model, gelu_tanh)
    data = SmallData(COLOUR, 100)
    data.setup("fit")
    images, labels = data.train_set.inputs[:8].double(), data.train_set.labels[:8]
    values = transcription.values
    velocities = {name: torch.zeros_like(value) for name, value in values.items()}
    for step in range(2):
        penalty = 5e-4 * sum(value.square().sum() for name, value in values.items() if decays_by_hand(name))
        loss = cross_entropy(transcription.logits(images), labels) + penalty
        gradients = torch.autograd.grad(loss, list(values.values()))
        rate = 0.05 * (1 + math.cos(math.pi * step / 5))
        with torch.no_grad():
            for (name, value), gradient in zip(values.items(), gradients, strict=True):
                velocities[name] = 0.9 * velocities[name] - rate * gradient
                value += 0.9 * velocities[name] - rate * gradient
    data.train_set = InMemorySamples(images, labels)
    trainer = quiet_trainer(max_steps=2, precision="64-true", limit_val_batches=0)
    trainer.fit(model, datamodule=data)
    assert trainer.logged_metrics["train_loss"].item() == pytest.approx(loss.item(), rel=1e-6)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.detach(), values[name].detach(), rtol=0, atol=1e-9)


def test_what_decays(paper):
    decayed = {id(parameter) for parameter in paper.decayed_parameters()}
    assert decayed == {id(parameter) for name, parameter in paper.named_parameters() if decays_by_hand(name)}
    assert sum(parameter.numel() for parameter in paper.decayed_parameters()) == 8_961_456 + 5_952 // 2


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_the_logged_training_loss_is_noisy_and_includes_the_penalty(dropout):
    """All samples are one batch, so that only dropout can make two seeds' losses differ."""
    torch.manual_seed(0)
    model, data = CIFAR100WideResNet(dropout=dropout, learning_rate=1e-30, **SMALL), SmallData(COLOUR, 100)
    data.setup("fit")
    data.train_set = InMemorySamples(data.train_set.inputs[:8], data.train_set.labels[:8])
    logged = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        trainer = quiet_trainer(max_steps=1, limit_val_batches=0)
        trainer.fit(model, datamodule=data)
        logged.append(trainer.logged_metrics["train_loss"].item())
    assert (abs(logged[0] - logged[1]) > 1e-3) == (dropout > 0)
    with torch.no_grad():
        plain = Transcription(model, gelu_tanh).logits(data.train_set.inputs.double())
    expected = cross_entropy(plain, data.train_set.labels).item() + model.penalty().item()
    assert logged[0] == pytest.approx(expected, rel=0.2 if dropout else 1e-5)
    assert model.penalty() > 0.1


def test_bfloat16_autocast_and_channels_last(tmp_path):
    """One step of the small net: weights and velocities keep both their dtype and their order in memory."""
    torch.manual_seed(0)
    model = CIFAR100WideResNet(channels_last=True, **SMALL)
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    trainer = quiet_trainer(max_steps=1, precision="bf16-mixed", limit_val_batches=0)
    trainer.fit(model, datamodule=SmallData(COLOUR, 100))
    assert math.isfinite(trainer.logged_metrics["train_loss"])
    for parameter in model.parameters():
        assert parameter.dtype == torch.float32
        assert parameter.isfinite().all()
    assert any(not torch.equal(value, before[name]) for name, value in model.named_parameters())
    weight = model.stages[1][0].conv2.weight
    assert weight.is_contiguous(memory_format=torch.channels_last)
    state = trainer.optimizers[0].state[weight]
    assert state["velocity"].is_contiguous(memory_format=torch.channels_last)
