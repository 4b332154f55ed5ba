"""Files that lit-gelu did not write: what they take and give, and their activations beside the module's."""

import os
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np
import onnx
import torch
from onnx import TensorProto
from torch import nn

from lit_gelu.activations import ActivationRegistry
from lit_gelu.activations.naming.spec import function_spec
from lit_gelu.errors import LitGeluError, ModelFileError, ModelInputError, SwapError
from lit_gelu.export.graph_activations import WITH_BIAS, GraphActivation
from lit_gelu.export.inputs import SCOPE, Call, FlatModule
from lit_gelu.export.metadata import FileMetadata
from lit_gelu.export.parity.report import ParityRow
from lit_gelu.export.parity.runs import OutputSignature, SessionSetup
from lit_gelu.export.parity.structure import DTYPES_OF_ELEMENTS, activation_row
from lit_gelu.export.runtime.model_file import Port, nodes_of, operator_name
from lit_gelu.export.site_nodes import SiteNodes, element_type
from lit_gelu.surgery.coverage import CoveredSite, coverage
from lit_gelu.surgery.sites import is_gate

_FLOATS = {
    TensorProto.FLOAT: "fp32",
    TensorProto.DOUBLE: "fp32",
    TensorProto.FLOAT16: "fp16",
    TensorProto.BFLOAT16: "bf16",
}
_QUANTISED = (  # beginnings of names
    "Quantize", "Dequantize", "DynamicQuantize", "QLinear", "QGemm", "QAttention", "MatMulInteger", "ConvInteger",
    "MatMulNBits", "MatMulBnb4", "GatherBlockQuantized",
)  # fmt: skip
_SAME = 1e-6  # up to which two activations are one function, on [-12, 12]
_GRID = torch.linspace(-12, 12, 2401, dtype=torch.float64)
_WITHIN = 0.25  # of a dtype's largest number: beyond, formulas overflow on the way


def foreign_metadata(model: onnx.ModelProto, path: str | os.PathLike[str]) -> FileMetadata:
    """Return what a graph tells in the place of a record: the dtype is that of most weights, else of the inputs."""
    if any(operator_name(node).rpartition("::")[2].startswith(_QUANTISED) for node in nodes_of(model.graph)):
        raise ModelFileError(
            f"{os.fspath(path)!r} is in int8, whose rounding no tolerance of floating-point arithmetic fits. Give the "
            "file that it was made from; of lit_gelu.export.quantization.quantize_onnx's files, check_quantized asks "
            "what becomes of the task."
        )
    sizes: Counter[str] = Counter()
    for tensor in model.graph.initializer:
        if tensor.data_type in _FLOATS:
            sizes[_FLOATS[tensor.data_type]] += int(np.prod(tensor.dims))
    inputs = (value.type.tensor_type.elem_type for value in model.graph.input)
    dtypes = [dtype for dtype, _ in sizes.most_common(1)] or [_FLOATS[kind] for kind in inputs if kind in _FLOATS]
    return FileMetadata(
        approximate="as_trained",
        dtype=next(iter(dtypes), "fp32"),
        opset=next(entry.version for entry in model.opset_import),
        model_class="",
        sites=(),
        versions={model.producer_name or "an unnamed program": model.producer_version},
    )


def matched_call(call: Call, ports: Mapping[str, Port]) -> tuple[Call, list[str]]:
    """Return a sample in the order of a file's inputs, matched by name, then by order and shape; and what to know."""
    # What the file does not take stays in the call, at the sample's value.
    places: dict[str, int] = {name: call.names.index(name) for name in ports if name in call.names}
    by_name = set(places)
    for name, port in ports.items():
        rest = (place for place in range(len(call.names)) if place not in places.values())
        place = places.get(name, next((place for place in rest if _fits(port, call.tensors[place])), None))
        if place is None or call.tensors[place].ndim != len(port.shape):
            takes = ", ".join(f"{other.name} {list(other.shape)} {other.type_name}" for other in ports.values())
            gives = ", ".join(f"{n} {list(t.shape)} {t.dtype}" for n, t in zip(call.names, call.tensors, strict=True))
            raise ModelInputError(
                f"The file takes {takes}; the sample gives {gives}, of which none fits {name!r}. Give input_sample= "
                "with a tensor for each of the file's inputs."
            )
        places[name] = place
    order = [places[name] for name in ports]
    if not order or call.tensors[order[0]].ndim == 0:
        raise ModelInputError("The first of the file's inputs has no axis that could be the batch, or there is none.")
    renamed = [f"{name!r} is {call.names[place]}" for name, place in places.items() if name not in by_name]
    notes = [f"inputs were matched by order and shape: {', '.join(renamed)}."] if renamed else []
    leaves = list(call.leaves)
    for place, name in enumerate(call.names):
        if place not in order:
            leaves[call.positions[place]] = call.tensors[place]
            notes.append(f"the file has no input {name!r}: the module gets the sample's, whatever the others are.")
    integers = {torch.int32, torch.int64}
    tensors = (
        tensor.to(port.dtype) if port.dtype is not None and {port.dtype, tensor.dtype} == integers else tensor
        for port, tensor in zip(ports.values(), (call.tensors[place] for place in order), strict=True)
    )
    names, positions = (call.names[place] for place in order), (call.positions[place] for place in order)
    fitted = Call(tuple(names), tuple(tensors), tuple(leaves), call.structure, tuple(positions))
    return replace(fitted, constants=call.constants, has_objects=call.has_objects), notes


