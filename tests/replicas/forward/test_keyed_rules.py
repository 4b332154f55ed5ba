"""Groups with noise by key and order by seed, in `Trainer.fit`: the runs alone, also resumed, and taken out again."""

import copy
import functools

import pytest
import torch
from replica_runs import Samples, Saving, batched_products_are_single_ones, check_equal, runs_of, trained_alone
from small_task import quiet_trainer

from lit_gelu.callbacks import ExactResume
from lit_gelu.replicas import ReplicaDataModule, ReplicaGroup
from lit_gelu.replicas.written.factors import in_common
from lit_gelu.tasks import TweetTagger
from lit_gelu.tasks.keyed_dropout import KeyedDropout
from lit_gelu.tasks.keyed_noise import Key, SharedFactors, words

CELLS = [
    {"activation": "relu", "keep": 0.8},
    {"activation": "gelu_tanh", "learning_rate": 1e-4, "keep": 0.5},
    {"activation": "prelu", "keep": 1.0},
    {"activation": "elu", "keep": 0.8},
]
SEEDS = [0, 1, 0, 0]
BUILD = functools.partial(TweetTagger, vector_size=8, noise="keys")
SIZES = (24, 256, 256, 25)


@pytest.fixture(scope="module")
def samples():
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(83, 24, generator=generator)
    return inputs, torch.randint(25, (len(inputs),), generator=generator)


def trained(samples, steps_per_batch, steps, checkpoint=None, callbacks=(), executor="auto"):
    """Train a group, and return it with its Trainer."""
    group = ReplicaGroup.of(BUILD, CELLS, SEEDS, steps_per_batch=steps_per_batch, executor=executor)
    trainer = quiet_trainer(max_steps=steps, max_epochs=-1, callbacks=list(callbacks))
    given = ReplicaDataModule(Samples(samples, 8, "seed"))
    trainer.fit(group, datamodule=given, ckpt_path=checkpoint, weights_only=True if checkpoint else None)
    return group, trainer


@pytest.fixture(scope="module")
def alone(samples):
    cells = zip(CELLS, SEEDS, strict=True)
    return [trained_alone(BUILD, cell, seed, samples, 8, (27,), "seed") for cell, seed in cells]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("group")


@pytest.fixture(scope="module", params=["written", "stacked"])
def unbroken(samples, folder, request):
    """Return a group after 27 steps, whose checkpoints are in the folder."""
    return trained(samples, 4, 27, callbacks=[Saving(folder, {7, 10, 14})], executor=request.param)


def test_a_group_is_the_runs_alone(alone, unbroken):
    together = runs_of(*unbroken)
    for one, other in zip(alone, together, strict=True):
        other.losses = one.losses
    check_equal(alone, together, batched_products_are_single_ones(SIZES, 8))


@pytest.mark.parametrize("at", [7, 10, 14])  # batches end where an epoch or the run does
def test_a_group_goes_on(samples, folder, unbroken, at):
    check_equal(runs_of(*unbroken), runs_of(*trained(samples, 3, 27, folder / f"{at}.ckpt")))


@pytest.mark.parametrize("at", [8, 14])
def test_a_member_goes_on_alone(samples, alone, tmp_path, at):
    group, _ = trained(samples, 4, at)
    torch.save(group.member_checkpoint(1), tmp_path / "member.ckpt")
    task = BUILD(**CELLS[1])
    trainer = quiet_trainer(max_steps=27, max_epochs=-1, callbacks=[ExactResume()], limit_val_batches=0)
    trainer.fit(task, datamodule=Samples(samples, 8, "seed"), ckpt_path=tmp_path / "member.ckpt", weights_only=True)
    for name, tensor in alone[1].states[27].weights.items():
        torch.testing.assert_close(task.state_dict()[name], tensor, rtol=0, atol=1e-6)


def test_factors_are_drawn_once_for_several_members(monkeypatch):
    drawn = []
    monkeypatch.setattr(
        "lit_gelu.tasks.keyed_noise.words", lambda key, count: drawn.append(key) or torch.arange(count).numpy()
    )
    shared, place = SharedFactors(20), torch.empty(2, 5).numpy()
    wanted = torch.tensor([[2.0] * 5] * 2).numpy()  # all words are below 2**31
    for key in (Key(0, 0, 0), Key(0, 0, 1), Key(0, 0, 0), Key(0, 0, 2), Key(0, 0, 2)):
        assert (shared.of(key, 0.5, place) == wanted).all()
    assert [key.step for key in drawn] == [0, 1, 2, 2]  # there was no room for the third
    assert shared.of(Key(0, 0, 2), 0.5, place) is place
    shared.of(Key(0, 0, 0), 0.2, place), shared.of(Key(0, 0, 0), 0.5, place[0])
    assert len(drawn) == 7  # other chances and shapes are others
    shared.clear()
    shared.of(Key(0, 0, 0), 0.5, place)
    assert len(drawn) == 8


def test_a_group_draws_the_factors_of_a_seed_once(samples, monkeypatch):
    drawn = []
    monkeypatch.setattr("lit_gelu.tasks.keyed_noise.words", lambda key, count: drawn.append(key) or words(key, count))
    cells = [{"activation": name, "keep": 0.8} for name in ("relu", "elu", "gelu_tanh")]
    group = ReplicaGroup.of(BUILD, cells, [0, 1, 0], steps_per_batch=3, executor="written")
    quiet_trainer(max_steps=6, max_epochs=-1).fit(group, datamodule=ReplicaDataModule(Samples(samples, 8, "seed")))
    layers = sum(isinstance(module, KeyedDropout) for module in group.members[0].modules())
    assert len(drawn) == len(set(drawn)) == 2 * layers * 6  # of two seeds


def test_seeds_in_common_are_those_of_noisy_layers():
    layers = [KeyedDropout(p, 0) for p in (0.5, 0.2, 0.5, 0.0)]
    for layer, seed in zip(layers, (1, 1, 2, 2), strict=True):
        layer.seed.fill_(seed)
    assert in_common(copy.deepcopy(layers)) == {1}
