"""`identify` names what a function computes, and says so where its values do not tell."""

import functools

import activation_ports as ports
import numpy as np
import onnxruntime
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from lit_gelu import activations
from lit_gelu.activations.functional import gaussian_gelu, leaky_relu
from lit_gelu.audit import QuantizedDtype, identify
from lit_gelu.audit.candidates import formulas
from lit_gelu.errors import ArgumentError, AuditError
from lit_gelu.export import export_onnx

ROWS = [str(row) for row in formulas(activations.registry)]
DTYPES = ("float32", "float16", "bfloat16")
WIDE_FIRST = ["float32", *(pytest.param(each, marks=pytest.mark.full) for each in DTYPES[1:])]
GELU, TANH, QUICK = "gelu", "gelu(approximate='tanh')", "gelu(approximate='sigmoid')"


def tanh_gelu(x):
    return F.gelu(x, approximate="tanh")


def names(identification):
    """Give the name, and all that are the same numbers, of a function that is decided."""
    assert identification.decided, str(identification)
    return (identification.spec, *identification.equal)


def session_of(spec, dtype, folder):
    """Run the activation in onnxruntime, from the file that the package exports."""
    path = folder / "activation.onnx"
    net = nn.Sequential(activations.create(spec)).eval()
    export_onnx(net, path, torch.zeros(2, 1), dtype=getattr(torch, dtype), target="ort-cpu")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return ports.arrays_only(lambda x: session.run(None, {name: x.reshape(-1, 1)})[0].reshape(-1))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("spec", ROWS)
def test_every_row_is_named_from_its_module(spec, dtype):
    module = activations.create(spec).eval().to(getattr(torch, dtype))
    assert spec in names(identify(module, dtype))


@pytest.mark.parametrize("dtype", WIDE_FIRST[:2])
@pytest.mark.parametrize("spec", ROWS)
def test_every_row_is_named_from_onnxruntime(spec, dtype, tmp_path):
    assert spec in names(identify(session_of(spec, dtype, tmp_path), dtype))


@pytest.mark.parametrize("dtype", [*DTYPES, "float64"])
@pytest.mark.parametrize("spec", ports.FORMULAS)
def test_formulas_of_scipy_are_named(spec, dtype):
    assert spec in names(identify(ports.in_float64(ports.FORMULAS[spec]), dtype))


@pytest.mark.parametrize(
    ("kernel", "spec"),
    [
        (ports.tanh_form_of(ports.eigen_tanh), TANH),
        (ports.tanh_form_of(lambda x: 2 / (1 + np.exp(-2 * x)) - 1), TANH),
        (ports.arrays_only(lambda x: x * np.float32(0.5) * (1 + ports.hastings_erf(x * np.float32(0.5**0.5)))), GELU),
        (lambda x: 0.5 * x * (1 + torch.erf(x / 2**0.5)), GELU),
        (lambda x: 0.5 * x * torch.erfc(-x * 0.70710678), GELU),
        (lambda x: 0.5 * x * (1 + torch.tanh(x / 2)), "silu"),
        (lambda x: x * torch.sigmoid(1.5957691216 * (x + 0.044715 * x**3)), TANH),
        (lambda x: x * ((1 + x.exp()) ** 2 - 1) / ((1 + x.exp()) ** 2 + 1), "mish"),
    ],
    ids=["eigen", "exponential", "hastings", "erf", "erfc", "silu-by-tanh", "tanh-by-sigmoid", "mish-by-exp"],
)
def test_a_kernel_by_another_formula_is_named(kernel, spec):
    assert spec in names(identify(kernel))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("spec", ports.STEPWISE)
def test_arithmetic_of_16_bits_is_never_misnamed(spec, dtype):
    number = ports.NUMPY[dtype]
    identification = identify(ports.arrays_only(lambda x: ports.STEPWISE[spec](x, number)), dtype)
    assert spec in identification.specs
    # Native bfloat16 errs by more than the two forms of GELU differ by.
    assert identification.decided or (spec, dtype) == (TANH, "bfloat16")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ports.UNREGISTERED)
