"""The first layer where a file leaves the module, found by bisection."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import torch
from torch import Tensor, nn

from lit_gelu.export.parity.criterion import limit, smallest_error
from lit_gelu.export.parity.differences import Differences
from lit_gelu.export.parity.execution import SessionSetup, as_array, run_file
from lit_gelu.export.parity.references import References
from lit_gelu.export.parity.subgraph import SiteNodes, node_label, site_of

Place = tuple[str, int]  # a site, and the number of the call
_SOME = 4096  # numbers that a first look compares
_FAR = 0.1  # of the largest of them


@dataclass(frozen=True)
class LayerError:
    """The error of one activation's output."""

    site: str
    call: int  # number of the call, from 0
    value: str  # the value's name in the file
    error: float  # max|y - y64| / max|y64|
    own: float | None  # the same of PyTorch in the file's dtype
    limit: float  # what the error may be


@dataclass(frozen=True)
class Checkpoint:
    """A value of the file whose PyTorch counterparts are known."""

    place: Place  # the site and its call
    value: str  # the value's name in the file
    float64: np.ndarray  # what it should be
    own: np.ndarray | None  # what PyTorch gives in the file's dtype

    def agrees(self, y: np.ndarray, dtype: torch.dtype, tolerance: float) -> bool:
        """Return whether the file computes this value; the first numbers tell most others from it."""
        if y.shape != self.float64.shape:
            return False
        some, wanted = (array.ravel()[:_SOME].astype(np.float64) for array in (y, self.float64))
        with np.errstate(invalid="ignore"):
            far = np.abs(some - wanted).max(initial=0.0) > _FAR * np.abs(wanted).max(initial=0.0)
        if far:
            return False
        found = self.judge(y, dtype, tolerance)
        return found.error <= found.limit

    def judge(self, y: np.ndarray, dtype: torch.dtype, tolerance: float) -> LayerError:
        """Judge what the file computes."""
        error, own, allowed = judged(y, self.float64, self.own, dtype, tolerance)
        return LayerError(*self.place, self.value, error, own, allowed)


def judged(
    y: np.ndarray, exact: np.ndarray, own: np.ndarray | None, dtype: torch.dtype, tolerance: float
) -> tuple[float, float | None, float]:
    """Return a value's error, infinite where PyTorch's alone is finite; PyTorch's own error; and what it may be."""
    ignored = smallest_error(dtype)
    found, spread = Differences(dtype), Differences(dtype)
    found.add(y, exact, own)
    error = float("inf") if found.nonfinite else found.relative(found.scale, ignored)
    if own is None:
        return error, None, limit(None, dtype, tolerance)
    spread.add(own, exact)
    own_error = spread.relative(found.scale, ignored)
    return error, own_error, limit(own_error, dtype, tolerance)


def captured(
    references: References, module: nn.Module, batch: Sequence[Tensor], dtype: torch.dtype
) -> dict[Place, Any]:
    """Run a copy of the module and keep each submodule's output that is one tensor, in the order of the calls."""
    kept: dict[Place, Any] = {}
    calls: dict[str, int] = {}

    def keep(name: str, output: object) -> None:
        if isinstance(output, Tensor):
            kept[name, calls.get(name, 0)] = as_array(output.clone())  # what follows may overwrite it
        calls[name] = calls.get(name, 0) + 1

    hooks = [
        part.register_forward_hook(lambda _, __, output, name=name: keep(name, output))
        for name, part in module.named_modules()
        if not any(part.children())
    ]
    try:
        references.run(module, batch, dtype)
    finally:
        for hook in hooks:
            hook.remove()
    return kept


