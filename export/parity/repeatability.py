"""Does the file give the same for the same input, in any batch?"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from torch import Tensor

from lit_gelu.export.parity.judging import Run

# Operators that draw random numbers, whatever their inputs say.
_RANDOM = frozenset({
    "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli", "Multinomial",
})  # fmt: skip


@dataclass(frozen=True)
class BatchDifference:
    """The first rows of a large batch, run by themselves."""

    rows: int
    of: int  # how many rows the large batch has
    output: str
    # The largest absolute difference from the same rows of the large batch, in units of the output's largest
    # magnitude.
    difference: float


@dataclass(frozen=True)
class Repeatability:
    """Whether the file repeats itself."""

    # Whether two runs on the same input gave the same bits, as the file is run and without onnxruntime's graph
    # optimisations, which take out a Dropout that other runtimes would run.
    identical: bool
    random_nodes: tuple[str, ...]  # nodes of the file that draw random numbers; a Dropout in training mode is one
    # How much a row depends on its batch: reported, since kernels may add in another order.
    batches: tuple[BatchDifference, ...]


def repeatability(
    run: Run, plain: Run, batches: Sequence[Sequence[Tensor]], outputs: Sequence[str], model: onnx.ModelProto
) -> Repeatability:
    """Run the file twice on the first batch, optimised and plain, and on its first rows, the other batches."""
    whole = run(batches[0])
    identical = _same(whole, run(batches[0])) and _same(plain(batches[0]), plain(batches[0]))
    parts = []
    for part in batches[1:]:
        sizes = len(part[0]), len(batches[0][0])
        for name, y, of in zip(outputs, run(part), whole, strict=True):
            rows = rows_of(y, of, slice(sizes[0]), sizes[1])
            if rows is not None:
                parts.append(BatchDifference(*sizes, name, relative_difference(y, rows)))
    return Repeatability(identical, tuple(random_nodes(model)), tuple(parts))


def rows_of(y: np.ndarray, whole: np.ndarray, chosen: slice, all_rows: int) -> np.ndarray | None:
    """Return the part of a large batch's output that the chosen rows give; ``None`` if it cannot be told."""
    # Every axis that is as long as the batch in both is cut, such as both of a similarity of all rows with all. An axis
    # that changes in another way, such as rows times heads, has no part that is known to be these rows'.
    if y.ndim != whole.ndim:
        return None
    rows = len(range(all_rows)[chosen])
    batch = [pair == (rows, all_rows) and rows != all_rows for pair in zip(y.shape, whole.shape, strict=True)]
    if not any(batch):
        return None
    cut = whole[tuple(chosen if is_batch else slice(None) for is_batch in batch)]
    return cut if cut.shape == y.shape else None


def _same(first: Sequence[np.ndarray], second: Sequence[np.ndarray]) -> bool:
    """Return whether two runs gave the same bits, NaNs at the same places included."""
    pairs = zip(first, second, strict=True)
    return all(np.array_equal(a, b, equal_nan=a.dtype.kind == "f") for a, b in pairs)


def relative_difference(y: np.ndarray, of: np.ndarray) -> float:
    """Return the largest difference in units of the largest value."""
    with np.errstate(invalid="ignore"):
        a, b = y.astype(np.float64), of.astype(np.float64)
        error = np.where(a == b, 0.0, np.abs(a - b))
    scale = float(np.abs(b[np.isfinite(b)]).max(initial=0.0))
    return float(np.nanmax(error, initial=0.0)) / (scale or 1.0)


def random_nodes(model: onnx.ModelProto) -> list[str]:
    """Name the nodes that draw random numbers: generators, and Dropout unless its training_mode is a constant false."""
    scalars = [tensor for tensor in model.graph.initializer if not tensor.dims]
    constants = {tensor.name: bool(onnx.numpy_helper.to_array(tensor)) for tensor in scalars}
    for node in model.graph.node:
        if node.op_type == "Constant" and node.attribute[0].name == "value" and not node.attribute[0].t.dims:
            constants[node.output[0]] = bool(onnx.numpy_helper.to_array(node.attribute[0].t))
    found = []
    for node in model.graph.node:
        live = node.op_type == "Dropout" and len(node.input) > 2 and node.input[2] != ""
        live = live and constants.get(node.input[2], True)
        if live or node.op_type in _RANDOM:
            found.append(f"{node.op_type} {node.name}".strip())
    return found
