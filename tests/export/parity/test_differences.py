"""Differences: infinities, NaN, changed classes, errors by index and by position."""

import numpy as np
import pytest
import torch

from lit_gelu.export.parity.criterion import fills
from lit_gelu.export.parity.differences import Differences, worst_index, worst_position


def test_infinities_and_nan_are_counted():
    reference = np.array([[1.0, 1e39, 2.0, 3.0]])
    found = Differences()
    found.add(np.array([[1.5, np.inf, np.nan, -np.inf]], np.float32), reference)
    assert (found.max_abs, found.nonfinite) == (0.5, 2)
    excused = Differences()
    excused.add(np.array([[1.5, np.inf, np.nan, 3.0]], np.float32), reference, np.array([[1, np.inf, np.nan, 3.0]]))
    assert (excused.max_abs, excused.nonfinite) == (0.5, 0)


def test_what_a_dtype_cannot_hold_is_infinite():
    found = Differences(torch.float16)
    found.add(np.array([[np.inf, 65504]], np.float16), np.array([[70000.0, 65504.0]]))
    assert (found.max_abs, found.nonfinite, found.scale) == (0, 0, 65504)
    wide = Differences(torch.float32)
    wide.add(np.array([[np.inf]], np.float32), np.array([[70000.0]]))
    assert wide.nonfinite == 1


def test_the_largest_difference_over_batches_in_units_of_the_largest_value():
    found = Differences()
    found.add(np.array([[1.0, 2.0]]), np.array([[1.1, 2.0]]))
    found.add(np.array([[-8.0]]), np.array([[-8.2]]))
    assert found.count == 2
    np.testing.assert_allclose([found.max_abs, found.scale], [0.2, 8.2])
    np.testing.assert_allclose(found.relative(found.scale, 0.0), 0.2 / 8.2)
    assert found.relative(8.2, ignored=0.3) == 0
    assert found.relative(0.0, ignored=0.0) == float("inf")


def test_rows_are_counted_and_a_number_is_one():
    found = Differences()
    for shape in [(3, 2), (), (5,), (0, 2)]:
        found.add(np.zeros(shape), np.zeros(shape))
    assert found.count == 3 + 1 + 5


def test_an_output_of_another_shape_is_infinitely_wrong():
    found = Differences()
    found.add(np.zeros((2, 3)), np.zeros((2, 4)))
    assert found.relative(1.0, 0.0) == float("inf")
    filled = Differences()
    filled.add(np.zeros((2, 3)), np.zeros((2, 4)), filled=np.zeros((2, 4), dtype=bool))
    assert filled.relative(1.0, 0.0) == float("inf")


LOWEST = np.finfo(np.float32).min


def test_what_is_filled_is_right_and_has_no_scale_and_classes_are_compared_all_the_same():
    reference = np.array([[np.finfo(np.float64).min, -2.0, -1.0]])
    found = Differences()
    output = np.array([[LOWEST, -1.0, -2.0]], np.float32)
    found.add(output, reference, filled=fills(output, output, reference, torch.float32))
    assert (found.max_abs, found.nonfinite, found.scale) == (1, 0, 2)
    assert found.top1_agreement == 0


def test_the_share_that_differs_in_the_worst_batch():
    found = Differences()
    found.add(np.array([1, 2, 3, 4]), np.array([1, 2, 3, 4]))
    assert found.relative(4.0, 0.0) == 0
    found.add(np.array([1, 2, 3, 9]), np.array([1, 2, 3, 4]))
    found.add(np.array([True, False]), np.array([True, False]))
    assert found.relative(4.0, 0.0) == 0.25
    found.add(None, np.array([1]))
    assert found.relative(4.0, 0.0) == float("inf")


def by_index(reference, output=None):
    """Differences of an output, or of the reference from itself."""
    found = Differences(by_index=True)
    found.add(np.asarray(reference if output is None else output), np.asarray(reference))
    return found


def worst(found, usual):
    return worst_index(found, usual, 0.0, torch.float32, 1e-5)


def test_the_index_farthest_from_its_own_size_is_found_in_every_dimension_but_the_first():
    exact = np.ones((4, 3, 5, 7)) * np.array([1e4, 1.0, 1e-2]).reshape(3, 1, 1)
    wrong = exact.copy()
    wrong[1, 2, 0, 0] += 1e-3
    found = worst(by_index(exact, wrong), by_index(exact))
    assert found.index == "[:, 2]"
    assert (found.index_error, found.index_scale) == (pytest.approx(1e-3), 1e-2)
    assert found.index_limit == pytest.approx(1e-5 * 1e-2)
    last, wrong = exact.transpose(0, 2, 3, 1), wrong.transpose(0, 2, 3, 1)
    assert worst(by_index(last, wrong), by_index(last)).index == "[:, :, :, 2]"


def test_pytorchs_own_error_at_an_index_allows_twice_its_largest_or_sixteen_root_mean_squares():
    generator = np.random.default_rng(0)
    exact = generator.normal(size=(1000, 2))
    noise = generator.normal(size=exact.shape) * [0, 1e-3]
    found = worst(by_index(exact, exact + np.array([0, 1e-2])), by_index(exact, exact + noise))
    by_hand = 2 * max(np.abs(noise[:, 1]).max(), 8 * np.sqrt(np.square(noise[:, 1]).mean()))
    assert (found.index, found.index_limit) == ("[:, 1]", pytest.approx(by_hand))


def test_figures_of_families_are_pooled_and_lengths_may_differ():
    usual = by_index(np.full((2, 3), 2.0), np.full((2, 3), 2.5))
    usual.pool(by_index(np.full((2, 5), 4.0)))
    found = worst(by_index(np.full((1, 5), 4.0), np.array([[4.0, 4.0, 4.0, 4.0, 5.0]])), usual)
    assert (found.index, found.index_scale, found.index_limit) == ("[:, 4]", 4.0, pytest.approx(4e-5))
    found = worst(by_index(np.full((1, 2), 4.0), np.array([[4.0, 5.0]])), usual)
    assert (found.index, found.index_limit) == ("[:, 1]", pytest.approx(2 * 8 * np.sqrt(0.5**2 / 2)))


def test_vectors_and_numbers_have_no_index():
    for shape in ((3,), ()):
        assert worst(by_index(np.ones(shape), np.zeros(shape)), by_index(np.ones(shape))) is None


def test_the_worst_position_beside_pytorchs_own():
    found, own = Differences(), Differences()
    for counts, wrong in ((found, [(0, 1), (2, 1)]), (own, [(2, 1)])):
        differs = np.zeros((50, 3, 2), bool)
        for place in wrong:
            differs[:20, *place] = True
        counts.add(differs, np.zeros_like(differs))
    result = worst_position(found, own, 1e-5)
    assert (result.index, result.index_error, result.index_scale) == ("[:, 0, 1]", 20, 50)
    assert result.index_error > result.index_limit
    again = Differences()
    again.add(differs | (np.arange(6).reshape(3, 2) == 1), np.zeros_like(differs))
    own.take_larger(again)
    result = worst_position(found, own, 1e-5)
    assert result.index_error <= result.index_limit


def test_rows_of_several_lengths_and_lists_of_truth_values():
    found = Differences()
    found.add(np.ones(7, bool), np.zeros(7, bool))
    assert worst_position(found, Differences(), 1e-5) is None
    for length in (3, 4, 3):
        found.add(np.ones((2, length), bool) & (np.arange(length) == 2), np.zeros((2, length), bool))
    result = worst_position(found, Differences(), 1e-9)
    assert (result.index, result.index_error, result.index_scale) == ("[:, 2]", 4, 4)
