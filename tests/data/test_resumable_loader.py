"""A loader that goes on in the middle of an epoch."""

import itertools
import random

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from lit_gelu.data import ResumableDataLoader
from lit_gelu.errors import ArgumentError, DataError
from lit_gelu.random_states import RandomState


class Shifted(torch.utils.data.Dataset):
    """Numbers to which something random is added when they are taken, out of every generator."""

    def __len__(self):
        return 20

    def __getitem__(self, index):
        return index + torch.rand(()).item() + random.random() + np.random.random()  # noqa: NPY002


def seeded(seed=0):
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002


def loader(**options):
    return ResumableDataLoader(Shifted(), **({"batch_size": 3, "shuffle": True} | options))


@pytest.mark.parametrize("options", [{}, {"drop_last": True}, {"shuffle": False}])
def test_a_run_from_the_start_has_the_order_of_a_plain_loader(options):
    arguments = {"batch_size": 3, "shuffle": True} | options
    passes = []
    for kind in (DataLoader, ResumableDataLoader):
        seeded()
        numbers = kind(Shifted(), **arguments)
        passes.append([batch for _ in range(2) for batch in numbers])
    assert all(torch.equal(a, b) for a, b in zip(*passes, strict=True))


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("taken", [1, 4, 6])
def test_goes_on_where_it_was_with_the_draws_of_the_data_set(taken, workers):
    seeded()
    reference = loader(num_workers=workers)
    batches = iter(reference)
    for _ in range(taken):
        next(batches)
    state, generators = reference.state_dict(), RandomState.now()
    rest = list(batches)
    seeded(5)
    resumed = loader(num_workers=workers)
    resumed.load_state_dict(state)
    again = iter(resumed)  # Lightning makes the iterator before training starts
    generators.restore()
    again = list(again)
    assert len(again) == 7 - taken
    assert all(torch.equal(a, b) for a, b in zip(again, rest, strict=True))
    assert resumed.state_dict()["taken"] == 7


def test_going_on_leaves_no_trace_in_the_generators():
    first = loader()
    batches = iter(first)
    next(batches), next(batches)
    resumed = ResumableDataLoader(TensorDataset(torch.arange(20)), batch_size=3, shuffle=True)
    resumed.load_state_dict(first.state_dict())
    seeded(9)
    before = torch.get_rng_state(), random.getstate()
    next(iter(resumed))
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]


@pytest.mark.parametrize(
    "state", [None, [], {}, {"taken": "3", "start": None}, {"taken": 3, "start": None}, {"taken": 3, "start": {}}]
)
def test_a_damaged_state(state):
    with pytest.raises(DataError):
        loader().load_state_dict(state)


# States of generators that come out of a checkpoint: set as a whole, or refused as a whole.


def drawn():
    """One number out of every generator, each of which goes on."""
    return random.random(), np.random.random(), torch.rand(()).item()  # noqa: NPY002


def of_numpy(kind="MT19937", key=(1,) * 624, place=3):
    """States with another state of NumPy's generator."""
    return {"numpy": [kind, list(key), place, 0, 0.0]}


def test_the_same_numbers_come_again():
    states = RandomState.now().plain()
    first = drawn()
    assert drawn() != first
    RandomState.of_plain(states).restore()
    assert drawn() == first


DAMAGED = {
    "none": {"python": None},
    "python: few numbers": {"python": [3, [1, 2, 3], None]},
    "python: far on": {"python": [3, [1] * 624 + [10**6], None]},
    "numpy: text": {"numpy": "state"},
    "numpy: another generator": of_numpy("PCG64"),
    "numpy: far on": of_numpy(place=10**6),  # NumPy reads there, and the process ends
    "numpy: just too far on": of_numpy(place=625),
    "numpy: before the start": of_numpy(place=-1),
    "numpy: few numbers": of_numpy(key=[1, 2, 3]),
    "torch: text": {"torch": "state"},
    "torch: few bytes": {"torch": torch.zeros(3, dtype=torch.uint8)},
}


@pytest.mark.parametrize("change", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_state_is_refused_before_anything_is_set(change):
    before = RandomState.now()
    with pytest.raises(DataError):
        RandomState.of_plain(before.plain() | change)
    assert before == RandomState.now()


@pytest.mark.parametrize(("limit", "taken", "left"), [(1.0, 3, 4), (3, 3, 7), (3, 2, 5), (0.5, 3, 7), (20, 3, 4)])
def test_the_end_of_a_pass_that_a_trainer_cuts_short(limit, taken, left):
    """Seven batches, of which a Trainer with limit_train_batches takes fewer."""
    going = loader(limit=limit)
    for _, _ in zip(range(taken), going, strict=False):
        pass
    other = loader(limit=limit)
    other.load_state_dict(going.state_dict())
    assert len(list(other)) == left


def test_workers_that_persist_are_refused():
    with pytest.raises(ArgumentError):
        loader(num_workers=1, persistent_workers=True)


def test_streams_without_a_length_are_refused():
    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(range(6))

    with pytest.raises(ArgumentError):
        ResumableDataLoader(Stream())


@pytest.mark.parametrize("of_sampler", [False, True])
@pytest.mark.parametrize("batches", [1, 3, 4])
def test_a_generator_of_its_own_goes_on_by_plain_data(tmp_path, of_sampler, batches):
    def build():
        data, generator = range(6), torch.Generator().manual_seed(3)
        sampler = torch.utils.data.RandomSampler(data, generator=generator)
        options = {"sampler": sampler} if of_sampler else {"shuffle": True, "generator": generator}
        return ResumableDataLoader(data, batch_size=2, **options)

    def passes(loader):
        while True:
            yield from map(torch.Tensor.tolist, itertools.islice(loader, len(loader)))  # as Lightning takes them

    reference, resumed = build(), build()
    order = passes(reference)
    for _ in range(batches):
        next(order)
    torch.save(reference.state_dict(), tmp_path / "state.pt")
    resumed.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    others = passes(resumed)
    left = range(3 - batches % 3)  # of the pass, or all of the next one
    assert [next(others) for _ in left] == [next(order) for _ in left]
