"""What the tasks refuse: arguments out of their range, and inputs of another shape or dtype."""

import math

import pytest
import torch
from torch import nn

from lit_gelu.errors import ArgumentError, LitGeluError
from lit_gelu.tasks import (
    CIFAR10ConvNet,
    CIFAR100WideResNet,
    MNISTAutoencoder,
    MNISTClassifier,
    TIMITFrameClassifier,
    TweetTagger,
)

SMALL = {
    MNISTClassifier: {"hidden_layers": 1},
    MNISTAutoencoder: {},
    TweetTagger: {},
    TIMITFrameClassifier: {"width": 4},
    CIFAR10ConvNet: {"channels": (4, 6)},
    CIFAR100WideResNet: {"blocks_per_stage": 1, "width_factor": 1},
}
EVERY = {"learning_rate": (0.0, math.nan, math.inf, "much"), "activation": (nn.GLU, "gelo"), "registry": ({},)}
OF_ONE = {
    MNISTClassifier: {"keep": (0.0, 1.5), "hidden_layers": (0, 2.5, True), "momentum": (1.0, -0.1)},
    TweetTagger: {"keep": (0.0,), "vector_size": (0,)},
    TIMITFrameClassifier: {"keep": (0.0,), "width": (0,), "outputs": (38,)},
    CIFAR10ConvNet: {
        "epochs": (0,), "keep": (0.0,), "noise": (-0.1,), "channels": ((96,), (96, 0))},
    CIFAR100WideResNet: {
        "blocks_per_stage": (0,), "width_factor": (1.5,), "dropout": (1.0,), "weight_decay": (-1e-4,),
        "epochs": (0,),
    },
}  # fmt: skip
REFUSED = [
    (task, {name: value})
    for task, of_one in OF_ONE.items()
    for name, values in {**EVERY, **of_one}.items()
    for value in values
]


@pytest.mark.parametrize(("task", "arguments"), REFUSED)
def test_arguments_out_of_their_range(task, arguments):
    with pytest.raises(LitGeluError):
        task(**{**SMALL[task], **arguments})


@pytest.mark.parametrize(
    ("task", "shapes"),
    [
        (MNISTClassifier, [(4, 1, 8, 8), (4, 3, 28, 28), (784,), (4, 28)]),
        (MNISTAutoencoder, [(4, 3, 28, 28)]),
        (TweetTagger, [(2, 6), (150,)]),
        (TIMITFrameClassifier, [(2, 285), (2, 11, 26)]),
        (CIFAR10ConvNet, [(4, 1, 28, 28)]),
        (CIFAR100WideResNet, [(2, 1, 28, 28), (2, 3072), (3, 32, 32)]),
    ],
)
def test_inputs_of_another_shape_or_dtype(task, shapes):
    model = task(**SMALL[task])
    for shape in shapes:
        with pytest.raises(ArgumentError):
            model(torch.zeros(shape))
    with pytest.raises(ArgumentError):
        model(torch.zeros(model.example_input_array.shape, dtype=torch.uint8))
