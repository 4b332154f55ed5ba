"""Callbacks that the runs of a comparison leave out, because what they serve is switched off in them."""

from collections.abc import Mapping, Sequence
from typing import Any

from lightning.pytorch.callbacks import Checkpoint, DeviceStatsMonitor, LearningRateMonitor, ModelSummary, ProgressBar

from lit_gelu.callbacks import ActivationCurvatureMonitor, LossCurvatureMonitor
from lit_gelu.choose.one_by_one import QUIET

_SERVED = {
    "logger": (LearningRateMonitor, DeviceStatsMonitor, ActivationCurvatureMonitor, LossCurvatureMonitor),
    "enable_checkpointing": (Checkpoint,),
    "enable_progress_bar": (ProgressBar,),
    "enable_model_summary": (ModelSummary,),
}


def is_unused(callback: object, options: Mapping[str, Any]) -> bool:
    """Tell whether a Trainer would refuse a callback, because it has no logger, for example.

    Args:
        callback: It.
        options: Those of every run's Trainer, as they were given; the others are `QUIET`.

    Returns:
        Whether runs leave it out.
    """
    used = {**QUIET, **options}
    # A RunReport keeps what is logged, so that callbacks which log have somewhere to write.
    used["logger"] = used["logger"] or any(getattr(each, "keeps_figures", False) for each in _callbacks(options))
    return any(isinstance(callback, kinds) and not used[option] for option, kinds in _SERVED.items())


def without_unused(options: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return a Trainer's options without such callbacks, and the names of what was left out.

    Where nothing is, they are as they were given: runs in a folder are known by them.
    """
    callbacks = _callbacks(options)
    kept = [each for each in callbacks if not is_unused(each, options)]
    left_out = [type(each).__name__ for each in callbacks if is_unused(each, options)]
    if not left_out:
        return dict(options), []
    others = {name: value for name, value in options.items() if name != "callbacks"}
    return others | ({"callbacks": kept} if kept else {}), left_out


def _callbacks(options: Mapping[str, Any]) -> list[Any]:
    given = options.get("callbacks") or []
    return list(given) if isinstance(given, list | tuple) else [given]


def not_used(names: Sequence[str]) -> list[str]:
    """Say what is left out, if anything is."""
    return [f"Not used here: {', '.join(names)}."] if names else []
