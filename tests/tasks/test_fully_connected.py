"""The paper's four fully connected nets: sizes, initialisation, and steps of Adam on each written out in float64."""

import math
from itertools import pairwise

import pytest
import torch
from small_task import quiet_trainer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from wide_res_net_by_hand import gelu_tanh

from lit_gelu import activations
from lit_gelu.tasks import MNISTAutoencoder, MNISTClassifier, TIMITFrameClassifier, TweetTagger

# Parameters that the paper or its code states, widths, and the chance of dropout.
NETS = {
    MNISTClassifier: (217_354, [784, *[128] * 8, 10], 0.0),
    MNISTAutoencoder: (2_837_314, [784, 1000, 500, 250, 30, 250, 500, 1000, 784], 0.0),
    TweetTagger: (110_873, [150, 256, 256, 25], 0.2),
    TIMITFrameClassifier: (17_453_095, [286, *[2048] * 5, 39], 0.5),
}
TASKS = pytest.mark.parametrize("task", NETS, ids=lambda task: task.__name__)


def parameter_count(model):
    return sum(parameter.numel() for parameter in model.parameters())


def linears(model):
    return [module for module in model.modules() if isinstance(module, nn.Linear)]


def cross_entropy(outputs, inputs, labels):
    return (outputs.exp().sum(1).log() - outputs[torch.arange(len(labels)), labels]).mean()


def squared_error(outputs, inputs, labels):
    return ((outputs - inputs) ** 2).sum() / inputs.numel()


@TASKS
def test_sizes_and_dropout_are_the_papers(task):
    count, widths, dropout = NETS[task]
    model, shapes = task(), []
    assert parameter_count(model) == count
    for linear in linears(model):
        linear.register_forward_hook(lambda _, inputs, outputs: shapes.append((inputs[0].shape[1], outputs.shape[1])))
    model(torch.rand(2, widths[0]))
    assert shapes == list(pairwise(widths))
    assert [module.p for module in model.modules() if isinstance(module, nn.Dropout)] == [pytest.approx(dropout)] * (
        len(widths) - 2
    )
    assert model.is_noisy == (dropout > 0)
    layers = [module for module in model.modules() if activations.registry.entry_of(module) is not None]
    layers = [layer for layer in layers if not isinstance(layer, nn.Dropout)]
    assert {str(activations.spec_of(layer)) for layer in layers} == {"gelu(approximate='tanh')"}
    assert len({id(layer) for layer in layers}) == len(widths) - 2


def test_counts_of_the_other_forms():
    assert parameter_count(MNISTClassifier(hidden_layers=7)) == 200_842
    with torch.device("meta"):
        assert parameter_count(TIMITFrameClassifier(outputs=2048)) == 21_569_536


@TASKS
def test_rows_have_length_one_and_biases_are_zero(task):
    for linear in linears(task()):
        torch.testing.assert_close(linear.weight.norm(dim=1), torch.ones(linear.out_features))
        assert not linear.bias.any()
        # Components of a random direction in d dimensions: mean 0, variance 1/d.
        deviation = 1 / math.sqrt(linear.in_features)
        assert abs(linear.weight.mean().item()) < 5 * deviation / math.sqrt(linear.weight.numel())
        assert linear.weight.std().item() == pytest.approx(deviation, rel=0.05)


@pytest.mark.filterwarnings("ignore:.* does not have many workers", "ignore:You defined a `validation_step`")
@pytest.mark.parametrize(
    ("model", "loss_of", "beta1"),
    [
        pytest.param(lambda: MNISTClassifier(momentum=0.9), cross_entropy, 0.9, id="MNISTClassifier"),
        pytest.param(lambda: MNISTClassifier(momentum=0.0), cross_entropy, 0.0, id="without momentum"),
        pytest.param(MNISTAutoencoder, squared_error, 0.9, id="MNISTAutoencoder"),
        pytest.param(lambda: TweetTagger(keep=1.0), cross_entropy, 0.9, id="TweetTagger"),
        pytest.param(lambda: TIMITFrameClassifier(keep=1.0, width=32), cross_entropy, 0.9, id="TIMITFrameClassifier"),
    ],
)
def test_steps_of_adam_against_a_transcription_in_float64(model, loss_of, beta1):
    """Kingma and Ba 2015, algorithm 1, on the net and its loss written out; gradients by autograd."""
    torch.manual_seed(0)
    model = model()
    weights = [parameter.detach().double().requires_grad_() for parameter in model.parameters()]
    inputs, labels = torch.rand(24, weights[0].shape[1], dtype=torch.float64), torch.randint(10, (24,))
    moments = [(torch.zeros_like(weight), torch.zeros_like(weight)) for weight in weights]
    for step, rows in enumerate((slice(0, 8), slice(8, 16), slice(16, 24)), start=1):
        values = inputs[rows]
        for weight, bias in zip(weights[0:-2:2], weights[1:-2:2], strict=True):
            values = gelu_tanh(values @ weight.T + bias)
        loss = loss_of(values @ weights[-2].T + weights[-1], inputs[rows], labels[rows])
        gradients = torch.autograd.grad(loss, weights)
        with torch.no_grad():
            for weight, gradient, (m, v) in zip(weights, gradients, moments, strict=True):
                m.mul_(beta1).add_((1 - beta1) * gradient)
                v.mul_(0.999).add_(0.001 * gradient**2)
                weight -= 1e-3 * (m / (1 - beta1**step)) / ((v / (1 - 0.999**step)).sqrt() + 1e-8)

    trainer = quiet_trainer(max_steps=3, precision="64-true", limit_val_batches=0)
    trainer.fit(model, DataLoader(TensorDataset(inputs, labels), batch_size=8))
    assert trainer.logged_metrics["train_loss"].item() == pytest.approx(loss.item(), rel=1e-6)
    for ours, reference in zip(model.parameters(), weights, strict=True):
        torch.testing.assert_close(ours.detach(), reference.detach(), rtol=0, atol=1e-7)
