"""The order of a replica's samples against the loader that a run alone takes them from."""

import torch

from lit_gelu.data.resumable_loader import ResumableDataLoader
from lit_gelu.replicas.data.order import BatchOrder


def test_three_epochs_with_draws_between():
    loader = ResumableDataLoader(range(23), batch_size=5, shuffle=True, drop_last=True)
    generators = [torch.Generator().manual_seed(seed) for seed in (3, 4)]
    order = BatchOrder(23, 5)
    assert order.steps == 4
    ours = []
    for _ in range(3):
        ours.append(order.epoch(generators))
        for generator in generators:
            torch.empty(7).bernoulli_(generator=generator)
    for replica, seed in enumerate((3, 4)):
        torch.manual_seed(seed)
        for epoch in ours:
            assert torch.equal(torch.stack(list(loader)), epoch[:, replica])
            torch.empty(7).bernoulli_()
        assert torch.equal(torch.get_rng_state(), generators[replica].get_state())
