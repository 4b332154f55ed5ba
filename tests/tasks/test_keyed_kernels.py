"""The kernel of dropout by key: in Triton's interpreter (see `interpreted_keyed_dropout`), and compiled for GPUs."""

import interpreted_checks
import pytest
import torch

from lit_gelu.tasks.keyed_dropout import KeyedDropout

test_checks = interpreted_checks.tests_of("interpreted_keyed_dropout.py")

TYPES = {
    **dict.fromkeys(("x_ptr", "y_ptr", "scales_ptr"), "*fp32"),
    **dict.fromkeys(("seeds_ptr", "steps_ptr"), "*i64"),
    "highest_ptr": "*i32",
    **dict.fromkeys(("n", "site", "rank"), "i32"),
}


@pytest.mark.parametrize("generation", [90, *(pytest.param(other, marks=pytest.mark.full) for other in (80, 100, 120))])
def test_the_kernel_is_lean(generation):
    pytest.importorskip("triton", reason="Triton has no build for this system")
    from compiled_kernels import BLOCK, compile_kernel, machine_code

    from lit_gelu.tasks.keyed_kernels import keyed_dropout

    code = machine_code(compile_kernel(keyed_dropout, generation, TYPES, {"BLOCK": BLOCK}), BLOCK)
    assert code.instructions <= 44  # of which the generator takes about 32
    assert code.beside_registers == 0
    assert "128" in code.accesses


@pytest.mark.gpu
def test_masks_on_a_gpu_are_those_of_the_cpu():
    torch.manual_seed(0)
    layer, x = KeyedDropout(0.3, 2), torch.randn(300, 70)
    expected = [layer(x) for _ in range(2)]
    layer.step.zero_()
    layer.cuda()
    leaf = x.cuda().requires_grad_()
    found = [layer(leaf) for _ in range(2)]
    assert all(torch.equal(one.cpu(), other) for one, other in zip(found, expected, strict=True))
    found[0].sum().backward()
    assert torch.equal(leaf.grad.cpu() == 0, expected[0] == 0)
