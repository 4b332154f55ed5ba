"""What a release consists of agrees with itself; `make release-check` builds and installs it."""

import importlib.util
import re
import shutil
import sys
import tomllib
from datetime import date
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
WORKFLOWS = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / ".github/workflows").glob("*.yml")}
CONDA_NAMES = {"torch": "pytorch", "typing-extensions": "typing_extensions", "onnxruntime-gpu": "onnxruntime"}
ONLY_PIP = {"nvidia-curand"}  # conda's onnxruntime brings cuRAND
ONLY_CONDA = {"python", "docstring-parser", "typeshed-client"}  # the last two are jsonargparse[signatures]
SOURCES = {"lit_gelu": "lit_gelu", "callbacks": "lit_gelu/callbacks", "export": "lit_gelu/export"}
VERSIONS = ["3.11", "3.12", "3.13"]


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


@pytest.fixture(scope="module")
def readme():
    return script("setup.py")


def bound(requirement):
    """The lowest version that a requirement accepts."""
    return next(part.version for part in requirement.specifier if part.operator == ">=")


# Versions


def test_every_file_has_the_same_version(check):
    found = check.versions(ROOT)
    assert check.version_faults(found) == []
    assert len(found) == 4
    assert RECIPE["context"]["version"] == PROJECT["version"]


def test_another_version_is_a_fault(check):
    found = {"pyproject.toml": "0.2.0", "CITATION.cff": "0.1.0", "CHANGELOG.md": "", "recipe/recipe.yaml": "0.2.0"}
    assert check.version_faults(found) == [
        "CITATION.cff has version 0.1.0, pyproject.toml has 0.2.0",
        "CHANGELOG.md has version (none), pyproject.toml has 0.2.0",
    ]


@pytest.mark.parametrize(
    ("heading", "cited", "fault"),
    [
        ("## [1.0.0] - unreleased", "", "CHANGELOG.md says 'unreleased'"),
        ("## [1.0.0]", "", "CHANGELOG.md says 'nothing'"),
        ("## [1.0.0] - 2026-11-30", "date-released: 2026-11-29\n", "lacks the line date-released: 2026-11-30"),
        ("## [1.0.0] - 2026-11-30", "date-released: 2026-11-30\n", None),
    ],
)
def test_a_tag_needs_a_date(check, tmp_path, heading, cited, fault):
    (tmp_path / "CHANGELOG.md").write_text(f"# Changelog\n\n{heading}\n")
    (tmp_path / "CITATION.cff").write_text(f"version: 1.0.0\n{cited}")
    faults = check.date_faults(tmp_path)
    assert faults == [] if fault is None else fault in faults[0]


