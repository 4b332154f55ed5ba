"""What can be audited: a module, an ONNX file, a folder with a configuration, a function; with its activations."""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lit_gelu.activations import ActivationRegistry
from lit_gelu.audit.black_box import BlackBox
from lit_gelu.audit.folders import declared_activations, declared_at, model_of_folder
from lit_gelu.audit.number_format import FloatFormat
from lit_gelu.errors import AuditError, LitGeluError, SwapError, shown
from lit_gelu.export import OnnxPredictor
from lit_gelu.export.copying import evaluation_copy
from lit_gelu.export.graph_activations import GraphActivation, activation_function, graph_activations
from lit_gelu.export.inputs import Call, FlatModule, as_array, named_outputs, take_apart
from lit_gelu.export.metadata import recorded_metadata
from lit_gelu.export.parity.foreign import matched_call
from lit_gelu.sandbox import input_sample_of
from lit_gelu.surgery.coverage import coverage
from lit_gelu.surgery.recognition import is_gate
from lit_gelu.surgery.sites import find_sites

_DTYPES = {"fp16": "float16", "bf16": "bfloat16"}  # of files, where they are not float32


@dataclass(frozen=True)
class Activation:
    """One call of an activation in an artefact.

    Args:
        name: Of the module that computes it, fully qualified; empty where the artefact does not tell.
        implemented: The class, function or operator that computes it.
        spec: What that is by its name or formula; ``None`` if it is not known.
        declared: What a configuration or a file's metadata says that it is, in their words.
        function: What computes it, as `lit_gelu.audit.identify` takes it; ``None`` where it cannot be called alone.
        dtype: Of the function.
    """

    name: str
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
    if callable(source):
        name = getattr(source, "__qualname__", type(source).__name__)
        return Artefact(name, (Activation("", name, None, function=source),))
    if isinstance(source, (str, os.PathLike)):
        path = Path(source)
        if path.is_dir():
            model = model_of_folder(path).float().eval().requires_grad_(False)
            return _of_module(model, path.name, input_sample, registry, declared_activations(path))
        if path.suffix == ".onnx":
            return _of_onnx(path, registry)
        if not path.suffix and not path.exists():
            spec = str(registry.resolve(str(source), trusted=False))
            return Artefact(spec, (Activation("", spec, spec),))
    raise AuditError(
        f"{shown(source)} cannot be audited. Give a module, an ONNX file, a folder as transformers, timm or open_clip "
        "save it, a function, or the name of an activation."
    )


def _of_onnx(path: Path, registry: ActivationRegistry) -> Artefact:
    metadata = recorded_metadata(path)
    dtype = "float32" if metadata is None else _DTYPES.get(metadata.dtype, "float32")
    recorded = {} if metadata is None else {site.site: site.spec for site in metadata.sites}
    predictor = OnnxPredictor(path, ["CPUExecutionProvider"])
    activations = []
    for each in graph_activations(path, registry):
        if each.spec is None or not is_gate(registry.resolve(each.spec, trusted=False), registry):
            function = _cut_out_later(path, each) if each.nodes else None
            declared = recorded.get(each.scope, "")
            activations.append(Activation(each.scope, each.operator, each.spec, declared, function, dtype))

    def run(call: Call) -> list[np.ndarray]:
        matched, _ = matched_call(call, predictor.ports)
        outputs = predictor(*matched.tensors)
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
    modules = dict(module.named_modules())
    kinds = {site.name: site.kind for site in find_sites(module, registry=registry) if site.role != "gate"}
    if sample is None:
        call, run = None, None
        specs = {site.name: str(site.spec) for site in find_sites(module, registry=registry)}
        names = list(kinds)
        notes = [f"{label} was not run: calls of functions, and how often modules are called, are not known."]
    else:
        call = take_apart(module, sample)
        run = runner(module)
        names, specs = _calls(module, call, registry, label)
        notes = []
    activations = []
    for name in names:
        owner = modules.get(owner_of(name), module)
        itself = name in modules
        spec = specs[name]
        activations.append(
            Activation(
                name=name,
                implemented=type(owner).__name__ if itself else f"call in {type(owner).__name__}",
                spec=spec,
                declared=declared_at(name, declared),
                function=owner if itself else None,
            )
        )
    return Artefact(label, tuple(activations), module, call, run, tuple(notes))


