"""What torch.compile makes of a fused model on a GPU: few instructions, and one kernel with what is beside it."""

import json
import sys
from pathlib import Path

import pytest
from child_processes import run_command

pytest.importorskip("triton", reason="Triton has no build for this system")
pytestmark = pytest.mark.full  # torch.compile for a GPU takes 20 seconds

HOPPER = "90"


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    path = tmp_path_factory.mktemp("inductor") / "kernels.json"
    script = Path(__file__).parents[2] / "inductor_kernels.py"
    names = ["fused gelu", "torch gelu", "fused bias and gelu"]
    run_command([sys.executable, "-P", "-W", "ignore", str(script), str(path), HOPPER, "--only", *names])
    return json.loads(path.read_text())


@pytest.mark.parametrize(("direction", "most"), [("forward", 20), ("backward", 28)])
def test_a_fused_gelu_is_one_lean_kernel(found, direction, most):
    (kernel,) = found["fused gelu"][direction][HOPPER]
    assert kernel["instructions"] <= most
    assert kernel["beside_registers"] == 0
    assert kernel["widths"] == ["128"]


@pytest.mark.parametrize(("direction", "least"), [("forward", 31), ("backward", 47)])
def test_torchs_own_takes_more_than_a_copy_leaves_time_for(found, direction, least):
    """Which is why a fused one is another; and the count is of the kernel that was asked for."""
    (kernel,) = found["torch gelu"][direction][HOPPER]
    assert kernel["instructions"] > least


def test_a_bias_is_added_in_the_same_kernel(found):
    (forward,) = found["fused bias and gelu"]["forward"][HOPPER]
    assert forward["instructions"] <= 26
    assert forward["widths"] == ["128"]
    elementwise, *sums = found["fused bias and gelu"]["backward"][HOPPER]
    assert elementwise["instructions"] <= 36
    assert all("instructions" not in kernel for kernel in sums)  # the bias's gradient
