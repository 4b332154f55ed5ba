"""`check_quantized`: what does a file in int8 cost against the module in float32?"""

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import torch
from torch import nn

from lit_gelu.activations import ActivationRegistry
from lit_gelu.activations.registry import registry_or_default
from lit_gelu.errors import ParityError
from lit_gelu.export.copying import without_callers_autocast
from lit_gelu.export.errors import ModelInputError
from lit_gelu.export.metadata import FileMetadata, census, read_metadata
from lit_gelu.export.parity.causes import captured, fates
from lit_gelu.export.parity.execution import (
    SessionSetup,
    file_inputs,
    open_wanted,
    optimized_graph,
    run_file,
    run_with_outputs,
)
from lit_gelu.export.parity.input_families import Batch, data_batches, sample_call
from lit_gelu.export.parity.references import References
from lit_gelu.export.parity.structure import activation_faults, output_faults
from lit_gelu.export.parity.subgraph import SiteNodes, site_nodes
from lit_gelu.export.parity.task_metrics import task_metrics
from lit_gelu.export.preprocessing import other_preprocessing, preprocessing_of_file, raw_data_of
from lit_gelu.export.quantization.acceptance import MAX_DIFFERENCE, criteria
from lit_gelu.export.quantization.int8_metadata import read_record
from lit_gelu.export.quantization.layers import REPLACED
from lit_gelu.export.quantization.noise import Noise
from lit_gelu.export.quantization.report import LayerNoise, OutputNoise, QuantizationReport
from lit_gelu.export.quantization.saturation import saturating_layers
from lit_gelu.export.runtime import OnnxPredictor, Provider
from lit_gelu.surgery.sites import without_wrappers

_INNER_BATCHES = 4  # that inner values are compared on: they are many, and their noise settles quickly


