"""The data of a group: what is refused, because each run alone would read other ones."""

import random

import numpy as np
import pytest
import torch
from measured_replicas import CELLS, SEEDS, Measuring, Sets
from small_task import quiet_trainer

from lit_gelu.data.in_memory import InMemorySamples
from lit_gelu.replicas import NotReplicableError, ReplicaDataModule, ReplicaGroup


class Splitting(Sets):
    """Sets that are split by an order."""

    def __init__(self, order):
        super().__init__()
        self.order = order

    def load_train_and_val(self):
        inputs, labels = self.samples
        order = torch.as_tensor(self.order(len(inputs)))
        return tuple(InMemorySamples(inputs[rows], labels[rows]) for rows in (order[:32], order[32:]))


@pytest.mark.parametrize(
    "order",
    [torch.randperm, np.random.permutation, lambda count: random.sample(range(count), count)],
)
def test_a_split_by_a_runs_own_random_numbers_is_refused(order):
    data = ReplicaDataModule(Splitting(order))
    with pytest.raises(NotReplicableError, match=r"Splitting draws.*torch\.Generator\(\)"):
        quiet_trainer(max_epochs=1).fit(ReplicaGroup.of(Measuring, CELLS, SEEDS), datamodule=data)
    with pytest.raises(NotReplicableError, match="Splitting draws"):
        _ = ReplicaDataModule(Splitting(order)).samples


@pytest.mark.parametrize(
    "order",
    [
        lambda count: torch.randperm(count, generator=torch.Generator().manual_seed(0)),
        lambda count: np.random.default_rng(0).permutation(count),
    ],
)
def test_a_split_by_a_generator_of_its_own(order):
    group = ReplicaGroup.of(Measuring, CELLS, SEEDS)
    quiet_trainer(max_epochs=1).fit(group, datamodule=ReplicaDataModule(Splitting(order)))
    assert group.measured["val_loss"].isfinite().all()
