"""Groups of any kind, resumed at any point: the runs alone, to the bit."""

import functools

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lightning.pytorch import Callback
from replica_runs import (
    Run,
    Samples,
    State,
    batched_products_are_single_ones,
    check_equal,
    trained_alone,
)
from small_task import quiet_trainer

from lit_gelu.replicas import ReplicaDataModule, ReplicaGroup
from lit_gelu.tasks import TweetTagger

BUILD = functools.partial(TweetTagger, vector_size=8)
ACTIVATIONS = [
    "relu",
    "gelu",
    "gelu_tanh",
    "elu",
    "silu",
    "mish",
    "prelu",
    "swish(learnable=True)",
    "zero_identity_map",
]
cells = st.fixed_dictionaries({
    "activation": st.sampled_from(ACTIVATIONS),
    "keep": st.sampled_from([1.0, 0.8, 0.5]),
    "learning_rate": st.sampled_from([1e-2, 1e-3, 1e-4]),
})
groups = st.lists(st.tuples(cells, st.integers(0, 3)), min_size=1, max_size=5)
sizes = st.sampled_from([1, 2, 3, 5, "auto"])


class Saving(Callback):
    """Saves at the end of the first batch at or behind a step."""

    def __init__(self, path, step):
        self.path, self.step = path, step

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_index):
        if trainer.global_step >= self.step and not self.path.exists():
            trainer.save_checkpoint(self.path)


def fitted(members, samples, batch_size, steps, steps_per_batch, executor, callbacks=(), path=None):
    given_cells, seeds = zip(*members, strict=True)
    group = ReplicaGroup.of(BUILD, given_cells, list(seeds), steps_per_batch=steps_per_batch, executor=executor)
    trainer = quiet_trainer(max_steps=steps, max_epochs=-1, callbacks=list(callbacks))
    data = ReplicaDataModule(Samples(samples, batch_size))
    trainer.fit(group, datamodule=data, ckpt_path=path, weights_only=True if path else None)
    runs = []
    for replica, stream in enumerate(group.executor.streams.states()):
        saved = group.member_checkpoint(replica)
        runs.append(Run({steps: State(saved["state_dict"], saved["optimizer_states"][0], stream)}))
    return runs


def check_any_group(folder, examples):
    """Draw groups, and compare each, unbroken and resumed, with the runs alone."""
    made = []

    @settings(max_examples=examples, suppress_health_check=list(HealthCheck))
    @given(groups, st.integers(3, 9), st.integers(1, 20), sizes, sizes, st.integers(1, 20), st.booleans())
    def check(members, batch_size, steps, before, after, at, maps):
        made.append(None)
        generator = torch.Generator().manual_seed(len(made))
        samples = torch.randn(37, 24, generator=generator), torch.randint(25, (37,), generator=generator)
        executor = "vmap" if maps else "auto"
        path = folder / f"{len(made)}.ckpt"
        alone = [trained_alone(BUILD, cell, seed, samples, batch_size, (steps,)) for cell, seed in members]
        together = fitted(members, samples, batch_size, steps, before, executor, [Saving(path, min(at, steps))])
        resumed = fitted(members, samples, batch_size, steps, after, executor, path=path) if at < steps else together
        exact = executor == "auto" or batched_products_are_single_ones((24, 256, 256, 25), batch_size, len(members))
        for runs in (together, resumed):
            for one, other in zip(alone, runs, strict=True):
                other.losses = one.losses
            check_equal(alone, runs, exact)

    check()
    assert len(made) >= examples


def test_some_groups(tmp_path):
    check_any_group(tmp_path, 3)


@pytest.mark.full
@pytest.mark.timeout(3600)
def test_many_groups(tmp_path):
    check_any_group(tmp_path, 60)
