"""`check_parity`: does the file compute what the module computes?"""

import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import torch
from torch import Tensor, nn

from lit_gelu import activations
from lit_gelu.activations import ActivationRegistry
from lit_gelu.export.errors import ModelFileError, ModelInputError, ParityError, ProviderError
from lit_gelu.export.inputs import Call, sample_of, take_apart
from lit_gelu.export.metadata import read_metadata
from lit_gelu.export.parity_compare import References, compare, mismatches, sweeps
from lit_gelu.export.parity_inputs import families
from lit_gelu.export.parity_report import ParityReport, ParityRow
from lit_gelu.export.preprocessing import (
    other_preprocessing,
    preprocessing_copy,
    preprocessing_of_file,
    random_pixels,
    raw_call,
    raw_data_of,
)
from lit_gelu.export.runtime import CPU, OnnxPredictor, Provider, default_providers, provider_name
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
    preprocessing: nn.Module | None = None,
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

    A file that was exported with ``preprocessing=`` takes raw pixels and is compared with the module behind that
    preprocessing, in float32 and in float64, on the sample, the data, random pixels and all black and all white ones.

    The approximation gap, the file against the module as trained, is reported and never decides.

    Args:
        model: The module that was exported.
        path: The file.
        data: A tensor, a DataLoader or a LightningDataModule (its test data); batches begin with the inputs. For a
            file that takes raw pixels: raw pixels, or a data module with ``preprocessing()`` and ``raw_test_inputs()``.
        input_sample: As `export_onnx` takes it; by default ``example_input_array``, else made from the file's input
            shapes.
        tolerance: The largest absolute error.
        providers: As ``onnxruntime.InferenceSession`` takes them.
        strict: Whether a failure raises; else read ``report.passed``.
        seed: Of the gaussian inputs.
        registry: Which registry names the module's activations; ``None`` is the default one.
        preprocessing: The module that a file with preprocessing was exported with; ``None`` takes the data module's.

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
    model = getattr(model, "_orig_mod", model)
    preprocessing = preprocessing_of_file(metadata.preprocessing, repr(os.fspath(path)), preprocessing, data)
    call = _call(model, preprocessing, input_sample, predictor)
    if preprocessing is not None:
        data, unread = raw_data_of(data)
        notes += unread + other_preprocessing(metadata.preprocessing, preprocessing)
    if list(call.names) != predictor.input_names:
        raise ModelInputError(
            f"The file's inputs are {', '.join(predictor.input_names)}, the sample gives {', '.join(call.names)}. Give "
            "the sample that the file was exported with."
        )
    references = References(model, call, metadata.approximate, registry, preprocessing)
    notes += references.notes + mismatches(references.float32, metadata, registry)
    inputs = families(call, data, model, seed, raw=preprocessing is not None)
    rows = [row for family in inputs for row in compare(family, predictor, references, tolerance)]
    notes += _unresolved(rows, tolerance)
    rows += sweeps(references.float32, metadata, tolerance, predictor, registry)
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
    first = provider_name(chosen[0]) if chosen else CPU
    if first == CPU:
        return OnnxPredictor(path, chosen), []
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    alone = [
        provider for provider in chosen if provider_name(provider) != CPU
    ]  # naming the CPU contradicts that option
    try:
        return OnnxPredictor(path, alone, options), []
    except (ModelFileError, ProviderError):
        predictor = OnnxPredictor(path, chosen)
        return predictor, [f"{first} does not run every operator of this file; onnxruntime put the others on the CPU."]


def _call(model: nn.Module, preprocessing: nn.Module | None, input_sample: Any, predictor: OnnxPredictor) -> Call:
    """Return the sample call: of the given sample, of the module's own, or of one made from the file's inputs."""
    owners = [model] if preprocessing is None else [model, preprocessing]
    if input_sample is None and all(getattr(owner, "example_input_array", None) is None for owner in owners):
        input_sample = _made_sample(predictor, raw=preprocessing is not None)
    if preprocessing is None:
        return take_apart(model, sample_of(model, input_sample))
    call = raw_call(model, preprocessing, input_sample)
    preprocessing_copy(preprocessing, call)  # its own errors, before it is part of a longer computation
    return call


def _made_sample(predictor: OnnxPredictor, *, raw: bool) -> dict[str, Tensor]:
    """Return normal values, and for the first input of a file that takes them raw pixels, in the file's shapes."""
    generator = torch.Generator().manual_seed(0)
    made = {}
    for i, value in enumerate(predictor.session.get_inputs()):
        shape = torch.Size([size if isinstance(size, int) else 2 for size in value.shape])
        if raw and i == 0:
            made[value.name] = random_pixels(shape, generator)
        elif value.type == "tensor(float)":
            made[value.name] = torch.randn(shape, generator=generator)
        else:
            raise ModelInputError(
                f"Input {value.name!r} is {value.type}: give input_sample=, values cannot be made up for it."
            )
    return made


def _unresolved(rows: list[ParityRow], tolerance: float) -> list[str]:
    """Say so if all outputs are so small that an absolute tolerance shows little."""
    scale = max(row.scale for row in rows if not row.extreme)
    if scale >= 100 * tolerance:
        return []
    return [
        f"outputs are at most {scale:.1e}, so an absolute tolerance of {tolerance:.0e} shows little: give a smaller "
        "one."
    ]


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
    lines = [str(row) for row in report.failures]
    reasons = f" Notes: {' '.join(report.notes)}" if report.notes else ""
    return (
        f"{report.path!r} does not compute what the module computes ({len(lines)} comparisons failed): "
        f"{'; '.join(lines[:4])}.{reasons} Was the module trained or changed since the export? Export it again; "
        "ParityError.report holds every comparison."
    )
