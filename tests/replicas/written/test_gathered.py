"""Batches that are gathered, at once or one by one, against indexing."""

import pytest
import torch

from lit_gelu.replicas.written import gathered as module
from lit_gelu.replicas.written.gathered import gathered


@pytest.mark.parametrize(
    ("features", "together"),
    [
        pytest.param(16, 5, id="all at once"),
        pytest.param(2**13, 2, id="two at once"),
        pytest.param(2**16, 1, id="too large"),
        pytest.param(5, 1, id="not aligned"),
    ],
)
def test_batches(features, together):
    samples, rows = torch.randn(9, features), torch.randint(9, (5, 4))
    asked = []

    def kept(name, *sizes, dtype):
        asked.append(sizes)
        return torch.empty(sizes, dtype=dtype)

    for batch, wanted in zip(gathered(samples, rows, kept), rows, strict=True):
        assert torch.equal(batch, samples[wanted])
        assert together == 1 or batch.data_ptr() % module.ALIGNED == 0
    assert asked == [(together, 4, features)]
