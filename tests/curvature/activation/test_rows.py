"""Sampling: whole rows, unbiased, no aliasing with channels."""

import pytest
import torch

from lit_gelu.curvature import count_rows, draw_rows, take_rows


@pytest.mark.parametrize(
    ("shape", "rows", "row_shape"),
    [
        ((), 1, ()),
        ((5,), 5, ()),
        ((5, 3), 5, (3,)),
        ((5, 4, 3), 20, (3,)),
        ((5, 3, 2, 2), 20, (3,)),
        ((2, 3, 2, 2, 2), 16, (3,)),
    ],
)
def test_rows_are_whole_channel_vectors(shape, rows, row_shape):
    x = torch.arange(float(max(1, torch.Size(shape).numel()))).reshape(shape)
    assert count_rows(x) == rows
    taken = take_rows(x, torch.arange(rows))
    assert taken.shape == (rows, *row_shape)
    reference = x.movedim(1, -1) if len(shape) >= 4 else x
    assert torch.equal(taken, reference.reshape(rows, *row_shape))


def test_whole_examples_keep_their_shape():
    x = torch.randn(5, 3, 2, 2)
    assert count_rows(x, whole_examples=True) == 5
    assert torch.equal(take_rows(x, torch.tensor([4, 0]), whole_examples=True), x[[4, 0]])


def test_every_row_is_drawn_equally_often():
    draws, count, rows = 4000, 25, 10
    index = torch.cat([draw_rows(count, rows, torch.Generator().manual_seed(seed)) for seed in range(draws)])
    times = index.bincount(minlength=count).double()
    expected = draws * rows / count
    assert (times - expected).abs().max() < 5 * expected**0.5


def test_mean_over_drawn_rows_is_unbiased_and_no_channel_is_left_out():
    x = torch.randn(256, 64, generator=torch.Generator().manual_seed(0)) + torch.arange(64)
    means = []
    for seed in range(1000):
        taken = take_rows(x, draw_rows(256, 16, torch.Generator().manual_seed(seed)))
        assert taken.shape == (16, 64)
        means.append(taken.double().mean())
    means = torch.stack(means)
    assert abs(means.mean() - x.double().mean()) < 4 * means.std() / 1000**0.5
    assert 0.5 < means.std() / (1 / (16 * 64) ** 0.5) < 1.5


def test_the_global_generator_is_left_alone():
    state = torch.get_rng_state()
    draw_rows(100, 10, torch.Generator().manual_seed(0))
    assert torch.equal(torch.get_rng_state(), state)
