"""`check_quantized`: what does a file in int8 cost against the module in float32?"""

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
import torch
from rich.text import Text
from torch import nn

from lit_gelu.activations import ActivationRegistry
from lit_gelu.activations.registry import registry_or_default
from lit_gelu.display import Displayed
from lit_gelu.errors import ArgumentError, ModelInputError, ParityError
from lit_gelu.export.copying import without_callers_autocast
from lit_gelu.export.metadata import read_metadata
from lit_gelu.export.parity.check import task_metrics
from lit_gelu.export.parity.execution import file_inputs, open_wanted, run_file
from lit_gelu.export.parity.input_families import data_batches, sample_call
from lit_gelu.export.parity.references import References
from lit_gelu.export.parity.report import TaskMetric
from lit_gelu.export.parity.structure import activation_faults, output_faults
from lit_gelu.export.preprocessing import other_preprocessing, preprocessing_of_file, raw_data_of
from lit_gelu.export.quantization.quantize import QuantizationRecord, read_record, signal_to_noise
from lit_gelu.export.runtime import Provider
from lit_gelu.files import without_nonfinite
from lit_gelu.surgery.sites import without_wrappers

MAX_DIFFERENCE = 0.01  # one row in a hundred
MIN_SQNR = 20.0  # decibels: an error of a tenth of the output, root of the mean square


@dataclass(frozen=True)
class OutputNoise:
    """What one output of the file is off by on the data."""

    output: str
    rows: int
    sqnr: float  # signal-to-quantisation-noise ratio, decibels; infinite for an output that is the same
    max_abs_error: float
    nonfinite: int  # entries that are NaN or infinite where PyTorch's are not
    changed: float | None  # share of rows with another largest logit, or of whole numbers that differ; else None
    is_logits: bool  # of shape [batch, classes]


@dataclass(frozen=True)
class Criterion:
    """A figure that decides."""

    name: str
    value: float
    limit: float
    kind: Literal["at most", "at least"]

    @property
    def passed(self) -> bool:
        """Whether the figure is within its limit; NaN is not."""
        return self.value <= self.limit if self.kind == "at most" else self.value >= self.limit

    def __str__(self) -> str:
        """Return one line."""
        verdict = "ok" if self.passed else "FAILED"
        return f"{self.name}: {self.value:.4g}, {self.kind} {self.limit:g} is accepted: {verdict}"


@dataclass(frozen=True, repr=False)
class QuantizationReport(Displayed):
    """What `check_quantized` found.

    Args:
        path: The file, as it was given.
        provider: The execution provider that really ran it.
        record: How it was quantised.
        nbytes: Size of the file.
        outputs: Each output against PyTorch in float32.
        criteria: What decides.
        metrics: The module's own test metrics, on a LightningDataModule.
        faults: Where file, record and module do not agree, whatever the numbers; one is enough to fail.
        notes: What could not be compared, and why.
    """

    path: str
    provider: str
    record: QuantizationRecord
    nbytes: int
    outputs: tuple[OutputNoise, ...]
    criteria: tuple[Criterion, ...]
    metrics: tuple[TaskMetric, ...] = ()
    faults: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether every criterion passed, there is one, no output is NaN or infinite, and there is no fault."""
        finite = not any(output.nonfinite for output in self.outputs)
        return finite and not self.faults and bool(self.criteria) and all(one.passed for one in self.criteria)

    def summary(self) -> str:
        """Return one line: the verdict and what decides."""
        reasons = [*self.faults, *(f"NaN or infinity in {o.output}" for o in self.outputs if o.nonfinite)]
        verdict = "passed" if self.passed else " ".join(["FAILED", *reasons])
        sqnr = ", ".join(f"{output.output} {output.sqnr:.1f} dB" for output in self.outputs)
        return f"int8 {verdict} on {self.provider}: {'; '.join(map(str, self.criteria))}; SQNR {sqnr}"

    def proof(self) -> dict[str, Any]:
        """Return what the file says of this comparison, in its ``lit_gelu.parity``: verdict and main figures."""
        plain = self.to_dict()
        return {key: plain[key] for key in ("passed", "criteria", "outputs", "metrics", "provider")}

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain data; numbers that are not finite as text."""
        verdicts = {"passed": self.passed, "criteria": [{**asdict(one), "passed": one.passed} for one in self.criteria]}
        plain: dict[str, Any] = without_nonfinite({**asdict(self), **verdicts}, as_text=True)
        return plain

    def to_json(self) -> str:
        """Return the report as JSON."""
        return json.dumps(self.to_dict(), indent=2, allow_nan=False)

    def to_markdown(self) -> str:
        """Return the report as a list in Markdown."""
        return "\n".join(f"- {line}" for line in str(self).split("\n")) + "\n"

    def __rich__(self) -> Text:
        """Return the whole report for ``rich.print``."""
        return Text(str(self))

    def __str__(self) -> str:
        """Return the whole report, a figure a line; the last one is the verdict."""
        metrics = (f"{m.name}: {m.pytorch:.4g} in float32, {m.file:.4g} in int8" for m in self.metrics)
        outputs = (f"{o.output}: SQNR {o.sqnr:.1f} dB, largest error {o.max_abs_error:.3g}" for o in self.outputs)
        faults = (f"fault: {fault}" for fault in self.faults)
        size = f"{self.nbytes:,} bytes, the float file has {self.record.float_bytes:,}"
        verdict = "passed" if self.passed else "FAILED"
        head = f"{self.path}: {self.provider}, int8"
        return "\n".join([
            *(head, str(self.record), size, *outputs, *metrics, *self.notes, *faults, *map(str, self.criteria)),
            verdict,
        ])


