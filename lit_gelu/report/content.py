"""What a page says of a run, as plain data: `ReportedRun` and its parts."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from lit_gelu.errors import shown
from lit_gelu.files import without_nonfinite

Level = Literal["alarm", "warning", "note", "good"]
Status = Literal["finished", "failed", "interrupted", "unknown"]
Proof = Literal["passed", "failed", "none", "unreadable"]


@dataclass(frozen=True)
class LoggedCurve:
    """The values of one logged name, one a step; steps rise, as Lightning's loggers number them."""

    name: str
    steps: tuple[int, ...]
    values: tuple[float, ...]


@dataclass(frozen=True)
class SwapChange:
    """One site of a swap: its fully qualified name, and the specs before and after."""

    site: str
    old: str
    new: str


@dataclass(frozen=True)
class SwapEvent:
    """A swap that was made, at a step as loggers number it; the epoch is ``None`` where that was not recorded."""

    step: int
    epoch: int | None
    changes: tuple[SwapChange, ...]


@dataclass(frozen=True)
class SiteActivations:
    """The activation at one site, as spec, when the run began and when it ended; empty where that is not known."""

    name: str
    at_start: str
    at_end: str


@dataclass(frozen=True)
class OptimizerSettings:
    """What of an optimizer decides which sharpness it bears."""

    name: str  # its class; empty where a file does not say it
    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0  # the largest of its parameter groups
    plain: bool = False  # SGD without dampening and with one momentum, whose limit is known

    @classmethod
    def of_groups(cls, name: str, groups: Sequence[Mapping[str, Any]]) -> "OptimizerSettings":
        """Return the settings of an optimizer, from its parameter groups or those that a checkpoint holds."""
        kinds = {(float(group.get("momentum") or 0), bool(group.get("nesterov"))) for group in groups}
        plain = name == "SGD" and len(kinds) == 1 and not any(group.get("dampening") for group in groups)
        return cls(name, *kinds.pop(), max(float(group.get("weight_decay") or 0) for group in groups), plain)


@dataclass(frozen=True)
class RunFinding:
    """One thing that a reader should know."""

    level: Level  # alarm: the run is wrong; warning: look at it; note: worth knowing; good: checked, well
    topic: str  # the same for all findings of a kind
    where: str  # the site, file or metric; empty for the whole run
    text: str
    advice: str = ""
    figures: Mapping[str, float] = field(default_factory=dict)  # that it rests on, by name
    source: str = ""  # of the rule


@dataclass(frozen=True)
class ExportedFile:
    """An ONNX file and what it says of its proof."""

    name: str
    size: int  # bytes, weights beside it included
    proof: Proof = "none"  # what the comparison with PyTorch said
    opset: int = 0
    written_as: str = ""  # dtype, form of GELU and target, as `lit_gelu.export.export_onnx` recorded them
    activations: Mapping[str, int] = field(default_factory=dict)  # how often each is computed, by spec
    largest_error: float | None = None  # of the comparison, in units of the largest output
    provider: str = ""  # which execution provider ran it there
    trouble: str = ""  # why the file cannot be read


@dataclass(frozen=True, kw_only=True)
class ReportedRun:
    """All that a page says."""

    title: str
    source: str  # RunReport, or the name of a folder or a checkpoint
    made: str  # ISO 8601 in UTC
    status: Status = "unknown"
    failure: str = ""  # the error that ended it
    steps: int | None = None  # of the optimizer
    epochs: int | None = None
    seconds: float | None = None  # wall-clock time of the fit
    configuration: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # by group, values as text by name
    optimizers: tuple[OptimizerSettings, ...] = ()  # at the end of the run
    curves: tuple[LoggedCurve, ...] = ()
    sites: tuple[SiteActivations, ...] = ()
    swaps: tuple[SwapEvent, ...] = ()
    findings: tuple[RunFinding, ...] = ()  # the gravest first
    files: tuple[ExportedFile, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)  # of the run, or of the page if that is unknown
    missing: tuple[str, ...] = ()  # what could not be shown, and how to have it the next time

    def curve(self, name: str) -> LoggedCurve | None:
        """Return the curve of a name, ``None`` if nothing was logged under it."""
        return next((curve for curve in self.curves if curve.name == name), None)

    def to_json(self) -> str:
        """Return all of it as JSON; numbers that are not finite stand as text."""
        return json.dumps(without_nonfinite(asdict(self), as_text=True), allow_nan=False)


def flat(values: Any, prefix: str = "", text: Callable[[Any], str] = shown) -> dict[str, str]:
    """Return nested settings as text by dotted name, as `lit-gelu fit` takes them; ``shown`` shortens long ones.

    Example:
        >>> flat({"model": {"activation": "gelu", "widths": [8, 8]}, "lr": 0.1})
        {'model.activation': 'gelu', 'model.widths': '[8, 8]', 'lr': '0.1'}
    """
    if not (isinstance(values, Mapping) and values):
        return {prefix: values if isinstance(values, str) else text(values)} if prefix else {}
    texts: dict[str, str] = {}
    for key, entry in values.items():
        texts |= flat(entry, f"{prefix}.{key}" if prefix else str(key), text)
    return texts


def is_loss(name: str) -> bool:
    """Return whether a curve is a loss that the module logged, by its name: ``train_loss``, ``val/loss``, ``Loss``."""
    return not name.startswith(("curvature/", "activation_swap/", "export/", "lr-")) and "loss" in name.lower()
