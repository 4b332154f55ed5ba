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
        """Return one line for the file and one for each site."""
        how = f"opset {self.opset}, approximate={self.metadata.approximate}, lowering={self.metadata.lowering}"
        return "\n".join([f"{self.path} ({how})", *(f"  {site}" for site in self.sites)])


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
            batch.
        approximate: Which form every GELU takes: ``"as_trained"`` leaves them alone; ``"none"`` (or ``"exact"``) is
            ``x Phi(x)``, ``"tanh"`` and ``"sigmoid"`` its approximations.
        target: For which runtime; ``"portable"`` is any.
        dtype: Of parameters and activations; ``None`` is fp32.
        policy: ``"strict"``: as accurate as PyTorch's own kernels.
        lowering: Which recipes of `lit_gelu.export.lowering_table` activations take: ``"native"`` operators,
            ``"primitives"``, or ``"contrib"``, onnxruntime's fused ones. ``"auto"`` is native for a portable file.
        opset: Version of the standard operators; 20.
        registry: Which registry names the module's activations; ``None`` is the default one.

    Returns:
        What was written.

    Raises:
        ExportOptionError: If an option has an unknown value, or does not fit this module: no GELU to approximate, a
            lowering that has no recipe for any of its activations.
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
    sample = sample_of(model, input_sample)
    twin = with_approximation(evaluation_copy(model), options.approximate, registry)
    flat = FlatModule(twin, take_apart(twin, sample))
    trial = trial_run(flat)
    specs = {site.name: str(site.spec) for site in surgery.find_sites(twin, registry=registry)}
    marked = mark(twin)
    graph = trace(flat, trial, options.opset)
    lowered = lower(graph, marked, options.recipes, explicit=options.lowering != "auto")
    _require_one_form(lowered, options.approximate)
    metadata = _describe(model, options, _records(specs, lowered, registry))
    strip_origin(graph)
    graph.metadata_props.update(metadata.to_properties())
    save_model(graph, path)
    return ExportReport(Path(path), options.opset, metadata.sites, census(ir.to_proto(graph)), metadata)


def with_approximation(model: nn.Module, approximate: str, registry: ActivationRegistry) -> nn.Module:
    """Give every GELU of a module one form.

    Args:
        model: A copy that may be changed.
        approximate: ``as_trained`` changes nothing.
        registry: Which registry names the activations.

    Returns:
        The module; another one only if it was itself a GELU.

    Raises:
        ExportOptionError: If there is no GELU.
    """
    if approximate == "as_trained":
        return model
    holder = nn.ModuleList([model])  # a module cannot be swapped in place, a child can
    try:
        surgery.swap(holder, {surgery.by_activation("gelu"): f"gelu(approximate={approximate!r})"}, registry=registry)
    except surgery.NoMatchError as error:
        sites = [
            f"{site.name or '(the module itself)'}: {site.spec}"
            for site in surgery.find_sites(model, registry=registry)
        ]
        raise ExportOptionError(
            f"approximate={approximate!r} needs a GELU module, and {type(model).__name__} has none. Use "
            "approximate='as_trained', or swap activations first (lit_gelu.surgery.swap). Its activation sites: "
            f"{'; '.join(sites) or 'none'}."
        ) from error
    return holder[0]


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
            f"approximate={approximate!r} was asked for, but forward calls torch.nn.functional.gelu in another form: "
            f"{', '.join(others)}. Calls of functions cannot be swapped yet: use torch.nn.GELU() or "
            "lit_gelu.activations.create('gelu') modules there, or approximate='as_trained'."
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


def _describe(model: nn.Module, options: ExportOptions, sites: tuple[SiteRecord, ...]) -> FileMetadata:
    """Say what is in the file."""
    cls = type(getattr(model, "_orig_mod", model))
    return FileMetadata(
        model_class=f"{cls.__module__}.{cls.__qualname__}",
        approximate=options.approximate,
        lowering=options.lowering,
        target=options.target,
        dtype=options.dtype,
        policy=options.policy,
        opset=options.opset,
        sites=sites,
        versions=versions(),
    )