def runner(module: nn.Module) -> Callable[[Call], list[np.ndarray]]:
    """Return what runs a module on a call."""

    def run(call: Call) -> list[np.ndarray]:
        args, kwargs = call.arguments([tensor.clone() for tensor in call.tensors])
        with torch.no_grad():
            return [as_array(tensor) for _, tensor in named_outputs(module(*args, **kwargs))]

    return run


def _calls(
    module: nn.Module, call: Call, registry: ActivationRegistry, label: str
) -> tuple[list[str], dict[str, str | None]]:
    """Return the activations that a module calls on a sample, in order, and what each is as far as that is known."""
    fused = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)  # no other artefact has torch's fused encoder layers
    try:
        report = coverage(FlatModule(module, call), tuple(call.tensors), registry=registry)
    except SwapError as error:
        raise AuditError(f"{label} cannot be run: {error}") from error
    finally:
        torch.backends.mha.set_fastpath_enabled(fused)
    rows = {_within(row.name): row for row in report.sites}
    specs: dict[str, str | None] = {
        name: None if row.spec is None or row.spec.opaque else str(row.spec) for name, row in rows.items()
    }
    modules_in_order, unregistered = _unregistered(module, call, rows.keys())
    # What an elementwise module calls on its way is a part of it.
    inner = {name for name in rows if owner_of(name) in unregistered}
    sequence = [name for name in map(_within, report.sequence) if rows[name].role != "gate" and name not in inner]
    if unregistered:
        names = {name for name in sequence if rows[name].kind == "module"} | set(unregistered)
        calls = [name for name in sequence if rows[name].kind != "module"]
        sequence = [name for name in modules_in_order if name in names] + calls
        specs.update(dict.fromkeys(unregistered))
    return sequence, specs


def owner_of(name: str) -> str:
    """Return the module that makes a call: ``blocks.0.mlp`` of ``blocks.0.mlp:gelu#1``."""
    return re.split("[:#]", name, maxsplit=1)[0]


def _within(name: str) -> str:
    """Return a name as the module has it that `FlatModule` holds as ``model``."""
    rest = name.removeprefix("model")
    return rest.removeprefix(".") if rest.startswith(".") or not rest or rest[0] in ":#" else name


def _unregistered(module: nn.Module, call: Call, known: Sequence[str] | Any) -> tuple[list[str], list[str]]:
    """Return the modules that run, in order, and those that are elementwise functions of classes nobody registered."""
    order: list[str] = []
    elementwise: dict[type, bool] = {}
    suspects: dict[str, None] = {}

    def note(name: str, part: nn.Module, args: Any, output: Any) -> None:
        order.append(name)
        x = args[0] if len(args) == 1 else None
        same = isinstance(x, Tensor) and isinstance(output, Tensor) and x.shape == output.shape and x is not output
        bare = next(part.children(), None) is None and next(part.parameters(), None) is None
        if name not in known and bare and same and x.is_floating_point() and not torch.equal(x, output):
            suspects[name] = None

    handles = [
        part.register_forward_hook(lambda part, args, output, name=name: note(name, part, args, output))
        for name, part in module.named_modules()
    ]
    try:
        runner(module)(call)
    finally:
        for handle in handles:
            handle.remove()
    modules = dict(module.named_modules())
    for name in suspects:
        kind = type(modules[name])
        if kind not in elementwise:
            try:
                BlackBox(modules[name], FloatFormat(torch.float32))
                elementwise[kind] = True
            except LitGeluError:
                elementwise[kind] = False
    return order, [name for name in suspects if elementwise[type(modules[name])]]
