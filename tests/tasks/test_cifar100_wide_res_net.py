"""CIFAR100WideResNet: the paper's net, its shapes and initialisation, its forward pass, and what it refuses."""

import math

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode
from wide_res_net_by_hand import Transcription, elu, gelu_tanh

from lit_gelu import surgery
from lit_gelu.tasks import CIFAR100WideResNet
from lit_gelu.tasks.cifar100_wide_res_net import OriginalBlock, PaperBlock

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


def test_parameter_counts_of_the_options():
    """WRN-40-4 of Zagoruyko and Komodakis has 8,949,210 parameters with 10 classes, so 90 x 257 more with 100."""
    assert parameter_count(CIFAR100WideResNet(block="original")) == 8_949_210 + 90 * 257
    assert parameter_count(CIFAR100WideResNet(lasagne_bn=True)) == 8_972_884
    closing = 2 * 6 * (64 + 128 + 256)
    assert parameter_count(CIFAR100WideResNet("elu", closing_norm=False)) == 8_972_884 - closing


def test_shapes_at_each_layer(paper):
    expected = {"stem": [16, 32, 32], "head.pool": [256, 1, 1], "head.output": [100]}
    for stage, (channels, size) in enumerate([(64, 32), (128, 16), (256, 8)]):
        expected |= {f"stages.{stage}.{block}": [channels, size, size] for block in range(6)}
    seen = {}
    hooks = [
        module.register_forward_hook(lambda module, given, result, name=name: seen.update({name: list(result.shape)}))
        for name, module in paper.named_modules()
        if name in expected
    ]
    with torch.no_grad():
        paper.eval()(torch.zeros(2, 3, 32, 32))
    for hook in hooks:
        hook.remove()
    assert seen == {name: [2, *shape] for name, shape in expected.items()}


def test_structure_of_the_papers_net(paper):
    assert [name for name, _ in paper.stem.named_children()] == ["conv", "norm", "activation", "second_norm"]
    assert [name for name, _ in paper.head.named_children()] == ["norm", "activation", "pool", "flatten", "output"]
    assert paper.stem.conv.bias is None
    for stage, stride in zip(paper.stages, (1, 2, 2), strict=True):
        for number, block in enumerate(stage):
            assert isinstance(block, PaperBlock)
            assert (block.conv1.bias is None, block.conv2.bias is None, block.dropout.p) == (False, False, 0.3)
            assert block.conv1.stride == ((stride, stride) if number == 0 else (1, 1))
            if number:
                assert block.shortcut is None
            else:
                assert (block.shortcut.kernel_size, block.shortcut.bias) == ((1, 1), None)
                assert block.shortcut.stride == (stride, stride)
    assert all((norm.eps, norm.momentum) == (1e-4, 0.1) for norm in layers(paper, nn.BatchNorm2d))
    sites = surgery.find_sites(paper)
    assert len(sites) == 2 + 2 * 18
    assert {str(site.spec) for site in sites} == {"gelu(approximate='tanh')"}


def test_the_original_blocks():
    model = CIFAR100WideResNet(block="original", dropout=0.1)
    assert [name for name, _ in model.stem.named_children()] == ["conv"]
    assert all(isinstance(block, OriginalBlock) for stage in model.stages for block in stage)
    assert len(layers(model, nn.BatchNorm2d)) == 2 * 18 + 1
    assert all(conv.bias is None for conv in layers(model, nn.Conv2d))


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


@pytest.mark.parametrize(
    ("activation", "function", "options"),
    [
        ("gelu_tanh", gelu_tanh, {}),
        ("elu", elu, {"closing_norm": False}),
        ("gelu_tanh", gelu_tanh, {"block": "original"}),
        ("elu", elu, {"lasagne_bn": True}),
    ],
)
def test_forward_is_the_transcribed_net(activation, function, options):
    model = CIFAR100WideResNet(activation, blocks_per_stage=2, width_factor=1, dropout=0.0, **options)
    transcription = Transcription(model, function, options.get("block", "paper"))
    images = torch.randn(3, 3, 32, 32, dtype=torch.float64)
    torch.testing.assert_close(model.double()(images), transcription.logits(images), rtol=1e-9, atol=1e-9)


class Triple(nn.Module):
    """Stands in for dropout, to show where it is."""

    def forward(self, inputs):
        return 3 * inputs


@pytest.mark.parametrize("block", ["paper", "original"])
def test_dropout_is_between_activation_and_second_convolution_of_every_block(block):
    model = CIFAR100WideResNet(block=block, **SMALL)
    dropouts = layers(model, nn.Dropout)
    assert [dropout.p for dropout in dropouts] == [0.3] * 3
    for stage in model.stages:
        stage[0].dropout = Triple()
    images = torch.randn(3, 3, 32, 32, dtype=torch.float64)
    expected = Transcription(model, gelu_tanh, block, factor=3).logits(images)
    torch.testing.assert_close(model.double()(images), expected, rtol=1e-9, atol=1e-9)
