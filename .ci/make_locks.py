"""Write docker/gpu.lock and docker/cpu.lock: what the images hold, each distribution in one version (`make locks`).

pip itself resolves the requirements of pyproject.toml, for this Python on Linux with an x86-64 processor, and reports
what it would install. The lock for GPUs has a SHA-256 of every wheel. That for CPUs leaves out what only torch's build
for CUDA asks for, and has no sums, because torch's builds for CPUs are other wheels of the same version.
"""

import json
import os
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docker"
PROJECT = "lit-gelu"
EXTRAS = ("demo", "speech", "tensorboard")  # what the images have
_OF_CUDA = re.compile(r"nvidia-|cuda-|triton$")  # what torch's build for CUDA asks for, and its build for CPUs does not
HEAD = """\
# Made by `make locks` from pyproject.toml with the extras {extras}; do not edit.
# Python {python}, Linux, x86-64.
"""


def resolved(extras: Sequence[str]) -> list[dict[str, Any]]:
    """What pip would install for the project with some extras, as entries of its report."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = ["-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed", "--report", str(report)]
        subprocess.run([sys.executable, *command, f"{ROOT}[{','.join(extras)}]"], check=True, env=dict(os.environ))  # noqa: S603
        found: list[dict[str, Any]] = json.loads(report.read_text(encoding="utf-8"))["install"]
        return found


def by_name(entries: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """The entries by the canonical name of their distribution."""
    return {canonicalize_name(entry["metadata"]["name"]): entry for entry in entries}


def required(name: str, extras: Sequence[str], entries: Mapping[str, Mapping[str, Any]]) -> Iterator[Requirement]:
    """What a distribution requires with some extras, on this machine."""
    for text in entries[name]["metadata"].get("requires_dist", ()):
        requirement = Requirement(text)
        asked = ("", *extras)
        if requirement.marker is None or any(requirement.marker.evaluate({"extra": extra}) for extra in asked):
            yield requirement


def without_cuda_of_torch(entries: Mapping[str, Mapping[str, Any]], extras: Sequence[str]) -> set[str]:
    """The names that are left if torch is a build for CPUs."""
    found: set[tuple[str, tuple[str, ...]]] = set()
    waiting = [(PROJECT, tuple(extras))]
    while waiting:
        name, asked = waiting.pop()
        if (name, asked) in found:
            continue
        found.add((name, asked))
        for requirement in required(name, asked, entries):
            other = canonicalize_name(requirement.name)
            if not (name == "torch" and _OF_CUDA.match(other)):
                waiting.append((other, tuple(sorted(requirement.extras))))
    return {name for name, _ in found}


def lines(entries: Mapping[str, Mapping[str, Any]], names: set[str], *, sums: bool) -> list[str]:
    """A lock's lines, sorted by name, the project itself left out."""
    found = []
    for name in sorted(names - {PROJECT}):
        line = f"{name}=={entries[name]['metadata']['version']}"
        digest = entries[name]["download_info"]["archive_info"]["hashes"]["sha256"] if sums else ""
        found.append(f"{line} --hash=sha256:{digest}" if sums else line)
    return found


def main() -> None:
    """Write both locks."""
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        raise SystemExit("The images are for Linux with an x86-64 processor: make the locks there.")
    entries = by_name(resolved(EXTRAS))
    head = HEAD.format(extras=", ".join(EXTRAS), python=".".join(map(str, sys.version_info[:2])))
    locks = {"gpu": (set(entries), True), "cpu": (without_cuda_of_torch(entries, EXTRAS), False)}
    for name, (names, sums) in locks.items():
        text = head + "\n".join(lines(entries, names, sums=sums)) + "\n"
        (FOLDER / f"{name}.lock").write_text(text, encoding="utf-8")
        sys.stdout.write(f"docker/{name}.lock: {len(names) - 1} distributions\n")


if __name__ == "__main__":
    main()
