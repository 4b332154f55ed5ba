"""No two rooms need each other: circles of imports between files, lazy ones and those for annotations counted."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = {"lit_gelu": "lit_gelu", "callbacks": "lit_gelu.callbacks", "export": "lit_gelu.export"}
LARGEST = 6  # files that may need each other: a report and the pages that it is printed on


def modules() -> dict[str, Path]:
    """Return every file of the package by its module's name."""
    found = {}
    for folder, package in FOLDERS.items():
        for path in (ROOT / folder).rglob("*.py"):
            inside = path.relative_to(ROOT / folder).with_suffix("")
            parts = inside.parts[:-1] if inside.name == "__init__" else inside.parts
            found[".".join([package, *parts])] = path
    return found


def imported(path: Path, known: dict[str, Path]) -> set[str]:
    """Return the modules of the package that a file imports, wherever in it."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            names |= {name if name in known else str(node.module) for name in inner}
    return names & set(known)


def circles(graph: dict[str, set[str]]) -> list[set[str]]:
    """Return the sets of more than one node each of which reaches every other."""
    reached = {node: _reached(graph, node) for node in graph}
    found = {frozenset(b for b in reached[a] if a in reached[b]) for a in graph}
    return sorted((set(circle) for circle in found if len(circle) > 1), key=len)


def _reached(graph: dict[str, set[str]], start: str) -> set[str]:
    """Return what can be reached from a node, itself included if there is a way back."""
    reached: set[str] = set()
    waiting = [start]
    while waiting:
        new = graph[waiting.pop()] - reached
        reached |= new
        waiting += new
    return reached


@pytest.fixture(scope="module")
def found():
    known = modules()
    assert len(known) > 300
    return circles({name: imported(path, known) - {name} for name, path in known.items()})


def test_circles_are_found():
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": {"e"}, "e": {"d"}, "f": {"a"}}
    assert circles(graph) == [{"d", "e"}, {"a", "b", "c"}]


def test_none_in_activations(found):
    assert not [circle for circle in found if any(name.startswith("lit_gelu.activations") for name in circle)]


def test_none_of_many_files(found):
    assert not [circle for circle in found if len(circle) > LARGEST]
