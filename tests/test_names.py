"""One word, one thing: no two classes share a name, and no two modules or classes differ by a suffix."""

import ast
import functools
import itertools
from collections import Counter
from pathlib import Path

import pytest

from lit_gelu.cli.commands import COMMANDS

ROOT = Path(__file__).parents[1]
FOLDERS = ("lit_gelu", "callbacks", "export")
SUFFIXES = (
    "s",
    "es",
    "er",
    "ers",
    "or",
    "ors",
    "ing",
    "ings",
    "ed",
    "ion",
    "ions",
    "ation",
    "ations",
    "ment",
    "ments",
    "al",
)
IRREGULAR = [{"criterion", "criteria"}, {"comparison", "compare"}, {"analysis", "analyses"}, {"matrix", "matrices"}]
# Pairs that are what a reader expects, with the reason.
ALLOWED = {
    frozenset({"activation", "activations"}): "the functions, and the curvature of an activation beside that of a loss",
    frozenset({"quantize", "quantization"}): "the room, and the module of its `quantize_onnx`",
    frozenset({"export", "exporter"}): "the room that the project is asked for, and the module of its `export_onnx`",
}


def near(a: str, b: str) -> bool:
    """Whether two names differ by a plural or by one suffix, in full or after a silent e or a doubled letter."""
    if {a, b} in IRREGULAR:
        return True
    short, long = sorted((a, b), key=len)
    stems = {short, short.removesuffix("e"), short + short[-1:]}
    return short != long and any(long == stem + suffix for stem in stems for suffix in SUFFIXES)


def files() -> list[Path]:
    """Return the source files of the package."""
    return [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]


def modules() -> set[str]:
    """Return the names of files and folders, without those of commands: their words are what a user types."""
    commands = {target.partition(":")[0].removeprefix("lit_gelu.").replace(".", "/") for target in COMMANDS.values()}
    paths = {path.relative_to(ROOT).with_suffix("") for path in files()}
    found = {path for path in paths | {path.parent for path in paths} if not path.name.startswith("__")}
    return {path.name for path in found if path.as_posix().removeprefix("lit_gelu/") not in commands}


@functools.cache
def classes() -> Counter[str]:
    """Return the names of classes, private ones without their underscore, and how many have each."""
    trees = [ast.parse(path.read_text()) for path in files()]
    return Counter(node.name.lstrip("_") for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef))


def pairs(names: set[str]) -> list[tuple[str, str]]:
    """Return the pairs that are too near and not allowed."""
    found = [pair for pair in itertools.combinations(sorted(names), 2) if near(*(name.lower() for name in pair))]
    return [pair for pair in found if frozenset(pair) not in ALLOWED]


@pytest.mark.parametrize(
    "pair",
    [
        "record records",
        "record recorder",
        "record recording",
        "measure measurement",
        "swap swapping",
        "quantize quantization",
        "criterion criteria",
    ],
)
def test_what_is_near(pair):
    assert near(*pair.split())


@pytest.mark.parametrize("pair", ["record recipe", "site sight", "gelu elu", "tanh tan", "loss loss"])
def test_what_is_not(pair):
    assert not near(*pair.split())


def test_modules():
    assert not pairs(modules())


def test_classes():
    assert not pairs(set(classes()))
    assert not [name for name, count in classes().items() if count > 1]


def test_no_allowance_is_stale():
    names = modules() | set(classes())
    assert all(pair <= names for pair in ALLOWED)
