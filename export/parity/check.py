"""`check_parity`: does the file compute what the module computes?"""

import inspect
import os
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import torch
from onnx.external_data_helper import uses_external_data
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from lit_gelu.activations import ActivationRegistry
from lit_gelu.activations.registry import registry_or_default
from lit_gelu.errors import ModelFileError, ModelInputError, ParityError
from lit_gelu.export.copying import evaluation_copy, require_copyable, two_answers, without_callers_autocast
from lit_gelu.export.graph_activations import activations_of
from lit_gelu.export.inputs import Call, tensors_by_name
from lit_gelu.export.metadata import ROWS_DEPEND, FileMetadata, census, recorded_metadata, weights_digest
from lit_gelu.export.parity.causes import Layers, find_culprit
from lit_gelu.export.parity.comparison import Comparison
from lit_gelu.export.parity.criterion import DTYPES, FLOOR, dtype_name, floor, require_tolerance
from lit_gelu.export.parity.decoding import decoder_of
from lit_gelu.export.parity.foreign import ForeignActivations, foreign_metadata, matched_call, matched_outputs
from lit_gelu.export.parity.input_families import DATA, SAMPLE, families, file_call, input_kinds, other_lengths
from lit_gelu.export.parity.report import VS_FLOAT64, VS_PYTORCH, ParityReport, ParityRow, TaskMetric, findings
from lit_gelu.export.parity.runs import (
    References,
    SessionSetup,
    file_inputs,
    open_predictor,
    optimized_graph,
    output_faults,
    repeats,
    run_file,
)
from lit_gelu.export.parity.structure import activation_faults, activation_rows, load_structure
from lit_gelu.export.preprocessing import is_data_module, preprocessing_of_file
from lit_gelu.export.runtime import OnnxPredictor, Provider
from lit_gelu.export.runtime.model_file import require_fit
from lit_gelu.export.site_nodes import SiteNodes, load_graph, site_nodes, valid_onnx
from lit_gelu.files import quiet
from lit_gelu.surgery.sites import without_wrappers

_APART = 1e-3  # of two answers of torch, in units of the largest output: above what rounding explains
_LOOKED_INTO_BELOW = 256 * 1024**2  # bytes of file: above, layers and optimised graph cost copies of it in memory


_OF_SIGMOID = (
    "onnxruntime's Sigmoid on the CPU is 0 below about -18, where PyTorch's is exp(x): a root, power or logarithm of "
    "it shows that. Write it with logsigmoid, sqrt(sigmoid(x)) as exp(logsigmoid(x) / 2), or clamp it."
)