def test_what_is_not_registered_has_no_name_but_a_neighbour(name, dtype):
    identification = identify(lambda x: ports.UNREGISTERED[name](x.float()).to(x.dtype), dtype)
    assert identification.spec is None
    assert not identification.decided
    assert identification.specs == ()
    assert identification.candidates[0].absolute > 1e-3
    assert identification.first_difference is not None


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("function", [ports.integer_gelu, ports.hard_gelu], ids=["i-bert", "hard-gelu"])
def test_a_hard_approximation_is_not_what_it_approximates(function, dtype):
    assert identify(ports.arrays_only(function), dtype).spec is None


@pytest.mark.parametrize("formula", [ports.quick, ports.silu, ports.tanh_form], ids=["quick", "silu", "tanh"])
def test_a_rough_exponential_does_not_pass_for_the_exact_one(formula):
    rate = {ports.quick: 1.702, ports.silu: 1.0}.get(formula)

    def kernel(x):
        inner = rate * x if rate else 2 * ports.ROOT * (x + 0.044715 * x**3)
        return (x / (1 + ports.rough_exp(-inner.astype(np.float32)))).astype(x.dtype)

    identification = identify(ports.arrays_only(kernel))
    assert identification.spec is None
    assert identification.candidates[0].absolute > 1e-3


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("exact_side", [1, -1])
def test_a_function_that_is_exact_on_one_side_of_0_is_not_decided(exact_side, dtype):
    assert not identify(lambda x: torch.where(exact_side * x > 0, F.gelu(x), tanh_gelu(x)), dtype).decided


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_mean_of_two_forms_is_not_decided(dtype):
    assert not identify(lambda x: (F.gelu(x) + tanh_gelu(x)) / 2, dtype).decided


# What public issues report, replayed on functions.


def noted(identification, word):
    return any(word in note for note in identification.notes)


@pytest.mark.parametrize("formula", [GELU, TANH, QUICK, "tanh"])
@pytest.mark.parametrize("place", [0.0, 0.5, 1.0], ids=["start", "middle", "end"])
def test_a_table_of_256_steps_is_seen_and_seen_through(formula, place):
    identification = identify(ports.table(ports.FORMULAS[formula], 256, 8.0, place))
    # Beyond its ends it is constant; before these it may not be told from a row that is clipped there.
    assert identification.spec == formula
    assert set(identification.specs) <= {formula, "cdf_linear", "gaussian_gelu", "clipped_gelu"}
    assert noted(identification, "table")


@pytest.mark.parametrize(("formula", "steps"), [(GELU, 64), (TANH, 512), (GELU, 1024)])
def test_a_table_that_leaves_large_inputs_as_they_are_is_named(formula, steps):
    identification = identify(ports.table(ports.FORMULAS[formula], steps, 4.0, tails=True))
    assert formula in names(identification)
    assert noted(identification, f"table of {steps} steps")


@pytest.mark.parametrize("end", [6.0, 8.0])
def test_steps_that_begin_at_numbers_of_16_bits_are_no_arithmetic_in_16_bits(end):
    identification = identify(ports.table(ports.exact, 48, end))
    assert noted(identification, "table")
    assert not noted(identification, "float16")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("number", [65, 257, 1025])
def test_lines_between_knots_are_never_misnamed(number, dtype):
    identification = identify(ports.knots(ports.tanh_form, number, 12.0), dtype)
    assert not identification.decided or TANH in names(identification)


@pytest.mark.parametrize("inner", ["float16", "bfloat16"])
@pytest.mark.parametrize("spec", [GELU, TANH, QUICK, "silu", "mish"])
def test_a_coarser_dtype_inside_is_noted_and_its_table_named(spec, inner):
    module, dtype = activations.create(spec), getattr(torch, inner)
    identification = identify(lambda x: module(x.to(dtype).float()).to(dtype).float())
    assert spec in names(identification)
    assert noted(identification, f"inputs are rounded to {inner}")


