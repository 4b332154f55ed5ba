"""Which of the logged figures decides, and in which direction it is better."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from lit_gelu.choose.errors import ChoiceArgumentError
from lit_gelu.errors import shown

Stage = Literal["val", "test"]
_PREFERRED = ("val_error", "val_loss")
_LOW = {"loss", "error", "err", "mse", "mae", "rmse", "nll", "perplexity", "ppl", "bpb", "wer", "cer"}
_HIGH = {"acc", "accuracy", "auc", "auroc", "f1", "precision", "recall", "iou", "dice", "r2", "psnr", "ssim", "bleu"}


@dataclass(frozen=True)
class Metric:
    """The figure that decides.

    Args:
        name: As the module logs it.
        stage: In validation, at the end of every epoch, or in a test behind the last one.
        mode: ``"min"`` if less is better, ``"max"`` if more is.
    """

    name: str
    stage: Stage
    mode: str

    def badness(self, value: float) -> float:
        """Return a value of which less is better."""
        return -value if self.mode == "max" else value


def metric_of(name: str | None, mode: str | None, logged: Mapping[Stage, Sequence[str]]) -> Metric:
    """Return the figure that decides.

    Args:
        name: Its name; ``None`` means ``val_error``, or else ``val_loss``.
        mode: ``"min"`` or ``"max"``; ``None`` means that its name says so.
        logged: What the module logs in validation and in a test.

    Raises:
        ChoiceArgumentError: If it is not logged, or its direction is not known.
    """
    everything = [known for names in logged.values() for known in names]
    chosen = name if name is not None else next((known for known in _PREFERRED if known in everything), None)
    stage = next((stage for stage, names in logged.items() if chosen in names), None)
    if chosen is None or stage is None:
        given = f"metric={name!r} is not logged" if name else f"neither {' nor '.join(_PREFERRED)} is logged"
        remedy = " Give one of them as the metric." if everything else ""
        names = ", ".join(everything) or "nothing: give the module a validation_step that calls self.log"
        raise ChoiceArgumentError(f"{given}. The module logs in validation and test {names}.{remedy}")
    return Metric(chosen, stage, _mode(chosen, mode))


def _mode(name: str, mode: str | None) -> str:
    if mode in {"min", "max"}:
        return str(mode)
    words = set(re.split(r"[^a-z0-9]+", name.lower()))
    low, high = bool(words & _LOW), bool(words & _HIGH)
    if mode is not None or low == high:
        given = f"mode={shown(mode)} is not accepted" if mode is not None else f"{name!r} does not say what is better"
        raise ChoiceArgumentError(f'{given}. Give mode="min" if less of {name} is better, mode="max" if more is.')
    return "min" if low else "max"