def _fits(port: Port, tensor: torch.Tensor) -> bool:
    sizes = zip(port.shape, tensor.shape, strict=False)
    same_kind = port.dtype is None or port.dtype.is_floating_point == tensor.is_floating_point()
    return same_kind and len(port.shape) == tensor.ndim and all(a == b or not isinstance(a, int) for a, b in sizes)


def matched_outputs(signatures: Sequence[OutputSignature], names: Sequence[str]) -> tuple[list[int], list[str]]:
    """Return which of the module's outputs a file has: by name if all are the module's, else the first ones."""
    of_module = [signature.name for signature in signatures]
    if set(names) <= set(of_module):
        places = [of_module.index(name) for name in names]
    else:
        places = list(range(min(len(names), len(of_module))))
    absent = [name for place, name in enumerate(of_module) if place not in places]
    return places, [f"the file has no output {', '.join(map(repr, absent))}."] if absent else []


@dataclass(frozen=True)
class SitePair:
    """One call of an activation of the module, and what stands for it in the file."""

    site: str
    call: int  # number of the site's call, from 0
    spec: str  # the module's
    there: GraphActivation
    certain: bool  # whether no other order of the graph could explain it

    @property
    def entry(self) -> SiteNodes:
        """The file's nodes as those of the site."""
        return SiteNodes(self.site, self.call, self.there.nodes, self.there.x, self.there.y)


