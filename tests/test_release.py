"""What a release consists of agrees with itself; `make release-check` builds and installs it."""

import importlib.util
import re
import shutil
import sys
import tomllib
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = PYPROJECT["project"]
RECIPE = yaml.safe_load((ROOT / "recipe/recipe.yaml").read_text(encoding="utf-8"))
SOURCES = {"lit_gelu": "lit_gelu", "callbacks": "lit_gelu/callbacks", "export": "lit_gelu/export"}


def script(path):
    """Import a file that is no module of the package."""
    specification = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def check():
    sys.path.insert(0, str(ROOT / ".ci"))
    try:
        return script(".ci/release_check.py")
    finally:
        sys.path.remove(str(ROOT / ".ci"))


@pytest.fixture(scope="module")
def locks():
    return script(".ci/make_locks.py")


def test_every_file_has_the_same_version(check):
    versions = check.versions(ROOT)
    assert check.version_faults(versions) == []
    assert len(versions) == 4
    assert RECIPE["context"]["version"] == PROJECT["version"]


def test_every_source_belongs_to_a_package_or_is_declared_as_its_data():
    tool = PYPROJECT["tool"]["setuptools"]
    packages = set(tool["packages"])
    for folder, place in SOURCES.items():
        for path in (ROOT / folder).rglob("*"):
            if not path.is_file() or "__pycache__" in path.parts:
                continue
            inside = Path(place) / path.relative_to(ROOT / folder)
            owners = [".".join(parent.parts) for parent in inside.parents if ".".join(parent.parts) in packages]
            if path.suffix == ".py":
                assert ".".join(inside.parent.parts) in packages, f"[tool.setuptools] packages lacks that of {inside}"
            else:
                patterns = [(owner, pattern) for owner in owners for pattern in tool["package-data"].get(owner, ())]
                relative = {owner: inside.relative_to(owner.replace(".", "/")).as_posix() for owner in owners}
                assert any(fnmatchcase(relative[owner], pattern.replace("**/", "*")) for owner, pattern in patterns), (
                    f"[tool.setuptools.package-data] lacks {inside}"
                )


@pytest.mark.parametrize("name", ["cpu", "gpu"])
def test_a_lock_holds_every_requirement_in_a_version_that_is_accepted(locks, name):
    text = (ROOT / f"docker/{name}.lock").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    held = dict(line.split()[0].split("==") for line in lines)
    assert list(held) == sorted(held)
    extras = [text for extra in locks.EXTRAS for text in PROJECT["optional-dependencies"][extra]]
    linux = {"platform_system": "Linux", "platform_machine": "x86_64", "sys_platform": "linux"}
    for requirement in map(Requirement, [*PROJECT["dependencies"], *extras]):
        if requirement.name != PROJECT["name"] and (not requirement.marker or requirement.marker.evaluate(linux)):
            assert requirement.specifier.contains(held[canonicalize_name(requirement.name)]), requirement
    assert all(("--hash=sha256:" in line) is (name == "gpu") for line in lines)
    assert "://" not in text
    image = (ROOT / f"docker/{name}.Dockerfile").read_text(encoding="utf-8")
    python = re.search(r"^# Python ([\d.]+),", text, re.MULTILINE)[1]
    assert set(re.findall(r"^FROM (\S+)", image, re.MULTILINE)) == {f"python:{python}-slim"}
    assert f"docker/{name}.lock" in image


@pytest.mark.full
def test_sdist_and_wheel_are_built_and_hold_what_they_should(check, monkeypatch, tmp_path):
    pytest.importorskip("twine")
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("git says which files there are")
    monkeypatch.setattr(check, "WORK", tmp_path)
    monkeypatch.setattr(sys, "argv", ["release_check.py", "--no-install"])
    check.main()
