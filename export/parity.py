"""`check_parity`: does the file compute what the module computes?"""

import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from torch import Tensor, nn

from lit_gelu import activations, surgery
from lit_gelu.activations import ActivationRegistry
from lit_gelu.export.comparison import Differences
from lit_gelu.export.copying import evaluation_copy
from lit_gelu.export.elementwise import sweep
from lit_gelu.export.errors import ModelFileError, ModelInputError, ParityError, ProviderError
from lit_gelu.export.exporter import with_approximation
from lit_gelu.export.inputs import Call, named_outputs, take_apart
from lit_gelu.export.lowering_table import LOWERINGS
from lit_gelu.export.markers import bind
from lit_gelu.export.metadata import FileMetadata, read_metadata
from lit_gelu.export.parity_inputs import Family, families
from lit_gelu.export.parity_report import VS_FLOAT32, VS_FLOAT64, VS_TRAINED, ParityReport, ParityRow
from lit_gelu.export.runtime import CPU, OnnxPredictor, Provider, default_providers
from lit_gelu.export.saving import census

TOLERANCE = 1e-5
_CENSUS_BELOW = 256 * 1024**2  # bytes: onnxruntime writes the optimised model to be counted


def check_parity(
    model: nn.Module,
    path: str | os.PathLike[str],
    data: Any = None,
    input_sample: Any = None,
    *,
    tolerance: float = TOLERANCE,
    providers: Sequence[Provider] | None = None,
    strict: bool = True,
    seed: int = 0,
    registry: ActivationRegistry | None = None,
) -> ParityReport:
    """Compare a file of `export_onnx` with the module, swapped to the file's own form of GELU.

    The module is copied; it stays as it is. onnxruntime runs the file on CUDA if that works, else on the CPU (the
    report says which), PyTorch runs the copies on the CPU in float32 and float64. Inputs are the sample, the data,
    gaussian rows in batches of 32, 1 and 2, and extremes (magnitudes 1e3 and 1e4, a negative tail, tiny, subnormal,
    zero); each distinct activation is also run alone over float32's range. A comparison passes if

    * the largest absolute error is at most ``tolerance``, or at most twice PyTorch float32's own largest error against
      float64 on the same inputs, where that is more: logits of 24 have a last bit of 2e-6, so after nine layers two
      float32 implementations that are equally right can differ by more than 1e-5;
    * for extremes: at most ``tolerance * max(1, max|y|)`` or that, with ``y`` the float64 outputs;
    * no output is NaN, or infinite where ``y`` fits in float32 (for extremes: unless PyTorch float32 gives that too);
    * for outputs of shape [batch, classes], no row changes its largest logit although the margin between the two best
      of the reference exceeds twice the largest error.

    The approximation gap, the file against the module as trained, is reported and never decides.

    Args:
        model: The module that was exported.
        path: The file.
        data: A tensor, a DataLoader or a LightningDataModule (its test data); batches begin with the inputs.
        input_sample: As `export_onnx` takes it; by default ``example_input_array``, else made from the file's input
            shapes.
        tolerance: The largest absolute error.
        providers: As ``onnxruntime.InferenceSession`` takes them.
        strict: Whether a failure raises; else read ``report.passed``.
        seed: Of the gaussian inputs.
        registry: Which registry names the module's activations; ``None`` is the default one.

    Returns:
        Every comparison.

    Raises:
        ParityError: If the file does not compute what the module computes and ``strict`` is true.
        ModelFileError: If the file is missing, damaged, or was not written by `export_onnx`.
        ModelInputError: If sample or data do not fit module and file.
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
        >>> max(row.max_abs_error for row in report.rows if row.inputs == "gaussian, batch 32" and row.gating) < 1e-6
        True
    """
    registry = activations.registry if registry is None else registry
    predictor, notes = _predictor(path, providers)
    metadata = read_metadata(predictor.metadata, repr(os.fspath(path)))
    trained = evaluation_copy(model)
    call = take_apart(trained, _sample(model, input_sample, predictor))
    if list(call.names) != predictor.input_names:
        raise ModelInputError(
            f"The file's inputs are {', '.join(predictor.input_names)}, the sample gives {', '.join(call.names)}. "
            "Give the sample that the "
            "file was exported with."
        )
    references = _References(model, trained, call, metadata.approximate, registry)
    notes += references.notes + _mismatches(references.float32, metadata, registry)
    rows = [
        row
        for family in families(call, data, trained, seed)
        for row in _compare(family, predictor, references, tolerance)
    ]
    rows += _sweeps(references.float32, metadata, tolerance, predictor, registry)
    report = ParityReport(
        path=os.fspath(path),
        provider=predictor.providers[0],
        approximate=metadata.approximate,
        rows=tuple(rows),
        census=dict(census(onnx.load(path, load_external_data=False))),
        optimized_census=_optimized_census(Path(path), predictor),
        versions={**metadata.versions, "onnxruntime": onnxruntime.__version__},
        notes=tuple(notes),
    )
    if strict and not report.passed:
        raise ParityError(_failure(report), report)
    return report