class ForeignActivations:
    """The activations of a module beside those of a file, paired by scope, or by order where scopes do not tell."""

    def __init__(
        self,
        module: nn.Module,
        call: Call,
        graph: onnx.ModelProto,
        activations: Sequence[GraphActivation],
        registry: ActivationRegistry,
    ) -> None:
        self.graph, self.registry = graph, registry
        self._modules = dict(module.named_modules())
        counted = Counter(f"{each.spec or 'no registered activation'} ({each.operator})" for each in activations)
        shown = ", ".join(f"{count} {name}" for name, count in counted.items()) or "none that is known"
        self.notes = [f"activations are recognised in the graph, and not by a record of its nodes: {shown}."]
        self.pairs = self._paired(self._calls(module, call), activations)

    @property
    def entries(self) -> list[SiteNodes]:
        """The calls whose output the graph has, in its order."""
        order = {name: i for i, node in enumerate(self.graph.graph.node) for name in node.output}
        entries = [pair.entry for pair in self.pairs if pair.there.y in order]
        return sorted(entries, key=lambda entry: order[entry.y])

    def _calls(self, module: nn.Module, call: Call) -> list[tuple[str, str]]:
        """Return site and spec of each activation that the module calls on the sample, in the order of the calls."""
        try:
            rows, sequence = called_sites(module, call, self.registry)
        except SwapError as error:
            self.notes.append(f"the module's activations were not looked for: {error}")
            return []
        specs = {name: str(row.spec and function_spec(row.spec)) for name, row in rows.items()}
        return [(name, specs[name]) for name in sequence]

    def _paired(self, calls: Sequence[tuple[str, str]], activations: Sequence[GraphActivation]) -> list[SitePair]:
        scopes = dict.fromkeys(scope_of(site, self._modules) for site, _ in calls)
        by_scope: dict[str, list[GraphActivation]] = {}
        for activation in activations:
            by_scope.setdefault(module_of(activation.scope, scopes), []).append(activation)
        pairs: list[SitePair] = []
        for scope in scopes:
            called = [each for each in calls if scope_of(each[0], self._modules) == scope]
            pairs += self._in_order(called, by_scope.get(scope, []))
        if not pairs:
            ungated = [each for each in activations if each.spec is None or not self._is_gate(each.spec)]
            pairs = self._in_order([each for each in calls if not self._is_gate(each[1])], ungated)
        return pairs

    def _in_order(self, calls: Sequence[tuple[str, str]], there: Sequence[GraphActivation]) -> list[SitePair]:
        if len(calls) != len(there):
            return []
        certain = Counter(spec for _, spec in calls) != Counter(each.spec for each in there)
        numbers: Counter[str] = Counter()
        pairs = []
        for (site, spec), activation in zip(calls, there, strict=True):
            pairs.append(SitePair(site, numbers[site], spec, activation, certain))
            numbers[site] += 1
        return pairs

    def faults(self, *, failed: bool) -> list[str]:
        """Say where the file has another function than the module: if outputs differ, or nothing else can be meant."""
        # A monotone activation may be a part of the other, such as a sigmoid that was not recognised as SiLU's.
        groups: dict[tuple[str, str, str], list[str]] = {}
        for pair in self.pairs:
            spec = pair.there.spec
            certain = (
                pair.certain and spec is not None and not self._is_monotone(spec) and not self._is_monotone(pair.spec)
            )
            if not self._same(pair) and (failed or certain):
                text = spec or "no registered activation"
                groups.setdefault((pair.spec, text, pair.there.operator), []).append(pair.site or "(the module itself)")
        return [
            f"{sites[0]} is {spec} in the module, and {text} in the file ({operator})"
            + (f"; so are {len(sites) - 1} more, up to {sites[-1]}." if len(sites) > 1 else ".")
            for (spec, text, operator), sites in groups.items()
        ]

    def rows(self, setup: SessionSetup, tolerance: float) -> tuple[list[ParityRow], list[str]]:
        """Cut out each distinct activation that agrees with the module's, and compare it by itself."""
        rows: dict[object, ParityRow] = {}
        notes = []
        for pair in self.pairs:
            module, there = self._modules.get(pair.site), pair.there
            dtype = DTYPES_OF_ELEMENTS.get(element_type(self.graph, pair.entry))
            key = (pair.spec, there.operator, dtype)
            biased = any(node.op_type in WITH_BIAS and len(node.input) > 1 for node in there.nodes)
            if module is None or dtype is None or not there.x or biased or key in rows or not self._same(pair):
                continue
            try:
                rows[key] = activation_row(
                    self.graph, pair.entry, module, dtype, setup,
                    label=pair.spec, tolerance=tolerance, largest=_WITHIN * torch.finfo(dtype).max,
                )  # fmt: skip
            except LitGeluError as error:
                notes.append(f"{pair.spec} could not be run alone: {error}")
        return list(rows.values()), notes

    def _same(self, pair: SitePair) -> bool:
        """Return whether two specs are one function; what cannot be evaluated is compared by name."""
        if pair.there.spec is None or pair.spec == pair.there.spec:
            return pair.spec == pair.there.spec
        with suppress(LitGeluError, RuntimeError), torch.no_grad():  # one slope for each channel does not broadcast
            both = [self.registry.create(spec, trusted=False) for spec in (pair.spec, pair.there.spec)]
            ours, theirs = (activation.double().eval()(_GRID.clone()) for activation in both)
            return torch.allclose(ours, theirs, rtol=0, atol=_SAME)
        return pair.spec.partition("(")[0] == pair.there.spec.partition("(")[0]

    def _is_monotone(self, spec: str) -> bool:
        with suppress(LitGeluError):  # an opaque one
            return self.registry.info(spec).monotone is not False
        return True

    def _is_gate(self, spec: str) -> bool:
        with suppress(LitGeluError):
            return is_gate(self.registry.resolve(spec, trusted=False), self.registry)
        return False


def called_sites(
    module: nn.Module, call: Call, registry: ActivationRegistry
) -> tuple[dict[str, CoveredSite], list[str]]:
    """Return a module's sites by name, and the names in the order in which a sample calls them.

    Raises:
        SwapError: If the module cannot be run.
    """
    fused = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)  # no file has torch's fused encoder layers
    try:
        report = coverage(FlatModule(module, call), tuple(call.tensors), registry=registry)
    finally:
        torch.backends.mha.set_fastpath_enabled(fused)
    names = {row.name: row.name.removeprefix(SCOPE).removeprefix(".") for row in report.sites}
    return {names[row.name]: row for row in report.sites}, [names[name] for name in report.sequence]


def scope_of(site: str, modules: Mapping[str, nn.Module]) -> str:
    """Return the module of a site: itself, or for a call, and a function that a module holds, the one that makes it."""
    name = site.partition(":")[0]
    return name if name in modules else name.rpartition(".")[0]


def module_of(scope: str, names: Collection[str]) -> str:
    """Return the one of some modules that a file's scope is: a wrapper may stand before, and a call's number behind."""
    base, _, number = scope.rpartition("_")
    for text in (scope, base if number.isdecimal() else scope):
        if text in names:
            return text
        ends = [name for name in names if name and (f".{text}".endswith(f".{name}") or f".{name}".endswith(f".{text}"))]
        if text and len(ends) == 1:
            return ends[0]
    return scope
