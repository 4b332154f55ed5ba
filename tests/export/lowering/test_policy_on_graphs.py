"""One export, lowered for every target, dtype and policy: the table's operators, the checker, the values."""

import copy
import functools

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from bfloat16_twin import fp32_twin
from export_cases import CASES

from lit_gelu.export.lowering.lowering_table import TABLE
from lit_gelu.export.lowering.policy import (
    DTYPES,
    FAST_ULP,
    FP32_ERROR,
    POLICIES,
    TARGETS,
    Target,
    absolute_error,
    accepted_range,
    choose,
    ulp_bound,
)
from lit_gelu.export.parity.criterion import distance, overflowed, spacing

TORCH = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
CELLS = [(target, dtype, policy) for target in TARGETS for dtype in DTYPES for policy in POLICIES]


@functools.cache
def inputs(dtype):
    """All finite 16-bit values; in float32 every 16411th bit pattern and a fine grid."""
    if dtype == "fp32":
        patterns = np.arange(0, 2**32, 16411, dtype=np.uint64).astype(np.uint32).view(np.float32)
        values = np.concatenate([patterns[np.isfinite(patterns)], np.linspace(-20, 20, 2**14, dtype=np.float32)])
    else:
        patterns = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(TORCH[dtype])
        values = patterns[patterns.isfinite()].double().numpy()
    return values[: values.size // 4 * 4].reshape(-1, 4).astype(np.float64)


@pytest.fixture(scope="module")
def exact(every_activation):
    @functools.cache
    def outputs(dtype):
        with torch.no_grad():
            twin = copy.deepcopy(every_activation.model).eval().double()
            return [y.numpy() for y in twin(torch.from_numpy(inputs(dtype))).values()]

    return outputs


def run(graph, dtype):
    """Run a graph on the CPU, a bfloat16 one as its twin."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    runnable = fp32_twin(graph) if dtype == "bf16" else graph
    proto = ir.to_proto(runnable).SerializeToString()
    session = onnxruntime.InferenceSession(proto, options, providers=["CPUExecutionProvider"])
    x = inputs(dtype).astype(np.float16 if dtype == "fp16" else np.float32)
    return session.run(None, {session.get_inputs()[0].name: x})


def operators_by_site(graph):
    operators = {}
    for node in graph.graph:
        name = f"{node.domain}::{node.op_type}" if node.domain else node.op_type
        operators.setdefault(node.metadata_props["lit_gelu.site"], []).append(name)
    return operators


@pytest.mark.parametrize(("target", "dtype", "policy"), CELLS)
def test_operators_are_the_tables_and_the_checker_passes(every_activation, target, dtype, policy):
    graph, lowered = every_activation.lowered(target, dtype, policy)
    assert 20 <= lowered.opset <= accepted_range(target)[-1]
    operators = operators_by_site(graph)
    assert len(operators) == len(CASES)
    for row in lowered.sites:
        key, cell = row.row, Target(target, dtype, policy)
        assert operators[row.site] == list(choose(TABLE[key], cell, lowered.opset).operators), key
        assert str(choose(TABLE[key], cell)) == row.recipe, key  # no other choice had to give way
    proto = ir.to_proto(graph)
    onnx.checker.check_model(proto, full_check=True)
    assert {entry.domain for entry in proto.opset_import} == {""} | {
        "com.microsoft" for names in operators.values() for name in names if "::" in name
    }
    kinds = {value.type.tensor_type.elem_type for value in (*proto.graph.input, *proto.graph.output)}
    assert kinds == {int(DTYPES[dtype])}


def test_contrib_operators_are_in_files_for_onnxruntime_alone(every_activation):
    for target, dtype, policy in CELLS:
        _, lowered = every_activation.lowered(target, dtype, policy)
        if any("::" in name for row in lowered.sites for name in row.operators):
            assert target == "ort-cuda"


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("target", ["portable", "ort-cpu", "ort-cuda"])
def test_float32_values(every_activation, exact, target, policy):
    graph, lowered = every_activation.lowered(target, "fp32", policy)
    for row, y, y64 in zip(lowered.sites, run(graph, "fp32"), exact("fp32"), strict=True):
        reference = overflowed(y64, torch.float32)
        near = np.abs(inputs("fp32")) < 1e37  # x / sigma, and x times a factor, overflow beyond
        with np.errstate(invalid="ignore"):
            error = np.where(y == reference, 0.0, np.abs(y - reference) / np.maximum(1.0, np.abs(reference)))
        assert error[near].max() <= FP32_ERROR, row.recipe


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@pytest.mark.parametrize("target", TARGETS)
def test_strict_is_right_to_the_last_place_for_every_16_bit_value(every_activation, exact, target, dtype):
    graph, lowered = every_activation.lowered(target, dtype, "strict")
    kind = TORCH[dtype]
    for row, y, y64 in zip(lowered.sites, run(graph, dtype), exact(dtype), strict=True):
        choice = choose(TABLE[row.row], Target(target, dtype), lowered.opset)
        allowed = absolute_error(TABLE[row.row], choice)
        if row.row.startswith("gaussian_gelu"):
            allowed *= every_activation.marked[row.site].arguments["sigma"]
        reference = overflowed(y64, kind)
        bounded = np.isfinite(reference)
        errors = distance(y, reference)
        errors[bounded] = np.maximum(errors[bounded] - allowed, 0.0) / spacing(reference[bounded], kind)
        assert errors.max() <= ulp_bound(choice), (row.row, row.recipe)


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@pytest.mark.parametrize("target", ["portable", "ort-cpu"])
def test_fast_is_within_its_bound_for_every_16_bit_value(every_activation, exact, target, dtype):
    graph, lowered = every_activation.lowered(target, dtype, "fast")
    kind = TORCH[dtype]
    for row, y, y64 in zip(lowered.sites, run(graph, dtype), exact(dtype), strict=True):
        inside = np.abs(y64) < 0.25 * float(torch.finfo(kind).max)
        y, y64 = y.astype(np.float64)[inside], y64[inside]
        if row.row == "xielu":  # squares its input: beyond 40 the intermediate overflows first
            continue
        assert (np.abs(y - y64) / spacing(np.maximum(1.0, np.abs(y64)), kind)).max() <= FAST_ULP, row.recipe
