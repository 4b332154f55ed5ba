"""What can be audited: a module, an ONNX file, a folder with a configuration, a function; with its activations."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from lit_gelu.activations import ActivationRegistry
from lit_gelu.audit.adapters import SUFFIXES, open_runtime_file
from lit_gelu.audit.declarations import declared_activations, declared_at
from lit_gelu.audit.module_activations import called_specs, function_of
from lit_gelu.audit.number_format import FloatFormat
from lit_gelu.errors import AuditError, LitGeluError, shown
from lit_gelu.export import OnnxPredictor
from lit_gelu.export.copying import evaluation_copy
from lit_gelu.export.graph_activations import GraphActivation, activation_function, activations_of
from lit_gelu.export.inputs import Call, as_array, named_outputs, take_apart
from lit_gelu.export.metadata import recorded_metadata
from lit_gelu.export.parity.foreign import matched_call, scope_of
from lit_gelu.export.parity.runs import file_inputs
from lit_gelu.export.parity.structure import DTYPES_OF_ELEMENTS
from lit_gelu.export.pretrained import configuration_of, open_pretrained
from lit_gelu.export.site_nodes import SiteNodes, element_type, load_graph, valid_onnx
from lit_gelu.files import is_file, is_folder
from lit_gelu.sandbox import input_sample_of
from lit_gelu.surgery.sites import find_sites, is_gate


@dataclass(frozen=True)
class Activation:
    """One call of an activation in an artefact.

    Args:
        name: Of the site.
        scope: The module that calls it, fully qualified; empty where the artefact does not tell.
        implemented: The class, function or operator that computes it.
        spec: What that is by its name or formula; ``None`` if it is not known.
        declared: What a configuration or a file's metadata says that it is, in their words.
        function: What computes it, as `lit_gelu.audit.identify` takes it; ``None`` where it cannot be called alone.
        dtype: Of the function.
    """

    name: str
    scope: str
    implemented: str
    spec: str | None
    declared: str = ""
    function: Callable[[Any], Any] | None = field(default=None, compare=False)
    dtype: str = "float32"


@dataclass(frozen=True)
class Artefact:
    """Something that computes.

    Args:
        label: What it is called in a report.
        activations: Its activations but for gates, call by call; empty if it does not name them.
        module: The module that it is, in evaluation mode on the CPU.
        call: The sample that the module was run with.
        run: From a call to its outputs.
        notes: What a reader should know.
    """

    label: str
    activations: tuple[Activation, ...]
    module: nn.Module | None = None
    call: Call | None = None
    run: Callable[[Call], list[np.ndarray]] | None = None
    notes: tuple[str, ...] = ()


def open_artefact(source: Any, input_sample: Any, registry: ActivationRegistry) -> Artefact:
    """Return what can be audited of a module, a file, a folder, a function or the name of an activation."""
    if isinstance(source, nn.Module):
        return _of_module(evaluation_copy(source), type(source).__name__, input_sample, registry, {})
    if callable(source) and not isinstance(source, type):
        name = getattr(source, "__qualname__", type(source).__name__)
        return Artefact(name, (Activation("", "", name, None, function=source),))
    if isinstance(source, (str, os.PathLike)):
        path = Path(source)
        if is_folder(source):
            model = open_pretrained(path).model
            return _of_module(model, path.name, input_sample, registry, declared_activations(configuration_of(path)))
        if path.suffix.lower() == ".onnx":
            return _of_onnx(path, registry)
        if path.suffix.lower() in SUFFIXES:
            return _of_runtime_file(path)
        if ("(" in str(source) or not path.suffix) and not is_file(source):
            spec = str(registry.resolve(str(source), trusted=False))
            return Artefact(spec, (Activation("", "", spec, spec),))
    raise AuditError(
        f"{shown(source)} cannot be audited. Give a module, an ONNX file, a folder as transformers, timm or open_clip "
        f"save it, a file of another runtime ({', '.join(SUFFIXES)}), a function, or the name of an activation."
    )


def _of_runtime_file(path: Path) -> Artefact:
    """Return a file whose activations cannot be cut out; what it names is a note."""
    file = open_runtime_file(path)
    named = ", ".join(dict.fromkeys(operator for _, operator in file.activations)) or "no activation"
    note = f"{path.name} is run by {file.runtime}, and names {named}."
    return Artefact(path.name, (), run=lambda call: file.run([as_array(t) for t in call.tensors]), notes=(note,))


def _of_onnx(path: Path, registry: ActivationRegistry) -> Artefact:
    metadata = recorded_metadata(path)
    recorded = {} if metadata is None else {site.site: site.spec for site in metadata.sites}
    with valid_onnx(path):
        graph = load_graph(path)
        in_graph = activations_of(graph, metadata, registry)
    activations = []
    for each in in_graph:
        if each.spec is None or not is_gate(registry.resolve(each.spec, trusted=False), registry):
            element = element_type(graph, SiteNodes(each.scope, 0, each.nodes, each.x, each.y))
            activations.append(
                Activation(
                    name=each.scope,
                    scope=each.scope,
                    implemented=each.operator,
                    spec=each.spec,
                    declared=recorded.get(each.scope, ""),
                    function=_cut_out_later(path, each) if each.nodes else None,
                    dtype=FloatFormat(DTYPES_OF_ELEMENTS.get(element, torch.float32)).name,
                )
            )
    try:
        predictor = OnnxPredictor(path, ["CPUExecutionProvider"])
    except LitGeluError as error:  # it is read already; such as bfloat16, of which activations can be run all the same
        return Artefact(path.name, tuple(activations), notes=(f"{path.name} was not run as a whole: {error}",))

    def run(call: Call) -> list[np.ndarray]:
        matched, _ = matched_call(call, predictor.ports)
        outputs = predictor(*file_inputs(predictor, matched.tensors))
        return [as_array(y.float()) for y in (outputs if isinstance(outputs, tuple) else (outputs,))]

    return Artefact(path.name, tuple(activations), run=run)


def _cut_out_later(path: Path, activation: GraphActivation) -> Callable[[np.ndarray], np.ndarray]:
    """Return an activation's function, for which the file is read when it is first called."""
    function = cache(partial(activation_function, path, activation))
    return lambda x: function()(np.asarray(x))