@without_callers_autocast()
def check_quantized(
    model: nn.Module,
    path: str | os.PathLike[str],
    data: Any,
    input_sample: Any = None,
    *,
    metric: str | None = None,
    max_difference: float = MAX_DIFFERENCE,
    min_top1: float | None = None,
    min_sqnr: float | None = None,
    providers: Sequence[Provider] | None = None,
    strict: bool = True,
    registry: ActivationRegistry | None = None,
    preprocessing: nn.Module | None = None,
) -> QuantizationReport:
    """Compare a file of `quantize_onnx` with the module in float32, as trained, on data that it was not calibrated on.

    int8 has no tolerance that rounding would give: what counts is what becomes of the task. Its error rate
    (``test_error``, else ``test_loss`` in units of PyTorch's) may rise by ``max_difference``. Where the module logs
    neither, at most that share of rows may change its largest logit, which bounds what an accuracy can lose, and of
    whole numbers that share of entries; every other output needs ``10 log10(sum y^2 / sum (y - y')^2)`` of 20 dB.
    ``min_top1`` and ``min_sqnr`` decide beside the metric where they are given. NaN and infinities fail.

    Args:
        model: The module that was exported; it stays as it is.
        path: The int8 file.
        data: A LightningDataModule (its test data), a DataLoader or a tensor; for a file that takes raw pixels, raw
            pixels, or a data module with ``preprocessing()`` and ``raw_test_inputs()``.
        input_sample: As `lit_gelu.export.export_onnx` takes it; by default ``example_input_array``, else made from the
            file's input shapes.
        metric: Which test metric decides; ``None`` for the one above. One whose name holds "acc" may not fall, any
            other may not rise.
        max_difference: How much worse it may be.
        min_top1: The least share of rows with the same largest logit.
        min_sqnr: The least signal-to-quantisation-noise ratio of every output, decibels.
        providers: As ``onnxruntime.InferenceSession`` takes them.
        strict: Whether a failure raises; else read ``report.passed``.
        registry: Which registry names the module's activations; ``None`` is the default one.
        preprocessing: The module that a file with preprocessing was exported with; ``None`` takes the data module's.

    Returns:
        Every figure.

    Raises:
        ParityError: If the file costs more than it may and ``strict`` is true.
        ArgumentError: If the module has no such metric, or no output has a largest logit to agree on.
        ModelFileError: If the file is missing, damaged, or `quantize_onnx` did not write it.
        ModelInputError: If sample or data do not fit module and file, or there are none.
        ProviderError: If a provider does not exist or did not take the file.

    Example:
        >>> import tempfile
        >>> from lit_gelu.export import export_onnx
        >>> from lit_gelu.export.quantization import quantize_onnx
        >>> folder, generator = Path(tempfile.mkdtemp()), torch.Generator().manual_seed(0)
        >>> _ = torch.manual_seed(0)
        >>> net = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 8))
        >>> _ = export_onnx(net, folder / "net.onnx", torch.zeros(2, 64))
        >>> rows = torch.randn(400, 64, generator=generator)
        >>> _ = quantize_onnx(folder / "net.onnx", folder / "net-int8.onnx", rows[:200])
        >>> report = check_quantized(net, folder / "net-int8.onnx", rows[200:], rows[:2], max_difference=0.05)
        >>> report.passed, report.outputs[0].sqnr > 30
        (True, True)
    """
    if data is None:
        raise ModelInputError("int8 is compared on data only. Give a data module (lit-gelu parity: --data DigitsData).")
    name = repr(os.fspath(path))
    predictor, _, notes = open_wanted(Path(path), providers, {}, torch.float32)
    record, metadata = read_record(predictor.metadata, name), read_metadata(predictor.metadata, name)
    model, registry = without_wrappers(model), registry_or_default(registry)
    preprocessing = preprocessing_of_file(metadata.preprocessing, name, preprocessing, data)
    call, batches = sample_call(model, preprocessing, input_sample, predictor), data
    if preprocessing is not None:
        batches, unread = raw_data_of(data)
        notes += unread + other_preprocessing(metadata.preprocessing, preprocessing)
    references = References(model, call, "as_trained", registry, preprocessing, softmax=metadata.softmax)
    pairs = []
    for batch in data_batches(batches, model, call):
        fed = file_inputs(predictor, batch)
        pairs.append((run_file(predictor, fed), references.run(references.float32, fed, torch.float32)))
    if len(pairs[0][0]) != len(pairs[0][1]):
        raise ModelInputError(
            f"{name} has {len(pairs[0][0])} outputs, the module {len(pairs[0][1])}: it is another one."
        )
    outputs = [
        _noise(output, [y[i] for y, _ in pairs], [exact[i] for _, exact in pairs])
        for i, output in enumerate(predictor.output_names)
    ]
    measurable = preprocessing is None and not metadata.softmax
    metrics, unmeasured = task_metrics(model, data, predictor) if measurable else ([], [])
    types = [(value.name, value.type) for value in predictor.session.get_outputs()]
    report = QuantizationReport(
        path=os.fspath(path),
        provider=predictor.providers[0],
        record=record,
        nbytes=Path(path).stat().st_size,
        outputs=tuple(outputs),
        criteria=tuple(criteria(metrics, outputs, metric, max_difference, min_top1, min_sqnr)),
        metrics=tuple(metrics),
        faults=(
            *output_faults(references.signatures, types, metadata),
            *activation_faults(onnx.load(path), references.float32, metadata, registry, rewritable=False),
        ),
        notes=(*notes, *references.notes, *unmeasured),
    )
    if strict and not report.passed:
        remedy = (
            "Was the module changed since the export? Then export it again, and quantise that file."
            if report.faults
            else "Leave layers in float32 (quantize_onnx: float_layers=), calibrate on more rows or by another method."
        )
        raise ParityError(f"{name} is not accepted. {report.summary()}. {remedy}", report)
    return report


