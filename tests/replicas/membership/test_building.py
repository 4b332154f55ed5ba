"""Members are built as runs alone build their modules, and leave no trace."""

import os

import pytest
import torch
from lightning.pytorch import seed_everything

from lit_gelu.data.resumable_loader import python_and_numpy_states
from lit_gelu.replicas import Member, ReplicaArgumentError, build_members
from lit_gelu.tasks import TweetTagger


def test_a_member_is_what_the_run_alone_begins_with():
    before, variables = torch.get_rng_state(), dict(os.environ)
    members = build_members(TweetTagger, [{"activation": "relu"}, {"activation": "prelu"}], [3, 3])
    assert torch.equal(torch.get_rng_state(), before)
    assert dict(os.environ) == variables
    for member in members:
        seed_everything(member.seed, verbose=False)
        alone = TweetTagger(**member.arguments)
        assert torch.equal(torch.get_rng_state(), member.stream)
        assert python_and_numpy_states() == member.other_states()
        assert python_and_numpy_states() == Member(member.module, member.stream, member.seed).other_states()
        assert all(map(torch.equal, alone.parameters(), member.module.parameters()))


@pytest.mark.parametrize(("seeds", "arguments"), [([3, 2**40], {}), ([3, 4], {"activation": "no such name"})])
def test_an_error_leaves_no_trace(seeds, arguments):
    before, variables, others = torch.get_rng_state(), dict(os.environ), python_and_numpy_states()
    with pytest.raises((ValueError, LookupError)):
        build_members(TweetTagger, [{"activation": "relu"}, arguments], seeds)
    assert torch.equal(torch.get_rng_state(), before)
    assert dict(os.environ) == variables
    assert python_and_numpy_states() == others


@pytest.mark.parametrize(("cells", "seeds"), [([], []), ([{}], [1, 2])])
def test_a_seed_for_every_cell(cells, seeds):
    with pytest.raises(ReplicaArgumentError, match="seed for each"):
        build_members(TweetTagger, cells, seeds)


@pytest.mark.parametrize("kind", [lambda: torch.nn.Linear(3, 3), lambda: torch.nn.BatchNorm1d(3, affine=False)])
def test_members_have_nothing_in_common(kind):
    held = {"gelu": kind(), "elu": kind()}

    class Sharing(TweetTagger):
        def __init__(self, activation):
            super().__init__(activation=activation)
            self.body = held[activation]

    with pytest.raises(ReplicaArgumentError, match=r"Members 1 and 2 have 'body.*in common"):
        build_members(Sharing, [{"activation": name} for name in ("gelu", "elu", "elu")])
