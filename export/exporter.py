"""`export_onnx`: from a module to a checked ONNX file."""

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx_ir as ir
import torch
from torch import nn

from lit_gelu import activations, surgery
from lit_gelu.activations import ActivationRegistry
from lit_gelu.export.copying import evaluation_copy
from lit_gelu.export.errors import ExportOptionError
from lit_gelu.export.inputs import FlatModule, sample_of, take_apart
from lit_gelu.export.lowering_pass import LoweredSite, lower
from lit_gelu.export.markers import mark
from lit_gelu.export.metadata import FileMetadata, SiteRecord, strip_origin, versions
from lit_gelu.export.options import ExportOptions, checked_options
from lit_gelu.export.preprocessing import class_path, describe, preprocessing_copy, raw_call
from lit_gelu.export.saving import census, save_model
from lit_gelu.export.tracing import trace
from lit_gelu.export.trial import trial_run


@dataclass(frozen=True)
class ExportReport:
    """What `export_onnx` wrote.

    Args:
        path: The file.
        opset: Version of the standard operators.
        sites: Every activation site: spec, lowering taken, operators, number of calls.
        census: How often each operator occurs in the graph.
        metadata: What the file says of itself.
    """

    path: Path
    opset: int
    sites: tuple[SiteRecord, ...]
    census: Mapping[str, int]
    metadata: FileMetadata

    @property
    def activation_census(self) -> dict[str, int]:
        """How often each operator of an activation's recipe occurs in the graph as part of one."""
        counts: Counter[str] = Counter()
        for site in self.sites:
            counts.update({name: number * site.calls for name, number in Counter(site.operators).items() if site.calls})
        return dict(counts)

    def __str__(self) -> str:
        """Return one line for the file, one for its preprocessing if it has any, and one for each site."""
        how = f"opset {self.opset}, approximate={self.metadata.approximate}, lowering={self.metadata.lowering}"
        raw = f"  takes raw pixels (uint8): {self.metadata.preprocessing}" if self.metadata.preprocessing else None
        return "\n".join([f"{self.path} ({how})", *([raw] if raw else []), *(f"  {site}" for site in self.sites)])


def export_onnx(
    model: nn.Module,
    path: str | os.PathLike[str],
    input_sample: Any = None,
    *,
    approximate: str = "as_trained",
    target: str = "portable",
    dtype: torch.dtype | str | None = None,
    policy: str = "strict",
    lowering: str = "auto",
    opset: int | None = None,
    registry: ActivationRegistry | None = None,
    preprocessing: nn.Module | None = None,
) -> ExportReport:
    """Write a module as an ONNX file with a dynamic batch.

    The module is copied first and stays as it is: training mode, parameters, hooks and the random state. The file is
    the copy in evaluation mode; hooks are not part of it. It is checked (``onnx.checker`` with full shape inference)
    before it takes the place of what was at ``path``. Its metadata say what it is; they hold no path of this machine.

    Args:
        model: A module or LightningModule, on any device, compiled or not.
        path: The file to write.
        input_sample: What to trace with: a tensor, a tuple of ``forward``'s arguments or a dict of them by name; by
            default the module's ``example_input_array``. Dimension 0 of every tensor as long as the first one's is the
            batch. With ``preprocessing``, the first tensor of it is raw pixels, see there.
        approximate: Which form every GELU takes, calls of functions included: ``"as_trained"`` leaves them alone;
            ``"none"`` (or ``"exact"``) is ``x Phi(x)``, ``"tanh"`` and ``"sigmoid"`` its approximations.
        target: For which runtime; ``"portable"`` is any.
        dtype: Of parameters and activations; ``None`` is fp32.
        policy: ``"strict"``: as accurate as PyTorch's own kernels.
        lowering: Which recipes of `lit_gelu.export.lowering_table` activations take: ``"native"`` operators,
            ``"primitives"``, or ``"contrib"``, onnxruntime's fused ones. ``"auto"`` is native for a portable file.
        opset: Version of the standard operators; 20.
        registry: Which registry names the module's activations; ``None`` is the default one.
        preprocessing: A module that turns raw pixels, ``torch.uint8`` with any batch, into the first input of
            ``model``, such as ``MNISTData().preprocessing()``. It becomes a part of the graph, and the file takes raw
            pixels in the place of that input; its buffers (a mean image, a whitening matrix) are constants of the
            file. The sample's pixels are by default the preprocessing's ``example_input_array``, or random ones in the
            shape of the module's own sample.

    Returns:
        What was written.

    Raises:
        ExportOptionError: If an option has an unknown value, or does not fit this module: no GELU to approximate, one
            that cannot be swapped, a lowering that has no recipe for any of its activations.
        NotAvailableYetError: If an option's value is not in this release.
        ModelInputError: If the sample is missing or does not fit ``forward``.
        ExportError: If the module cannot be translated, is random in evaluation mode, or fixes the batch size.
        UnwritablePathError: If the file cannot be written.

    Example:
        >>> import tempfile, pathlib
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "net.onnx"
        >>> net = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2))
        >>> report = export_onnx(net, path, torch.zeros(1, 4), approximate="tanh")
        >>> [(site.site, site.spec, site.operators) for site in report.sites]
        [('1', "gelu(approximate='tanh')", ('Gelu',))]
        >>> dict(report.census)
        {'Gemm': 2, 'Gelu': 1}
    """
    options = checked_options(approximate, target, dtype, policy, lowering, opset)
    registry = activations.registry if registry is None else registry
    flat = _flat(model, input_sample, preprocessing)
    trial = trial_run(flat)
    approximate_(flat, options.approximate, registry)
    twin = flat.model
    specs = {site.name: str(site.spec) for site in surgery.find_sites(twin, registry=registry)}
    marked = mark(twin)
    graph = trace(flat, trial, options.opset)
    lowered = lower(graph, marked, options.recipes, explicit=options.lowering != "auto")
    _require_one_form(lowered, options.approximate)
    metadata = _describe(model, options, _records(specs, lowered, registry), preprocessing)
    strip_origin(graph)
    graph.metadata_props.update(metadata.to_properties())
    save_model(graph, path)
    return ExportReport(Path(path), options.opset, metadata.sites, census(ir.to_proto(graph)), metadata)


