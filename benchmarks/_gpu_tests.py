"""The stage ``tests``: `pytest -m gpu`, a process a file, so that one that dies takes no other with it."""

import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

from _gpu_record import OutOfTimeError, Record, Settings

ROOT = Path(__file__).resolve().parents[1]
NOTHING_COLLECTED = 5


def files() -> list[Path]:
    """Return the test files that name the marker."""
    paths = sorted((ROOT / "tests").rglob("test_*.py"))
    return [path for path in paths if re.search(r"\bmark\.gpu\b", path.read_text(encoding="utf-8"))]


def run(record: Record, settings: Settings) -> None:
    """Run every file, and add the figures up."""
    chosen = files()
    if settings.quick:
        record.leave_out(f"{len(chosen) - 1} of {len(chosen)} files", "--quick runs one")
        chosen = chosen[:1]
    for marks, label in (("gpu and not full", ""), ("gpu and full", ", full")):  # what takes long comes last
        for path in chosen:
            if not label or re.search(r"\bmark\.full\b", path.read_text(encoding="utf-8")):
                name = path.relative_to(ROOT).as_posix() + label
                record.figure(name, lambda path=path, marks=marks: tested(path, marks, record.left()))
    summaries = [record.figures[key] for key in record.figures if key != "total"]
    total: Counter[str] = Counter()
    for summary in summaries:
        total.update(summary["counts"])
    record.figures["total"] = dict(total)
    for summary in summaries:
        for failure in summary["failures"]:
            record.fail(failure["test"], failure["message"])
        if summary["ended"]:
            record.fail(summary["file"], summary["ended"])


def tested(path: Path, marks: str, seconds: float) -> dict[str, Any]:
    """Run the tests of a file that have these marks, and return what its junit file says."""
    name = path.relative_to(ROOT).as_posix()
    with tempfile.TemporaryDirectory() as folder:
        xml = Path(folder) / "junit.xml"
        # Warnings are no errors here: versions may differ from those that the tests are held to.
        options = ["-m", marks, "-q", "-p", "no:cacheprovider", "-o", "filterwarnings=default", f"--junitxml={xml}"]
        process = subprocess.Popen(  # noqa: S603 - our own command
            [sys.executable, "-P", "-m", "pytest", *options, name], cwd=ROOT, env={**os.environ}
        )
        _wait(process, seconds)
        report = parsed(xml) if xml.is_file() else {"counts": {}, "failures": [], "skipped": {}, "slowest": {}}
    ended = "" if process.returncode in {0, 1, NOTHING_COLLECTED} else f"pytest ended with {process.returncode}"
    return {"file": name, "ended": ended, **report}


def _wait(process: subprocess.Popen[bytes], seconds: float) -> None:
    """Wait for pytest; end it when time is up, or this process is interrupted."""
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired as error:
        raise OutOfTimeError from error
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def parsed(xml: Path) -> dict[str, Any]:
    """Return counts, failures, reasons of skips and the slowest tests of a junit file."""
    cases = ET.parse(xml).getroot().iter("testcase")  # noqa: S314 - pytest has just written it
    counts: Counter[str] = Counter()
    skipped: Counter[str] = Counter()
    failures, times = [], {}
    for case in cases:
        name = f"{case.get('classname')}::{case.get('name')}"
        times[name] = float(case.get("time") or 0.0)
        kind, text = "passed", ""
        for tag in ("failure", "error", "skipped"):
            element = case.find(tag)
            if element is not None:
                kind, text = tag, element.get("message") or ""
                break
        counts[kind] += 1
        if kind == "skipped":
            skipped[text] += 1
        elif kind != "passed":
            failures.append({"test": name, "message": text[:2000]})
    slowest = dict(sorted(times.items(), key=lambda item: -item[1])[:5])
    return {"counts": dict(counts), "failures": failures, "skipped": dict(skipped), "slowest": slowest}
