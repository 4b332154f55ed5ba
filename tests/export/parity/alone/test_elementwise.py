"""One activation's nodes alone: figures of onnxruntime's CPU kernels that were measured independently."""

import numpy as np
import onnxruntime
import pytest
import scipy.special
import torch
from onnx import TensorProto
from parity_files import ON_CPU, activation, model, node
from torch import nn

from lit_gelu import activations
from lit_gelu.export.parity.alone.elementwise import FAULT, FINDING, OK, check_activation, strided_values
from lit_gelu.export.parity.subgraph import site_nodes


def check(operator, spec="gelu", dtype=torch.float32, opset=20, **attributes):
    element = {torch.float32: TensorProto.FLOAT, torch.float16: TensorProto.FLOAT16}[dtype]
    made, found = activation(operator, element, opset, **attributes)
    return check_activation(made, found, activations.create(spec), dtype, ON_CPU, label=spec)


def test_the_exact_gelu_in_float32():
    """The largest errors are recomputed from scipy's normal distribution: they depend on the processor's kernels."""
    made, _ = activation("Gelu")
    x = strided_values()
    session = onnxruntime.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    outputs = {"file": session.run(None, {"x": x.numpy()})[0], "pytorch": nn.functional.gelu(x).numpy()}
    found, x = check("Gelu"), x.double().numpy()
    exact = x * scipy.special.ndtr(x)
    assert found.row().passed
    assert not found.exhaustive
    for name, y in outputs.items():
        computed, error = getattr(found, name), np.abs(y - exact)
        assert computed.max_abs_near == pytest.approx(error[np.abs(x) <= 6].max(), rel=1e-6)
        ulps = error / np.spacing(np.abs(exact).astype(np.float32))
        assert computed.ulp_near_one == pytest.approx(ulps[np.abs(x) <= 1].max(), rel=1e-3)
        # 1 + erf is 0 from where 2 Phi is half a unit of float32 below 1 on, or with an error of one unit a little
        # sooner, and wrong by TAIL_ERROR from where 2 Phi is a thousand times its error on, of 1/4 to 16 such units.
        tail = computed.negative
        assert -scipy.special.ndtri(0.75 * 2**-24) < tail.flush < -scipy.special.ndtri(0.25 * 2**-24) + 0.01
        assert -scipy.special.ndtri(8 * 2**-24 * 1e3) < tail.inaccurate < -scipy.special.ndtri(0.125 * 2**-24 * 1e3)
        assert computed.positive.flush is None


@pytest.mark.parametrize(
    ("operator", "attributes", "largest", "ulp", "inaccurate", "flush"),
    [
        ("com.microsoft::FastGelu", {}, 4.74e-4, 10250, 1.01, 4.90),
        ("com.microsoft::QuickGelu", {"alpha": 1.702}, 2.03e-2, 426918, 0.5, 9.3),
    ],
)
def test_an_approximation_in_the_place_of_the_exact_function_fails(
    operator, attributes, largest, ulp, inaccurate, flush
):
    found = check(operator, **attributes)
    assert found.row().passed is False
    assert found.file.max_abs_near == pytest.approx(largest, rel=0.01)
    assert found.file.ulp_near_one == pytest.approx(ulp, rel=0.01)
    assert found.file.negative.inaccurate == pytest.approx(inaccurate, abs=0.4)
    assert found.file.negative.flush == pytest.approx(flush, abs=0.05)
    assert found.limit == 1e-5


@pytest.mark.parametrize(
    ("operator", "attributes", "spec"),
    [
        ("com.microsoft::FastGelu", {}, "gelu(approximate='tanh')"),
        ("com.microsoft::QuickGelu", {"alpha": 1.702}, "gelu(approximate='sigmoid')"),
        ("com.microsoft::QuickGelu", {"alpha": 1.0}, "silu"),
    ],
)
def test_the_same_operators_for_what_they_compute_pass(operator, attributes, spec):
    found = check(operator, spec, **attributes)
    assert found.row().passed
    # |x| = 6 times a gate that is off by 4 units below 1, and two products rounded by half a unit of 4 to 8 each.
    assert found.file.max_abs_near <= 6 * 4 * 2**-24 + 2 * 2**-22


