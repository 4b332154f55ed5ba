"""`check_parity`: does the file compute what the module computes?"""

import os
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import torch
from torch import nn

from lit_gelu.activations import ActivationRegistry
from lit_gelu.activations.registry import registry_or_default
from lit_gelu.errors import ParityError
from lit_gelu.export.copying import require_copyable, without_callers_autocast
from lit_gelu.export.errors import ModelFileError, ModelInputError
from lit_gelu.export.inputs import Call, require_order
from lit_gelu.export.metadata import FileMetadata, census, read_metadata
from lit_gelu.export.parity.activation_census import fates, optimized_graph, placement
from lit_gelu.export.parity.alone.sites import check_sites
from lit_gelu.export.parity.batch_dependence import batch_notes
from lit_gelu.export.parity.causes.investigation import Subject
from lit_gelu.export.parity.criterion import FLOOR, dtype_name, dtype_of, floor, require_tolerance
from lit_gelu.export.parity.execution import SessionSetup, file_inputs, open_wanted, run_file
from lit_gelu.export.parity.input_families import (
    GAUSSIAN_ROWS,
    SAMPLE,
    Family,
    families,
    first_rows,
    other_lengths,
    sample_call,
)
from lit_gelu.export.parity.integer_inputs import Kind, integer_kinds, untried, usable
from lit_gelu.export.parity.judging import Judge
from lit_gelu.export.parity.references import References
from lit_gelu.export.parity.repeatability import Repeatability, repeatability
from lit_gelu.export.parity.report import ParityReport
from lit_gelu.export.parity.report.tables import findings
from lit_gelu.export.parity.rows import TF32_VS_FLOAT64, VS_FLOAT64, VS_PYTORCH, ParityRow
from lit_gelu.export.parity.sample_values import instead_of_gaussian
from lit_gelu.export.parity.structure import activation_faults, mismatches, output_faults, rewritten
from lit_gelu.export.parity.subgraph import has_weights_beside, load_structure, site_nodes
from lit_gelu.export.parity.task_metrics import task_metrics
from lit_gelu.export.preprocessing import other_preprocessing, preprocessing_of_file, raw_data_of
from lit_gelu.export.runtime import CUDA, OnnxPredictor, Provider
from lit_gelu.export.runtime.ports import require_fit
from lit_gelu.surgery.sites import without_wrappers

