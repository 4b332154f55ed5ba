"""`tune`: which options of onnxruntime are fastest for a file on this machine, and still right."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lit_gelu.display import Displayed, HtmlTable, count_of
from lit_gelu.errors import message_of
from lit_gelu.export.errors import ModelFileError, ModelInputError, ProviderError
from lit_gelu.export.inputs import named_outputs
from lit_gelu.export.runtime.knobs import Knob, knobs_for
from lit_gelu.export.runtime.model_file import read_model_file
from lit_gelu.export.runtime.module_call import ends_with_softmax, float64_answer
from lit_gelu.export.runtime.ports import Array, bind_names, made_inputs
from lit_gelu.export.runtime.predictor import OnnxPredictor
from lit_gelu.export.runtime.providers import CUDA, Provider
from lit_gelu.export.runtime.settings import Settings
from lit_gelu.export.runtime.timing import IN_A_ROW, interleaved, ratio
from lit_gelu.export.runtime.tuning_file import TuningChoice, TuningKey, require_readable, this_key, write_choice


@dataclass(frozen=True)
class TuningTrial:
    """One choice of settings that was tried.

    Args:
        settings: Value by name.
        error: Largest error of an output, as a share of the largest output; ``None`` if it did not run.
        ratio: Time beside the best settings of that moment; ``None`` if it was not timed.
        verdict: ``faster``, ``not faster``, or why it was rejected.
    """

    settings: Settings
    error: float | None
    ratio: float | None
    verdict: str


@dataclass(frozen=True, repr=False)
class TuningReport(Displayed):
    """What `tune` did.

    Args:
        choice: What it chose.
        trials: All that it tried.
        path: Where the choice is kept; ``None`` if it is not.
    """

    choice: TuningChoice
    trials: tuple[TuningTrial, ...]
    path: Path | None

    def __str__(self) -> str:
        """Return the choice and one line for each trial."""
        lines = [str(self.choice)]
        for trial in self.trials:
            settings = ", ".join(f"{name}={value}" for name, value in trial.settings.items())
            time = "" if trial.ratio is None else f" {trial.ratio:.2f} of the time,"
            error = "" if trial.error is None else f" error {trial.error:.1e},"
            lines.append(f"  {settings}:{time}{error} {trial.verdict}")
        return "\n".join(lines)

    def _summary(self) -> str:
        return f"{self.choice}; {count_of(len(self.trials), 'trial')}"

    def _html_table(self) -> HtmlTable:
        rows = [(trial.settings, trial.ratio, trial.error, trial.verdict) for trial in self.trials]
        return HtmlTable(("settings", "time", "error", "verdict"), rows, str(self.choice))


def relative_error(outputs: Sequence[np.ndarray], reference: Sequence[np.ndarray]) -> float:
    """Return the largest error, each output's as a share of its largest reference value; infinite for a lost value."""
    largest = 0.0
    for y, exact in zip(outputs, reference, strict=True):
        if y.shape != exact.shape:
            return float("inf")
        finite = np.isfinite(exact)
        if not np.array_equal(y[~finite], exact[~finite], equal_nan=True) or not np.isfinite(y[finite]).all():
            return float("inf")
        if finite.any():
            scale = float(np.abs(exact[finite]).max()) or 1.0
            largest = max(largest, float(np.abs(y[finite] - exact[finite]).max()) / scale)
    return largest


def arguments_of(inputs: Any) -> tuple[Sequence[Array], Mapping[str, Array]]:
    """Return inputs in order and by name."""
    if isinstance(inputs, Mapping):
        return (), inputs
    return (inputs if isinstance(inputs, (list, tuple)) else [inputs]), {}


def as_tensor(value: Array) -> Tensor:
    """Return an array or tensor as a tensor without history."""
    return value.detach() if isinstance(value, Tensor) else torch.from_numpy(np.array(value))


@torch.no_grad()
def reference_outputs(reference: Any, inputs: Mapping[str, Tensor], *, softmax: bool = False) -> list[np.ndarray]:
    """Return the outputs of a module, run on the CPU, or those that are given, in float64."""
    if isinstance(reference, nn.Module):
        try:
            found = float64_answer(reference, {name: value.cpu() for name, value in inputs.items()}, softmax=softmax)
            reference = [output for _, output in named_outputs(found)]
        except Exception as error:
            raise ModelInputError(
                f"{type(reference).__name__}.forward fails on the file's inputs in float64: {message_of(error)} Give "
                "its outputs as reference=, in an array."
            ) from error
    several = reference.values() if isinstance(reference, Mapping) else reference
    outputs = list(several) if isinstance(reference, (Mapping, list, tuple)) else [reference]
    return [np.asarray(as_tensor(output).double().cpu().numpy()) for output in outputs]


# What rounding alone may change, as a share of the largest output: float32 as check_parity has it; 16 bit a few last
# bits of a few layers; TF32 has float16's mantissa.
_TOLERANCE = {torch.float16: 4 * 2.0**-10, torch.bfloat16: 4 * 2.0**-7}
_TOLERANCE_FP32 = 1e-5
_TOLERANCE_TF32 = 4 * 2.0**-10
_WORTH = 0.98  # a choice that gains less than 2 % is noise
_ANOTHER_MODULE = 0.25  # of the largest output: no rounding does that, not even to int8
_UNTUNED = "untuned"


