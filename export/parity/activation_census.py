"""Which activation of a file became what in onnxruntime's own optimised graph, and on which provider."""

import tempfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import onnx

from lit_gelu.export.parity.execution import SessionSetup
from lit_gelu.export.parity.subgraph import SiteNodes, node_label
from lit_gelu.export.runtime import OnnxPredictor

_RECORD = "session.record_ep_graph_assignment_info"
# How onnxruntime names a value once a Cast has taken the old name over.
_RENAMED = ("{}", "InsertedPrecisionFreeCast_{}", "InsertedCast_{}")
# They compute nothing: onnxruntime keeps channels in blocks around its convolutions.
_REORDERED = ("ReorderOutput", "ReorderInput")


@dataclass(frozen=True)
class ActivationFate:
    """What became of one call of an activation."""

    site: str
    call: int  # number of the call, from 0
    before: tuple[str, ...]  # its operators in the file
    # Those in the optimised graph that compute the same output; empty if it is no value of that graph.
    after: tuple[str, ...]
    # The execution providers that its nodes were given to, before fusion; empty if that is not known.
    provider: str = ""

    def __str__(self) -> str:
        """Return ``Sigmoid, Mul -> QuickGelu(alpha=1)``."""
        after = ", ".join(self.after) if self.after else "(no value of the optimised graph)"
        return f"{', '.join(self.before)} -> {after}"


def optimized_graph(path: Path, setup: SessionSetup) -> onnx.ModelProto:
    """Return the graph that onnxruntime really runs, without weights."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "optimized.onnx"
        options = setup.options()
        options.optimized_model_filepath = str(target)
        OnnxPredictor(path, list(setup.providers), options)
        return onnx.load(target, load_external_data=False)


def placement(path: Path, setup: SessionSetup) -> dict[str, str]:
    """Return each node's provider by its name, before the fusions that follow; empty where onnxruntime does not say."""
    config = {**setup.config, _RECORD: "1"}
    session = replace(setup, config=config).open(path).session
    if not hasattr(session, "get_provider_graph_assignment_info"):
        return {}
    parts = session.get_provider_graph_assignment_info()
    return {node.name: part.ep_name for part in parts for node in part.get_nodes()}


def fates(found: list[SiteNodes], optimized: onnx.ModelProto, providers: Mapping[str, str]) -> list[ActivationFate]:
    """Say what became of every call of every site."""
    # A fused operator keeps the name of the value that it computes, so what computes the site's output now is what the
    # site became, with whatever is left of the site's own intermediate values.
    producer = {name: node for node in optimized.graph.node for name in node.output if name}
    return [_fate(entry, producer, providers) for entry in found]


def _fate(entry: SiteNodes, producer: Mapping[str, onnx.NodeProto], providers: Mapping[str, str]) -> ActivationFate:
    """Say what became of one call."""
    names = [name for node in entry.nodes for name in node.output if name]
    last = _computing(entry.y, producer)
    kept = [node for name in names if name != entry.y and (node := _computing(name, producer)) is not None]
    after = [*kept, *([] if last is None else [last])]
    on = sorted({providers[node.name] for node in entry.nodes if node.name in providers})
    return ActivationFate(
        entry.site,
        entry.call,
        tuple(node_label(node) for node in entry.nodes),
        tuple(node_label(node) for node in after) if last is not None else (),
        ", ".join(on),
    )


def _computing(name: str, producer: Mapping[str, onnx.NodeProto]) -> onnx.NodeProto | None:
    """Return the node that computes a value, behind the Casts and changes of layout that onnxruntime inserts."""
    candidates = [producer[key] for pattern in _RENAMED if (key := pattern.format(name)) in producer]
    node = next((node for node in candidates if node.op_type != "Cast"), next(iter(candidates), None))
    while node is not None and node.op_type in _REORDERED and node.input[0] in producer:
        node = producer[node.input[0]]
    return node


def fate_counts(entries: list[ActivationFate]) -> dict[str, int]:
    """Count the calls by what became of them."""
    return dict(Counter(str(entry) for entry in entries))
