"""Print pip constraints that hold every declared dependency at its lowest declared version, for `make test-floor`.

The bounds are read out of pyproject.toml, so that they stand in one place.
"""

import sys
import tomllib
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

# What the tests need; the extras that only benchmarks and the browser need are not tried at their floors.
EXTRAS = ("speech", "dev")


class NoFloorError(SystemExit):
    """A dependency without exactly one lower bound."""


def floor_of(requirement: Requirement) -> str:
    """The constraint that holds a requirement at its lower bound, marker included."""
    bounds = [specifier.version for specifier in requirement.specifier if specifier.operator == ">="]
    if len(bounds) != 1:
        raise NoFloorError(f"{requirement} has {len(bounds)} lower bounds in pyproject.toml; give one: NAME>=VERSION.")
    marker = f"; {requirement.marker}" if requirement.marker else ""
    return f"{requirement.name}=={bounds[0]}{marker}"


def constraints(project: dict[str, Any]) -> list[str]:
    """The constraints of a `[project]` table: its dependencies and those of the extras in `EXTRAS`."""
    extras = project["optional-dependencies"]
    declared = [*project["dependencies"], *(text for name in EXTRAS for text in extras[name])]
    requirements = [Requirement(text) for text in declared]
    return [floor_of(requirement) for requirement in requirements if requirement.name != project["name"]]


if __name__ == "__main__":
    pyproject = Path(__file__).resolve().parent.parent / "pyproject.toml"
    sys.stdout.write("\n".join(constraints(tomllib.loads(pyproject.read_text())["project"])) + "\n")