def test_all_16_bit_inputs_of_the_exact_gelu():
    found = check("Gelu", dtype=torch.float16)
    assert found.exhaustive
    assert found.count == 63_488
    assert found.row().passed
    assert found.file.max_abs_near == pytest.approx(9.76e-4, rel=0.01)
    assert found.file.ulp_near_one <= 1
    x = np.arange(2**16, dtype=np.uint32).astype(np.uint16).view(np.float16)
    assert sum(found.file.ulp.counts) + found.file.ulp.nonfinite == np.isfinite(x).sum()
    assert found.limit == pytest.approx(max(1e-5 + 2**-11, 2 * found.pytorch.error))


def test_outputs_that_overflow_where_pytorchs_do_not_are_counted():
    """log(1 + exp(x)) is infinite from x = log(2^128) on; PyTorch's softplus is x there."""
    made = model(
        [node("Exp", ["x"], "e"), node("Add", ["e", "one"], "p"), node("Log", ["p"], "y")], {"one": np.float32(1)}
    )
    (entry,) = site_nodes(made, {"act": 1})
    found = check_activation(made, entry, nn.Softplus(), torch.float32, ON_CPU, label="softplus")
    x = strided_values().numpy().astype(np.float64)
    assert found.nonfinite == np.count_nonzero(x > 128 * np.log(2)) > 1000
    assert found.row().passed is False


def test_a_nan_that_does_not_stay_one_is_a_fault():
    clipped = model([node("Max", ["x", "zero"], "y")], {"zero": np.float32(0)})
    nodes = [node("IsNaN", ["x"], "lost"), node("Relu", ["x"], "r"), node("Where", ["lost", "zero", "r"], "y")]
    swallowed = model(nodes, {"zero": np.float32(0)})
    for made, verdict in ((clipped, OK), (swallowed, FAULT)):
        (entry,) = site_nodes(made, {"act": 1})
        found = check_activation(made, entry, nn.ReLU(), torch.float32, ON_CPU, label="relu")
        assert {value.name: value.verdict for value in found.special}["nan"] == verdict
        assert found.row().passed is (verdict == OK)
        assert ("f(nan) = 0, by definition nan" in found.row().detail) is (verdict == FAULT)
        assert "does not decide" not in found.row().detail


def test_what_comes_of_infinity_is_a_finding_that_does_not_decide():
    found = check("Gelu")
    special = {value.name: value for value in found.special}
    assert np.isnan(special["-inf"].file)
    assert special["-inf"].expected == 0
    assert special["-inf"].verdict == FINDING
    assert special["inf"].expected == np.inf
    assert "f(-inf) = nan, by definition 0, which is noted and does not decide" in found.row().detail
    assert found.row().passed


def test_a_flushed_subnormal_number_is_a_finding():
    """onnxruntime's Elu computes exp(x) - 1, which is 0 near 0; the definition gives x."""
    found = check("Elu", "elu")
    special = {value.name: value for value in found.special}
    assert special["-subnormal"].file == 0
    assert special["-subnormal"].expected == pytest.approx(-(2.0**-128))
    assert special["-subnormal"].verdict == FINDING
    assert found.row().passed


def test_one_value_a_channel_is_checked_on_the_first():
    slopes = np.array([0.25, 0.5], np.float32).reshape(2, 1)
    made = model([node("PRelu", ["x", "slope"], "y")], {"slope": slopes}, shape=("n", 2, "w"))
    (entry,) = site_nodes(made, {"act": 1})
    prelu = nn.PReLU(2)
    with torch.no_grad():
        prelu.weight.copy_(torch.tensor([0.25, 0.5]))
    assert check_activation(made, entry, prelu, torch.float32, ON_CPU, label="prelu").row().passed
    with torch.no_grad():
        prelu.weight[0] = 0.26
    assert not check_activation(made, entry, prelu, torch.float32, ON_CPU, label="prelu").row().passed


def test_a_module_that_overwrites_its_input_leaves_the_sweep_alone():
    made, found = activation("Relu")
    for _ in range(2):
        assert check_activation(made, found, nn.ReLU(inplace=True), torch.float32, ON_CPU, label="relu").row().passed
    assert check("Gelu").row().passed
