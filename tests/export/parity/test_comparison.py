"""What decides: limits by family and output, against the formula computed by hand."""

import numpy as np
import pytest
import torch
from torch import nn

from lit_gelu import activations
from lit_gelu.export import ModelInputError
from lit_gelu.export.inputs import take_apart
from lit_gelu.export.parity.comparison import Comparison
from lit_gelu.export.parity.criterion import Differences, worst_index, worst_position
from lit_gelu.export.parity.input_families import Family
from lit_gelu.export.parity.runs import Outputs, References

SAMPLE = torch.randn(8, 6, generator=torch.Generator().manual_seed(0))


class TwoOutputs(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.large, self.small = nn.Linear(6, 4), nn.Linear(6, 4)
        with torch.no_grad():
            self.small.weight.mul_(1e-4)
            self.small.bias.mul_(1e-4)

    def forward(self, x):
        return {"large": self.large(x), "small": self.small(x)}


def comparer(run, dtype=torch.float32, module=None, tolerance=1e-5):
    module = module or TwoOutputs()
    references = References(module, take_apart(module, SAMPLE), "as_trained", activations.registry, None, dtype)
    return Comparison(run, references, ["large", "small"], lambda batch: batch, dtype, tolerance), references


def off_by(share):
    module = TwoOutputs().double()

    def run(batch):
        with torch.no_grad():
            return [(y + share * 1e-4).numpy() for y in module(batch[0].double()).values()]

    return run


def test_each_output_is_judged_by_its_own_size():
    judge, _ = comparer(off_by(1e-3))  # both outputs are off by 1e-7
    rows = {row.output: row for row in judge.compare([Family("sample", [(SAMPLE,)])]) if row.gating}
    assert rows["large"].passed
    assert not rows["small"].passed
    with torch.no_grad():
        exact = TwoOutputs().double()(SAMPLE.double())
    for name, row in rows.items():
        assert row.scale == pytest.approx(float(exact[name].abs().max()))
        assert row.error == pytest.approx(1e-7 / row.scale)
    smallest = float(exact["small"].abs().amax(0).min())  # of its columns
    assert judge.worst.excess == rows["small"].excess == pytest.approx(1e-7 / (1e-5 * smallest))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_in_16_bit_the_limit_is_twice_pytorchs_own_error(dtype):
    judge, _ = comparer(off_by(0.0), dtype)
    rows = [row for row in judge.compare([Family("sample", [(SAMPLE.to(dtype),)])]) if row.gating]
    module, low = TwoOutputs().double(), TwoOutputs().to(dtype)
    with torch.no_grad():
        exact, values = module(SAMPLE.to(dtype).double()), low(SAMPLE.to(dtype))
    for row in rows:
        error = float((values[row.output].double() - exact[row.output]).abs().max() / exact[row.output].abs().max())
        assert row.own == pytest.approx(error)
        assert row.limit == pytest.approx(max(1e-5 + torch.finfo(dtype).eps / 2, 2 * error))
        assert row.error < 1e-12
        assert row.passed


def test_a_module_with_other_outputs_than_the_file():
    judge, _ = comparer(lambda batch: [np.zeros((8, 4))])
    with pytest.raises(ModelInputError):
        judge.compare([Family("sample", [(SAMPLE,)])])


class StandIn:
    """References whose float32 is off by what it was told."""

    def __init__(self, shift, varied):
        self.shift, self.errors, self.asked = shift, varied, 0

    def outputs(self, batch):
        x = batch[0].double().numpy()
        return Outputs([x + self.shift], [x], None)

    def varied(self, batch):
        for error in self.errors:
            self.asked += 1
            yield [batch[0].double().numpy() + error], [batch[0].double().numpy()]


def a_file_that_is_off(shift, varied, *, extreme):
    """The row of a file that is off by 5e-5, where PyTorch is off by ``shift``, and at other times more."""
    references = StandIn(shift, varied)
    judge = Comparison(lambda b: [b[0].double().numpy() + 5e-5], references, ["y"], lambda b: b, torch.float32, 1e-5)
    (row,) = [row for row in judge.compare([Family("few", [(torch.ones(2, 1),)], extreme=extreme)]) if row.gating]
    return row, references.asked


@pytest.mark.parametrize("extreme", [True, False])
def test_before_a_breach_counts_pytorchs_own_error_is_measured_again(extreme):
    row, asked = a_file_that_is_off(1e-5, [1e-5, 3e-5, 1.0], extreme=extreme)
    assert row.passed
    assert (row.own, row.limit) == (pytest.approx(3e-5), pytest.approx(6e-5))
    assert asked <= 3  # and no further than it takes
    assert a_file_that_is_off(1e-6, [1e-6, 2e-6], extreme=extreme)[0].passed is False
    assert a_file_that_is_off(3e-5, [1.0], extreme=extreme)[1] == 0


def test_infinities_and_nan_are_counted():
    reference = np.array([[1.0, 1e39, 2.0, 3.0]])
    differences = Differences()
    differences.add(np.array([[1.5, np.inf, np.nan, -np.inf]], np.float32), reference)
    assert (differences.max_abs, differences.nonfinite) == (0.5, 2)
    excused = Differences()
    excused.add(np.array([[1.5, np.inf, np.nan, 3.0]], np.float32), reference, np.array([[1, np.inf, np.nan, 3.0]]))
    assert (excused.max_abs, excused.nonfinite) == (0.5, 0)


def test_an_output_of_another_shape_is_infinitely_wrong():
    differences = Differences()
    differences.add(np.zeros((2, 3)), np.zeros((2, 4)))
    assert differences.relative(1.0, 0.0) == float("inf")
    filled = Differences()
    filled.add(np.zeros((2, 3)), np.zeros((2, 4)), filled=np.zeros((2, 4), dtype=bool))
    assert filled.relative(1.0, 0.0) == float("inf")


def by_index(reference, output=None):
    """Differences of an output, or of the reference from itself."""
    differences = Differences()
    differences.add(np.asarray(reference if output is None else output), np.asarray(reference))
    return differences


def worst(differences, usual):
    return worst_index(differences, usual, 0.0, torch.float32, 1e-5)


def test_the_index_farthest_from_its_own_size_is_found_in_every_dimension_but_the_first():
    exact = np.ones((4, 3, 5, 7)) * np.array([1e4, 1.0, 1e-2]).reshape(3, 1, 1)
    wrong = exact.copy()
    wrong[1, 2, 0, 0] += 1e-3
    result = worst(by_index(exact, wrong), by_index(exact))
    assert result.index == "[:, 2]"
    assert (result.index_error, result.index_scale) == (pytest.approx(1e-3), 1e-2)
    assert result.index_limit == pytest.approx(1e-5 * 1e-2)
    last, wrong = exact.transpose(0, 2, 3, 1), wrong.transpose(0, 2, 3, 1)
    assert worst(by_index(last, wrong), by_index(last)).index == "[:, :, :, 2]"


def test_figures_of_families_are_pooled_and_lengths_may_differ():
    usual = by_index(np.full((2, 3), 2.0), np.full((2, 3), 2.5))
    usual.pool(by_index(np.full((2, 5), 4.0)))
    result = worst(by_index(np.full((1, 5), 4.0), np.array([[4.0, 4.0, 4.0, 4.0, 5.0]])), usual)
    assert (result.index, result.index_scale, result.index_limit) == ("[:, 4]", 4.0, pytest.approx(4e-5))
    result = worst(by_index(np.full((1, 2), 4.0), np.array([[4.0, 5.0]])), usual)
    assert (result.index, result.index_limit) == ("[:, 1]", pytest.approx(2 * 8 * np.sqrt(0.5**2 / 2)))


def test_the_worst_position_beside_pytorchs_own():
    differences, usual = Differences(), Differences()
    for counts, wrong in ((differences, [(0, 1), (2, 1)]), (usual, [(2, 1)])):
        differs = np.zeros((50, 3, 2), bool)
        for place in wrong:
            differs[:20, *place] = True
        counts.add(differs, np.zeros_like(differs))
    result = worst_position(differences, usual, 1e-5)
    assert (result.index, result.index_error, result.index_scale) == ("[:, 0, 1]", 20, 50)
    assert result.index_error > result.index_limit
    again = Differences()
    again.add(differs | (np.arange(6).reshape(3, 2) == 1), np.zeros_like(differs))
    usual.take_larger(again)
    result = worst_position(differences, usual, 1e-5)
    assert result.index_error <= result.index_limit
