"""The kernel of Adam over a stack: in Triton's interpreter (see `interpreted_adam`), and compiled for GPUs."""

import interpreted_checks
import pytest

test_checks = interpreted_checks.tests_of("interpreted_adam.py")

TYPES = {
    **dict.fromkeys(("p_ptr", "m_ptr", "v_ptr", "g_ptr", "sizes_ptr", "root_ptr"), "*fp32"),
    "active_ptr": "*i32",
    "places_ptr": "*i64",
    "n": "i32",
    **dict.fromkeys(("rest1", "beta2", "rest2", "eps"), "fp32"),
}


@pytest.mark.parametrize("generation", [90, *(pytest.param(other, marks=pytest.mark.full) for other in (80, 100, 120))])
def test_the_kernel_is_lean(generation):
    pytest.importorskip("triton", reason="Triton has no build for this system")
    from compiled_kernels import BLOCK, compile_kernel, machine_code

    from lit_gelu.replicas.device.adam_kernel import adam_step

    code = machine_code(compile_kernel(adam_step, generation, TYPES, {"BLOCK": BLOCK}), BLOCK)
    assert code.beside_registers == 0
    assert "128" in code.accesses
    assert code.instructions <= 60  # 28 bytes an element leave time for more
