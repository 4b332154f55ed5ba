"""CIFAR100WideResNet's forward pass written out, for the tests that compare with it."""

import math

import torch
from torch import nn


def gelu_tanh(x):
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def elu(x):
    return torch.where(x > 0, x, torch.exp(x) - 1)


class Transcription:
    """The net written out, in training mode; batch normalisation by batch statistics; a factor in place of dropout."""

    def __init__(self, model, activation, factor=1):
        self.factor = factor
        self.values = {name: value.detach().double().requires_grad_() for name, value in model.named_parameters()}
        self.activation = activation
        self.blocks = [[f"stages.{i}.{j}" for j in range(len(stage))] for i, stage in enumerate(model.stages)]

    def conv(self, x, name, stride=1):
        weight = self.values[f"{name}.weight"]
        size = weight.shape[2]
        columns = nn.functional.unfold(x, size, padding=size // 2, stride=stride)
        result = weight.flatten(1) @ columns
        if f"{name}.bias" in self.values:
            result = result + self.values[f"{name}.bias"].unsqueeze(1)
        return result.unflatten(2, (x.shape[2] // stride, x.shape[3] // stride))

    def norm(self, x, name):
        mean = x.mean(dim=(0, 2, 3), keepdim=True)
        variance = (x - mean).square().mean(dim=(0, 2, 3), keepdim=True)
        gamma, beta = (self.values[f"{name}.{part}"].reshape(1, -1, 1, 1) for part in ("weight", "bias"))
        return gamma * (x - mean) / (variance + 1e-4).sqrt() + beta

    def residual(self, x, name, stride):
        f, has_shortcut = self.activation, f"{name}.shortcut.weight" in self.values
        hidden = self.factor * f(self.conv(x, f"{name}.conv1", stride))
        branch = self.norm(f(self.conv(hidden, f"{name}.conv2")), f"{name}.norm")
        return branch + (self.conv(x, f"{name}.shortcut", stride) if has_shortcut else x)

    def logits(self, x):
        x = self.conv(x, "stem.conv")
        x = self.norm(self.activation(self.norm(x, "stem.norm")), "stem.second_norm")
        for index, names in enumerate(self.blocks):
            for number, name in enumerate(names):
                x = self.residual(x, name, 2 if index and not number else 1)
        x = self.activation(self.norm(x, "head.norm")).mean(dim=(2, 3))
        return x @ self.values["head.output.weight"].T + self.values["head.output.bias"]