def _predictor(path: str | os.PathLike[str], providers: Sequence[Provider] | None) -> tuple[OnnxPredictor, list[str]]:
    """Open the file where all of it runs on the wanted provider; say so if only a part does."""
    chosen = default_providers() if providers is None else list(providers)
    first = chosen[0] if isinstance(chosen[0], str) else chosen[0][0]
    if first == CPU:
        return OnnxPredictor(path, chosen), []
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    alone = [provider for provider in chosen if provider != CPU]  # naming the CPU contradicts that option
    try:
        return OnnxPredictor(path, alone, options), []
    except (ModelFileError, ProviderError):
        predictor = OnnxPredictor(path, chosen)
        return predictor, [f"{first} does not run every operator of this file; onnxruntime put the others on the CPU."]


def _sample(model: nn.Module, input_sample: Any, predictor: OnnxPredictor) -> Any:
    """Return the sample: given, the module's own, or normal values in the file's input shapes."""
    sample = getattr(model, "example_input_array", None) if input_sample is None else input_sample
    if sample is not None:
        return sample
    generator = torch.Generator().manual_seed(0)
    made = {}
    for value in predictor.session.get_inputs():
        shape = [size if isinstance(size, int) else 2 for size in value.shape]
        if value.type != "tensor(float)":
            raise ModelInputError(
                f"Input {value.name!r} is {value.type}: give input_sample=, values cannot be made up for it."
            )
        made[value.name] = torch.randn(shape, generator=generator)
    return made


@dataclass
class _Outputs:
    """PyTorch's outputs for one batch."""

    float32: list[np.ndarray]
    float64: list[np.ndarray] | None
    trained: list[np.ndarray] | None


class _References:
    """The module in float32 and float64 with the file's form of GELU, and as trained."""

    def __init__(
        self, model: nn.Module, trained: nn.Module, call: Call, approximate: str, registry: ActivationRegistry
    ) -> None:
        self._call = call
        self._trained = None if approximate == "as_trained" else trained
        self.float32 = with_approximation(evaluation_copy(model), approximate, registry)
        self._float64: nn.Module | None = with_approximation(
            evaluation_copy(model, torch.float64), approximate, registry
        )
        self.notes: list[str] = []
        try:
            self._run(self._float64, call.tensors, torch.float64)
        except Exception as error:  # noqa: BLE001 - forward is the user's: whatever it raises is reported
            self._float64 = None
            self.notes.append(f"no float64 reference: forward fails in float64 ({error}).")

    @torch.no_grad()
    def outputs(self, batch: tuple[Tensor, ...]) -> _Outputs:
        """Run all references."""
        return _Outputs(
            self._run(self.float32, batch, torch.float32),
            None if self._float64 is None else self._run(self._float64, batch, torch.float64),
            None if self._trained is None else self._run(self._trained, batch, torch.float32),
        )

    @torch.no_grad()
    def _run(self, module: nn.Module, batch: tuple[Tensor, ...], dtype: torch.dtype) -> list[np.ndarray]:
        """Run one module on one batch."""
        args, kwargs = self._call.arguments([t.to(dtype) if t.is_floating_point() else t for t in batch])
        return [tensor.numpy() for _, tensor in named_outputs(module(*args, **kwargs))]