def tune(
    path: str | os.PathLike[str],
    inputs: Mapping[str, Array] | Sequence[Array] | Array | None = None,
    *,
    providers: Sequence[Provider] | None = None,
    reference: nn.Module | Array | Sequence[Array] | None = None,
    allow_tf32: bool = False,
    batch_size: int = 32,
    seconds: float = 30.0,
    save: bool = True,
    knobs: Sequence[Knob] | None = None,
) -> TuningReport:
    r"""Measure settings of onnxruntime on this machine, and keep the fastest that is still right.

    One setting after the other is varied from the best so far, all its values beside each other in one run, in shuffled
    order. On the CPU: threads, spinning, graph optimisation level, memory pattern, single fusions switched off.
    On CUDA: TF32 if allowed, NHWC and a CUDA graph of this batch size, alone and together, the search for convolutions,
    fused bias, fusions; there calls are timed in a row, without a wait between them.
    At last the best is measured beside the untuned session; it is chosen if it takes at most 0.98 of its time. All
    sessions of a step are open at once, so that waiting threads of one can slow another a little.

    Settings are rejected if an output is not finite where the reference is, or if

    .. math:: \max|y - y^*| / \max|y^*| > \max(\text{tolerance}, 2 e)

    with :math:`e` the untuned session's own error. The reference :math:`y^*` is ``reference`` in float64 if that is
    given; else the untuned session's output, and :math:`e` then the difference between it and the session without graph
    optimisations. The tolerance is 1e-5 for float32, four units in the last place for 16 bit, and 4 * 2^-10 for TF32.

    Args:
        path: The file.
        inputs: What to measure with, as `OnnxPredictor` takes it; by default rows are made up in the file's shapes.
        providers: As `OnnxPredictor` takes them.
        reference: The module that the file was exported from, run in float64 on these inputs; or its outputs.
        allow_tf32: Whether CUDA may compute float32 products in TF32.
        batch_size: Rows to make up.
        seconds: How long to measure, in all; opening sessions comes on top.
        save: Whether to write the choice beside the file, where `OnnxPredictor` finds it.
        knobs: Which settings to vary; by default all that apply.

    Returns:
        The choice and the trials.

    Raises:
        ModelFileError: See `OnnxPredictor`.
        ModelInputError: If an input does not fit, or cannot be made up, or if the reference is another module.
        ProviderError: See `OnnxPredictor`.
        UnwritablePathError: If the choice cannot be written beside the file.

    Example:
        >>> import tempfile, pathlib
        >>> from lit_gelu.export import export_onnx
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "net.onnx"
        >>> _ = export_onnx(nn.Sequential(nn.Linear(4, 8), nn.GELU()), path, torch.zeros(2, 4))
        >>> report = tune(path, seconds=0.1, knobs=[Knob("enable_mem_pattern", (False,))])
        >>> [trial.settings for trial in report.trials], report.path.name
        ([{'enable_mem_pattern': False}], 'net.onnx.tuning.json')
    """
    if save:
        require_readable(path)
    search = _SettingsSearch(path, inputs, providers, reference, allow_tf32=allow_tf32, batch_size=batch_size)
    wanted = search.knobs() if knobs is None else list(knobs)
    budget = seconds / (len(wanted) + 1)
    for knob in wanted:
        search.vary(knob, budget)
    choice = search.choose(budget)
    return TuningReport(choice, tuple(search.trials), write_choice(path, choice) if save else None)


