"""`make test-floor`: pip is held at the lowest version of every dependency that pyproject.toml declares."""

import importlib.util
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def floors():
    specification = importlib.util.spec_from_file_location("floors", ROOT / ".ci" / "floors.py")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def project(*dependencies, speech=(), dev=()):
    return {
        "name": "net",
        "dependencies": list(dependencies),
        "optional-dependencies": {"speech": list(speech), "dev": list(dev), "bench": ["timer"]},
    }


def test_each_lower_bound_becomes_the_version_and_markers_stay(floors):
    dev = ["net[speech]", "net[speech]"]
    given = project("torch>=2.11,<3", "ort[cpu]>=1.24.1; sys_platform == 'linux'", speech=["sound>=0.1"], dev=dev)
    assert floors.constraints(given) == ["torch==2.11", 'ort==1.24.1; sys_platform == "linux"', "sound==0.1"]


@pytest.mark.parametrize("requirement", ["torch", "torch==2.11", "torch<3", "torch>2.10"])
def test_a_dependency_without_a_lower_bound_is_refused(floors, requirement):
    with pytest.raises(SystemExit, match=r"torch.* has 0 lower bounds.*NAME>=VERSION"):
        floors.constraints(project(requirement))


def test_every_dependency_of_the_project_and_of_its_tests_is_held(floors):
    table = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    others = {"all", "bench", "browser", "release"}
    extras = [texts for name, texts in table["optional-dependencies"].items() if name not in others]
    declared = [*table["dependencies"], *(text for texts in extras for text in texts)]
    held = [Requirement(line) for line in floors.constraints(table)]
    expected = {Requirement(text).name for text in declared} - {table["name"]}
    assert {constraint.name for constraint in held} == expected
    for constraint in held:  # pip installs what both allow: the constraint must be a version that is allowed
        (version,) = (specifier.version for specifier in constraint.specifier)
        same = [Requirement(text) for text in declared if Requirement(text).name == constraint.name]
        assert all(requirement.specifier.contains(version) for requirement in same)
