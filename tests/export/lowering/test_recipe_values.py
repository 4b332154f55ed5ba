"""Every activation as it is written for CUDA, in float32 on the CPU: the values of the plain form, or better ones."""

import copy

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from export_cases import CASES, EveryActivation
from traced_graph import TracedGraph

PLAIN = {"target": "portable", "lowering": "native"}
FORMS = {
    "strict": {"target": "ort-cuda"},
    "fast": {"target": "ort-cuda", "policy": "fast"},
    "primitives": {"target": "ort-cuda", "lowering": "primitives"},
    "contrib": {"target": "ort-cuda", "lowering": "contrib"},
}
ULPS = 2  # in the last place of max(1, |y|)
OTHERS = {("gelu(approximate='tanh')", "primitives"): 8}  # 1 + Tanh cancels, and the CPU's Tanh is off by some
X = np.concatenate([np.linspace(-40, 40, 8001), np.linspace(-6, 6, 8001), [-1e30, -1e4, -1e-30, 1e-40, 1e4, 1e30]])
X = X[: X.size // 4 * 4].reshape(-1, 4).astype(np.float32)


class Values:
    """What files of one trace compute, and float64."""

    def __init__(self):
        model = EveryActivation()
        self._traced = TracedGraph(model)
        exact = copy.deepcopy(model).eval().double()(torch.from_numpy(X).double())
        with np.errstate(over="ignore"):  # relu2(1e30) is infinite in float32
            self.exact = [y.detach().numpy().astype(np.float32).astype(np.float64) for y in exact.values()]
        self.plain = self.of(PLAIN)

    def of(self, form):
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        graph, _ = self._traced.lowered(**form)
        proto = ir.to_proto(graph).SerializeToString()
        session = onnxruntime.InferenceSession(proto, options, providers=["CPUExecutionProvider"])
        return [y.astype(np.float64) for y in session.run(None, {session.get_inputs()[0].name: X})]


def ulps(y, other, exact):
    """Largest difference, in the last place of max(1, |exact|)."""
    with np.errstate(invalid="ignore"):
        apart = np.where(y == other, 0.0, np.abs(y - other))
        size = np.where(np.isfinite(exact), np.abs(exact), 1.0)
    return apart / np.spacing(np.maximum(1, size).astype(np.float32))


@pytest.fixture(scope="module")
def values():
    return Values()


@pytest.mark.parametrize("form", FORMS)
def test_values_are_those_of_the_plain_form_or_those_of_float64(values, form):
    """Kernels of the CPU have errors of their own, such as Sigmoid's: a form without that kernel may be nearer."""
    for case, y, plain, exact in zip(CASES, values.of(FORMS[form]), values.plain, values.exact, strict=True):
        apart = np.minimum(ulps(y, plain, exact), ulps(y, exact, exact))
        worst = np.unravel_index(np.argmax(apart), apart.shape)
        assert apart.max() <= OTHERS.get((case.spec, form), ULPS), (
            case.spec,
            X[worst],
            y[worst],
            plain[worst],
            exact[worst],
        )