@without_callers_autocast()
def check_parity(
    model: nn.Module,
    path: str | os.PathLike[str],
    data: Any = None,
    input_sample: Any = None,
    *,
    tolerance: float = FLOOR,
    providers: Sequence[Provider] | None = None,
    session_config: Mapping[str, str] | None = None,
    strict: bool = True,
    seed: int = 0,
    registry: ActivationRegistry | None = None,
    preprocessing: nn.Module | None = None,
) -> ParityReport:
    """Compare an ONNX file with the module; a file of `export_onnx` with the module swapped to the file's form of GELU.

    A file that others wrote is compared with the module as trained, in the dtype of its weights. Its inputs are matched
    by name, then by order and shape; its activations are recognised (`graph_activations`), and named where they differ.

    The module is copied; it stays as it is. onnxruntime runs the file on CUDA if that works, else on the CPU; PyTorch
    runs the copies on the CPU in the file's dtype and in float64. Inputs are the sample, the data, gaussian rows in
    batches of 32, 1 and 2 (of the sample's values, where the module takes no gaussian ones), other sizes of open
    dimensions, and extremes (large magnitudes, a negative tail, tiny, subnormal, zero); integers are random indices of
    the table that they reach, and random masks; raw pixels are random, black and white. What an output may be off by
    says `lit_gelu.export.parity.criterion`.

    A file with a cache also decodes: a call with an empty one, then eight of one place, each with the cache that the
    last one returned, beside the module with its own.

    Each distinct activation's nodes are also cut out of the file and run alone: on all 65,536 values in 16 bit, on a
    strided selection of float32's bit patterns. Two runs on the same input must give the same. Names and types of
    outputs, labels, and the operators of each activation must be those of the module and of the file's own record. On a
    breach, the first layer that shows it and the graph optimisation of onnxruntime that causes it are looked for.

    Reported, and never deciding: the approximation gap (the file against the module as trained), top-1 agreement, and
    the module's own test metrics on a LightningDataModule.

    Args:
        model: The module that was exported.
        path: The file, whoever wrote it.
        data: A tensor, a DataLoader, several in a list, tuple or dict, or a LightningDataModule (its test data);
            batches begin with the inputs. For a file that takes raw pixels: raw pixels, or a data module with
            ``preprocessing()`` and ``raw_test_inputs()``.
        input_sample: As `export_onnx` takes it; by default ``example_input_array``, else made from the file's input
            shapes.
        tolerance: What float32 arithmetic may cost, in units of the largest output; at 0 a file may be off by twice
            PyTorch's own error, so that what PyTorch computes exactly has to be exact.
        providers: As ``onnxruntime.InferenceSession`` takes them.
        session_config: Session configuration entries of onnxruntime that the file will be run with.
        strict: Whether a failure raises; else read ``report.passed``.
        seed: Of the gaussian inputs.
        registry: Which registry names the module's activations; ``None`` is the default one.
        preprocessing: The module that a file with preprocessing was exported with; ``None`` takes the data module's.

    Returns:
        Every comparison.

    Raises:
        ParityError: If the file does not compute what the module computes and ``strict`` is true.
        ArgumentError: If ``tolerance`` is not a finite number from 0.
        ModelFileError: If the file is missing, damaged, in int8, or onnxruntime does not know its operators.
        ModelInputError: If sample or data do not fit module and file.
        ExportError: If the module cannot be copied, or its copy computes something else.
        ProviderError: If a provider does not exist or did not take the file.

    Example:
        >>> import tempfile, pathlib
        >>> from lit_gelu.export import export_onnx
        >>> net = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 3))
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "net.onnx"
        >>> _ = export_onnx(net, path, torch.zeros(2, 4), approximate="tanh")
        >>> report = check_parity(net, path)
        >>> report.passed, report.approximate
        (True, 'tanh')
        >>> report.row("gaussian, batch 32").error < 1e-6
        True
    """
    require_copyable(model)
    require_tolerance(tolerance)
    registry = registry_or_default(registry)
    file, name = Path(path), repr(os.fspath(path))
    graph, record = _read(file)
    metadata = foreign_metadata(graph, path) if record is None else record
    dtype = DTYPES.get(metadata.dtype, torch.float32)
    predictor, setup, notes = open_predictor(file, providers, dict(session_config or {}), dtype)
    model = without_wrappers(model)
    batches, raw = data, bool(metadata.preprocessing or preprocessing)
    unread: list[str] = []
    if raw:
        preprocessing, batches, unread = preprocessing_of_file(metadata.preprocessing, name, preprocessing, data)
    call = file_call(model, preprocessing, input_sample, predictor)
    call, matches, shapes = _fitting(call, predictor, raw=raw, foreign=record is None)
    notes += [*unread, *matches]
    kept = [place for place, value in enumerate(predictor.session.get_inputs()) if value.type == "tensor(double)"]
    caller, call = call, call.narrowed(kept)
    references = References(model, call, metadata.approximate, registry, preprocessing, dtype, softmax=metadata.softmax)
    notes += references.notes
    if record is None:
        notes.append("lit-gelu did not write this file: GELU is compared in the form as trained.")
        references.places, unmatched = matched_outputs(references.signatures, predictor.output_names)
        notes += unmatched

    # What to compare on.
    run_float32 = partial(references.run, references.float32, dtype=torch.float32)
    kinds, unvaried = input_kinds(call, run_float32, references.trouble, raw=raw)
    lengths, untaken = other_lengths(call, shapes, references.trouble)
    inputs = [*families(caller, batches, model, seed, raw=raw, dtype=dtype, kinds=kinds, lengths=lengths)]

    # The net as a whole.
    exact_dtype = dtype if references.exact is None else references.exact_dtype
    comparison = Comparison(
        run=partial(run_file, predictor),
        references=references,
        outputs=predictor.output_names,
        inputs=partial(file_inputs, predictor),
        dtype=dtype,
        tolerance=tolerance,
        reference=VS_FLOAT64 if exact_dtype == torch.float64 else f"{VS_PYTORCH} {dtype_name(exact_dtype)}",
    )
    decoder = decoder_of(call, predictor.ports, predictor.output_ports) if call.has_objects else None
    rows = [*comparison.compare(inputs), *comparison.decode(decoder, kinds)]
    gaussian = next(family for family in inputs if family.gap and family.name not in {SAMPLE, DATA})
    runs = not any(gaussian.name in (f.name, f.rows_of) for f in inputs if f.name in comparison.unrun)

    # Its activations, alone and in the graph.
    entries, alone, faults, noted = _activations(
        graph, references, None if metadata.optimized else record, setup, tolerance, registry, rows
    )
    faults = [*faults, *([two_answers(references.apart)] if references.apart > _APART else [])]
    if record is not None:
        faults = [*output_faults(references.signatures, predictor.output_ports, record), *faults]
    if comparison.rounding > _APART:
        faults.append(
            f"the file takes float32: rounding float64 inputs to it moves outputs by {comparison.rounding:.2g} of the "
            "largest. Let forward take float64 and call .float() on what is small, and export again."
        )

    # Two runs: on what the module takes, which is the sample at least.
    repeated = None
    if runs:
        batch = call.tensors if gaussian.name in comparison.refused else next(iter(gaussian.batches))
        plain = partial(run_file, replace(setup, level="DISABLE_ALL").open(file))
        repeated = repeats([comparison.run, plain], file_inputs(predictor, batch))

    # With preprocessing or softmax in the file, or fewer outputs, the module's own forward is another function.
    is_other = raw or metadata.softmax or len(predictor.output_names) != len(references.signatures)
    metrics, unmeasured = ([], []) if is_other else task_metrics(model, data, predictor, call.names, references.places)
    notes += [*noted, *unvaried, *untaken, *([ROWS_DEPEND] if metadata.rows_depend else [])]
    notes += [*comparison.untried, *unmeasured]
    report = ParityReport(
        path=os.fspath(path),
        provider=predictor.providers[0],
        approximate=metadata.approximate,
        rows=(*rows, *alone),
        dtype=dtype_name(dtype),
        floor=floor(dtype, tolerance),
        repeats=repeated,
        metrics=tuple(metrics),
        census=dict(census(graph)),
        faults=tuple(faults),
        versions={**metadata.versions, "onnxruntime": onnxruntime.__version__},
        notes=tuple(notes),
    )
    outside = any(map(uses_external_data, graph.graph.initializer))
    if runs and (outside or file.stat().st_size > _LOOKED_INTO_BELOW):
        report = replace(report, notes=(*report.notes, "the file is too large to look into layer by layer."))
    elif runs:
        report = replace(report, optimized_census=dict(census(optimized_graph(file, setup))))
        calls = Counter(entry.site for entry in entries) | {site.site: site.calls for site in metadata.sites}
        report = _with_causes(report, file, comparison, Layers(graph, entries, calls, references, setup, tolerance))
    if record is not None and not report.passed and weights_digest(evaluation_copy(model)) != metadata.weights:
        changed = "The module's weights are not those of the export: was it trained since? Then export it again."
        report = replace(report, notes=(changed, *report.notes))
    if strict and not report.passed:
        failures = "; ".join(map(str, report.failures[:4]))
        raise ParityError(
            f"{report.path!r} does not compute what the module computes ({'; '.join(report.reasons)}). "
            f"{f'{failures}. ' if failures else ''}{' '.join(findings(report))} ParityError.report holds all rows.",
            report,
        )
    return report


