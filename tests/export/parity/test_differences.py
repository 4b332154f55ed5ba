"""Differences: infinities, NaN, ignored amounts, and changed classes."""

import numpy as np
import torch

from lit_gelu.export.parity.differences import Differences, fills


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
    np.testing.assert_allclose([found.max_abs, found.mean_abs, found.scale], [0.2, 0.1, 8.2])
    np.testing.assert_allclose(found.relative(found.scale, 0.0), 0.2 / 8.2)
    assert found.relative(8.2, ignored=0.3) == 0
    assert found.relative(0.0, ignored=0.0) == float("inf")


def test_the_scale_is_the_largest_of_all_batches_whichever_it_is_in():
    for batches in ([1.0, 8.0, 2.0], [8.0, 1.0, 2.0]):
        found = Differences()
        for value in batches:
            found.add(np.array([[value + 0.5]]), np.array([[value]]))
        assert found.scale == 8.0
        assert found.relative(found.scale, 0.0) == 0.5 / 8


def test_a_scale_below_one_is_not_rounded_up_and_without_finite_values_there_is_none():
    found = Differences()
    found.add(np.array([[0.03]]), np.array([[0.02]]))
    assert found.scale == 0.02
    nothing = Differences()
    nothing.add(np.array([[np.inf, np.nan]]), np.array([[np.inf, np.inf]]), np.array([[np.inf, np.inf]]))
    assert (nothing.scale, nothing.max_abs, nothing.nonfinite) == (0, 0, 0)
    assert Differences().mean_abs == 0


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


def test_a_changed_class_counts_as_a_flip_only_beyond_the_margin():
    found = Differences()
    found.add(np.array([[0.0, 1.0], [1.0, 0.0]], np.float32), np.array([[0.6, 0.4], [1.0, 0.0]]))
    assert found.top1_agreement == 0.5
    assert len(found.changed_margins) == 1
    assert found.top1_flips(allowed=0.05) == 1  # the margin was 0.2
    assert found.top1_flips(allowed=0.15) == 0
    assert Differences().top1_flips(1.0) is None


LOWEST = np.finfo(np.float32).min


def filled(output, own, exact):
    return fills(
        np.float32(output), None if own is None else np.float32(own), np.float64(exact), torch.float32
    ).tolist()


def test_a_fill_is_what_file_pytorch_and_float64_hold_beyond_all_else():
    assert filled([[-1e9, 1.5, 2.5]], [[-1e9, 1.5, 2.5]], [[-1e9, 1.5000001, 2.5000001]]) == [[True, False, False]]
    assert filled([[-1e9, 1.5]], None, [[-1e9, 1.5000001]]) == [[True, False]]
    assert filled([[-1e9, -1e9]], [[-1e9, -1e9]], [[-1e9, -1e9]]) == [[True, True]]
    assert filled([[1.0, 1e-8]], [[1.0, 1e-8]], [[1.0, 1.1e-8]]) == [[False, False]]  # what saturates is no fill
    assert filled([[4096, 900]], [[4096, 900]], [[4096, 900.0001]]) == [[False, False]]
    for y, own, exact in ((-1e9, -1e8, -1e9), (-1e8, -1e9, -1e9), (-1e8, -1e8, -1e9), (np.nan, np.nan, np.nan)):
        assert filled([[y]], [[own]], [[exact]]) == [[False]]


def test_a_fill_of_the_dtype_is_one_where_the_file_has_it_as_pytorch_has():
    lowest64 = np.finfo(np.float64).min
    assert filled([[LOWEST, 1]], [[LOWEST, 1]], [[lowest64, 1]]) == [[True, False]]
    for y, own in ((-np.inf, LOWEST), (np.nan, LOWEST), (1, LOWEST), (LOWEST, -np.inf), (LOWEST, None)):
        assert filled([[y]], None if own is None else [[own]], [[lowest64]]) == [[False]]


def test_what_is_filled_is_right_and_has_no_scale_and_classes_are_compared_all_the_same():
    reference = np.array([[np.finfo(np.float64).min, -2.0, -1.0]])
    found = Differences()
    output = np.array([[LOWEST, -1.0, -2.0]], np.float32)
    found.add(output, reference, filled=fills(output, output, reference, torch.float32))
    assert (found.max_abs, found.nonfinite, found.scale) == (1, 0, 2)
    assert found.top1_agreement == 0
