"""What decides: limits by family and output, against the formula computed by hand."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from lit_gelu import activations
from lit_gelu.export import ModelInputError
from lit_gelu.export.inputs import take_apart
from lit_gelu.export.parity.comparison import Comparison, WorstBatch
from lit_gelu.export.parity.input_families import Family
from lit_gelu.export.parity.references import Outputs, References

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
        exact, own = module(SAMPLE.to(dtype).double()), low(SAMPLE.to(dtype))
    for row in rows:
        error = float((own[row.output].double() - exact[row.output]).abs().max() / exact[row.output].abs().max())
        assert row.own == pytest.approx(error)
        assert row.limit == pytest.approx(max(1e-5 + torch.finfo(dtype).eps / 2, 2 * error))
        assert row.error < 1e-12
        assert row.passed


def test_extremes_are_judged_by_at_least_the_usual_size():
    judge, _ = comparer(off_by(0.1))
    (usual,) = [row for row in judge.compare([Family("gaussian", [(SAMPLE,)])]) if row.gating and row.output == "large"]
    zeros = Family("zeros", [(0 * SAMPLE,)], extreme=True)
    (row,) = [row for row in judge.compare([zeros]) if row.gating and row.output == "large"]
    assert row.scale == usual.scale
    large = Family("large", [(1e3 * SAMPLE,)], extreme=True)
    (row,) = [row for row in judge.compare([large]) if row.gating and row.output == "large"]
    assert row.scale > 100 * usual.scale


def test_a_batch_of_extremes_is_judged_again_as_extremes_are():
    """An index's usual size says nothing of inputs a thousand times as large."""
    judge, _ = comparer(off_by(0.0))
    judge.compare([Family("gaussian", [(SAMPLE,)])])
    large = Family("large", [(1e6 * SAMPLE,)], extreme=True)
    judged = [row.excess for row in judge.compare([large]) if row.gating]
    assert max(judged) <= 1
    with torch.no_grad():
        own = [y.numpy() for y in TwoOutputs()(1e6 * SAMPLE).values()]
    worst = WorstBatch(0.0, (1e6 * SAMPLE,), large)
    assert 0 < judge.excess_on(worst)(own) <= 1
    assert judge.excess_on(WorstBatch(0.0, worst.batch, replace(large, extreme=False)))(own) > 1


def test_a_few_rows_of_a_family_have_at_least_its_own_error():
    judge, _ = comparer(off_by(0.0), torch.bfloat16)
    x = SAMPLE.to(torch.bfloat16)
    whole = [row for row in judge.compare([Family("all", [(x,)])]) if row.gating]
    part = [row for row in judge.compare([Family("one", [(x[:1],)], rows_of="all")]) if row.gating]
    assert [row.limit for row in part] >= [max(2 * a.own, 2 * b.own) for a, b in zip(whole, part, strict=True)]


def test_the_batch_that_is_worst_is_kept():
    module = TwoOutputs().double()

    def run(batch):
        with torch.no_grad():
            return [y.numpy() + (1e-2 if len(batch[0]) == 3 else 0) for y in module(batch[0].double()).values()]

    judge, _ = comparer(run)
    judge.compare([Family("data", [(SAMPLE[:2],), (SAMPLE[:3],), (SAMPLE[:4],)])])
    assert len(judge.worst.batch[0]) == 3
    assert judge.excess_on(judge.worst)(run(judge.worst.batch)) == judge.worst.excess


def test_a_module_with_other_outputs_than_the_file():
    judge, _ = comparer(lambda batch: [np.zeros((8, 4))])
    with pytest.raises(ModelInputError):
        judge.compare([Family("sample", [(SAMPLE,)])])


class Known:
    """References whose float32 is off by what it was told."""

    def __init__(self, own, varied):
        self.own, self.errors, self.asked = own, varied, 0

    def outputs(self, batch):
        x = batch[0].double().numpy()
        return Outputs([x + self.own], [x], None)

    def varied(self, batch):
        for error in self.errors:
            self.asked += 1
            yield [batch[0].double().numpy() + error], [batch[0].double().numpy()]


def a_file_that_is_off(own, varied, *, extreme):
    """The row of a file that is off by 5e-5, where PyTorch is off by ``own``, and at other times more."""
    references = Known(own, varied)
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
