"""A stage in a process of its own, so that what dies or hangs there ends neither the record nor the next stage."""

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

from _gpu_record import read, write

SHARE_BEFORE_NO_NEW_FIGURE = 0.8
SHARE_BEFORE_INTERRUPT = 0.94


def soft_end(start: float, seconds: float) -> float:
    """Return when no new figure begins."""
    return start + SHARE_BEFORE_NO_NEW_FIGURE * seconds


def supervised(command: list[str], path: Path, seconds: float, blank: dict[str, Any]) -> dict[str, Any]:
    """Run a stage within its budget and return its record, which says so if it did not end well.

    Args:
        command: What runs it. It is interrupted shortly before the budget is over, and killed when it is.
        path: Of the record that it writes.
        seconds: The budget.
        blank: What the record says where the process wrote none.

    Returns:
        The record, on the disk too.
    """
    before = path.stat().st_mtime_ns if path.is_file() else None
    start = time.monotonic()
    process = subprocess.Popen(command, start_new_session=True)  # noqa: S603 - our own command
    late = False
    try:
        process.wait(SHARE_BEFORE_INTERRUPT * seconds)
    except subprocess.TimeoutExpired:
        late = True
        _signal(process, signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, start + seconds - time.monotonic()))
    finally:
        _signal(process, signal.SIGKILL)  # what it started too
        process.wait()
    wrote = path.is_file() and path.stat().st_mtime_ns != before
    content = read(path) if wrote else dict(blank)
    error = _ending(process.returncode, late, seconds)
    if not wrote:
        error = error or f"ended with code {process.returncode} before it wrote a record: its output says why"
    if error and (late or not content.get("error")):
        content.update(error=error, complete=False)
        write(path, content)
    return content


def _ending(code: int, late: bool, seconds: float) -> str:
    """Return in words what was wrong with the end of a process; nothing if it was right."""
    if late:
        return f"did not end within its {seconds:g} s, and was ended: --resume goes on where it stopped"
    if code < 0:
        return f"was ended by {signal.Signals(-code).name}"
    return f"ended with code {code}" if code > 1 else ""


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)
