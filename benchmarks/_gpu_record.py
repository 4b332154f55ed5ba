"""The record of a stage: JSON that is on the disk after every figure, so that what is killed leaves what it had.

Keys: ``stage``, ``device``, ``quick``, ``note`` (what figures of ``--quick`` are not), ``calls`` (when it ran, how long
and in what budget; several if it was resumed), ``machine``, ``versions``, ``commit``, ``sources`` (a digest of the code
of package and benchmarks), ``figures`` by name, ``took`` (seconds of each), ``left_out`` (what could not be done and
why), ``failed`` (what went wrong, by name), ``error`` (what ended the stage) and ``complete`` (it came to its end, and
no figure is missing for want of time).
"""

import json
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from lit_gelu.files import parse_json, without_nonfinite, write_atomically

NO_FIGURES = "of --quick: small sizes and few rounds show that the stage runs; nothing is to be read from its times"
NO_TIME = "no time was left: call again with --resume"
IDENTITY = ("stage", "device", "quick", "machine", "versions", "sources")


class OutOfTimeError(Exception):
    """A figure was begun, and time is up."""


@dataclass(frozen=True)
class Settings:
    """What the command line says of a stage.

    Attributes:
        stage: Its name.
        device: ``cuda`` or ``cpu``.
        quick: Whether sizes are small.
        seconds: Budget.
        until: When no new figure begins, in seconds of `time.time`.
        keep: Folder for what a later call goes on from.
        resume: Whether figures of an earlier record are kept.
        commit: What was checked out, where git does not say.
    """

    stage: str
    device: str
    quick: bool
    seconds: float
    until: float
    keep: Path
    resume: bool = False
    commit: str = ""


class Record:
    """A stage's record.

    Args:
        path: Its file.
        settings: Of the stage.
        facts: Machine, versions and code, by the names above.
    """

    def __init__(self, path: Path, settings: Settings, facts: Mapping[str, Any]) -> None:
        self.path = path
        self._begun = time.time()
        self._until = settings.until
        self._attempts = 0
        self.content: dict[str, Any] = {
            "stage": settings.stage,
            "device": settings.device,
            "quick": settings.quick,
            "note": NO_FIGURES if settings.quick else "",
            "calls": [],
            **facts,
            "figures": {},
            "took": {},
            "left_out": [],
            "failed": [],
            "error": None,
            "complete": False,
        }
        if settings.resume and path.is_file():
            self._go_on_from(read(path))
        started = datetime.now(UTC).isoformat(timespec="seconds")
        self.content["calls"].append({"started": started, "budget": settings.seconds, "seconds": 0.0})
        self.save()

    @property
    def figures(self) -> dict[str, Any]:
        """By name."""
        figures: dict[str, Any] = self.content["figures"]
        return figures

    def left(self) -> float:
        """Return the seconds until no new figure begins."""
        return self._until - time.time()

    def figure(self, name: str, compute: Callable[[], Any], needs: float = 0.0) -> Any:
        """Return a figure, computed unless it is there or no time is left; what fails is noted, and ``None`` comes.

        Args:
            name: Its name.
            compute: Computes it.
            needs: Seconds that it takes at most: with less left it is not begun, unless it is the call's first.

        Returns:
            The figure.
        """
        if name in self.figures:
            return self.figures[name]
        if self.left() <= (needs if self._attempts else 0.0):
            self.leave_out(name, NO_TIME)
            return None
        self._attempts += 1
        start = time.perf_counter()
        try:
            value = compute()
        except OutOfTimeError:
            self.leave_out(name, NO_TIME)
            return None
        except Exception as error:  # noqa: BLE001 - whatever it is, the other figures are still wanted
            self.fail(name, described(error))
            return None
        self.content["took"][name] = round(time.perf_counter() - start, 2)
        self.figures[name] = value
        self.save()
        print(f"  {name}: {self.content['took'][name]:.1f} s", flush=True)
        return value

    def leave_out(self, what: str, why: str) -> None:
        """Note what could not be done."""
        self.content["left_out"].append({"what": what, "why": why})
        self.save()

    def fail(self, what: str, error: str) -> None:
        """Note what went wrong."""
        self.content["failed"].append({"what": what, "error": error})
        print(f"  {what}: FAILED: {error.splitlines()[0] if error else ''}", flush=True)
        self.save()

    def end(self, error: str | None = None) -> None:
        """Close the record."""
        self.content["error"] = error
        self.content["complete"] = error is None and not any(
            entry["why"] == NO_TIME for entry in self.content["left_out"]
        )
        self.save()

    def save(self) -> None:
        """Write the record as it is now."""
        if self.content["calls"]:
            self.content["calls"][-1]["seconds"] = round(time.time() - self._begun, 1)
        write(self.path, self.content)

    def _go_on_from(self, earlier: dict[str, Any]) -> None:
        """Take the figures of an earlier call over if all that they depend on is the same."""
        other = [key for key in IDENTITY if earlier.get(key) != self.content[key]]
        if other:
            self.leave_out("the earlier record", f"{', '.join(other)} differ: begun anew")
            return
        for key in ("figures", "took", "calls"):
            self.content[key] = earlier[key]


def described(error: BaseException) -> str:
    """Return an exception's class and text, and where it was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    where = [f"{Path(frame.filename).name}:{frame.lineno} {frame.name}" for frame in frames[-4:]]
    return f"{type(error).__name__}: {error}\n" + "\n".join(where)


def read(path: Path) -> dict[str, Any]:
    """Read a record."""
    content: dict[str, Any] = parse_json(path.read_text(encoding="utf-8"))
    return content


def write(path: Path, content: Mapping[str, Any]) -> None:
    """Write a record in one step."""
    text = json.dumps(without_nonfinite(content, as_text=True), indent=1) + "\n"
    with write_atomically(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