@dataclass
class Comparison:
    """Compares one file with one module."""

    path: Path
    predictor: OnnxPredictor
    setup: SessionSetup  # how it was opened
    metadata: FileMetadata  # what it says of itself
    references: References
    model: onnx.ModelProto = field(init=False)
    optimized: onnx.ModelProto = field(init=False)
    sites: list[SiteNodes] = field(init=False)

    def __post_init__(self) -> None:
        self.model = onnx.load(self.path)
        self.optimized = optimized_graph(self.path, self.setup)
        self.sites = site_nodes(self.model, {record.site: record.calls for record in self.metadata.sites})
        self._outputs = {name: Noise() for name in self.predictor.output_names}
        self._layers = {(site.site, site.call): Noise() for site in self.sites}

    def run(self, batches: Iterable[Batch]) -> None:
        """Compare on batches."""
        for number, batch in enumerate(batches):
            fed = file_inputs(self.predictor, batch)
            y = run_file(self.predictor, fed)
            expected = self.references.run(self.references.float32, fed, torch.float32)
            if len(y) != len(expected):
                raise ModelInputError(
                    f"The file has {len(y)} outputs ({', '.join(self._outputs)}), the module returns {len(expected)} "
                    "tensors. Give the module that the file was exported from."
                )
            for noise, output, reference in zip(self._outputs.values(), y, expected, strict=True):
                noise.add(output, reference)
            if number < _INNER_BATCHES and self.sites:
                self._add_layers(fed)

    def _add_layers(self, batch: Batch) -> None:
        """Compare the activations within."""
        expected = captured(self.references, self.references.float32, batch, torch.float32)
        names = list(dict.fromkeys(site.y for site in self.sites))
        values = run_with_outputs(self.model, names, batch, self.setup)
        calls = Counter(site for site, _ in expected)
        recorded = {record.site: record.calls for record in self.metadata.sites}
        for site in self.sites:
            place = (site.site, site.call)
            # A call of a function has no output of its own in the module. Where the module has more calls than the
            # graph, which leaves out those that no output needs, it is not known which of them are the graph's.
            if place in expected and calls[site.site] == recorded[site.site]:
                self._layers[place].add(values[site.y], expected[place])

    def output_noises(self) -> tuple[OutputNoise, ...]:
        """Return what each output is off by."""
        return tuple(
            OutputNoise(
                output=name,
                rows=noise.differences.count,
                sqnr=noise.sqnr,
                max_abs_error=noise.differences.max_abs,
                scale=noise.differences.scale,
                nonfinite=noise.differences.nonfinite,
                top1_agreement=noise.top1_agreement,
                top1_changes=noise.differences.top1_changes,
                changed_share=noise.changed_share,
            )
            for name, noise in self._outputs.items()
        )

    def layer_noises(self) -> tuple[LayerNoise, ...]:
        """Return what the output of each activation is off by, in the file's order."""
        return tuple(LayerNoise(*place, noise.sqnr) for place, noise in self._layers.items() if noise.differences.count)


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

    int8 has no tolerance that rounding would give: what counts is what becomes of the task. So a file passes if

    * one of the module's own test metrics is at most ``max_difference`` worse: its error rate (``test_error``, in
      shares), or where it logs none its loss (``test_loss``, in units of PyTorch's loss);
    * where metrics cannot be measured (a plain module, no LightningDataModule, a file with preprocessing or softmax),
      at most that share of rows changes its largest logit, which bounds what an accuracy can lose; so does every output
      of whole numbers or truth values, in its entries;
    * of every other output then, ``SQNR = 10 log10(sum y^2 / sum (y - y')^2)`` is at least 20 dB.

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
        ExportOptionError: If the module has no such metric, or an output has no largest logit to agree on.
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
        >>> report.passed, report.criteria[0].name, report.outputs[0].sqnr > 30
        (True, 'rows whose largest logit is another one', True)
    """
    if data is None:
        raise ModelInputError("int8 is compared on data only. Give a data module (lit-gelu parity: --data DigitsData).")
    name = repr(os.fspath(path))
    predictor, setup, notes = open_wanted(Path(path), providers, {}, torch.float32)
    record, metadata = read_record(predictor.metadata, name), read_metadata(predictor.metadata, name)
    model = without_wrappers(model)
    registry = registry_or_default(registry)
    preprocessing = preprocessing_of_file(metadata.preprocessing, name, preprocessing, data)
    call, batches = sample_call(model, preprocessing, input_sample, predictor), data
    if preprocessing is not None:
        batches, unread = raw_data_of(data)
        notes += unread + other_preprocessing(metadata.preprocessing, preprocessing)
    references = References(model, call, "as_trained", registry, preprocessing, softmax=metadata.softmax)
    found = Comparison(Path(path), predictor, setup, metadata, references)
    found.run(data_batches(batches, model, call))
    measurable = preprocessing is None and not metadata.softmax
    metrics, unmeasured = task_metrics(model, data, predictor) if measurable else ([], [])
    outputs = found.output_noises()
    report = QuantizationReport(
        path=os.fspath(path),
        provider=predictor.providers[0],
        record=record,
        outputs=outputs,
        criteria=tuple(criteria(metrics, outputs, metric, max_difference, min_top1, min_sqnr)),
        metrics=tuple(metrics),
        layers=found.layer_noises(),
        nbytes=Path(path).stat().st_size,
        census=dict(census(found.model)),
        optimized_census=dict(census(found.optimized)),
        activations=tuple(fates(found.sites, found.optimized)),
        versions={**metadata.versions, "onnxruntime": onnxruntime.__version__},
        faults=(
            *output_faults(
                references.signatures, [(value.name, value.type) for value in predictor.session.get_outputs()], metadata
            ),
            *activation_faults(
                found.model, references.float32, metadata, registry, rewritable=False, replaced=REPLACED
            ),
        ),
        notes=(*notes, *references.notes, *unmeasured, *_saturation(found.model)),
    )
    if strict and not report.passed:
        raise ParityError(_failure(name, report), report)
    return report


def _failure(name: str, report: QuantizationReport) -> str:
    """Say why a file fails, and what mends that."""
    if report.faults:
        remedy = "Was the module changed since the export? Then export it again, and quantise that file."
        return f"{name} is no int8 file of this module. {report.summary()}. {remedy}"
    return (
        f"{name} costs more than it may. {report.summary()}. Leave layers in float32 (quantize_onnx: max_difference= "
        "or float_layers=), calibrate on more rows or by another method."
    )


def _saturation(model: onnx.ModelProto) -> list[str]:
    """Say so if the file can be wrong on processors without VNNI."""
    layers = saturating_layers(model)
    if not layers:
        return []
    return [
        f"On x86 processors without VNNI, sums of {', '.join(layers)} can leave the 16 bits that they are added in. "
        "OnnxPredictor has them added in 32; elsewhere set session.x64quantprecision=1, or quantise for another target."
    ]
