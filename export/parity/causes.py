"""What a breach comes from: the first layer that shows it, by bisection, and what of onnxruntime causes it."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from torch import Tensor, nn
from torch._C._functorch import is_functorch_wrapped_tensor  # torch 2.11 to 2.15: no public name says as much

from lit_gelu.errors import ModelFileError, ProviderError
from lit_gelu.export.inputs import as_array
from lit_gelu.export.parity.criterion import Differences, limit, smallest_error
from lit_gelu.export.parity.report import Culprit, Divergence, LayerError
from lit_gelu.export.parity.runs import LEVELS, References, SessionSetup, run_with_outputs
from lit_gelu.export.runtime import CPU, provider_name
from lit_gelu.export.site_nodes import SiteNodes, node_label, site_of

# The graph optimisations of onnxruntime 1.31 that change numbers and can be switched off by name, those first that
# prepare nothing for others. A name that another release does not know is ignored by it.
OPTIMIZATIONS: tuple[str, ...] = (
    "GeluApproximation", "QuickGeluFusion", "FastGeluFusion", "BiasGeluFusion", "GeluFusionL2", "GeluFusionL1",
    "SkipLayerNormFusion", "BiasSkipLayerNormFusion", "SimplifiedLayerNormFusion", "LayerNormFusionL2",
    "LayerNormFusionL1", "EmbedLayerNormFusion", "AttentionFusion", "GroupQueryAttentionFusion", "BiasSoftmaxFusion",
    "BiasDropoutFusion", "MatMulActivationFusion", "MatMulScaleFusion", "MatmulTransposeFusion", "MatMulAddFusion",
    "MatMul_BatchNormalization_Fusion", "MatMulBnFusion_Gemm", "GemmActivationFusion", "GemmSumFusion",
    "GemmTransposeFusion", "ConvActivationFusion", "ConvAddActivationFusion", "ConvAddFusion", "ConvMulFusion",
    "ConvBNFusion", "Pad_Fusion", "DivMulFusion", "FuseReluClip", "NotWhereFusion", "CastChainElimination",
    "CastElimination", "CastFloat16Transformer", "ConstantFolding", "EliminateDropout", "TransposeOptimizer",
    "NchwcTransformer", "NhwcTransformer",
)  # fmt: skip
_ONE_BY_ONE_BELOW = 64 * 1024**2  # bytes of file: above, a session for each optimisation takes too long
_SOME, _FAR = 4096, 0.1  # how many numbers a first look compares, and how far apart of the largest of them

Place = tuple[str, int]  # a site, and the number of the call
Excess = Callable[[SessionSetup], float]  # the largest error in units of its limit, under a setup


@dataclass(frozen=True)
class Checkpoint:
    """A value of the file whose PyTorch counterparts are known."""

    place: Place
    value: str  # the value's name in the file
    exact: np.ndarray  # what it should be
    baseline: np.ndarray  # what PyTorch gives in the file's dtype

    def judge(self, y: np.ndarray, dtype: torch.dtype, tolerance: float) -> LayerError:
        """Judge what the file computes; an error is infinite where PyTorch's alone is finite."""
        difference, spread = Differences(dtype), Differences(dtype)
        difference.add(y, self.exact, self.baseline)
        spread.add(self.baseline, self.exact)
        ignored = smallest_error(dtype)
        own_error = spread.relative(difference.scale, ignored)
        error = float("inf") if difference.nonfinite else difference.relative(difference.scale, ignored)
        return LayerError(*self.place, self.value, error, own_error, limit(own_error, dtype, tolerance))

    def agrees(self, y: np.ndarray, dtype: torch.dtype, tolerance: float) -> bool:
        """Return whether the file computes this value; the first numbers tell most others from it."""
        if y.shape != self.exact.shape:
            return False
        some, expected = (array.ravel()[:_SOME].astype(np.float64) for array in (y, self.exact))
        with np.errstate(invalid="ignore"):
            far = np.abs(some - expected).max(initial=0.0) > _FAR * np.abs(expected).max(initial=0.0)
        if far:
            return False
        layer = self.judge(y, dtype, tolerance)
        return layer.error <= layer.limit


def captured(
    references: References, module: nn.Module, batch: Sequence[Tensor], dtype: torch.dtype
) -> dict[Place, Any]:
    """Run a copy of the module and keep each submodule's output that is one tensor, in the order of the calls."""
    kept: dict[Place, Any] = {}
    calls: Counter[str] = Counter()

    def keep(name: str, output: object) -> None:
        # One that vmap or a nested tensor wraps has no values of its own to compare.
        if isinstance(output, Tensor) and not output.is_nested and not is_functorch_wrapped_tensor(output):
            kept[name, calls[name]] = as_array(output.clone())  # what follows may overwrite it
        calls[name] += 1

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


