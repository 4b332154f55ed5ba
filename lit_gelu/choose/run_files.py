"""What a run of a candidate gave, and the folder in which finished runs are kept: nothing of them is made twice."""

import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from lit_gelu.choose.errors import ChoiceArgumentError
from lit_gelu.choose.metric import Metric
from lit_gelu.display import Displayed
from lit_gelu.errors import shown
from lit_gelu.files import is_file, parse_json, without_nonfinite, write_atomically

SCHEMA = 1
SETTINGS_FILE = "settings.json"
SETTINGS_SCHEMA = 2  # the first one held neither samples nor what objects hold

CONFIGURED = "a configuration of lit-gelu fit"  # what builds the modules of the command line, whose arguments say all
_CONFIGURED_BEFORE = re.compile(r"lit_gelu\.cli\.(choose|model_builder)\._built\(")  # with a digest of its own code


@dataclass(repr=False)
class TrainedRun(Displayed):
    """One run: a candidate with a seed.

    Args:
        label: The candidate's.
        spec: Its activation.
        seed: What ``seed_everything`` was given before the module was built.
        curves: What was logged in validation, by name, at the end of every epoch that had one.
        epochs: Those epochs, counted from 1.
        test: What was logged in a test behind the last epoch.
        tested_on: What the samples of that test were told as; empty where runs are not kept.
        initial: A digest of the weights that it began with, those of activations left out.
        orders: A digest of the random numbers that each epoch's batches were drawn with.
        together: Whether it was trained in a group.
        seconds: Its training, or its share of the group's.
        failure: Why it ended early; empty if it did not.
        diverged: Whether its parameters were not all finite at the end, whatever it logged.
    """

    label: str
    spec: str
    seed: int
    curves: dict[str, list[float]] = field(default_factory=dict)
    epochs: list[int] = field(default_factory=list)
    test: dict[str, float] = field(default_factory=dict)
    tested_on: str = ""
    initial: str = ""
    orders: list[str] = field(default_factory=list)
    together: bool = False
    seconds: float = 0.0
    failure: str = ""
    diverged: bool = False

    def add_epoch(self, epoch: int, values: Mapping[str, float]) -> None:
        """Take over what was logged at the end of an epoch."""
        self.epochs.append(epoch)
        for name, value in values.items():
            self.curves.setdefault(name, []).append(value)

    def value(self, metric: Metric) -> float | None:
        """Return the metric at the end of the run, ``None`` if there is none, NaN if the run diverged."""
        if self.diverged:  # an error rate is a number all the same
            return None if self.failure else math.nan
        found = self.test.get(metric.name) if metric.stage == "test" else self._last(metric.name)
        return None if self.failure else found

    def _last(self, name: str) -> float | None:
        return self.curves[name][-1] if self.curves.get(name) else None

    def _summary(self) -> str:
        end = f"failed: {self.failure}" if self.failure else f"{len(self.epochs)} epochs, {self.seconds:.3g} s"
        return f"{self.label}, seed {self.seed}, {end}"


def digest(*tensors: torch.Tensor) -> str:
    """Return a short text that is another one for other tensors."""
    found = hashlib.sha256()
    for tensor in tensors:
        found.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()[:16]