def test_outputs_alone_of_a_coarser_dtype_are_noted():
    identification = identify(lambda x: F.silu(x).bfloat16().float())
    assert "silu" in names(identification)
    assert noted(identification, "outputs are rounded to bfloat16")
    assert not noted(identification, "inputs")


@pytest.mark.parametrize("dtype", DTYPES)
def test_nan_from_10_5_on_is_noted_beside_the_tanh_form(dtype):
    identification = identify(lambda x: torch.where(x > 10.5, torch.nan, tanh_gelu(x)), dtype)
    assert names(identification) == (TANH,)
    assert noted(identification, "NaN from 10.5")
    at, got, expected = identification.first_difference
    assert at == pytest.approx(10.5, abs=0.1)
    assert at > 10.5
    assert np.isnan(got)
    assert expected == at


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_saturated_before_two_rows_part_is_not_decided(dtype):
    assert {"relu", "relu6"} <= set(identify(lambda x: x.clamp(0, 5), dtype).specs)
    assert identify(lambda x: x.clamp(0, 6), dtype).spec == "relu6"


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_value_at_0_is_noted(dtype):
    identification = identify(lambda x: torch.where(x == 0, -1e-4, F.gelu(x)), dtype)
    assert GELU in names(identification)
    assert noted(identification, "0 becomes -0.0001")


@pytest.mark.parametrize("dtype", [*DTYPES, "float64"])
def test_subnormal_numbers_that_are_flushed_are_noted(dtype):
    identification = identify(ports.flushed(F.relu), dtype)
    assert names(identification) == ("relu",)
    assert noted(identification, "subnormal")


def test_errors_of_one_side_are_noted():
    identification = identify(lambda x: torch.where((x > 3) & (x < 3.1), 0.0, F.silu(x)))
    assert "silu" in names(identification)
    assert noted(identification, "x > 0")
    assert identification.first_difference[:2] == (pytest.approx(3.0, abs=0.01), 0.0)


def test_a_sound_kernel_has_no_notes():
    for module, dtype in ((nn.ReLU(), "float32"), (nn.SiLU(), "float16"), (nn.Mish(), "bfloat16")):
        identification = identify(module, dtype)
        assert identification.notes == ()
        assert identification.first_difference is None


# Parameters


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("function", "spec"),
    [
        (lambda x: x * torch.sigmoid(1.5 * x), "swish(beta=1.5)"),
        (lambda x: x * torch.sigmoid(1.7 * x), "swish(beta=1.7)"),
        (lambda x: F.leaky_relu(x, 0.2), "leaky_relu(negative_slope=0.2)"),
        (functools.partial(leaky_relu, negative_slope=0.001), "leaky_relu(negative_slope=0.001)"),
        (lambda x: F.softplus(x, 2.0), "softplus(beta=2.0)"),
        (lambda x: F.elu(x, 0.5), "elu(alpha=0.5)"),
        (functools.partial(gaussian_gelu, sigma=1.5), "gaussian_gelu(sigma=1.5)"),
    ],
    ids=["swish", "quick-gelu-by-1.7", "leaky", "nearly-relu", "softplus", "elu", "gaussian"],
)
def test_parameters_are_fitted(function, spec, dtype):
    if dtype != "float32" and spec == "swish(beta=1.7)":  # 16 bits do not tell 1.7 from 1.702
        assert identify(function, dtype).spec in {spec, QUICK}
    else:
        assert spec in names(identify(lambda x: function(x.float()).to(x.dtype), dtype))


def test_a_short_root_of_a_half_is_a_gelu_of_nearly_standard_deviation_1():
    identification = identify(lambda x: 0.5 * x * (1 + torch.erf(0.7071 * x)))
    assert float(activations.create(identification.spec).sigma) == pytest.approx(0.5**0.5 / 0.7071, abs=3e-6)


