"""Where iterations start: mixtures of directions against numpy's least squares."""

import numpy as np
import pytest
import torch

from lit_gelu.curvature.loss import normal
from lit_gelu.curvature.loss.start_vectors import directions_of, learned_mixture, mixed_start

SIZE = 40


def alone(numbers):
    return numbers


def mixed(rows, mixture):
    return mixed_start(directions_of(rows, alone), mixture)


def learned(mixture, rows, found, agreed=alone):
    return learned_mixture(mixture, directions_of(rows, agreed), found, agreed)


def events(count, directions, noise=0.3):
    """Return, for each event, directions of various lengths and the unit vector that was found."""
    made = []
    for event in range(count):
        draws = [normal(SIZE, 0, event, k, dtype=torch.float64, device="cpu") for k in range(directions + 1)]
        shared = draws[0] / draws[0].norm()
        rows = [10.0**k * (shared + (k + 1) * noise * draw / draw.norm()) for k, draw in enumerate(draws[1:])]
        made.append((rows, shared))
    return made


def signed_units(rows):
    units = [row.numpy() / np.linalg.norm(row.numpy()) for row in rows]
    return np.stack([unit if unit @ units[0] >= 0 else -unit for unit in units], 1)


@pytest.mark.parametrize("directions", [2, 3])
def test_weights_are_those_of_least_squares_over_events_with_the_later_ones_heavier(directions):
    past = events(5, directions)
    mixture = None
    for rows, found in past:
        mixture = learned(mixture, rows, found)
    # Each event weighs half of the one after it, and the first one as much as the second; 1e-3 is the ridge.
    heaviness = np.sqrt([0.5**4, 0.5**4, 0.5**3, 0.5**2, 0.5])
    left = np.concatenate([h * signed_units(rows) for h, (rows, _) in zip(heaviness, past, strict=True)])
    right = np.concatenate([h * found.numpy() for h, (_, found) in zip(heaviness, past, strict=True)])
    left = np.concatenate([left, np.sqrt(1e-3) * np.eye(directions)])
    right = np.concatenate([right, np.zeros(directions)])
    weights = np.linalg.lstsq(left, right, rcond=None)[0]
    rows, found = events(6, directions)[-1]
    start = mixed(rows, mixture).numpy()
    np.testing.assert_allclose(start, signed_units(rows) @ weights, rtol=1e-9, atol=1e-12)
    best_alone = max(abs(unit @ found.numpy()) for unit in signed_units(rows).T)
    assert start @ found.numpy() / np.linalg.norm(start) > best_alone


def test_signs_and_lengths_do_not_matter():
    past = events(3, 2)
    mixture = turned = None
    for number, (rows, found) in enumerate(past):
        mixture = learned(mixture, rows, found)
        turned = learned(turned, [3 * rows[0], -7 * rows[1]], found * (-1) ** number)
    torch.testing.assert_close(mixture, turned)
    rows = past[0][0]
    start, other = mixed(rows, mixture), mixed([3 * rows[0], -7 * rows[1]], mixture)
    torch.testing.assert_close(start, other)


def test_without_a_mixture_weights_are_equal_and_directions_do_not_cancel():
    top, other = torch.eye(SIZE, dtype=torch.float64)[:2]
    start = mixed([top, -3 * (top + 0.02 * other)], None)
    assert start[0] > 1.99
    torch.testing.assert_close(mixed([2 * top, 5 * other], None), top + other)


def test_a_direction_that_taught_nothing_is_not_used():
    rows = [torch.eye(SIZE)[0], torch.eye(SIZE)[1]]
    mixture = learned(None, rows, torch.eye(SIZE)[1])
    torch.testing.assert_close(mixed(rows, mixture), 1 / 1.001 * torch.eye(SIZE)[1])


def test_a_gradient_of_zero_and_a_direction_given_twice():
    unit = torch.eye(SIZE)[3]
    for rows in ([unit, torch.zeros(SIZE)], [unit, unit]):
        for mixture in (None, learned(None, rows, unit)):
            start = mixed(rows, mixture)
            torch.testing.assert_close(start / start.norm(), unit)


def test_ranks_whose_vectors_differ_by_rounding_mix_alike():
    seen = []

    def agreed(numbers):
        seen.append(numbers.clone())
        return torch.full_like(numbers, 0.5) + 0.5 * (torch.arange(len(numbers)) % 3 == 0)

    rows, found = events(1, 2)[0]
    slightly_off = [row * (1 + 1e-9) for row in rows]
    mixtures = [learned(None, each, found, agreed) for each in (rows, slightly_off)]
    assert torch.equal(*mixtures)  # all numbers in it come from agreed
    assert not torch.equal(seen[0], seen[2])
