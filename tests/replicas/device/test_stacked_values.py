"""Measuring all members at once: the means that each has alone."""

import functools

import pytest
import torch

from lit_gelu.replicas import EagerExecutor, build_members
from lit_gelu.sandbox import evaluation_sandbox
from lit_gelu.tasks import MNISTAutoencoder, MNISTClassifier, TIMITFrameClassifier, TweetTagger

CELLS = [{"activation": "gelu_tanh"}, {"activation": "elu"}]


@pytest.mark.parametrize(
    ("build", "cells", "features", "classes"),
    [
        (functools.partial(TweetTagger, noise="keys"), [cell | {"keep": 0.5} for cell in CELLS], 150, 25),
        (
            functools.partial(TweetTagger, keep=1.0),
            [{"activation": f"swish(beta={beta}, learnable=True)"} for beta in (1.0, 1.5)],
            150,
            25,
        ),
        (functools.partial(MNISTClassifier, hidden_layers=2), CELLS, 784, 10),
        (MNISTAutoencoder, CELLS, 784, 10),
    ],
)
@pytest.mark.parametrize("least", [0, 2**26])
def test_means_are_those_of_each_alone(monkeypatch, least, build, cells, features, classes):
    monkeypatch.setattr("lit_gelu.replicas.device.stacked_values._ELEMENTS", least)
    executor = EagerExecutor(build_members(build, cells), "device")
    executor.configure_optimizers()
    inputs, labels = torch.rand(23, features), torch.randint(classes, (23,))
    found = executor.means(inputs, labels, samples_at_once=10)
    for replica, member in enumerate(executor.stacks.modules):
        with evaluation_sandbox(member):
            alone = {name: value.mean().item() for name, value in member.sample_values(inputs, labels).items()}
        assert found.keys() == alone.keys()
        for name, value in alone.items():
            assert found[name][replica].item() == pytest.approx(value, rel=1e-6, abs=1e-9)


def test_members_are_asked_singly_where_that_is_better():
    inputs, labels = torch.rand(4, 150), torch.zeros(4, dtype=torch.int64)
    on_cpu = EagerExecutor(build_members(functools.partial(TweetTagger, keep=1.0), [{}]))
    on_cpu.configure_optimizers()
    assert on_cpu.means(inputs, labels) is None
    others = EagerExecutor(
        build_members(functools.partial(TIMITFrameClassifier, width=8, noise="keys"), [{}]), "device"
    )
    others.configure_optimizers()
    assert others.means(torch.rand(4, 286), labels) is None  # its values may be means of batches
