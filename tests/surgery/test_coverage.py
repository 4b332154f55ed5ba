"""What really ran, counted at torch's operators."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from lit_gelu import activations, surgery
from lit_gelu.errors import SwapError
from lit_gelu.surgery import coverage

SAMPLE = torch.randn(3, 4, generator=torch.Generator().manual_seed(1))


class Kinds(nn.Module):
    def __init__(self):
        super().__init__()
        self.act, self.held, self.idle = nn.GELU(), F.relu, nn.ReLU()

    def forward(self, x):
        for _ in range(3):
            x = self.act(x)
        return F.gelu(self.held(x), approximate="tanh") * torch.sigmoid(x)


def test_calls_by_site_and_by_function():
    report = coverage(nn.Sequential(Kinds()), SAMPLE)
    assert {row.name: row.calls for row in report.sites} == {
        "0.held": 1,
        "0:gelu": 1,
        "0:sigmoid": 1,
        "0.act": 3,
        "0.idle": 0,
    }
    assert report.remaining("gelu") == 4
    assert report.remaining("gelu(approximate='none')") == 3
    assert report.remaining("gelu_tanh") == 1
    assert report.remaining("relu") == 1
    assert report.remaining("mish") == 0
    assert [row.name for row in report.never_ran] == ["0.idle"]
    assert report.counts() == {"relu": 1, "gelu(approximate='tanh')": 1, "gelu": 3}
    assert report.outside == ()
    assert report.sites[0].where[0].startswith("test_coverage.py:")
    assert report.sites[-2].kernels == (("gelu", 3),)


# Every function that the registry names, with the operator that torch has for it.
@pytest.mark.parametrize(
    ("function", "spec"),
    [
        *((function, entry.name) for entry in activations.registry.entries() for function in entry.functions),
        (lambda x: F.gelu(x, approximate="tanh"), "gelu(approximate='tanh')"),
        (lambda x: F.leaky_relu(x, 0.2), "leaky_relu(negative_slope=0.2)"),
        (lambda x: F.elu(x, alpha=0.5), "elu(alpha=0.5)"),
        (lambda x: F.celu(x, alpha=0.5), "celu(alpha=0.5)"),
        (lambda x: F.softplus(x, 2, 30), "softplus(beta=2.0, threshold=30.0)"),
        (lambda x: F.hardtanh(x, 0, 6), "relu6"),
        (lambda x: F.prelu(x, torch.ones(1)), "prelu"),
        (torch.special.expit, "sigmoid"),
    ],
)
def test_every_function_of_the_registry_is_seen_at_the_operators(function, spec):
    if spec == "glu":
        return  # no activation could stand there; it is no site

    class Calls(nn.Module):
        def forward(self, x):
            return self.run(x)

        @staticmethod
        def run(x):
            return function(x.clone())

    report = coverage(Calls(), torch.randn(2, 4))
    (seen,) = [row.spec for row in (*report.sites, *report.outside) if row.calls]
    expected = activations.registry.resolve(spec)
    assert seen.name == expected.name
    assert {key: value for key, value in seen.arguments.items() if key not in {"inplace", "num_parameters"}} == (
        expected.arguments
    )


def test_a_kernel_that_passes_the_module_by_leaves_it_without_a_call():
    """Liger's MLP does so: it calls one kernel of SiLU and product, and never looks at ``act_fn``."""

    class Fused(torch.autograd.Function):
        @staticmethod
        def forward(ctx, gate, up):
            return F.silu(gate) * up

    class MLP(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate_proj, self.up_proj, self.act_fn = nn.Linear(4, 4), nn.Linear(4, 4), nn.SiLU()

        def forward(self, x):
            return Fused.apply(self.gate_proj(x), self.up_proj(x))

    model = MLP()
    report = surgery.swap(model, {"act_fn": "gelu"}, SAMPLE)
    assert report.rows[0].calls == 0
    after = coverage(model, SAMPLE)
    assert [row.name for row in after.never_ran] == ["act_fn"]
    assert after.remaining("silu") == 1
    assert after.remaining("gelu") == 0


def test_recurrent_relus_are_outside():
    assert coverage(nn.RNN(4, 4, nonlinearity="relu"), torch.zeros(3, 2, 4)).remaining("relu") == 3


def test_what_is_no_model_or_has_no_sample_is_refused():
    with pytest.raises(SwapError):
        coverage(nn.ReLU(), None)
    with pytest.raises(SwapError):
        coverage("model", SAMPLE)
