"""`export_onnx`: from a module to a checked ONNX file."""

import inspect
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lit_gelu import surgery
from lit_gelu.activations import ActivationRegistry
from lit_gelu.activations.naming.spec import function_spec
from lit_gelu.activations.registry import registry_or_default
from lit_gelu.display import Displayed, HtmlTable, count_of
from lit_gelu.errors import ArgumentError
from lit_gelu.export.copying import (
    Trial,
    approximate_,
    evaluation_copy,
    narrowed,
    require_copyable,
    require_faithful,
    trial_run,
    without_callers_autocast,
)
from lit_gelu.export.input_kinds import at_least_two
from lit_gelu.export.inputs import BOUNDS, FlatModule, batch_sizes, named_shapes, open_sizes, sample_of, take_apart
from lit_gelu.export.lowering.lowering_table import mark, unmark
from lit_gelu.export.lowering.policy import DEFAULT_OPSET
from lit_gelu.export.lowering.replace import lower
from lit_gelu.export.metadata import (
    ROWS_DEPEND,
    ExportOptions,
    FileMetadata,
    SiteRecord,
    class_path,
    save_model,
    strip_origin,
    weights_digest,
)
from lit_gelu.export.open_axes import (
    recorded_sizes,
    require_alike,
    require_open,
    rows_depend,
    runs_at_other_sizes,
    without_nested_tensors_,
)
from lit_gelu.export.preprocessing import describe, sample_call
from lit_gelu.export.trace import trace
from lit_gelu.files import require_writable


@dataclass(frozen=True, repr=False)
class ExportReport(Displayed):
    """What `export_onnx` wrote."""

    path: Path
    opset: int  # version of the standard operators
    sites: tuple[SiteRecord, ...]  # every activation site: spec, lowering taken, operators, number of calls
    census: Mapping[str, int]  # how often each operator occurs in the graph
    metadata: FileMetadata  # what the file says of itself
    notes: tuple[str, ...] = ()  # what a user should know, such as operators that the target has no kernel for

    @property
    def activation_census(self) -> dict[str, int]:
        """How often each operator of an activation's recipe occurs in the graph as part of one."""
        return dict(Counter(name for site in self.sites for name in site.operators * site.calls))

    def __str__(self) -> str:
        """Return lines for the file, its preprocessing if it has any, each site, and each note on something else."""
        about = self.metadata
        how = f"opset {self.opset}, approximate={about.approximate}, lowering={about.lowering}"
        if about.lowering == "auto":
            how += f", target={about.target}, dtype={about.dtype}, policy={about.policy}"
        raw = f"  takes raw pixels (uint8): {self.metadata.preprocessing}" if self.metadata.preprocessing else None
        lines = [*filter(None, [raw]), *(f"  {line}" for line in (*self.sites, *self.notes))]
        return "\n".join([f"{self.path} ({how})", *lines])

    def _summary(self) -> str:
        return (
            f"{str(self.path)!r}, opset {self.opset}, approximate={self.metadata.approximate}, "
            f"{count_of(len(self.sites), 'activation site')}, {count_of(sum(self.census.values()), 'node')}"
        )

    def _html_table(self) -> HtmlTable:
        rows = [
            (site.site or "(the module itself)", site.spec, " ".join(site.operators), site.lowering, site.calls)
            for site in self.sites
        ]
        head = ("site", "activation", "operators", "lowering", "calls")
        return HtmlTable(head, rows, str(self).partition("\n")[0], self.notes)


