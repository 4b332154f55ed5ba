"""What of a batch a model is run on."""

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_sequence

from lit_gelu.curvature.probe.batches import forward_sample, tried_inputs

LEFT, RIGHT, TARGET = torch.arange(12.0).view(4, 3), torch.ones(4, 2), torch.arange(4)


class Taking(nn.Module):
    """A module whose forward is a function."""

    def __init__(self, function):
        super().__init__()
        self.forward = function


@pytest.mark.parametrize(
    ("forward", "batch", "wanted"),
    [
        (lambda xs: torch.cat(xs, 1), ([LEFT, RIGHT], TARGET), ([LEFT[:2], RIGHT[:2]],)),
        (lambda xs: torch.cat(xs, 1), ([LEFT], TARGET), ([LEFT[:2]],)),
        (lambda x: x + 1, ([LEFT], TARGET), (LEFT[:2],)),
        (lambda a, b: torch.cat([a, b], 1), ([LEFT, RIGHT], TARGET), (LEFT[:2], RIGHT[:2])),
        (lambda d: d["x"] + 1, ({"x": LEFT}, TARGET), ({"x": LEFT[:2]},)),
        (lambda x: x + 1, ({"x": LEFT}, TARGET), {"x": LEFT[:2]}),
        (lambda batch: batch["x"], {"x": LEFT, "y": TARGET}, ({"x": LEFT[:2], "y": TARGET[:2]},)),
        (lambda **named: named["x"], {"x": LEFT, "y": TARGET}, {"x": LEFT[:2], "y": TARGET[:2]}),
        (lambda x: x + 1, {"x": LEFT, "y": TARGET}, {"x": LEFT[:2]}),
        (lambda x: x + 1, (LEFT, TARGET), LEFT[:2]),
    ],
)
def test_inputs_are_the_arguments_that_forward_runs_on(forward, batch, wanted):
    found = forward_sample(Taking(forward), batch)
    assert type(found) is type(wanted)
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)


@pytest.mark.parametrize("batch", [(), [[]], ("text", TARGET), ([pack_sequence([LEFT])], TARGET), None])
def test_a_batch_without_inputs_gives_none(batch):
    model = Taking(lambda x: x + 1)
    assert forward_sample(model, batch) is None


def test_the_first_failure_is_told():
    sample, failure = tried_inputs(Taking(lambda x: x.view(4, 3)), (LEFT, TARGET))
    assert sample is None
    assert isinstance(failure, RuntimeError)
