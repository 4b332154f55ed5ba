"""Each activation's operators alone, over the whole range of float32."""

import copy
import itertools
from collections.abc import Mapping
from functools import cache

import numpy as np
import onnx_ir as ir
import onnxruntime
import torch
from torch import nn

from lit_gelu.export.lowering_pass import CONTRIB_VERSION
from lit_gelu.export.lowering_table import TABLE, Lowering
from lit_gelu.export.markers import BoundActivation
from lit_gelu.export.parity_report import ELEMENTWISE, ParityRow
from lit_gelu.export.recipe import CONTRIB_DOMAIN, RecipeBuilder
from lit_gelu.export.runtime import Provider

STRIDE = 16411  # a prime: every binade is met at other mantissas; about 260,000 values
_SPECIAL = np.array([-np.inf, np.inf, np.nan, -1e-40], dtype=np.float32)


def one_activation_model(activation: BoundActivation, lowering: Lowering, opset: int) -> ir.Model:
    """Return a model that is one activation, built by the same recipe as in the file.

    Args:
        activation: The activation with its arguments.
        lowering: Whose recipe.
        opset: Version of the standard operators.

    Returns:
        A model from ``x`` to ``y``, float32 vectors of any length.
    """
    shape = ir.Shape(["n"])
    x = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=shape)
    initializers: list[ir.Value] = []

    def constant(array: np.ndarray, hint: str) -> ir.Value:
        value = ir.Value(name=f"{hint}_{len(initializers)}", const_value=ir.tensor(array))
        value.dtype, value.shape = ir.DataType.FLOAT, ir.Shape(array.shape)
        initializers.append(value)
        return value

    builder = RecipeBuilder(x, _scalars(activation.arguments), constant)
    y = builder.build(TABLE[activation.row].recipe(lowering)[1])
    y.name, y.type, y.shape = "y", ir.TensorType(ir.DataType.FLOAT), shape
    imports = {"": opset, CONTRIB_DOMAIN: CONTRIB_VERSION}
    graph = ir.Graph([x], [y], nodes=builder.nodes, initializers=initializers, opset_imports=imports, name="activation")
    return ir.Model(graph, ir_version=10)


def _scalars(arguments: Mapping[str, object]) -> dict[str, float | np.ndarray]:
    """Return the arguments; of one value a channel, the first."""
    return {
        key: np.asarray(value).reshape(-1)[:1] if isinstance(value, np.ndarray) and value.ndim else value  # type: ignore[misc]
        for key, value in arguments.items()
    }


@cache
def sweep_values() -> np.ndarray:
    """Return the inputs: every 16411th float32 bit pattern (NaNs left out) and 2^16 points over [-20, 20].

    Returns:
        A float32 vector.
    """
    patterns = np.arange(0, 2**32, STRIDE, dtype=np.uint64).astype(np.uint32).view(np.float32)
    return np.concatenate([patterns[np.isfinite(patterns)], np.linspace(-20, 20, 2**16, dtype=np.float32)])


@torch.no_grad()
def sweep(
    module: nn.Module,
    activation: BoundActivation,
    lowering: Lowering,
    opset: int,
    *,
    label: str,
    tolerance: float,
    providers: list[Provider],
) -> ParityRow:
    """Compare one activation's operators with PyTorch over float32's range.

    Errors are in units of ``max(1, |y|)``: an absolute error of 1e-5 at y = 1e6 is below float32's resolution. The
    limit is ``tolerance`` or twice the largest error of PyTorch's own float32 kernel, whichever is larger. An output
    that is not finite where PyTorch float32's is fails. Infinite and NaN inputs are reported, not judged: PyTorch's
    kernels do not agree among themselves on them.

    Args:
        module: The activation as a module; it is copied.
        activation: The same with its arguments.
        lowering: Whose recipe.
        opset: Version of the standard operators.
        label: How to call it.
        tolerance: The largest error where ``|y| <= 1``.
        providers: Execution providers.

    Returns:
        A row whose ``max_abs_error``, ``spread`` and ``limit`` are in units of ``max(1, |y|)``.
    """
    model = one_activation_model(activation, lowering, opset)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(ir.to_proto(model).SerializeToString(), options, providers=providers)
    x = sweep_values()
    y = session.run(None, {"x": x})[0].astype(np.float64)
    twin = _one_channel(copy.deepcopy(module)).cpu().eval()
    with np.errstate(over="ignore"):
        exact = twin.double()(torch.from_numpy(x).double()).numpy().astype(np.float64)
        exact = np.where(np.isinf(exact.astype(np.float32)), exact.astype(np.float32), exact)
    torch32 = twin.float()(torch.from_numpy(x)).numpy().astype(np.float64)
    error, own = _scaled(y, exact), _scaled(torch32, exact)
    near = np.abs(x) <= 10
    special = session.run(None, {"x": _SPECIAL})[0]
    spread = float(np.max(own[np.isfinite(own)]))
    return ParityRow(
        comparison=ELEMENTWISE,
        inputs=label,
        count=x.size,
        max_abs_error=float(np.max(error[np.isfinite(error)])),
        mean_abs_error=float(np.mean(error[np.isfinite(error)])),
        scale=1.0,
        spread=spread,
        limit=max(tolerance, 2 * spread),
        nonfinite=int(np.count_nonzero(np.isinf(error) & np.isfinite(own))),
        detail=f"{lowering}, largest error for |x| <= 10 {np.max(error[near]):.2e} "
        f"(PyTorch float32 {np.max(own[near]):.2e}); f(-inf, inf, nan, -1e-40) = "
        f"{', '.join(f'{value:.3g}' for value in special)}",
    )


def _scaled(y: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """Return errors in units of max(1, |exact|); infinite where only one of the two is finite."""
    with np.errstate(invalid="ignore"):
        error = np.abs(y - exact) / np.maximum(1.0, np.abs(exact))
    return np.where(y == exact, 0.0, np.where(np.isnan(error), np.inf, error))


def _one_channel(module: nn.Module) -> nn.Module:
    """Reduce an activation with one value a channel to its first channel, as `one_activation_model` does."""
    for parameter in itertools.chain(module.parameters(), module.buffers()):
        if parameter.ndim and parameter.numel() > 1:
            parameter.data = parameter.data.reshape(-1)[:1]
    return module
