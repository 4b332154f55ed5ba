"""``benchmarks/mutants``: which faults it makes, and that its list of harmless ones is up to date."""

import json
import runpy
import sys
from pathlib import Path

import pytest
from child_processes import run_command

FOLDER = Path(__file__).parents[2] / "benchmarks" / "mutants"
CODE = '''
"""A file."""
from math import sqrt

class Root:
    """A root."""

    def of(self, x: float = 2.0, *, strict: bool = True) -> float | None:
        """Return it."""
        if x < 0 and strict:
            raise ValueError(f"{x} is below {0}")
        with self.lock:
            self.calls += 1
        return -sqrt(x) if not strict else x ** 0.5
'''
WANTED = [
    ("def of(self, x: float=2.0, *, strict: bool=True)", "def of(self, x: float=2.2, *, strict: bool=True)"),
    ("def of(self, x: float=2.0, *, strict: bool=True)", "def of(self, x: float=2.0, *, strict: bool=False)"),
    ("if x < 0 and strict:", "if not (x < 0 and strict):"),
    ("if x < 0 and strict:", "if x < 0 or strict:"),
    ("if x < 0 and strict:", "if x <= 0 and strict:"),
    ("if x < 0 and strict:", "if x >= 0 and strict:"),
    ("if x < 0 and strict:", "if x < 1 and strict:"),
    ("raise ValueError(f'{x} is below {0}')", "pass"),
    ("with self.lock:", "if True:"),
    ("self.calls += 1", "pass"),
    ("self.calls += 1", "self.calls -= 1"),
    ("self.calls += 1", "self.calls += 2"),
    ("self.calls += 1", "self.calls += 0"),
    ("return -sqrt(x) if not strict else x ** 0.5", "return None"),
    ("return -sqrt(x) if not strict else x ** 0.5", "return -sqrt(x) if not not strict else x ** 0.5"),
    ("return -sqrt(x) if not strict else x ** 0.5", "return -sqrt(x) if strict else x ** 0.5"),
    ("return -sqrt(x) if not strict else x ** 0.5", "return sqrt(x) if not strict else x ** 0.5"),
    ("return -sqrt(x) if not strict else x ** 0.5", "return -sqrt(x) if not strict else x * 0.5"),
    ("return -sqrt(x) if not strict else x ** 0.5", "return -sqrt(x) if not strict else x ** 0.55"),
]


@pytest.fixture
def mutants_of(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    return runpy.run_path(str(FOLDER / "changes.py"))["mutants_of"]


def test_every_fault_once_and_none_of_types_texts_and_imports(mutants_of):
    found = mutants_of(CODE)
    changes = [(mutant.before.split(" -> ")[0], mutant.after.split(" -> ")[0]) for mutant in found]
    assert sorted(changes) == sorted(WANTED)
    assert len({mutant.source for mutant in found}) == len(found)
    assert {mutant.where for mutant in found} == {"Root.of"}
    for mutant in found:
        compile(mutant.source, "mutant", "exec")


def test_its_files_and_their_tests_are_there(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    targets = runpy.run_path(str(FOLDER / "__main__.py"))["TARGETS"]
    root = FOLDER.parents[1]
    named = [root / target.file for target in targets]
    named += [root / "tests" / test for target in targets for test in target.tests]
    assert not [path for path in named if not path.exists()]


@pytest.mark.full  # an entry that is out of date does no harm: a file may change without it
def test_every_harmless_fault_of_the_list_can_still_be_made_and_has_a_reason(mutants_of):
    listed = json.loads((FOLDER / "equivalent.json").read_text())
    assert len({(entry["file"], entry["where"], entry["before"], entry["after"]) for entry in listed}) == len(listed)
    assert all(len(entry["reason"]) > 20 for entry in listed)
    for file in {entry["file"] for entry in listed}:
        made = {(m.where, m.before, m.after) for m in mutants_of((FOLDER.parents[1] / file).read_text())}
        wanted = {(entry["where"], entry["before"], entry["after"]) for entry in listed if entry["file"] == file}
        assert wanted <= made, wanted - made


@pytest.mark.full
def test_the_tests_notice_faults_of_a_small_file(tmp_path):
    output = tmp_path / "outcomes.json"
    command = [
        sys.executable,
        str(FOLDER),
        "--only",
        "files",
        "--sample",
        "6",
        "--least",
        "0.5",
        "--output",
        str(output),
    ]
    assert "lit_gelu/files.py" in run_command(command).stdout
    outcomes = json.loads(output.read_text())
    assert len(outcomes) == 6
    assert {"failed"} <= {outcome["noticed"] for outcome in outcomes}
