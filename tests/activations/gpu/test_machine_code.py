"""What the kernels become for four generations of GPUs: instructions an element, widths of access, nothing spilled."""

import pytest

pytest.importorskip("triton", reason="Triton has no build for this system")

from compiled_kernels import GENERATIONS, template_cases

from lit_gelu.activations.gpu import device, templates

HOPPER = 90
CASES = [case for dtype in ("bf16", "fp16") for case in template_cases(dtype)]


def marked(case, generation):
    """Outside the full tests: bfloat16 for one generation, and GELU for all and in both dtypes."""
    gelu = case.template.startswith("unary") and case.function == "gelu"
    often = (case.dtype == "bf16" and (gelu or generation == HOPPER)) or (gelu and generation == HOPPER)
    return pytest.param(case, generation, marks=() if often else pytest.mark.full, id=f"{case}-sm_{generation}")


def test_every_template_is_compiled():
    kinds = {name: type(found) for name, found in vars(templates).items() if not name.startswith("_")}
    kernels = {name for name, kind in kinds.items() if kind is type(templates.unary_forward)}
    assert {case.template for case in CASES} == {name for name in kernels if name not in vars(device)}


@pytest.mark.one_in(9)
@pytest.mark.parametrize(("case", "generation"), [marked(case, cap) for cap in GENERATIONS for case in CASES])
def test_a_kernel_is_lean(case, generation):
    code = case.compiled(generation)
    assert code.instructions <= case.most
    assert code.beside_registers == 0
    assert code.accesses <= case.widths
    assert "128" in code.accesses
    assert 16 <= code.registers <= 128  # of which 16 warps are at work at a time
