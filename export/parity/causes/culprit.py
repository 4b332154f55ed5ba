"""What causes a difference: the file itself, the provider, or a graph optimisation of onnxruntime; by bisection."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from lit_gelu.export.errors import ModelFileError, ProviderError
from lit_gelu.export.parity.activation_census import optimized_graph
from lit_gelu.export.parity.execution import LEVELS, SessionSetup
from lit_gelu.export.parity.subgraph import node_label
from lit_gelu.export.runtime import CPU, provider_name

# The graph optimisations of onnxruntime 1.31 that can be switched off by name, as its library spells them. A name that
# another release does not know is ignored by it.
OPTIMIZATIONS: tuple[str, ...] = (
    "GeluFusionL1", "GeluFusionL2", "BiasGeluFusion", "FastGeluFusion", "QuickGeluFusion", "GeluApproximation",
    "LayerNormFusionL1", "LayerNormFusionL2", "SimplifiedLayerNormFusion", "SkipLayerNormFusion",
    "BiasSkipLayerNormFusion", "EmbedLayerNormFusion", "AttentionFusion", "GroupQueryAttentionFusion",
    "GroupQueryAttentionPreNormFusion", "GqaValueLayoutTransformer", "BiasSoftmaxFusion", "BiasDropoutFusion",
    "MatMulAddFusion", "MatMulScaleFusion", "MatMulActivationFusion", "MatmulTransposeFusion",
    "MatMulIntegerToFloatFusion", "MatMulNBitsFusion", "MatMulNBitsMlpFusion", "MatMulNBitsQkvFusion",
    "DQMatMulNBitsFusion", "DynamicQuantizeMatMulFusion", "MatMul_BatchNormalization_Fusion", "MatMulBnFusion_Gemm",
    "MatMulBnFusion_GemmBias", "GemmActivationFusion", "GemmSumFusion", "GemmTransposeFusion", "ConvAddFusion",
    "ConvMulFusion", "ConvBNFusion", "ConvActivationFusion", "ConvAddActivationFusion", "Pad_Fusion", "DivMulFusion",
    "FuseReluClip", "NotWhereFusion", "ReshapeFusion", "GatherSliceToSplitFusion", "GatherToSliceFusion",
    "SliceConcatToSpaceToDepthFusion", "LabelEncoderFusion", "CastElimination", "CastChainElimination",
    "CastFloat16Transformer", "RemoveDuplicateCastTransformer", "FuseFp16InitializerToFp32NodeTransformer",
    "CommonSubexpressionElimination", "ConstantFolding", "ConstantFoldingDQ", "EliminateDropout", "EliminateIdentity",
    "EliminateSlice", "ExpandElimination", "NoopElimination", "PreShapeNodeElimination", "UnsqueezeElimination",
    "Level1_RuleBasedTransformer", "Level2_RuleBasedTransformer", "TransposeOptimizer", "NchwcTransformer",
    "NhwcTransformer", "QDQPropagationTransformer", "QDQSelectorActionTransformer", "QDQFinalCleanupTransformer",
    "QDQS8ToU8Transformer", "DoubleQDQPairsRemover", "ClipQuantRewrite", "ReluQuantRewrite",
    "Avx2WeightS8ToU8Transformer",
)  # fmt: skip
_ONE_BY_ONE_BELOW = 64 * 1024**2  # bytes of file: above, only as many sessions as bisection needs

Excess = Callable[[SessionSetup], float]


@dataclass(frozen=True)
class Culprit:
    """What causes a difference."""

    kind: str  # graph optimisation, provider, or file: its operators or weights, with no optimisation at all
    names: tuple[str, ...]  # the optimisations without which the file is within its limit, or the provider
    level: str  # the lowest optimisation level that shows the difference; empty for other kinds
    excess_with: float  # the error as the file is run, in units of the limit
    excess_without: float  # the same without the culprit
    change: str = ""  # what it does to the graph: the operators that it takes out and puts in

    def __str__(self) -> str:
        """Return one sentence."""
        if self.kind == "file":
            return (
                f"the file itself is off by {self.excess_with:.3g} times its limit, "
                f"{self.excess_without:.3g} times without any graph optimisation of onnxruntime"
            )
        what = f"onnxruntime's {', '.join(self.names) or 'optimisation'} ({self.level})"
        if self.kind == "provider":
            what = f"the provider {', '.join(self.names)}"
        change = f", which makes {self.change}" if self.change else ""
        return f"{what}{change}: {self.excess_with:.3g} times the limit with it, {self.excess_without:.3g} without"


def find_culprit(path: Path, setup: SessionSetup, excess: Excess) -> Culprit | None:
    """Find what causes an excess above 1; ``None`` if there is no difference on the inputs that it is measured on."""
    # The optimisation level is lowered first, then the optimisations of the lowest level that shows the difference are
    # left out, by bisection, until one is left (or a few that do it only together). Where one prepares what another
    # spoils, the one that spoils is named: the other still acts, and does no harm, while that one is left out.
    shown = _tried(excess, setup)
    if shown <= 1:
        return None
    plain = replace(setup, level="DISABLE_ALL")
    bare = _tried(excess, plain)
    if bare > 1:
        first = provider_name(setup.providers[0]) if setup.providers else CPU
        on_cpu = _tried(excess, SessionSetup((CPU,))) if first != CPU else shown
        if on_cpu <= 1:
            return Culprit("provider", (first,), "", shown, on_cpu)
        return Culprit("file", (), "", shown, bare)
    level = next(name for name in LEVELS if name == "ENABLE_ALL" or _tried(excess, replace(setup, level=name)) > 1)
    setup = replace(setup, level=level)
    return _optimization(path, setup, excess, _tried(excess, setup))


def _tried(excess: Excess, setup: SessionSetup) -> float:
    """Return the excess; a graph that cannot be loaded at all is infinitely wrong."""
    try:
        return excess(setup)
    except (ModelFileError, ProviderError):
        return float("inf")


def _optimization(path: Path, setup: SessionSetup, excess: Excess, shown: float) -> Culprit:
    """Find the optimisations that cause a difference at a level."""

    def without(names: Sequence[str]) -> float:
        return _tried(excess, replace(setup, disabled=tuple(names)))

    everything = without(OPTIMIZATIONS)
    if everything > 1:  # one that has no name of its own
        return Culprit("graph optimisation", (), setup.level or "", shown, everything)
    names = _smallest(OPTIMIZATIONS, lambda some: without(some) <= 1)
    if len(names) == 1 and path.stat().st_size <= _ONE_BY_ONE_BELOW:
        names = _spoiling(path, setup, [name for name in OPTIMIZATIONS if without([name]) <= 1])
    return Culprit(
        "graph optimisation", tuple(names), setup.level or "", shown, without(names), _change(path, setup, names)
    )


def _smallest(names: Sequence[str], restores: Callable[[Sequence[str]], bool]) -> list[str]:
    """Return a smallest part of names that restores parity when left out, by delta debugging."""
    kept, size = list(names), len(names) // 2
    while size >= 1:
        parts = [kept[i : i + size] for i in range(0, len(kept), size)]
        for part in parts:
            rest = [name for name in kept if name not in part]
            if restores(part):
                kept = part
                break
            if rest and restores(rest):
                kept = rest
                break
        else:
            size //= 2
            continue
        size = max(1, len(kept) // 2) if len(kept) > 1 else 0
    return kept


def _spoiling(path: Path, setup: SessionSetup, restoring: Sequence[str]) -> list[str]:
    """Return those of several optimisations, each of which restores parity, that spoil what the others prepare."""
    if len(restoring) < 2:
        return list(restoring)
    none = _operators(path, replace(setup, disabled=tuple(restoring)))
    acting = [name for name in restoring if _operators(path, replace(setup, disabled=(name,))) != none]
    return acting or list(restoring)


def _operators(path: Path, setup: SessionSetup) -> Mapping[str, int]:
    """Count the operators of the optimised graph."""
    return Counter(node_label(node) for node in optimized_graph(path, setup).graph.node)


def _change(path: Path, setup: SessionSetup, names: Sequence[str]) -> str:
    """Say which operators some optimisations take out of the graph and put into it."""
    after, before = Counter(_operators(path, setup)), Counter(_operators(path, replace(setup, disabled=tuple(names))))
    taken, given = before - after, after - before
    sides = (", ".join(f"{count} {name}" for name, count in sorted(side.items())) for side in (taken, given))
    return " -> ".join(side or "nothing" for side in sides) if taken or given else ""
