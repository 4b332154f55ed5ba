"""Calls of functions that are read in the code: those that a sample finds, and what is said where none was given."""

import re

import functional_nets as nets
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from lit_gelu import activations, surgery
from lit_gelu.errors import SwapError
from lit_gelu.surgery.sites import Survey

SAMPLE = torch.zeros(3, 4)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.relu, self.calls = nn.Linear(4, 4), nn.ReLU(), [F.mish]

    def activate(self, h):
        return F.silu(h)

    def never(self, h):
        return F.elu(h)

    def forward(self, x, gelu=F.hardswish):
        h = self.activate(F.gelu(self.relu(self.linear(x)), approximate="tanh"))
        return gelu(h.relu()) * torch.sigmoid(x) + self.calls[0](x)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.own = nn.Sequential(Block(), Block()), nn.GELU()

    def forward(self, x):
        return torch.relu(self.own(self.body(x)))


@pytest.mark.parametrize("cls", nets.REWRITTEN)
def test_they_are_the_sites_that_a_sample_finds(cls):
    model = nn.Sequential(cls())
    names = {site.name.partition("#")[0] for site in surgery.find_sites(model, SAMPLE) if site.kind == "call"}
    assert {call.name for call in Survey(model, None, activations.registry).written_calls()} == names


@pytest.mark.parametrize(
    ("target", "missed"),
    [
        ("activation:relu", [":relu", "body.0:relu", "body.1:relu"]),
        ("body.0*", ["body.0:gelu", "body.0:relu", "body.0:silu"]),
        (nn.ReLU, []),
        ("own", []),
    ],
)
def test_a_swap_without_a_sample_says_which_calls_it_leaves(target, missed):
    """Of methods that forward calls too; of modules, of functions that are held or may be others, and of gates none."""
    notes = " ".join(surgery.swap(Net(), {target: "mish"}).notes)
    assert re.findall(r"'([\w.]*:\w+)' \(test_written_calls\.py:", notes) == missed
    assert ("sites only with input_sample" in notes) == bool(missed)
    assert surgery.swap(Net(), {":relu": "mish"}, SAMPLE).notes == ()


class Unread(nn.Module):
    """Holds an activation that nothing calls, as the mixer of Mamba does."""

    def __init__(self):
        super().__init__()
        self.act = nn.SiLU()

    def forward(self, x):
        return F.silu(x)


class ReadElsewhere(nn.Module):
    def __init__(self):
        super().__init__()
        self.part = Holder()

    def forward(self, x):
        return self.part.held(x)


class Holder(nn.Module):
    def __init__(self):
        super().__init__()
        self.held = nn.SiLU()


class ReadByName(Unread):
    def forward(self, x):
        return getattr(self, "a" + "ct")(x)


def test_a_module_that_no_code_calls_is_not_swapped_in_silence():
    with pytest.raises(SwapError):
        surgery.swap(nn.Sequential(Unread()), {"*": "gelu"})
    for model in (ReadElsewhere(), ReadByName()):
        surgery.swap(model, {"*": "gelu"})
        torch.testing.assert_close(model(SAMPLE + 1), F.gelu(SAMPLE + 1))
