"""Print pip constraints that hold every declared dependency at its lowest declared version, for `make test-floor`.

The bounds are read out of pyproject.toml, so that they stand in one place.
"""

import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

# What the tests need; the extras that only benchmarks and the browser need are not tried at their floors.
EXTRA = "dev"


class NoFloorError(SystemExit):
    """A dependency without exactly one lower bound."""


def floor_of(requirement: Requirement) -> str:
    """The constraint that holds a requirement at its lower bound, marker included."""
    bounds = [specifier.version for specifier in requirement.specifier if specifier.operator == ">="]
    if len(bounds) != 1:
        raise NoFloorError(f"{requirement} has {len(bounds)} lower bounds in pyproject.toml; give one: NAME>=VERSION.")
    marker = f"; {requirement.marker}" if requirement.marker else ""
    return f"{requirement.name}=={bounds[0]}{marker}"


def requirements_of(project: dict[str, Any], extra: str) -> Iterator[Requirement]:
    """What an extra brings, those extras included that it names as `NAME[...]` of the project itself."""
    for requirement in map(Requirement, project["optional-dependencies"][extra]):
        if requirement.name != project["name"]:
            yield requirement
        for other in sorted(requirement.extras if requirement.name == project["name"] else ()):
            yield from requirements_of(project, other)


def constraints(project: dict[str, Any]) -> list[str]:
    """The constraints of a `[project]` table: its dependencies and those of the extra `EXTRA`, each once."""
    requirements = [*map(Requirement, project["dependencies"]), *requirements_of(project, EXTRA)]
    return list(dict.fromkeys(map(floor_of, requirements)))


if __name__ == "__main__":
    pyproject = Path(__file__).resolve().parent.parent / "pyproject.toml"
    sys.stdout.write("\n".join(constraints(tomllib.loads(pyproject.read_text())["project"])) + "\n")