def _read(path: Path) -> tuple[onnx.ModelProto, FileMetadata | None]:
    """Return a file's graph, and what `export_onnx` recorded of it, if that wrote it; refuse one in int8."""
    record = recorded_metadata(path)
    if record is not None and record.dtype == "int8":
        raise ModelFileError(
            f"{os.fspath(path)!r} is in int8, whose rounding no tolerance of floating-point arithmetic fits. Compare "
            "it with lit_gelu.export.quantization.check_quantized, which asks what becomes of the task."
        )
    with valid_onnx(path):
        return load_graph(path) if record is None or record.optimized else load_structure(path), record


def _fitting(
    call: Call, predictor: OnnxPredictor, *, raw: bool, foreign: bool
) -> tuple[Call, list[str], list[list[int | str | None]]]:
    """Return a sample with the file's batch axes, what to know of it, and the shapes that the file takes."""
    notes: list[str] = []
    if foreign:
        call, notes = matched_call(call, predictor.ports)
    elif list(call.names) != predictor.input_names:
        raise ModelInputError(
            f"The file's inputs are {', '.join(predictor.input_names)}, the sample gives {', '.join(call.names)}. Give "
            "the sample that the file was exported with."
        )
    for port, tensor in zip(predictor.ports.values(), file_inputs(predictor, call.tensors), strict=True):
        require_fit(port, tensor, raw=raw)
    # All first axes that are open and as long as the batch have one name.
    shapes = [list(port.shape) for port in predictor.ports.values()]
    for shape, tensor in zip(shapes, call.tensors, strict=True):
        if not isinstance(shapes[0][0], int) and shape and not isinstance(shape[0], int):
            shape[0] = "batch" if tensor.shape[0] == call.batch_size else shape[0]
    return call.with_batch_of(shapes), notes, shapes