@pytest.mark.parametrize("dtype", WIDE_FIRST)
def test_a_fit_does_not_imitate_a_jump(dtype):
    for place in (0.01, 1.0):
        fit = identify(lambda x, place=place: F.threshold(x, place, 0.0), dtype).spec or ""
        assert not fit.startswith(("gaussian_gelu", "mega_laplace"))


# Integers of 8 bits

SCALES = [(0.05, 0, 0.05, 0), (0.02, -10, 0.01, -100), (0.1, 3, 0.1, 3), (0.03, 20, 0.025, -120)]


@pytest.mark.parametrize("scales", SCALES, ids=str)
@pytest.mark.parametrize("spec", ports.FORMULAS)
def test_int8_tables_are_named(spec, scales):
    identification = identify(ports.quantized(ports.FORMULAS[spec], *scales), QuantizedDtype(*scales))
    assert spec in identification.specs
    different = {QUICK, "silu", "mish", "tanh"} - {spec}
    assert not different & set(identification.specs)


def test_an_int8_table_that_is_always_exact_is_told_from_the_tanh_form_where_integers_tell():
    scales = (0.04, 80, 0.0007, 127)  # fine outputs, from the minimum of GELU to 0
    inputs = np.arange(-128, 128).astype(np.int8)
    tables = [ports.quantized(formula, *scales)(inputs) for formula in (ports.exact, ports.tanh_form)]
    assert not np.array_equal(*tables)
    identification = identify(ports.quantized(ports.exact, *scales), QuantizedDtype(*scales))
    assert TANH not in names(identification)
    assert GELU in names(identification)


def test_uint8_is_named():
    def port(q):
        return (F.silu((q.double() - 120) * 0.05) / 0.04 + 10).round().clamp(0, 255).to(torch.uint8)

    assert "silu" in names(identify(port, QuantizedDtype(0.05, 120, 0.04, 10, signed=False)))


def test_inputs_of_one_sign_have_no_lopsided_errors():
    for zero_point in (0, -128):
        scales = 0.05, zero_point, 0.05, 0
        assert not identify(ports.quantized(ports.exact, *scales), QuantizedDtype(*scales)).notes


# What cannot be identified


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.softmax(0),
        lambda x: x[:3],
        lambda x: F.gelu(x) + 1e-3 * torch.randn_like(x),
        lambda x: F.linear(x, torch.ones(3, 7)),
        lambda x: F.gelu(x.double()) if x.dtype is torch.float64 else 1 / 0,
        lambda x: x.int(),
        lambda x: None,
        lambda x: x + 1j,
        torch.zeros_like,
        lambda x: x * torch.nan,
        lambda: None,
    ],
    ids=[
        *("softmax", "part", "noise", "linear", "raises", "integers", "none", "complex", "zeros", "nan", "no-argument")
    ],
)
def test_what_is_no_activation_is_refused(function):
    with pytest.raises(AuditError):
        identify(function)


@pytest.mark.parametrize("dtype", ["int8", "float8_e4m3fn", torch.int32, None, 16])
def test_other_dtypes_are_refused(dtype):
    with pytest.raises(ArgumentError):
        identify(F.gelu, dtype)


@pytest.mark.parametrize(
    "arguments", [(0,), (-1.0,), (float("nan"),), ("0.1",), (0.1, 300), (0.1, 0.5), (0.1, 0, 0.0), (0.1, 0, 0.1, -129)]
)
def test_scales_and_zero_points_out_of_range_are_refused(arguments):
    with pytest.raises(ArgumentError):
        QuantizedDtype(*arguments)


def test_a_function_may_overwrite_its_input():
    assert "relu" in names(identify(nn.ReLU(inplace=True)))
    assert "relu" in names(identify(ports.arrays_only(lambda x: np.maximum(x, 0, out=x))))


def test_only_activations_of_the_registry_are_tried():
    registry = activations.ActivationRegistry()
    registry.register("serf")(lambda x: x * torch.erf(F.softplus(x)))
    assert identify(ports.UNREGISTERED["serf"], registry=registry).spec == "serf"