@without_callers_autocast()
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
    keep_fp32: Sequence[str] = (),
    io_dtype: str = "same",
    registry: ActivationRegistry | None = None,
    preprocessing: nn.Module | None = None,
    labels: Sequence[str] = (),
    softmax: bool = False,
    dynamic_shapes: Any = None,
) -> ExportReport:
    """Write a module as an ONNX file with a dynamic batch, and other dynamic sizes that are asked for.

    The module is copied and stays as it is. The file is the copy in evaluation mode, forward hooks included, but for
    those of lit_gelu and Lightning, which watch a training; its outputs are first compared with the module's own. The
    file is checked by ``onnx.checker`` before it takes its place. It holds no path of this machine.

    Args:
        model: A module or LightningModule, on any device, compiled or not.
        path: The file to write.
        input_sample: What to trace with: a tensor, a tuple of ``forward``'s arguments or a dict of them by name; by
            default the module's ``example_input_array``. Dimension 0 of every tensor as long as the first one's is the
            batch, and so is an axis that ``dynamic_shapes`` calls as it. Tensors in objects are inputs too, those of
            caches as ``past_key_values.0.key``.
        approximate: Which form every GELU takes, calls of functions included: ``"as_trained"`` leaves them alone;
            ``"none"`` (or ``"exact"``) is ``x Phi(x)``, ``"tanh"`` and ``"sigmoid"`` its approximations. To change
            some GELUs alone, `lit_gelu.surgery.swap` them first.
        target: For which runtime: ``"portable"`` is any, ``"ort-cpu"`` and ``"ort-cuda"`` are onnxruntime's providers,
            ``"tensorrt"`` TensorRT 10. It decides, with dtype and policy, which operators activations become
            (``docs/lowering.md``).
        dtype: Of weights and activations: ``"fp32"`` (``None``), ``"fp16"`` or ``"bf16"``, or torch's. A bf16 file runs
            on a GPU only.
        policy: ``"strict"``: as accurate as PyTorch's own kernels in that dtype. ``"fast"``: the fastest known.
        lowering: Which recipes activations take where they have them: ``"native"`` operators, ``"primitives"``, or
            ``"contrib"``, onnxruntime's fused ones. ``"auto"`` is what target, dtype and policy give.
        opset: Version of the standard operators; ``None`` is 20, or the smallest newer one that holds the model.
        keep_fp32: For fp16 and bf16, what stays in float32 beside the policy's own list: names of ONNX operators
            (``"Softmax"``), patterns over names of modules (``"head.*"``) or nodes.
        io_dtype: For fp16 and bf16, of inputs and outputs: ``"same"`` as the file's, which is what ``model.half()``
            takes and gives, or ``"fp32"``, with a Cast at each.
        registry: Which registry names the module's activations; ``None`` is the default one.
        preprocessing: A module that turns raw pixels, ``torch.uint8`` with any batch, into the first input of
            ``model``, such as ``MNISTData().preprocessing()``. It becomes a part of the graph, its buffers constants of
            the file. The sample's pixels are by default its ``example_input_array``, or random ones in the shape of the
            module's own sample.
        labels: What the values along the last dimension of the first output stand for; the file records them.
        softmax: Whether the file ends with a softmax over the last dimension of the first output.
        dynamic_shapes: Which sizes of inputs are open beside the batch. By input and axis, with names that the file
            shows: ``{"input_ids": {1: "sequence"}, "attention_mask": {1: "sequence"}}``; one name is one size. Or
            what ``torch.export.export`` takes, a dict or tuple of ``Dim``, ``Dim.DYNAMIC``, ``Dim.AUTO``, ``None``.
            ``{"x": {0: None}}`` fixes the batch at the sample's rows; ``"past + sequence"`` is the sum of two others.

    Returns:
        What was written.

    Raises:
        ArgumentError: If an option has an unknown value, or does not fit this module: no GELU to approximate, or one
            that cannot be swapped.
        ModelInputError: If the sample is missing or does not fit ``forward``.
        ExportError: If the module cannot be translated, is random in evaluation mode, fixes the batch size or one that
            ``dynamic_shapes`` names, branches on one, or computes something else when it is copied or its graph runs at
            another size.
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
    require_copyable(model)
    options = ExportOptions.checked(
        approximate=approximate,
        target=target,
        dtype=dtype,
        policy=policy,
        lowering=lowering,
        opset=opset,
        keep_fp32=keep_fp32,
        io_dtype=io_dtype,
        labels=labels,
        softmax=softmax,
        dynamic_shapes=dynamic_shapes,
    )
    require_writable(path)
    registry = registry_or_default(registry)
    twin = evaluation_copy(model)
    if preprocessing is None:
        flat = FlatModule(twin, take_apart(twin, sample_of(twin, input_sample)), softmax=options.softmax)
    else:
        flat = FlatModule(twin, *sample_call(twin, preprocessing, input_sample), softmax=options.softmax)
    weights = weights_digest(twin)
    caller = flat.call
    flat.call, narrow = narrowed(flat)
    sizes = batch_sizes(flat.call)
    if options.dynamic_shapes:
        sizes = open_sizes(options.dynamic_shapes, flat.call, list(inspect.signature(flat.model.forward).parameters))
        flat.call = at_least_two(flat.call.with_batch_of(named_shapes(flat.call, sizes)), sizes)
    trial = trial_run(flat, model)
    unasked = narrow + require_faithful(flat, model, trial.tensors, caller.resized(len(trial.tensors[0])))
    _require_labels_fit(options, trial)
    unasked += without_nested_tensors_(flat)
    dependent = rows_depend(flat)
    approximate_(flat, options.approximate, registry)
    specs = {site.name: str(function_spec(site.spec)) for site in surgery.find_sites(flat.model, registry=registry)}
    # Before markers stand in the place of activations.
    elsewhere, untried = runs_at_other_sizes(flat, sizes, dependent=dependent)
    marked = mark(flat.model, registry)
    graph = trace(flat, trial, options.opset or DEFAULT_OPSET, sizes)
    unmark(flat.model, marked)
    require_open(graph, flat, trial, sizes)
    untried += graph.meta.get(BOUNDS, []) + require_alike(graph, flat, elsewhere, marked, registry, options.target)
    lowered = lower(graph, marked, options, registry, specs)
    _require_forms(lowered.sites, options.approximate)
    metadata = FileMetadata(
        **(vars(options) | {"opset": lowered.opset, "dynamic_shapes": recorded_sizes(graph, flat.call)}),
        model_class=class_path(model),
        sites=_all_sites(specs, lowered.sites),
        preprocessing="" if preprocessing is None else describe(preprocessing),
        notes=(*lowered.notes, *([ROWS_DEPEND] if dependent else [])),
        rows_depend=dependent,
        weights=weights,
    )
    strip_origin(graph)
    graph.metadata_props.update(metadata.to_properties())
    save_model(graph, path)
    idle = [f"{row.site} ({row.spec.partition('(')[0]})" for row in lowered.sites if not row.calls]
    unused = [f"No node stands for {', '.join(idle)}: no output depends on it, or vmap calls it."] if idle else []
    fixed = [] if any(flat.call.batched) else [f"the batch is fixed at {flat.call.batch_size} (dynamic_shapes=)."]
    if flat.call.constants:
        fixed.append(f"arguments that are no tensors are fixed as in the sample: {', '.join(flat.call.constants)}.")
    notes = (*metadata.notes, *fixed, *trial.notes, *unasked, *untried, *unused)
    operators = Counter(f"{node.domain}::{node.op_type}".removeprefix("::") for node in graph.graph)
    return ExportReport(Path(path), lowered.opset, metadata.sites, operators, metadata, notes)


def _all_sites(specs: Mapping[str, str], lowered: Sequence[SiteRecord]) -> tuple[SiteRecord, ...]:
    """Return the lowered sites, and those of surgery's that torch decomposed, in surgery's order."""
    lowered_sites = {row.site for row in lowered}
    called = {(row.site.partition(":")[0], row.spec) for row in lowered if ":" in row.site}
    records = [
        SiteRecord(site, spec, "", "torch", (), 0)
        for site, spec in specs.items()
        # A module that only calls a function, or an attribute that is one: the call is listed.
        if site not in lowered_sites and not called & {(site, spec), (site.rpartition(".")[0], spec)}
    ]
    order = {site: i for i, site in enumerate(specs)}
    return tuple(sorted([*records, *lowered], key=lambda record: order.get(record.site, len(order))))


def _require_labels_fit(options: ExportOptions, trial: Trial) -> None:
    """Check that the first output has a dimension for labels and for a softmax."""
    if not options.labels and not options.softmax:
        return
    name, output = trial.names[0], trial.outputs[0]
    if output.ndim < 2 or not output.is_floating_point():
        raise ArgumentError(
            f"labels= and softmax= need a first output [batch, ..., classes] of real numbers; {name!r} is "
            f"{output.dtype} of shape {list(output.shape)}. Leave them out, or let forward return the logits first."
        )
    if options.labels and len(options.labels) != output.shape[-1]:
        raise ArgumentError(
            f"labels= has {len(options.labels)} names for {output.shape[-1]} values of {name!r}: one each."
        )


_ROW = re.compile(r"gelu\(approximate='(\w+)'\)")  # of a GELU in the lowering table


def _require_forms(sites: Sequence[SiteRecord], approximate: str) -> None:
    """Refuse a file in which a GELU has another form than the one that was asked for."""
    others = [
        f"{site.site} ({form[1]})"
        for site in sites
        # A call; the sites of modules are `approximate_`'s.
        if ":" in site.site and site.calls and (form := _ROW.fullmatch(site.row)) and form[1] != approximate
    ]
    if others and approximate != "as_trained":
        raise ArgumentError(
            f"approximate={approximate!r} was asked for, but a GELU that is written by hand has another form: "
            f"{', '.join(others)}. Use torch.nn.GELU() modules there, or approximate='as_trained'."
        )