@dataclass(frozen=True)
class Layers:
    """The activations that file and module both have, to be compared on a batch."""

    model: onnx.ModelProto
    entries: Sequence[SiteNodes]
    calls: Mapping[str, int]  # how often the graph calls each site, as the file records it
    references: References
    setup: SessionSetup
    tolerance: float

    def checkpoints(self, batch: Sequence[Tensor]) -> list[Checkpoint]:
        """Pair the outputs of the file's activations with those of the module's, in the file's order."""
        # A graph has no call whose result no output needs, so that its first call may be the module's second one; and
        # the module may call equal activations by each other's names. So a value is looked for in its place, in its
        # site's other calls, and in others. Calls of functions have no output of their own, and are left out.
        references, dtype = self.references, self.references.dtype
        if references.exact is None:
            return []
        exact = captured(references, references.exact, batch, references.exact_dtype)
        baseline = captured(references, references.baseline, batch, references.baseline_dtype)
        values: dict[Place, str] = {(entry.site, entry.call): entry.y for entry in self.entries}
        # A site whose nodes are gone from the file, because something fused them after the export, is looked for among
        # the fused operators that no site claims.
        missing = [p for p in exact if p[1] < self.calls.get(p[0], 0) and p not in values]
        fused = [node for node in self.model.graph.node if "Gelu" in node.op_type and site_of(node) is None]
        if len(fused) == len(missing):
            values.update({place: node.output[0] for place, node in zip(missing, fused, strict=True)})
        order = {name: i for i, node in enumerate(self.model.graph.node) for name in node.output}
        places = sorted((p for p in values if p in exact), key=lambda p: order[values[p]])
        there = run_with_outputs(self.model, [values[place] for place in places], batch, self.setup)
        calls = Counter(site for site, _ in exact)
        points = []
        for place in places:
            name = values[place]
            y = there[name]
            nearest = sorted((p for p in exact if p[0] in self.calls), key=lambda p: (p != place, p[0] != place[0]))
            candidates = (Checkpoint(p, name, exact[p], baseline[p]) for p in nearest if p in baseline)
            agreeing = next((point for point in candidates if point.agrees(y, dtype, self.tolerance)), None)
            if agreeing is not None:
                points.append(agreeing)
            elif calls[place[0]] == self.calls.get(place[0]) and exact[place].shape == y.shape and place in baseline:
                points.append(Checkpoint(place, name, exact[place], baseline[place]))
            # else it is not known what it should be, or in which layout
        return points

    def first_divergence(self, batch: Sequence[Tensor]) -> Divergence:
        """Find the first activation whose output is outside its limit on a batch."""
        # Each step adds one value to the file's outputs, so that onnxruntime fuses all else as it does without it.
        # Bisection assumes that a difference stays once it is there; that the layer before agrees was measured.
        points, judged = self.checkpoints(batch), dict[int, LayerError]()
        outputs = [value.name for value in self.model.graph.output]
        low, high = -1, len(points)  # agrees at low, differs at high (the file's outputs)
        while high - low > 1:
            middle = (low + high) // 2
            value = points[middle].value
            y = run_with_outputs(self.model, [value, *outputs], batch, self.setup)[value]
            layer = judged[middle] = points[middle].judge(y, self.references.dtype, self.tolerance)
            low, high = (low, middle) if layer.error > layer.limit else (middle, high)
        end = [points[high].value] if high < len(points) else outputs
        start = [points[low].value] if low >= 0 else []
        return Divergence(judged.get(high), judged.get(low), nodes_between(self.model, start, end))


def nodes_between(model: onnx.ModelProto, start: Sequence[str], end: Sequence[str]) -> tuple[str, ...]:
    """Return the nodes that some values need beside those that others need, with the weights that they read."""
    producer = {name: i for i, node in enumerate(model.graph.node) for name in node.output if name}

    def ancestors(values: Sequence[str]) -> set[int]:
        reached: set[int] = set()
        waiting = [producer[name] for name in values if name in producer]
        while waiting:
            i = waiting.pop()
            if i not in reached:
                reached.add(i)
                waiting += [producer[name] for name in model.graph.node[i].input if name in producer]
        return reached

    weights = {tensor.name for tensor in model.graph.initializer}
    labels = []
    for i in sorted(ancestors(end) - ancestors(start)):
        node = model.graph.node[i]
        read = ", ".join(name for name in node.input if name in weights)
        labels.append(f"{node_label(node)}({read})" if read else node_label(node))
    return tuple(labels)


def find_culprit(path: Path, setup: SessionSetup, excess: Excess) -> Culprit | None:
    """Find what causes an excess above 1; ``None`` if there is no difference on the inputs that it is measured on."""
    # The optimisation level is lowered first; then the optimisations are left out one by one, until one restores.

    def tried(setup: SessionSetup) -> float:
        try:
            return excess(setup)
        except (ModelFileError, ProviderError):  # a graph that cannot be loaded at all is infinitely wrong
            return float("inf")

    shown = tried(setup)
    if shown <= 1:
        return None
    bare = tried(replace(setup, level="DISABLE_ALL"))
    if bare > 1:
        first = provider_name(setup.providers[0]) if setup.providers else CPU
        on_cpu = tried(SessionSetup((CPU,))) if first != CPU else shown
        return Culprit("provider", (first,), "", shown, on_cpu) if on_cpu <= 1 else Culprit("file", (), "", shown, bare)
    level = next(name for name in LEVELS if name == "ENABLE_ALL" or tried(replace(setup, level=name)) > 1)
    setup = replace(setup, level=level)
    shown = tried(setup)
    for name in OPTIMIZATIONS if path.stat().st_size <= _ONE_BY_ONE_BELOW else ():
        without = tried(replace(setup, disabled=(name,)))
        if without <= 1:
            return Culprit("graph optimisation", (name,), level, shown, without)
    return Culprit("graph optimisation", (), level, shown, bare)