_LOOKED_INTO_BELOW = 256 * 1024**2  # bytes of file: above, layers and optimised graph cost copies of it in memory
_LAYER_ROWS = 2


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
    """Compare a file of `export_onnx` with the module, swapped to the file's own form of GELU.

    The module is copied; it stays as it is. onnxruntime runs the file on CUDA if that works, else on the CPU (the
    report says which); PyTorch runs the copies on the CPU in the file's dtype and in float64. Inputs are the sample,
    the data, gaussian rows in batches of 32, 1 and 2 (of the sample's values, where the module takes no gaussian ones),
    and extremes (large magnitudes, a negative tail, tiny, subnormal, zero); integers are random indices of the table
    that they reach, and random masks. An output passes on a family of inputs if

    * ``max|y - y64| / max|y64|`` is at most ``tolerance`` (in 16 bit one rounding more, see
      `lit_gelu.export.parity.criterion`), or at most twice the same figure of PyTorch in the file's dtype, where that
      is more. For extremes ``max|y64|`` is at least that of gaussian inputs;
    * it is not NaN, nor infinite where ``y64`` fits in the dtype (for extremes: unless PyTorch gives that too).

    Each distinct activation's nodes are also cut out of the file and run alone: on all 65,536 values in 16 bit, on a
    strided selection of float32's bit patterns; errors are then in units of ``max(1, |y64|)``, in 16 bit also in units
    of the last place, NaN must stay NaN, and what comes of infinities is reported. Two runs on the same input must give
    the same. Names and types of outputs, labels, and the operators of each activation must be those of the module and
    of the file's own record. On a breach, the first layer that shows it and the graph optimisation of onnxruntime that
    causes it are looked for.

    Reported, and never deciding: the approximation gap (the file against the module as trained), top-1 agreement, the
    module's own test metrics on a LightningDataModule, TF32 (a second session, on CUDA), how rows depend on their
    batch, what onnxruntime makes of each activation.

    A file that was exported with ``preprocessing=`` takes raw pixels and is compared with the module behind that
    preprocessing, on the sample, the data, random pixels and all black and all white ones.

    Args:
        model: The module that was exported.
        path: The file.
        data: A tensor, a DataLoader, several in a list, tuple or dict, or a LightningDataModule (its test data);
            batches begin with the inputs. For a file that takes raw pixels: raw pixels, or a data module with
            ``preprocessing()`` and ``raw_test_inputs()``.
        input_sample: As `export_onnx` takes it; by default ``example_input_array``, else made from the file's input
            shapes, or where the module does not take that, the first rows of the data.
        tolerance: What float32 arithmetic may cost, in units of the largest output; at 0 a file may be off by twice
            PyTorch's own error, so that what PyTorch computes exactly has to be exact.
        providers: As ``onnxruntime.InferenceSession`` takes them.
        session_config: Session configuration entries of onnxruntime that the file will be run with, such as
            ``{"optimization.enable_gelu_approximation": "1"}``.
        strict: Whether a failure raises; else read ``report.passed``.
        seed: Of the gaussian inputs.
        registry: Which registry names the module's activations; ``None`` is the default one.
        preprocessing: The module that a file with preprocessing was exported with; ``None`` takes the data module's.

    Returns:
        Every comparison.

    Raises:
        ParityError: If the file does not compute what the module computes and ``strict`` is true.
        ExportOptionError: If ``tolerance`` is not a finite number from 0.
        ModelFileError: If the file is missing, damaged, in int8, or was not written by `export_onnx`.
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
    require_order(model, path)
    require_copyable(model)
    require_tolerance(tolerance)
    registry = registry_or_default(registry)
    name, dtype = repr(os.fspath(path)), _recorded_dtype(path)
    predictor, setup, notes = open_wanted(Path(path), providers, dict(session_config or {}), dtype)
    metadata = read_metadata(predictor.metadata, name)
    if metadata.dtype == "int8":
        raise ModelFileError(
            f"{name} is in int8, whose rounding no tolerance of floating-point arithmetic fits. Compare it with "
            "lit_gelu.export.quantization.check_quantized, which asks what becomes of the task."
        )
    model = without_wrappers(model)
    preprocessing = preprocessing_of_file(metadata.preprocessing, name, preprocessing, data)
    call, batches = sample_call(model, preprocessing, input_sample, predictor, data)
    raw = preprocessing is not None
    if preprocessing is not None:
        batches, unread = raw_data_of(data)
        notes += unread + other_preprocessing(metadata.preprocessing, preprocessing)
    if list(call.names) != predictor.input_names:
        raise ModelInputError(
            f"The file's inputs are {', '.join(predictor.input_names)}, the sample gives {', '.join(call.names)}. Give "
            "the sample that the file was exported with."
        )
    for port, tensor in zip(predictor.ports.values(), file_inputs(predictor, call.tensors), strict=True):
        require_fit(port, tensor, raw=raw)
    shapes = [value.shape for value in predictor.session.get_inputs()]
    call = call.with_batch_of(shapes)
    references = References(model, call, metadata.approximate, registry, preprocessing, dtype, softmax=metadata.softmax)
    notes += references.notes + mismatches(references.float32, metadata, registry)
    check = _Check(Path(path), predictor, setup, metadata, references, call, tolerance, registry)
    kinds, unvaried = _kinds(call, references, raw=raw)
    notes += unvaried
    lengths, untaken = other_lengths(call, shapes, references.trouble)
    notes += untaken
    inputs = [*families(call, batches, model, seed, raw=raw, dtype=dtype, kinds=kinds, lengths=lengths)]
    found = check.report(inputs, notes)
    metrics, unmeasured = ([], []) if raw or metadata.softmax else task_metrics(model, data, predictor)
    report = replace(found, path=os.fspath(path), metrics=tuple(metrics), notes=(*found.notes, *unmeasured))
    if strict and not report.passed:
        raise ParityError(_failure(report), report)
    return report


@dataclass
class _Check:
    """One file and its module, ready to be compared."""

    path: Path
    predictor: OnnxPredictor
    setup: SessionSetup
    metadata: FileMetadata
    references: References
    call: Call
    tolerance: float
    registry: ActivationRegistry

    def report(self, inputs: Sequence[Family], notes: Sequence[str]) -> ParityReport:
        """Compare on all inputs, and look into what was found."""
        judge = self._judge(self.predictor)
        rows = judge.compare(inputs)
        rows += self._tf32_rows(inputs)
        model = load_structure(self.path)
        calls = {record.site: record.calls for record in self.metadata.sites}
        found = site_nodes(model, calls)
        alone, unrun = check_sites(
            model, found, self.references.float32, self.metadata, self.setup, self.tolerance, self.registry
        )
        outputs = [(value.name, value.type) for value in self.predictor.session.get_outputs()]
        faults = output_faults(self.references.signatures, outputs, self.metadata)
        faults += activation_faults(model, self.references.float32, self.metadata, self.registry, rewritable=True)
        gaussian = next(family for family in inputs if family.name.endswith(f"batch {GAUSSIAN_ROWS}"))
        runs = not any(
            family.name in judge.unrun for family in inputs if gaussian.name in {family.name, family.rows_of}
        )
        repeated = self._repeatability(model, inputs, judge.refused) if runs else None
        seen = batch_notes(self.metadata.rows_depend, repeated, dict(outputs))
        report = ParityReport(
            path=str(self.path),
            provider=self.predictor.providers[0],
            approximate=self.metadata.approximate,
            rows=(*rows, *(check.row() for check in alone)),
            dtype=dtype_name(self.references.dtype),
            floor=floor(self.references.dtype, self.tolerance),
            elementwise=tuple(alone),
            repeatability=repeated,
            census=dict(census(model)),
            faults=tuple(faults),
            versions={**self.metadata.versions, "onnxruntime": onnxruntime.__version__},
            notes=(*notes, *seen, *judge.untried, *unrun, *rewritten(model, self.metadata)),
        )
        if not runs:
            return report
        if has_weights_beside(model) or self.path.stat().st_size > _LOOKED_INTO_BELOW:
            return replace(report, notes=(*report.notes, "the file is too large to look into layer by layer."))
        folded = frozenset(record.site for record in self.metadata.sites if getattr(record, "folded", ""))
        subject = Subject(self.path, model, found, calls, self.references, self.setup, self.tolerance, folded)
        return self._looked_into(report, subject, gaussian, judge)

    def _judge(self, predictor: OnnxPredictor, label: str = "") -> Judge:
        """Return what compares a session with the module."""
        usual = VS_FLOAT64 if self.references.exact_dtype == torch.float64 else f"{VS_PYTORCH} float32"
        return Judge(
            run=partial(run_file, predictor),
            references=self.references,
            outputs=predictor.output_names,
            inputs=partial(file_inputs, predictor),
            dtype=self.references.dtype,
            tolerance=self.tolerance,
            vs_float64=label or usual,
        )

    def _tf32_rows(self, inputs: Sequence[Family]) -> list[ParityRow]:
        """Return what a second session with TF32 gives, where that exists; data are read once, so not on them."""
        if self.predictor.providers[0] != CUDA or self.references.dtype != torch.float32:
            return []
        judge = self._judge(self.setup.with_tf32(on=True).open(self.path), TF32_VS_FLOAT64)
        rows = judge.compare(family for family in inputs if isinstance(family.batches, list))
        return [replace(row, limit=None) for row in rows if row.comparison == TF32_VS_FLOAT64]

    def _repeatability(
        self, model: onnx.ModelProto, inputs: Sequence[Family], refused: Collection[str]
    ) -> Repeatability:
        """Run the file twice, and in other batches: on what the module takes, which is the sample at least."""
        whole = next(family for family in inputs if family.name.endswith(f"batch {GAUSSIAN_ROWS}"))
        parts = [family for family in inputs if family.rows_of == whole.name and family.name != SAMPLE]
        taken = [family for family in (whole, *parts) if family.name not in refused]
        chosen = [batch for family in taken for batch in family.batches] if whole in taken else [self.call.tensors]
        fed = [file_inputs(self.predictor, batch) for batch in chosen]
        plain = replace(self.setup, level="DISABLE_ALL").open(self.path)
        run, run_plain = partial(run_file, self.predictor), partial(run_file, plain)
        return repeatability(run, run_plain, fed, self.predictor.output_names, model)

    def _looked_into(self, report: ParityReport, subject: Subject, gaussian: Family, judge: Judge) -> ParityReport:
        """Add layers, what became of each activation, and on a breach its place and cause."""
        (batch,) = gaussian.batches
        rows = file_inputs(self.predictor, first_rows(batch, self.call, _LAYER_ROWS))
        if self.references.trouble(rows):  # such as that it takes no two rows; its sample it takes
            rows = file_inputs(self.predictor, self.call.tensors)
        optimized = optimized_graph(self.path, self.setup)
        providers = placement(self.path, self.setup)
        report = replace(
            report,
            layers=tuple(subject.layers(rows)),
            optimized_census=dict(census(optimized)),
            activations=tuple(fates(list(subject.found), optimized, providers)),
            placement=dict(Counter(providers.values())),
        )
        worst = judge.worst
        if worst is None or worst.excess <= 1:
            return report
        exact = self.references.exact is not None
        culprit = subject.culprit(worst.batch, judge.excess_on(worst)) if exact else None
        return replace(report, culprit=culprit, divergence=subject.divergence(worst.batch))


def _kinds(call: Call, references: References, *, raw: bool) -> tuple[dict[int, Kind], list[str]]:
    """Return what inputs may hold that are not to be gaussian, and what is to be said of it; raw pixels are none."""
    pixels = frozenset({0} if raw else ())
    kinds, notes = integer_kinds(call, partial(references.run, references.float32, dtype=torch.float32), pixels)
    if references.trouble(call.tensors):  # on the sample already: drawn values cannot be judged
        return kinds, notes
    kinds, refused = usable(call, kinds, references.trouble)
    others, instead = ({}, []) if raw else instead_of_gaussian(call, kinds, references.trouble)
    return {**kinds, **others}, [*notes, *refused, *untried(call, kinds, GAUSSIAN_ROWS), *instead]


def _recorded_dtype(path: str | os.PathLike[str]) -> torch.dtype:
    """Return the dtype that a file's metadata name; what is wrong with a file is said when it is opened."""
    try:
        model = onnx.load(path, load_external_data=False)
    except Exception:  # noqa: BLE001 - missing, unreadable, damaged, foreign: opening it says which
        return torch.float32
    names = {entry.key: entry.value for entry in model.metadata_props}
    return dtype_of(names.get("lit_gelu.dtype", "fp32"))


def _failure(report: ParityReport) -> str:
    """Say which comparisons failed, and what is known of the cause."""
    rows = "; ".join(map(str, report.failures[:4]))
    reasons = " ".join(findings(report))
    return (
        f"{report.path!r} does not compute what the module computes ({'; '.join(report.reasons)}). Was the module "
        f"trained or changed since the export? Then export it again. {f'{rows}. ' if rows else ''}{reasons} "
        "ParityError.report holds every comparison."
    )