class _SettingsSearch:
    """The state of one search: the best settings so far, and what was tried."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        inputs: Any,
        providers: Sequence[Provider] | None,
        reference: Any,
        *,
        allow_tf32: bool,
        batch_size: int,
    ) -> None:
        self.path, self.providers, self.allow_tf32 = path, providers, allow_tf32
        self.model = read_model_file(path)
        plain = OnnxPredictor(path, providers, tuning=False)
        on_cuda = plain.providers[0] == CUDA
        # Sessions of one step are open at once, so none takes more memory than it needs.
        self.always = {"arena_extend_strategy": "kSameAsRequested"} if on_cuda else {}
        # onnxruntime's own default is TF32.
        self.base: dict[str, Any] = {"use_tf32": 0} if on_cuda and not self.model.sixteen_bit else {}
        self.in_a_row = IN_A_ROW if plain.device.type == "cuda" else 1
        ports = plain.ports
        given = made_inputs(ports, batch_size) if inputs is None else bind_names(list(ports), *arguments_of(inputs))
        self.inputs = {name: as_tensor(value).to(plain.device) for name, value in given.items()}
        self.rows = next(iter(self.inputs.values())).shape[0] if next(iter(ports.values())).shape else 1
        self.key = this_key(plain.providers[0], plain.device)
        if self.key is None:
            raise ProviderError(
                "torch finds no CUDA device, so calls on CUDA cannot be timed. Install torch with CUDA."
            )
        del plain
        self.untuned = self.fastest = self._opened(self.base)
        dtypes = [port.dtype for port in self.untuned.output_ports.values()]
        self.tolerance = max(_TOLERANCE.get(dtype, _TOLERANCE_FP32) for dtype in dtypes if dtype is not None)
        self._take_reference(reference)
        self.best = self.base
        self.best_error = self.own_error
        self.trials: list[TuningTrial] = []

    def _take_reference(self, reference: Any) -> None:
        """Compute what outputs are compared with, and the untuned session's own error."""
        first = self._outputs(self.untuned)
        if reference is None:
            self.exact = first
            self.own_error = relative_error(
                self._outputs(self._opened({**self.base, "graph_optimization_level": "disabled"})), first
            )
            return
        self.exact = reference_outputs(reference, self.inputs, softmax=ends_with_softmax(self.untuned.metadata))
        if [y.shape for y in self.exact] != [y.shape for y in first]:
            raise ModelInputError(
                f"The reference's outputs have shapes {[y.shape for y in self.exact]}, the file's "
                f"{[y.shape for y in first]}. Give the module that the file was exported from, or its outputs."
            )
        self.own_error = relative_error(first, self.exact)
        if self.own_error > _ANOTHER_MODULE:
            raise ModelInputError(
                f"The reference's outputs differ from the file's by {self.own_error:.2g} of the largest one: it is not "
                "what the file was exported from, or its inputs are others. Give that module, or its outputs on these "
                "inputs."
            )

    def knobs(self) -> list[Knob]:
        """Return the settings to vary."""
        return knobs_for(self.untuned.providers[0], self.model, self.rows, allow_tf32=self.allow_tf32)

    def vary(self, knob: Knob, seconds: float) -> None:
        """Try a knob's values beside the best settings, and keep the fastest right one."""
        calls = {_UNTUNED: partial(self.fastest, **self.inputs)}
        candidates: dict[str, tuple[dict[str, Any], float, OnnxPredictor]] = {}
        for value in knob.values:
            settings = {**self.best, **knob.settings(value)}
            if knob.needs is not None and settings.get(knob.needs[0]) != knob.needs[1]:
                continue
            if tried := self._tried(settings):
                candidates[repr(value)] = (settings, *tried)
                calls[repr(value)] = partial(tried[1], **self.inputs)
        if not candidates:
            return
        samples = interleaved(calls, self.untuned.device, seconds=seconds, in_a_row=self.in_a_row)
        ratios = {name: ratio(samples, name, _UNTUNED) for name in candidates}
        fastest = min(ratios, key=lambda name: ratios[name])
        for name, (settings, error, _) in candidates.items():
            verdict = "faster" if ratios[name] <= _WORTH else "not faster"
            self.trials.append(TuningTrial(settings, error, ratios[name], verdict))
        if ratios[fastest] <= _WORTH:
            self.best, self.best_error, self.fastest = candidates[fastest]

    def _tried(self, settings: dict[str, Any]) -> tuple[float, OnnxPredictor] | None:
        """Return the error of settings and who runs with them; ``None``, and a trial that says why, for a rejection."""
        try:
            predictor = self._opened(settings)
            error = relative_error(self._outputs(predictor), self.exact)
        except (ModelFileError, ModelInputError, ProviderError) as failure:
            self.trials.append(TuningTrial(settings, None, None, f"rejected: {failure}"))
            return None
        limit = self.limit(settings)
        if error <= limit:
            return error, predictor
        self.trials.append(TuningTrial(settings, error, None, f"rejected: error {error:.1e} is above {limit:.1e}"))
        return None

    def limit(self, settings: Settings) -> float:
        """Return the largest error that settings may have."""
        tolerance = max(self.tolerance, _TOLERANCE_TF32) if settings.get("use_tf32") else self.tolerance
        return max(tolerance, 2 * self.own_error)

    def choose(self, seconds: float) -> TuningChoice:
        """Measure the best beside the untuned session, and return it if it is worth while."""
        assert self.key is not None  # noqa: S101 - refused in the constructor
        gained = 1.0
        if self.best != self.base:
            calls = {_UNTUNED: partial(self.untuned, **self.inputs), "best": partial(self.fastest, **self.inputs)}
            samples = interleaved(calls, self.untuned.device, seconds=seconds, in_a_row=self.in_a_row)
            gained = ratio(samples, "best", _UNTUNED)
        if gained > _WORTH:
            self.best, self.best_error, gained = self.base, self.own_error, 1.0
        return TuningChoice(self.key, self.best, gained, self.best_error, self.limit(self.best), self.rows)

    def _opened(self, settings: Settings) -> OnnxPredictor:
        """Open the file with settings."""
        key = self.key or TuningKey("", "", "")
        choice = TuningChoice(key, {**self.always, **settings}, 1.0, 0.0, 0.0, self.rows)
        return OnnxPredictor(self.path, self.providers, tuning=choice)

    def _outputs(self, predictor: OnnxPredictor) -> list[np.ndarray]:
        """Return a predictor's outputs in float64."""
        result = predictor(**self.inputs)
        outputs = result if isinstance(result, tuple) else (result,)
        return [output.double().cpu().numpy() for output in outputs]