def _noise(output: str, y: Sequence[np.ndarray], exact: Sequence[np.ndarray]) -> OutputNoise:
    """Compare one output with PyTorch's, batch by batch."""
    rows, is_logits = sum(len(one) if one.ndim else 1 for one in exact), exact[0].ndim == 2 and exact[0].shape[1] > 1
    if any(one.shape != right.shape for one, right in zip(y, exact, strict=True)):
        return OutputNoise(output, rows, -np.inf, np.inf, 0, None, is_logits=False)
    changed, nonfinite, largest = [], 0, 0.0
    for one, right in zip(y, exact, strict=True):
        finite = np.isfinite(right)
        nonfinite += int(np.count_nonzero(~np.isfinite(one[finite])))
        error = np.abs(one[finite].astype(np.float64) - right[finite].astype(np.float64))
        largest = max(largest, float(error.max(initial=0.0)))
        if right.dtype.kind in "iub":
            changed.append((one != right).ravel())
        elif is_logits:
            changed.append(one.argmax(1) != right.argmax(1))
    is_logits &= exact[0].dtype.kind == "f"
    share = float(np.concatenate(changed).mean()) if changed else None
    return OutputNoise(output, rows, signal_to_noise(y, exact), largest, nonfinite, share, is_logits)


def criteria(
    metrics: Sequence[TaskMetric],
    outputs: Sequence[OutputNoise],
    metric: str | None,
    max_difference: float,
    min_top1: float | None,
    min_sqnr: float | None,
) -> list[Criterion]:
    """Return what decides: a metric (the error rate, else the loss), else for each output what it can be judged by."""
    known = {one.name: one for one in metrics}
    if metric is not None and metric not in known:
        raise ArgumentError(
            f"There is no test metric {metric!r} to decide by. There are: {', '.join(known) or 'none'}."
        )
    name = metric or next((name for name in ("test_error", "test_loss") if name in known), None)
    logits = [output for output in outputs if output.is_logits]
    if min_top1 is not None and not logits:
        raise ArgumentError("min_top1= needs an output of logits, [batch, classes]. Use min_sqnr=.")
    decisive = []
    if name is not None:
        worse = -known[name].difference if "acc" in name else known[name].difference
        if "loss" in name:  # in its own units: a loss has no scale that all share
            worse = worse / abs(known[name].pytorch) if known[name].pytorch else np.inf * worse
        decisive.append(Criterion(f"{name}, how much worse", worse, max_difference, "at most"))
    for output in outputs:
        if name is None and output.changed is not None:
            what = "rows of {} whose largest logit is another" if output.is_logits else "entries of {} that differ"
            decisive.append(Criterion(what.format(output.output), output.changed, max_difference, "at most"))
        if min_top1 is not None and output.is_logits:
            decisive.append(
                Criterion(f"top-1 agreement of {output.output}", 1 - (output.changed or 0), min_top1, "at least")
            )
        if min_sqnr is not None or (name is None and output.changed is None):
            least = MIN_SQNR if min_sqnr is None else min_sqnr
            decisive.append(Criterion(f"SQNR of {output.output}, dB", output.sqnr, least, "at least"))
    return decisive
