"""`tune`: which options of onnxruntime are fastest for a file on this machine, and still right."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import onnxruntime
import torch

from lit_gelu.display import Displayed
from lit_gelu.errors import ModelFileError, ModelInputError, ProviderError
from lit_gelu.export.runtime.bench import arrays_of, interleaved, ratio, relative_error
from lit_gelu.export.runtime.model_file import Array, ModelFile, bind_names, random_inputs, read_model_file
from lit_gelu.export.runtime.predictor import OnnxPredictor
from lit_gelu.export.runtime.session import CPU, CUDA, Provider, Settings
from lit_gelu.export.runtime.tuning_file import TuningChoice, cores, device_name, write_choice

# What rounding alone may change, as a share of the largest output: float32 as check_parity has it; 16 bit a few last
# bits of a few layers.
_TOLERANCE = {torch.float16: 4 * 2.0**-10, torch.bfloat16: 4 * 2.0**-7}
_TOLERANCE_FP32 = 1e-5
_WORTH = 0.98  # a choice that gains less than 2 % is noise
_TIMES_THE_NOISE = 2  # nor one that gains less than twice the difference of two untuned sessions
_BEST = "best so far"


@dataclass(frozen=True)
class TuningTrial:
    """Settings that were tried."""

    settings: Settings
    error: float | None  # see `relative_error`, against the untuned session; None if it did not run
    ratio: float | None  # time beside the best settings of that moment; None if it was not timed
    verdict: str  # "faster", "not faster", or why it was rejected


@dataclass(frozen=True, repr=False)
class TuningReport(Displayed):
    """What `tune` did."""

    choice: TuningChoice
    trials: tuple[TuningTrial, ...]
    path: Path | None  # where the choice is kept

    def __str__(self) -> str:
        """Return the choice and one line for each trial."""
        lines = [str(self.choice)]
        for trial in self.trials:
            settings = ", ".join(f"{name}={value}" for name, value in trial.settings.items())
            time = "" if trial.ratio is None else f" {trial.ratio:.2f} of the time,"
            error = "" if trial.error is None else f" error {trial.error:.1e},"
            lines.append(f"  {settings}:{time}{error} {trial.verdict}")
        return "\n".join(lines)


def candidates(provider: str, model: ModelFile, batch_size: int) -> list[list[Settings]]:
    """Return what to try on a provider, group by group: those of one group are timed beside each other."""
    if provider == CPU:
        threads = cores()
        counts = sorted({threads, *(2**i for i in range(threads.bit_length()) if 2**i < threads)})
        on_cpu: list[list[Settings]] = [
            [{"intra_op_num_threads": count} for count in counts],
            [{"graph_optimization_level": level} for level in ("extended", "basic", "disabled")],
            [{"enable_mem_pattern": False}],
        ]
        return [*on_cpu, [{"allow_spinning": False}]] if threads > 1 else on_cpu
    graph: Settings = {"batch_buckets": (batch_size,)}
    if provider != CUDA or not {"Conv", "ConvTranspose"} & model.operators.keys():
        return [[graph]] if provider == CUDA else []
    nhwc: Settings = {"prefer_nhwc": 1}
    searches: list[Settings] = [{"cudnn_conv_algo_search": name} for name in ("HEURISTIC", "DEFAULT")]
    # onnxruntime refuses some pairs, and a fused bias fails on some networks in the other layout.
    return [[nhwc, graph, {**nhwc, **graph}], [{**nhwc, "fuse_conv_bias": 1}], searches]


def tune(  # noqa: C901 - one procedure, told in the order in which it happens
    path: str | os.PathLike[str],
    inputs: Mapping[str, Array] | Sequence[Array] | Array | None = None,
    *,
    providers: Sequence[Provider] | None = None,
    batch_size: int = 32,
    seconds: float = 30.0,
    save: bool = True,
) -> TuningReport:
    r"""Measure settings of onnxruntime on this machine, and keep the fastest that is still right.

    One setting after the other is varied from the best so far, all its values beside each other in one run, in shuffled
    order. At last the best is measured beside the untuned session, opened twice; it is chosen if it takes at most 0.98
    of its time, and gains at least twice the difference of the two.
    Settings are rejected if an output :math:`y` is not finite where that of the untuned session, :math:`y^*`, is, or if
    :math:`\max|y - y^*| / \max|y^*| > \max(\text{tolerance}, 2 e)` with :math:`e` the same of the session without graph
    optimisations. The tolerance is 1e-5 for float32, and four units in the last place for 16 bit.

    Args:
        path: The file.
        inputs: What to measure with; by default rows are made up in the file's shapes.
        providers: As `OnnxPredictor` takes them.
        batch_size: Rows to make up.
        seconds: How long to measure, in all; opening sessions comes on top.
        save: Whether to write the choice beside the file, where `OnnxPredictor` finds it.

    Returns:
        The choice and the trials.

    Raises:
        ModelFileError: See `OnnxPredictor`.
        ModelInputError: If inputs do not fit, or cannot be made up.
        ProviderError: See `OnnxPredictor`; also on CUDA where torch has none.

    Example:
        >>> import tempfile
        >>> from lit_gelu.export import export_onnx
        >>> path = Path(tempfile.mkdtemp()) / "net.onnx"
        >>> _ = export_onnx(torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU()), path, torch.zeros(2, 4))
        >>> report = tune(path, seconds=0.1, save=False)
        >>> report.choice.error <= report.choice.limit
        True
    """
    model, plain = read_model_file(path), OnnxPredictor(path, providers, tuning=False)
    provider = plain.providers[0]
    device = device_name(provider, plain.device)
    if device is None:
        raise ProviderError("torch finds no CUDA device to time calls on. Install torch with CUDA.")
    arguments: Any = inputs if isinstance(inputs, list | tuple) else [inputs]
    bound = random_inputs(plain.ports, batch_size) if inputs is None else bind_names(plain.input_names, arguments, {})
    values = {name: torch.as_tensor(value).detach().to(plain.device) for name, value in bound.items()}
    rows = next(iter(values.values())).shape[0] if next(iter(plain.ports.values())).shape else 1
    # onnxruntime's own default is TF32.
    base: dict[str, Any] = {"use_tf32": 0} if provider == CUDA and not model.sixteen_bit else {}
    # Sessions of one group are open at once, so none takes more memory of a GPU than it needs.
    arena = {"arena_extend_strategy": "kSameAsRequested"} if provider == CUDA else {}

    chosen = partial(TuningChoice, onnxruntime.__version__, provider, device)

    def opened(settings: Settings) -> OnnxPredictor:
        return OnnxPredictor(path, providers, tuning=chosen({**arena, **settings}, 1.0, 0.0, 0.0, rows))

    untuned = opened(base)
    expected = arrays_of(untuned(**values))
    unoptimised = opened({**base, "graph_optimization_level": "disabled"})
    spread = relative_error(arrays_of(unoptimised(**values)), expected)
    dtypes = [port.dtype for port in untuned.output_ports.values()]
    limit = max(2 * spread, _TOLERANCE_FP32, *(_TOLERANCE[dtype] for dtype in dtypes if dtype in _TOLERANCE))

    trials: list[TuningTrial] = []
    best, best_error, fastest = base, 0.0, untuned
    groups = candidates(provider, model, rows)
    for group in groups:
        right: dict[str, tuple[dict[str, Any], float, OnnxPredictor]] = {}
        for settings in ({**best, **change} for change in group):
            try:
                predictor = opened(settings)
                error = relative_error(arrays_of(predictor(**values)), expected)
            except (ModelFileError, ModelInputError, ProviderError) as failure:
                trials.append(TuningTrial(settings, None, None, f"rejected: {failure}"))
                continue
            if error <= limit:
                right[repr(settings)] = settings, error, predictor
            else:
                trials.append(TuningTrial(settings, error, None, f"rejected: its error is above {limit:.1e}"))
        ratios = _times({name: each[2] for name, each in right.items()}, fastest, values, seconds / (len(groups) + 1))
        for name, (settings, error, _) in right.items():
            verdict = "faster" if ratios[name] <= _WORTH else "not faster"
            trials.append(TuningTrial(settings, error, ratios[name], verdict))
        winner = min(ratios, key=lambda name: ratios[name], default=None)
        if winner is not None and ratios[winner] <= _WORTH:
            best, best_error, fastest = right[winner]
    final = 1.0
    if best != base:
        # Two sessions of the same settings differ too: what the best gains has to be more than that.
        ratios = _times({"": fastest, "again": opened(base)}, untuned, values, seconds / (len(groups) + 1))
        final, noise = ratios[""], abs(ratios["again"] - 1)
        is_kept = final <= min(_WORTH, 1 - _TIMES_THE_NOISE * noise)
        trials.append(TuningTrial(base, 0.0, ratios["again"], "untuned, opened once more: the noise"))
        trials.append(TuningTrial(best, best_error, final, "kept" if is_kept else "not kept: within the noise"))
        if not is_kept:
            best, best_error, final = base, 0.0, 1.0
    choice = chosen(best, final, best_error, limit, rows)
    return TuningReport(choice, tuple(trials), write_choice(path, choice) if save else None)


def _times(
    others: Mapping[str, OnnxPredictor], best: OnnxPredictor, values: Mapping[str, torch.Tensor], seconds: float
) -> dict[str, float]:
    if not others:
        return {}
    calls = {name: partial(each, **values) for name, each in {_BEST: best, **others}.items()}
    samples = interleaved(calls, best.device, seconds=seconds)
    return {name: ratio(samples, name, _BEST) for name in others}