class RunFolder:
    """Finished runs on disk: figures as JSON, weights as ordinary checkpoints.

    Args:
        folder: Where they are; made if it is not there.
        settings: What all runs in it have in common.

    Raises:
        ChoiceArgumentError: If it holds runs with other settings.
        UnwritablePathError: If it cannot be written to.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        self.folder, self.runs = folder, folder / "runs"
        plain = parse_json(json.dumps(dict(settings) | {"schema": SETTINGS_SCHEMA}))
        path = self.runs / SETTINGS_FILE
        self.is_new = not is_file(path)
        if not self.is_new:
            try:
                kept = parse_json(path.read_bytes())
            except ValueError:
                kept = None
            self._require_same(plain, kept)
            return
        with write_atomically(path) as temporary:
            temporary.write_text(json.dumps(plain, indent=2) + "\n", encoding="utf-8")

    def _require_same(self, given: Mapping[str, Any], kept: Any) -> None:
        there = kept if isinstance(kept, dict) else {}
        if there.get("schema") != SETTINGS_SCHEMA:
            raise ChoiceArgumentError(
                f"folder={str(self.folder)!r} holds runs of which it is not known what they were made with: they "
                f"are of an earlier lit-gelu, or {SETTINGS_FILE} is damaged. Give another folder, or remove this one."
            )
        if _CONFIGURED_BEFORE.match(str(there.get("build"))):
            there = there | {"build": CONFIGURED}
        for name, was, is_now in _differences(there, given):
            raise ChoiceArgumentError(
                f"folder={str(self.folder)!r} holds runs with {name}={was}; now it is {is_now}. Runs that differ in "
                "more than activation and seed are not compared. Give another folder, or remove this one."
            )

    def _path(self, label: str, spec: str, seed: int, suffix: str) -> Path:
        # Labels are any text: what cannot be in a file's name is told apart by the digest.
        plain = re.sub(r"[^A-Za-z0-9]+", "_", label).strip("_")[:40]
        return self.runs / f"{plain}-{hashlib.sha256(f'{label} {spec}'.encode()).hexdigest()[:8]}-{seed}{suffix}"

    def checkpoint(self, label: str, spec: str, seed: int) -> Path:
        """Return where the weights of a run are."""
        return self._path(label, spec, seed, ".ckpt")

    def find(self, label: str, spec: str, seed: int) -> TrainedRun | None:
        """Return a finished run; ``None`` if it is not there, or was damaged."""
        path = self._path(label, spec, seed, ".json")
        if not is_file(path) or not is_file(self.checkpoint(label, spec, seed)):
            return None
        try:
            run = TrainedRun(**_numbers(parse_json(path.read_bytes())))
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError):
            return None
        return run if (run.label, run.spec, run.seed) == (label, spec, seed) else None

    def keep(self, run: TrainedRun) -> None:
        """Write a run down; its checkpoint is there already."""
        with write_atomically(self._path(run.label, run.spec, run.seed, ".json")) as temporary:
            temporary.write_text(json.dumps(without_nonfinite(asdict(run), as_text=True), indent=1) + "\n")


def _differences(
    there: Mapping[str, Any], given: Mapping[str, Any], within: str = ""
) -> Iterator[tuple[str, str, str]]:
    """Yield the names of what differs, with both values as a message shows them."""
    for name in sorted(given.keys() | there.keys()):
        was, is_now = there.get(name), given.get(name)
        if isinstance(was, dict) and isinstance(is_now, dict):
            yield from _differences(was, is_now, f"{within}{name}.")
        elif was != is_now:
            yield f"{within}{name}", *_apart(was, is_now)


def _apart(was: Any, is_now: Any) -> tuple[str, str]:
    """Return two values as a message shows them: of long texts what is around their first difference."""
    if not isinstance(was, str) or not isinstance(is_now, str):
        return shown(was), shown(is_now)
    parts = (place for place, (one, other) in enumerate(zip(was, is_now, strict=False)) if one != other)
    begin = max(0, next(parts, min(len(was), len(is_now))) - 40)
    first, second = (f"{'...' if begin else ''}{text[begin : begin + 120]}" for text in (was, is_now))
    return shown(first), shown(second)


def _numbers(plain: dict[str, Any]) -> dict[str, Any]:
    """Return what was read with numbers for the words that stand for NaN and infinities."""
    return plain | {
        "curves": {name: [float(value) for value in values] for name, values in plain["curves"].items()},
        "test": {name: float(value) for name, value in plain["test"].items()},
        "epochs": [int(epoch) for epoch in plain["epochs"]],
        "orders": [str(order) for order in plain["orders"]],
        "tested_on": str(plain["tested_on"]),
        "seconds": float(plain["seconds"]),
        "diverged": bool(plain.get("diverged", False)),
    }


def is_finite(value: float | None) -> bool:
    """Return whether there is a value, and it is a number."""
    return value is not None and math.isfinite(value)