def test_the_newest_section_of_the_changelog_has_a_date_or_waits_for_one():
    versions = re.findall(r"^## \[([^\]]+)\] - (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    for version, day in versions:
        assert version == PROJECT["version"] or date.fromisoformat(day)


# Content of the wheel


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


def test_a_wheel_holds_the_sources_and_nothing_else(check):
    tracked = ["lit_gelu/__init__.py", "lit_gelu/py.typed", "callbacks/a.py", "export/b/c.py", "tests/test_a.py"]
    whole = ["lit_gelu/__init__.py", "lit_gelu/py.typed", "lit_gelu/callbacks/a.py", "lit_gelu/export/b/c.py"]
    assert check.wheel_faults([*whole, "lit_gelu-1.dist-info/METADATA"], tracked) == []
    assert check.wheel_faults([*whole[:-1], "tests/test_a.py"], tracked) == [
        "the wheel lacks lit_gelu/export/b/c.py",
        "the wheel has tests/test_a.py, which no source is",
    ]


def test_every_extra_for_users_is_tried(check):
    assert set(check.user_extras(PROJECT)) == set(check.SMOKES)


# The readme on the package's page


def test_relative_links_lead_to_the_files_of_the_tag(readme):
    text = "[a](docs/a.md#b) [c](#d) [e](https://f.org) ![g](docs/g.png)\n```python\nx[0](docs/a.md)\n```\n"
    assert readme.absolute(text, "https://host/r", "v1") == (
        "[a](https://host/r/blob/v1/docs/a.md#b) [c](#d) [e](https://f.org) ![g](https://host/r/raw/v1/docs/g.png)\n"
        "```python\nx[0](docs/a.md)\n```\n"
    )
    linked = '[![g](g.png)](docs/a.md) <a href="LICENSE"><img src="g.png"></a>'
    assert readme.absolute(linked, "https://host/r", "v1") == (
        "[![g](https://host/r/raw/v1/g.png)](https://host/r/blob/v1/docs/a.md) "
        '<a href="https://host/r/blob/v1/LICENSE"><img src="https://host/r/raw/v1/g.png"></a>'
    )


def test_the_readme_has_no_relative_link_then(readme, check):
    pytest.importorskip("readme_renderer.markdown")
    assert check.readme_faults(f"Metadata-Version: 2.4\n\n{readme.description()}") == []
    assert check.readme_faults("Metadata-Version: 2.4\n\n[a](docs/a.md)") == [
        "the readme has a relative link: docs/a.md"
    ]


# Citation


def test_the_citation_names_the_developers_and_the_paper():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["authors"] == [{"name": "lit-gelu developers"}] == PROJECT["authors"]
    assert citation["license"] == PROJECT["license"] == RECIPE["about"]["license"]
    assert citation["repository-code"] == PROJECT["urls"]["Repository"] == RECIPE["about"]["repository"]
    (paper,) = citation["references"]
    assert [author["family-names"] for author in paper["authors"]] == ["Hendrycks", "Gimpel"]
    assert paper["identifiers"][0]["value"] == "arXiv:1606.08415"


def test_the_citation_is_valid():
    citation = pytest.importorskip("cffconvert").Citation((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    citation.validate()
    assert "lit-gelu developers" in citation.as_bibtex()


# The conda recipe


def test_the_recipe_requires_what_pip_does():
    declared = {canonicalize_name(each.name): each for each in map(Requirement, PROJECT["dependencies"])}
    packaged = {canonicalize_name(text.split()[0]): text for text in RECIPE["requirements"]["run"]}
    names = {name: canonicalize_name(CONDA_NAMES.get(name, name)) for name in declared.keys() - ONLY_PIP}
    assert packaged.keys() == set(names.values()) | ONLY_CONDA
    for name, conda in names.items():
        assert packaged[conda].split()[1:] == [f">={bound(declared[name])}"]
    assert packaged["python"] == f"python {PROJECT['requires-python']}"


def test_the_recipe_has_the_command_and_the_build_system_of_pyproject():
    (entry,) = RECIPE["build"]["python"]["entry_points"]
    assert dict([entry.split(" = ")]) == PROJECT["scripts"]
    (build,) = map(Requirement, PYPROJECT["build-system"]["requires"])
    assert f"{build.name} >={bound(build)}" in RECIPE["requirements"]["host"]


# Workflows


def test_the_matrix_is_what_pyproject_declares():
    assert yaml.safe_load(WORKFLOWS["ci.yml"])["jobs"]["linux"]["strategy"]["matrix"]["python"] == VERSIONS
    declared = [text.rpartition(" ")[2] for text in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", text)]
    assert declared == VERSIONS
    assert PROJECT["requires-python"] == f">={VERSIONS[0]}"


@pytest.mark.parametrize("name", WORKFLOWS)
def test_a_workflow_runs_targets_that_exist_and_takes_no_more_rights_than_it_needs(name):
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    plan = yaml.safe_load(WORKFLOWS[name])
    lines = [step["run"] for job in plan["jobs"].values() for step in job["steps"] if "run" in step]
    called = {line.split()[-1] for line in lines if line.startswith("make ")}
    assert called <= targets
    assert all((ROOT / found).is_file() for line in lines for found in re.findall(r"\.ci/\w+\.py", line))
    assert plan["permissions"] == {"contents": "read"}


def test_the_hooks_of_pre_commit_run_what_is_installed_for_developers():
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    developers = {Requirement(text).name for text in PROJECT["optional-dependencies"]["dev"]}
    assert {hook["entry"].split()[0] for hook in hooks} <= developers


# Locks and images


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


def test_the_lock_for_cpus_leaves_out_what_only_torchs_build_for_cuda_asks_for(locks):
    asks = {
        "lit-gelu": ["torch>=2", "nvidia-curand", "plot; extra == 'plots'", "other; extra == 'none'"],
        "torch": ["nvidia-cublas", "triton; platform_system == 'Linux'", "sympy"],
        "nvidia-curand": [],
        "nvidia-cublas": [],
        "triton": [],
        "sympy": ["mpmath"],
        "mpmath": [],
        "plot": [],
    }
    entries = {
        name: {
            "metadata": {"name": name, "version": "1", "requires_dist": texts},
            "download_info": {"archive_info": {"hashes": {"sha256": "ab"}}},
        }
        for name, texts in asks.items()
    }
    assert locks.without_cuda_of_torch(entries, ["plots"]) == {
        "lit-gelu", "mpmath", "nvidia-curand", "plot", "sympy", "torch",
    }  # fmt: skip
    assert locks.lines(entries, {"lit-gelu", "torch"}, sums=True) == ["torch==1 --hash=sha256:ab"]


def test_an_image_is_made_of_what_its_context_holds():
    ignored = (ROOT / ".dockerignore").read_text().split()
    held = {line[1:] for line in ignored if line.startswith("!")}
    assert {"pyproject.toml", "setup.py", "README.md", "LICENSE", *SOURCES, "docker/*.lock"} == held


@pytest.mark.full
def test_sdist_and_wheel_are_built_and_hold_what_they_should(check, monkeypatch, tmp_path):
    pytest.importorskip("twine")
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("git says which files there are")
    monkeypatch.setattr(check, "WORK", tmp_path)
    monkeypatch.setattr(sys, "argv", ["release_check.py", "--no-install"])
    check.main()
