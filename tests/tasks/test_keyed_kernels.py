"""The kernel of dropout by key: in Triton's interpreter (see `interpreted_keyed_dropout`), and compiled for GPUs."""

import interpreted_checks
import pytest

test_check = interpreted_checks.tests_of("interpreted_keyed_dropout.py")

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
