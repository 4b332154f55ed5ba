"""The kernels of layers' ends: in Triton's interpreter (see `interpreted_layer_ends`), and compiled for GPUs."""

import interpreted_checks
import pytest

test_checks = interpreted_checks.tests_of("interpreted_layer_ends.py")

TYPES = {
    **dict.fromkeys(("dy_ptr", "z_ptr", "bias_ptr", "y_ptr", "dz_ptr", "dbias_ptr", "alphas_ptr"), "*fp32"),
    **dict.fromkeys(("kinds_ptr", "highest_ptr"), "*i32"),
    **dict.fromkeys(("seeds_ptr", "steps_ptr"), "*i64"),
    "scales_ptr": "*fp32",
    **dict.fromkeys(("rows", "columns", "site"), "i32"),
}


@pytest.mark.parametrize("name", ["layer_end", "layer_end_backward"])
@pytest.mark.parametrize("drops", [False, True])
@pytest.mark.parametrize("generation", [90, *(pytest.param(other, marks=pytest.mark.full) for other in (80, 100, 120))])
def test_the_kernels_keep_their_numbers_in_registers(generation, drops, name):
    pytest.importorskip("triton", reason="Triton has no build for this system")
    from compiled_kernels import compile_kernel, machine_code

    from lit_gelu.replicas.device import layer_end_kernels
    from lit_gelu.replicas.device.layer_ends import BACKWARD_COLUMNS, BACKWARD_ROWS, COLUMNS, ROWS

    kernel = getattr(layer_end_kernels, name)
    rows, columns = (ROWS, COLUMNS) if name == "layer_end" else (BACKWARD_ROWS, BACKWARD_COLUMNS)
    types = {argument: TYPES[argument] for argument in kernel.arg_names if argument in TYPES}
    constants = {"DROPS": drops, "ROWS": rows, "COLUMNS": columns}
    code = machine_code(compile_kernel(kernel, generation, types, constants), rows * columns)
    assert code.beside_registers == 0
    assert code.registers <= 128
