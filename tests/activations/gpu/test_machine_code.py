"""What the kernels become for four generations of GPUs: instructions an element, widths of access, nothing spilled."""

import pytest

pytest.importorskip("triton", reason="Triton has no build for this system")

from compiled_kernels import compile_kernel, machine_code

from lit_gelu.activations.gpu import templates

BLOCK = 1024
UNARY = {"n": "i32", "p0": "fp32", "p1": "fp32"}
LEARNED = {"p0_ptr": "*fp32", "p1_ptr": "*fp32", "channels": "i32"}
#: Most instructions an element: a copy at full speed leaves time for 31 forward and 47 backward on an H200.
LIMITS = {
    "gelu": (26, 36),
    "gelu_tanh": (26, 36),
    "swish": (26, 36),
    "mish": (26, 36),
    "elu": (20, 20),
    "hard_swish": (20, 20),
}
#: The newest Triton's own names of compute capabilities; the first is compiled always, the others in the full tests.
GENERATIONS = [90, *(pytest.param(cap, marks=pytest.mark.full) for cap in (80, 100, 120))]


def pointers(dtype, *names):
    return {f"{name}_ptr": f"*{dtype}" for name in names}


def require_lean(code, most, *, wide=True):
    assert code.instructions <= most
    assert code.count("LDL", "STL", "CALL") == 0
    assert not wide or code.accesses == {"128"}


@pytest.mark.parametrize("generation", GENERATIONS)
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("name", LIMITS)
def test_functions_of_one_tensor(name, dtype, generation):
    constants = {"ACT": name, "BLOCK": BLOCK}
    forward = compile_kernel(templates.unary_forward, generation, pointers(dtype, "x", "y") | UNARY, constants)
    backward = compile_kernel(templates.unary_backward, generation, pointers(dtype, "g", "x", "d") | UNARY, constants)
    for compiled, most in zip((forward, backward), LIMITS[name], strict=True):
        require_lean(machine_code(compiled, BLOCK), most)


@pytest.mark.parametrize("generation", GENERATIONS)
@pytest.mark.parametrize("name", ["gaussian_gelu", "swish"])
def test_functions_with_learned_parameters(name, generation):
    sizes, constants = {"inner": "i32"} | LEARNED, {"ACT": name, "BLOCK": BLOCK}
    compiled = compile_kernel(templates.learned_forward, generation, pointers("bf16", "x", "y") | sizes, constants)
    require_lean(machine_code(compiled, BLOCK), 26, wide=False)
    kinds = pointers("bf16", "g", "x", "d") | {"sums_ptr": "*fp32"} | sizes
    compiled = compile_kernel(templates.learned_backward, generation, kinds, constants | {"BLOCKS": 4})
    require_lean(machine_code(compiled, 4 * BLOCK), 48, wide=False)


@pytest.mark.parametrize("generation", GENERATIONS)
@pytest.mark.parametrize("name", ["gaussian_gelu", "swish"])
def test_functions_with_learned_parameters_of_the_last_dimension(name, generation):
    sizes, constants = {"rows": "i32"} | LEARNED, {"ACT": name, "BLOCK": BLOCK, "ROWS": 4}
    compiled = compile_kernel(templates.learned_forward_last, generation, pointers("bf16", "x", "y") | sizes, constants)
    require_lean(machine_code(compiled, 4 * BLOCK), 26)
    kinds = pointers("bf16", "g", "x", "d") | {"sums_ptr": "*fp32"} | sizes
    compiled = compile_kernel(templates.learned_backward_last, generation, kinds, constants)
    require_lean(machine_code(compiled, 4 * BLOCK), 48)


@pytest.mark.parametrize("generation", GENERATIONS)
@pytest.mark.parametrize("name", ["gelu", "gelu_tanh", "swish"])
def test_gated_functions(name, generation):
    sizes, constants = {"n": "i32", "p0": "fp32"}, {"ACT": name, "BLOCK": BLOCK}
    compiled = compile_kernel(templates.gated_forward, generation, pointers("bf16", "x", "y") | sizes, constants)
    require_lean(machine_code(compiled, BLOCK), 26)
    compiled = compile_kernel(templates.gated_backward, generation, pointers("bf16", "g", "x", "d") | sizes, constants)
    require_lean(machine_code(compiled, BLOCK), 36)


@pytest.mark.parametrize("generation", GENERATIONS)
def test_the_zero_identity_map(generation):
    kinds = pointers("bf16", "x", "y") | {"seed_ptr": "*i64", "n": "i32"}
    compiled = compile_kernel(templates.zero_identity_forward, generation, kinds, {"BLOCK": BLOCK})
    require_lean(machine_code(compiled, BLOCK), 28, wide=False)
    kinds = pointers("bf16", "g", "y", "d") | {"n": "i32"}
    compiled = compile_kernel(templates.zero_identity_backward, generation, kinds, {"BLOCK": BLOCK})
    require_lean(machine_code(compiled, BLOCK), 28)