def _of_module(
    module: nn.Module, label: str, input_sample: Any, registry: ActivationRegistry, declared: Mapping[str, str]
) -> Artefact:
    """Return what can be audited of a module; without a sample, its activation modules alone are seen."""
    sample = input_sample_of(module, input_sample)
    if sample is None:
        sample = getattr(module, "dummy_inputs", None)  # as models of transformers have it
    call = None if sample is None else take_apart(module, sample)
    unknown = f"{label} was not run: calls of functions, and how often modules are called, are not known."
    modules = dict(module.named_modules())
    specs: list[tuple[str, str | None]]
    if call is None:  # of each activation module, and of each function that a module holds
        specs = [(site.name, str(site.spec)) for site in find_sites(module, registry=registry) if site.role != "gate"]
    else:
        specs = called_specs(module, call, registry)
    activations = []
    for name, spec in specs:
        kind = type(modules[scope_of(name, modules)]).__name__
        activations.append(
            Activation(
                name=name,
                scope=scope_of(name, modules),
                implemented=kind if name in modules else f"call in {kind}",
                spec=spec,
                declared=declared_at(name, declared),
                function=function_of(name, modules),
            )
        )
    run = None if call is None else runner(module)
    return Artefact(label, tuple(activations), module, call, run, (unknown,) if call is None else ())


def runner(module: nn.Module) -> Callable[[Call], list[np.ndarray]]:
    """Return what runs a module on a call."""

    def run(call: Call) -> list[np.ndarray]:
        args, kwargs = call.arguments([tensor.clone() for tensor in call.tensors])
        with torch.no_grad():
            return [as_array(tensor) for _, tensor in named_outputs(module(*args, **kwargs))]

    return run
