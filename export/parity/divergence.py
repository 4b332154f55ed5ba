"""The first layer where a file leaves the module, found by bisection."""

from collections.abc import Sequence
from dataclasses import dataclass

import onnx
import torch
from torch import Tensor

from lit_gelu.export.parity.activation_census import node_label
from lit_gelu.export.parity.layers import Checkpoint, LayerError, run_with_outputs
from lit_gelu.export.parity.sessions import SessionSetup


@dataclass(frozen=True)
class Divergence:
    """Where the file leaves the module.

    Args:
        layer: The first activation whose output is outside its limit; ``None`` if all are within theirs, and the
            difference comes after the last one.
        after: The last activation before it whose output is within its limit; ``None`` if there is none.
        nodes: The file's nodes between the two, with the parameters that they read.
    """

    layer: LayerError | None
    after: LayerError | None
    nodes: tuple[str, ...]

    def __str__(self) -> str:
        """Return one sentence."""
        place = "after the last activation" if self.layer is None else f"in {_site(self.layer)}"
        size = "" if self.layer is None else f" (error {self.layer.error:.3g}, limit {self.layer.limit:.3g})"
        agreed = "the input" if self.after is None else _site(self.after)
        shown = ", ".join(self.nodes[-6:])
        return f"the first difference is {place}{size}; up to {agreed} both agree, between them: {shown or 'no node'}"


def _site(layer: LayerError) -> str:
    """Return a layer's name."""
    return f"{layer.site or '(the module itself)'}" + (f", call {layer.call + 1}" if layer.call else "")


def first_divergence(
    model: onnx.ModelProto,
    points: Sequence[Checkpoint],
    batch: Sequence[Tensor],
    setup: SessionSetup,
    dtype: torch.dtype,
    tolerance: float,
) -> Divergence:
    """Find the first activation whose output is outside its limit.

    Each step adds one value to the file's outputs, so that onnxruntime fuses all else as it does without it. Bisection
    assumes that a difference stays once it is there; what is returned was measured: the layer before agrees.

    Args:
        model: The file, with its weights.
        points: The activations that file and module both have, in order.
        batch: Inputs that show the difference.
        setup: How sessions are opened.
        dtype: The file's dtype.
        tolerance: What float32 arithmetic may cost.

    Returns:
        Where it is.
    """
    judged: dict[int, LayerError] = {}

    def differs(i: int) -> bool:
        value = points[i].value
        outputs = [value, *(v.name for v in model.graph.output if v.name != value)]
        judged[i] = points[i].judge(run_with_outputs(model, outputs, batch, setup)[value], dtype, tolerance)
        return judged[i].error > judged[i].limit

    low, high = -1, len(points)  # agrees at low, differs at high (the file's outputs)
    while high - low > 1:
        middle = (low + high) // 2
        if differs(middle):
            high = middle
        else:
            low = middle
    end = [points[high].value] if high < len(points) else [value.name for value in model.graph.output]
    start = [] if low < 0 else [points[low].value]
    return Divergence(judged.get(high), judged.get(low), _nodes_between(model, start, end))


def _nodes_between(model: onnx.ModelProto, start: Sequence[str], end: Sequence[str]) -> tuple[str, ...]:
    """Return the nodes that some values need beside those that others need, with the weights that they read."""
    needed = _ancestors(model, end) - _ancestors(model, start)
    weights = {tensor.name for tensor in model.graph.initializer}
    labels = []
    for i in sorted(needed):
        node = model.graph.node[i]
        read = [name for name in node.input if name in weights]
        labels.append(f"{node_label(node)}({', '.join(read)})" if read else node_label(node))
    return tuple(labels)


def _ancestors(model: onnx.ModelProto, values: Sequence[str]) -> set[int]:
    """Return the places of all nodes that values are computed from."""
    producer = {name: i for i, node in enumerate(model.graph.node) for name in node.output if name}
    found: set[int] = set()
    waiting = [producer[name] for name in values if name in producer]
    while waiting:
        i = waiting.pop()
        if i not in found:
            found.add(i)
            waiting += [producer[name] for name in model.graph.node[i].input if name in producer]
    return found
