"""What is particular to one activation stands in its family: no other file asks which activation it has by name."""

import ast
import functools
from pathlib import Path

import pytest

from lit_gelu.activations.families import ENTRIES

ROOT = Path(__file__).parents[1]
FAMILIES = ROOT / "lit_gelu" / "activations" / "families"
NAMES = {name for entry in ENTRIES for name in (entry.name, *entry.aliases)}
# Files that hold such names and decide nothing about how an activation is computed, described or lowered.
OF_OTHERS = {
    "lit_gelu/audit/cost.py": "what is mistaken for one another, to be tried",
    "lit_gelu/audit/enclosures.py": "definitions that are independent of the families, to prove values by",
    "lit_gelu/audit/declarations.py": "the words of configurations",
    "lit_gelu/cli/demo.py": "the forms of GELU",
    "lit_gelu/cli/export.py": "the same forms",
    "lit_gelu/surgery/coverage.py": "torch's operators, by which it looks them up",
    "lit_gelu/surgery/observation.py": "a function that torch has under another name",
}


@functools.cache
def files():
    paths = [path for folder in ("lit_gelu", "callbacks", "export") for path in (ROOT / folder).rglob("*.py")]
    paths = [path for path in paths if FAMILIES not in path.parents]
    return {path.relative_to(ROOT).as_posix(): path for path in sorted(paths)}


def named(node):
    """Return the activation that a literal names, its arguments left out: ``"swish(beta=2)"`` is ``swish``."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        name = node.value.partition("(")[0]
        return {name} & NAMES
    if isinstance(node, (ast.Tuple, ast.List, ast.Set)):
        return {name for element in node.elts for name in named(element)}
    if isinstance(node, ast.Starred):
        return named(node.value)
    return set()


def is_all(node):
    """Whether an assignment says what a module exports."""
    return ast.unparse(node.targets[0]) == "__all__"


def compared(tree):
    """Return the names that code compares with or matches."""
    kinds = (ast.Compare, ast.MatchValue)
    return {each for node in ast.walk(tree) if isinstance(node, kinds) for each in asked(node)}


def asked(tree):
    """Return the names by which code decides: compared, matched, or a key that is looked up."""
    uses = set()
    for node in ast.walk(tree):
        match node:
            case ast.Compare():
                parts = [node.left, *node.comparators]
            case ast.MatchValue():
                parts = [node.value]
            case ast.Dict():
                parts = [key for key in node.keys if key is not None]
            case ast.Subscript():
                parts = [node.slice]
            case ast.Call(func=ast.Name(id="frozenset" | "set" | "tuple" | "list")):
                parts = node.args
            case ast.Assign(value=ast.Tuple() | ast.List() | ast.Set()) if not is_all(node):
                parts = [node.value]
            case ast.AnnAssign(value=ast.Tuple() | ast.List() | ast.Set()):
                parts = [node.value]
            case ast.Call(func=ast.Attribute(attr="startswith" | "endswith" | "get" | "pop")):
                parts = node.args[:1]
            case _:
                continue
        uses |= {(name, node.lineno) for part in parts for name in named(part)}
    return uses


@pytest.mark.parametrize("file", files())
def test_no_file_outside_the_families_asks_for_an_activation_by_name(file):
    names = dict(asked(ast.parse(files()[file].read_text())))
    if file in OF_OTHERS:
        assert names, f"{file} has no names: take it off the list"
        assert not compared(ast.parse(files()[file].read_text())), (
            f"{file} compares names: its tables alone may hold them"
        )
        return
    assert not names, f"{file} decides by the name of an activation: let its row in families/ say what is particular"