def _activations(
    graph: onnx.ModelProto,
    references: References,
    record: FileMetadata | None,
    setup: SessionSetup,
    tolerance: float,
    registry: ActivationRegistry,
    rows: Sequence[ParityRow],
) -> tuple[Sequence[SiteNodes], Sequence[ParityRow], list[str], Sequence[str]]:
    """Compare a graph's activations with the file's record, or, as recognised, with the module's."""
    # Returned are their nodes, what each computes alone, faults, and notes.
    module = references.float32
    if record is not None:
        entries = site_nodes(graph, {site.site: site.calls for site in record.sites})
        alone, unrun = activation_rows(graph, entries, module, record, setup, tolerance, registry)
        faults = activation_faults(graph, module, record, registry, rewritable=True)
        return entries, alone, faults, unrun
    foreign = ForeignActivations(module, references.call, graph, activations_of(graph, None, registry), registry)
    alone, unrun = foreign.rows(setup, tolerance)
    faults = foreign.faults(failed=any(row.passed is False for row in (*rows, *alone)))
    return foreign.entries, alone, faults, [*foreign.notes, *unrun]


def _with_causes(report: ParityReport, file: Path, comparison: Comparison, layers: Layers) -> ParityReport:
    """Return a report on a breach with what causes it, and the first layer that shows it."""
    worst = comparison.worst
    if worst is None or worst.excess <= 1:
        return report
    if "Sigmoid" in report.census and all(row.extreme for row in report.failures):
        report = replace(report, notes=(*report.notes, _OF_SIGMOID))
    if layers.references.exact is not None:
        excess = comparison.excess_on(worst)
        culprit = find_culprit(file, layers.setup, lambda other: excess(run_file(other.open(file), worst.batch)))
        report = replace(report, culprit=culprit)
    return replace(report, divergence=layers.first_divergence(worst.batch))


def task_metrics(
    model: nn.Module,
    data: Any,
    predictor: OnnxPredictor,
    names: Sequence[str] = (),
    places: Sequence[int] | None = None,
) -> tuple[list[TaskMetric], list[str]]:
    """Run Lightning's test loop twice, once with the file as ``forward``; return the metrics, or why there are none."""
    if data is None or not is_data_module(data):
        return [], []
    from lightning.pytorch import LightningDataModule, LightningModule
    from lightning.pytorch.utilities.model_helpers import is_overridden

    if not isinstance(model, LightningModule):
        return [], []
    tested = type(model).test_step is not LightningModule.test_step
    if not tested or not is_overridden("test_dataloader", data, LightningDataModule):
        return [], ["no task metrics were compared: the module has no test_step, or the data have no test data."]
    original, twin = evaluation_copy(model), evaluation_copy(model)
    forward, names, calls = twin.forward, names or predictor.input_names, {True: 0, False: 0}
    template: list[Any] = []  # what the module returns, once: the file's outputs take its tensors' places

    @torch.no_grad()
    def file_forward(*args: Any, **kwargs: Any) -> Any:
        inputs = tensors_by_name(inspect.signature(forward), args, kwargs)
        fits = inputs.keys() == set(names)
        calls[fits] += 1
        if not fits or not template:
            output = forward(*args, **kwargs)
            if not fits:
                return output
            template.append(output)
        result = predictor(*file_inputs(predictor, [inputs[name] for name in names]))
        results = result if isinstance(result, tuple) else (result,)  # a foreign file may have them in another order
        outputs = iter(results if places is None else [results[places.index(i)] for i in range(len(results))])

        def from_file(leaf: Any) -> Any:
            """Return the next output in the dtype in which the module's metrics take it."""
            output = next(outputs) if isinstance(leaf, Tensor) else leaf
            return output.to(leaf.dtype) if isinstance(leaf, Tensor) and leaf.is_floating_point() else output

        return pytree.tree_map(from_file, template[0])

    twin.forward = file_forward
    hooked = twin._forward_hooks or twin._forward_pre_hooks  # a part of the file, and called around the file too
    expected, metrics = ({}, {}) if hooked else (test_metrics(original, data), test_metrics(twin, data))
    if hooked or calls[False] or not calls[True]:
        return [], [f"{type(model).__name__}.test_step calls more or other than the file: no task metrics."]
    return [TaskMetric(name, value, metrics[name]) for name, value in expected.items() if name in metrics], []


def test_metrics(model: Any, data: Any) -> dict[str, float]:
    """Return what a module logs in Lightning's test loop; random numbers drawn there are the same each time."""
    from lightning.pytorch import Trainer

    before = data.trainer
    model._metric_attributes = None  # in a copy of a module that is being fitted these are the original's
    with torch.random.fork_rng(devices=[]), quiet("lightning.pytorch"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        trainer = Trainer(
            accelerator="cpu",
            devices=1,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.test(model, datamodule=data, verbose=False)
    data.trainer = before
    return {name: float(value) for name, value in trainer.callback_metrics.items()}