def _compare(family: Family, predictor: OnnxPredictor, references: _References, tolerance: float) -> list[ParityRow]:
    """Compare on one family of inputs."""
    vs32, vs64, spread, gap = Differences(), Differences(), Differences(), Differences()
    for batch in family.batches:
        result = predictor(*[tensor.numpy() for tensor in batch])
        y = list(result) if isinstance(result, tuple) else [result]
        reference = references.outputs(batch)
        excused = reference.float32 if family.extreme else None
        vs32.add(y, reference.float32, excused)
        if reference.float64 is not None:
            vs64.add(y, reference.float64, excused)
            spread.add(reference.float32, reference.float64, excused)
        if reference.trained is not None and family.gap:
            gap.add(y, reference.trained)
    limit = tolerance * max(1.0, vs64.scale or vs32.scale) if family.extreme else tolerance
    own = spread.max_abs if vs64.count else None
    limit = max(limit, 2 * (own or 0.0))
    rows = [_row(VS_FLOAT32, family, vs32, own, limit)]
    if own is not None:
        rows.append(_row(VS_FLOAT64, family, vs64, own, limit))
    if gap.count:
        rows.append(_row(VS_TRAINED, family, gap, None, None))
    return rows


def _row(comparison: str, family: Family, found: Differences, spread: float | None, limit: float | None) -> ParityRow:
    """Return one row of the report."""
    return ParityRow(
        comparison=comparison,
        inputs=family.name,
        count=found.count,
        max_abs_error=found.max_abs,
        mean_abs_error=found.mean_abs,
        scale=found.scale,
        spread=spread,
        limit=limit,
        nonfinite=found.nonfinite,
        top1_agreement=found.top1_agreement,
        top1_flips=found.top1_flips,
        extreme=family.extreme,
    )


def _mismatches(model: nn.Module, metadata: FileMetadata, registry: ActivationRegistry) -> list[str]:
    """Say which sites of the module have another activation than the file records: the likeliest cause of a failure."""
    sites = {site.name: str(site.spec) for site in surgery.find_sites(model, registry=registry)}
    found: dict[tuple[str, str], list[str]] = {}
    for record in metadata.sites:
        spec = sites.get(record.site)
        if spec is not None and spec != record.spec:
            found.setdefault((spec, record.spec), []).append(record.site or "(the module itself)")
    return [
        f"{spec} in the module is {recorded} in the file: {', '.join(names)}."
        for (spec, recorded), names in found.items()
    ]


def _sweeps(
    model: nn.Module, metadata: FileMetadata, tolerance: float, predictor: OnnxPredictor, registry: ActivationRegistry
) -> list[ParityRow]:
    """Run each distinct activation of the file alone."""
    modules = dict(model.named_modules())
    providers: list[Provider] = list(predictor.session.get_providers())
    rows: dict[tuple[str, str, str], ParityRow] = {}
    for record in metadata.sites:
        if record.lowering not in LOWERINGS or not record.calls:
            continue
        module = modules.get(record.site)
        activation = None if module is None else bind(module)
        if module is None or activation is None or activation.row != record.row:
            module = registry.create(record.spec)  # a function call, or a module that is no longer what was exported
            activation = bind(module)
        if activation is None or activation.row != record.row:
            continue
        key = (activation.row, repr(sorted(activation.arguments.items())), record.lowering)
        if key not in rows:
            rows[key] = sweep(
                module,
                activation,
                record.lowering,
                metadata.opset,
                label=record.spec,
                tolerance=tolerance,
                providers=providers,
            )
    return list(rows.values())


def _optimized_census(path: Path, predictor: OnnxPredictor) -> Mapping[str, int]:
    """Count the operators that onnxruntime's own optimisation leaves."""
    if path.stat().st_size > _CENSUS_BELOW:
        return {}
    with tempfile.TemporaryDirectory() as folder:
        options = onnxruntime.SessionOptions()
        options.optimized_model_filepath = str(Path(folder) / "optimized.onnx")
        options.log_severity_level = 3  # it warns that the optimised file is for this machine only: it is only counted
        onnxruntime.InferenceSession(os.fspath(path), options, providers=predictor.session.get_providers())
        return dict(census(onnx.load(options.optimized_model_filepath, load_external_data=False)))


def _failure(report: ParityReport) -> str:
    """Say which comparisons failed."""
    lines = [
        f"{row.comparison}, {row.inputs}: max |error| {row.max_abs_error:.3g} > {row.limit:.3g}"
        + (f", {row.nonfinite} values not finite" if row.nonfinite else "")
        + (f", {row.top1_flips} rows changed their largest logit" if row.top1_flips else "")
        for row in report.failures
    ]
    reasons = f" Notes: {' '.join(report.notes)}" if report.notes else ""
    return (
        f"{report.path!r} does not compute what the module computes ({len(lines)} comparisons failed): "
        f"{'; '.join(lines[:4])}."
        f"{reasons} Was the module trained or changed since the export? Export it again; ParityError.report holds "
        "every comparison."
    )