def checkpoints(
    model: onnx.ModelProto,
    found: Sequence[SiteNodes],
    expected: Mapping[str, int],
    references: References,
    batch: Sequence[Tensor],
    setup: SessionSetup,
    tolerance: float,
) -> list[Checkpoint]:
    """Pair the outputs of the file's activations with those of the module's, in the file's order."""
    # Activations that are calls of functions in the module have no output of their own there, and are left out. A site
    # whose nodes are gone from the file, because something fused them after the export, is looked for among the fused
    # operators that no site claims.
    if references.exact is None:
        return []
    wide = captured(references, references.exact, batch, references.exact_dtype)
    own = {} if references.own is None else captured(references, references.own, batch, references.own_dtype)
    values: dict[Place, str] = {(entry.site, entry.call): entry.y for entry in found}
    values.update(_relocated(model, [p for p in wide if p[1] < expected.get(p[0], 0) and p not in values]))
    order = {name: i for i, node in enumerate(model.graph.node) for name in node.output}
    places = sorted((p for p in values if p in wide), key=lambda p: order[values[p]])
    names = list(dict.fromkeys(values[p] for p in places))
    there = run_with_outputs(model, names, batch, setup) if names else {}
    calls = Counter(site for site, _ in wide)
    points = []
    for place in places:
        y, known = there[values[place]], calls[place[0]] == expected.get(place[0])
        fits = (Checkpoint(p, values[place], wide[p], own.get(p)) for p in _nearest(place, wide) if p[0] in expected)
        agreeing = next((point for point in fits if point.agrees(y, references.dtype, tolerance)), None)
        if agreeing is not None:
            points.append(agreeing)
        elif known and wide[place].shape == y.shape:  # else it is not known what it should be, or in which layout
            points.append(Checkpoint(place, values[place], wide[place], own.get(place)))
    return points


def _nearest(place: Place, places: Iterable[Place]) -> Iterator[Place]:
    """Yield places in the order in which a value of one of them is looked for: it, its site's other calls, others."""
    # A graph has no call whose result no output needs, so that its first call may be the module's second one; and the
    # module may call equal activations by each other's names.
    yield place
    yield from (other for other in places if other != place and other[0] == place[0])
    yield from (other for other in places if other[0] != place[0])


def _relocated(model: onnx.ModelProto, missing: Sequence[Place]) -> dict[Place, str]:
    """Return the outputs of fused operators that no site claims, if there are as many as sites without nodes."""
    fused = [node for node in model.graph.node if "Gelu" in node.op_type and site_of(node) is None]
    if len(fused) != len(missing):
        return {}
    return {place: node.output[0] for place, node in zip(missing, fused, strict=True)}


def run_with_outputs(
    model: onnx.ModelProto, names: Sequence[str], batch: Sequence[Tensor], setup: SessionSetup
) -> dict[str, np.ndarray]:
    """Run a file with some of its inner values as outputs."""
    extended = onnx.ModelProto()
    extended.CopyFrom(model)
    del extended.graph.output[:]
    known = {value.name: value for value in (*model.graph.output, *model.graph.value_info)}
    extended.graph.output.extend(known.get(name, onnx.ValueInfoProto(name=name)) for name in names)
    with setup.opened(extended) as predictor:
        return dict(zip(names, run_file(predictor, batch), strict=True))


def layer_errors(
    model: onnx.ModelProto,
    points: Sequence[Checkpoint],
    batch: Sequence[Tensor],
    setup: SessionSetup,
    dtype: torch.dtype,
    tolerance: float,
) -> list[LayerError]:
    """Compare all checkpoints in one run."""
    names = list(dict.fromkeys(point.value for point in points))
    values = run_with_outputs(model, names, batch, setup) if names else {}
    return [point.judge(values[point.value], dtype, tolerance) for point in points]


@dataclass(frozen=True)
class Divergence:
    """Where the file leaves the module."""

    # The first activation whose output is outside its limit; None if all are within theirs, and the difference comes
    # after the last one.
    layer: LayerError | None
    after: LayerError | None  # the last activation before it whose output is within its limit; None if there is none
    nodes: tuple[str, ...]  # the file's nodes between the two, with the parameters that they read

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
    """Find the first activation whose output is outside its limit."""
    # Each step adds one value to the file's outputs, so that onnxruntime fuses all else as it does without it.
    # Bisection assumes that a difference stays once it is there; that the layer before agrees was measured.
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