def _flat(model: nn.Module, input_sample: Any, preprocessing: nn.Module | None) -> FlatModule:
    """Return the copy that is exported, with its sample call."""
    sample = sample_of(model, input_sample) if preprocessing is None else input_sample
    twin = evaluation_copy(model)
    if preprocessing is None:
        return FlatModule(twin, take_apart(twin, sample))
    call = raw_call(twin, preprocessing, sample)
    return FlatModule(twin, call, preprocessing_copy(preprocessing, call))


def approximate_(
    flat: FlatModule, approximate: str, registry: ActivationRegistry, dtype: torch.dtype = torch.float32
) -> None:
    """Give every GELU of a module one form in place: modules, and calls of functions that its sample reaches.

    Args:
        flat: A copy that may be changed.
        approximate: ``as_trained`` changes nothing.
        registry: Which registry names the activations.
        dtype: Of the copy.

    Raises:
        ExportOptionError: If there is no GELU, or one that cannot be given another form.
    """
    if approximate == "as_trained":
        return
    model = type(flat.model).__name__
    rows = flat.call.resized(max(2, flat.call.batch_size))  # as it is traced: with one row it may do something else
    sample = tuple(tensor.to(dtype) if tensor.is_floating_point() else tensor for tensor in rows)
    targets = {surgery.by_activation("gelu"): f"gelu(approximate={approximate!r})"}
    try:
        surgery.swap(flat, targets, sample, registry=registry)
    except surgery.NoMatchError as error:
        sites = [
            f"{site.name or '(the module itself)'}: {site.spec}"
            for site in surgery.find_sites(flat.model, registry=registry)
        ]
        raise ExportOptionError(
            f"approximate={approximate!r} needs a GELU, and {model} has none. Use approximate='as_trained', or swap "
            f"activations first (lit_gelu.surgery.swap). Its activation modules: {'; '.join(sites) or 'none'}."
        ) from error
    except surgery.SwapError as error:
        raise ExportOptionError(
            f"approximate={approximate!r} was asked for, but not every GELU of {model} can be given that form: {error} "
            "Or use approximate='as_trained'."
        ) from error


def _require_one_form(lowered: list[LoweredSite], approximate: str) -> None:
    """Refuse a file in which a GELU has another form than the one that was asked for."""
    if approximate == "as_trained":
        return
    others = [
        f"{row.site} ({row.activation.arguments['approximate']})"
        for row in lowered
        if row.activation.name == "gelu" and row.calls and row.activation.arguments["approximate"] != approximate
    ]
    if others:
        raise ExportOptionError(
            f"approximate={approximate!r} was asked for, but a GELU that is no site of the module has another form: "
            f"{', '.join(others)}. It is called where lit_gelu.surgery.find_sites does not see it, such as in compiled "
            "code: use torch.nn.GELU() or lit_gelu.activations.create('gelu') modules there, or "
            "approximate='as_trained'."
        )


def _records(
    specs: Mapping[str, str], lowered: list[LoweredSite], registry: ActivationRegistry
) -> tuple[SiteRecord, ...]:
    """Join the sites that surgery finds with what became of them; those that the table does not know are torch's."""
    known = {row.site: row for row in lowered}
    records = [SiteRecord(site, spec, "", "torch", (), 0) for site, spec in specs.items() if site not in known]
    for row in known.values():
        a = row.activation
        spec = specs.get(row.site) or _spec_text(a.name, a.arguments, registry)
        records.append(SiteRecord(row.site, spec, a.row, row.lowering, row.operators, row.calls))
    order = {site: i for i, site in enumerate(specs)}
    return tuple(sorted(records, key=lambda record: order.get(record.site, len(order))))


def _spec_text(name: str, arguments: Mapping[str, Any], registry: ActivationRegistry) -> str:
    """Return the spec of an activation that is no site: a call of a function, or a gate."""
    plain = {key: value for key, value in arguments.items() if isinstance(value, (int, float, str))}
    return str(registry.resolve(name, **plain))


def _describe(
    model: nn.Module, options: ExportOptions, sites: tuple[SiteRecord, ...], preprocessing: nn.Module | None
) -> FileMetadata:
    """Say what is in the file."""
    return FileMetadata(
        model_class=class_path(model),
        approximate=options.approximate,
        lowering=options.lowering,
        target=options.target,
        dtype=options.dtype,
        policy=options.policy,
        opset=options.opset,
        sites=sites,
        versions=versions(),
        preprocessing="" if preprocessing is None else describe(preprocessing),
    )
