"""Kernels through torch's autograd: layouts, gradients, transforms, failures; see `interpreted_autograd`."""

import json
import sys
from pathlib import Path

import pytest
import torch
from child_processes import run_command
from torch.nn import functional as F

from lit_gelu.activations.gpu import autograd, routes

NAMES = [
    "every_function",
    "layouts_of_inputs",
    "layouts_of_gradients",
    "gradient_of_a_sum_and_of_a_cat",
    "second_derivatives",
    "transforms_of_functions",
    "torchs_checks_of_operators",
    "only_the_input_is_kept",
    "a_failing_kernel_stops_nothing",
    "a_kernel_that_fails_in_the_backward_pass_stops_nothing",
    "a_lack_of_memory_is_no_failure_of_a_kernel",
]


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    pytest.importorskip("triton", reason="Triton has no build for this system")
    path = tmp_path_factory.mktemp("autograd") / "found.json"
    script = Path(__file__).parents[2] / "interpreted_autograd.py"
    run_command([sys.executable, "-W", "ignore", str(script), str(path)])
    return json.loads(path.read_text())


def test_all_checks_ran(found):
    assert list(found) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_check(found, name):
    assert not found[name], found[name]


@pytest.mark.parametrize("name", ["gelu", "gelu_tanh"])
def test_a_compiler_traces_the_formula_and_its_slope(monkeypatch, name):
    monkeypatch.setattr(routes, "_compiled_route", lambda _: routes.Route("formula", ""))
    approximate = {"gelu": "none", "gelu_tanh": "tanh"}[name]
    kernel = autograd.TritonKernel(name)

    def plain(x):
        raise AssertionError("the formula was to be traced")

    @torch.compile(backend="aot_eager", fullgraph=True)
    def compiled(x):
        return autograd.fused(kernel, plain, x)

    x = torch.linspace(-6, 6, 400).bfloat16().requires_grad_()
    y = compiled(x)
    y.backward(torch.ones_like(x))
    wide = x.detach().double().requires_grad_()
    wanted = F.gelu(wide, approximate=approximate)
    wanted.sum().backward()
    assert torch.all((y - wanted).abs() <= 0.51 * 2.0**-7 * wanted.abs() + 1e-9)
    assert torch.allclose(x.grad.double(), wide.grad, rtol=2.0**-8, atol=2.0**-9)
