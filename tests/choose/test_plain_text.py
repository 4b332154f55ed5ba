"""Text of values: equal for what is made alike in another process, another one for other content."""

import dataclasses
import enum
import functools
import io
import operator
import sys
import threading
import types
from pathlib import Path

import numpy as np
import pytest
import torch
from child_processes import run_python
from torch import nn

from lit_gelu.choose.plain_text import told

WIDTH = 3


@dataclasses.dataclass
class Config:
    width: int = 16
    nested: object = None


@dataclasses.dataclass(slots=True)
class Slotted:
    width: int


class Plain:
    def __init__(self, width):
        self.width = width
        self.me = self


class Kind(enum.Enum):
    ONE = 1
    TWO = 2


class Listed(list):
    pass


def layer(seed):
    torch.manual_seed(seed)
    return nn.Linear(2, 2)


def encloses(width):
    return lambda activation: (activation, width)


def with_default(width):
    def build(activation, given=width):
        return activation, given

    return build


def documented(text):
    """Return a function with another docstring."""
    scope = {}
    exec(f"def build(activation):\n    {text!r}\n    return [activation, (lambda: 3)()]", scope)
    return scope["build"]


def text(value):
    untold = []
    found = told(value, untold)
    assert untold == []
    return found


PAIRS = {
    "number": (lambda: 1, lambda: 2),
    "number and text": (lambda: 1, lambda: "1"),
    "tensor": (lambda: torch.zeros(3), lambda: torch.tensor([0.0, 0.0, 1e-30])),
    "shape": (lambda: torch.zeros(2, 3), lambda: torch.zeros(3, 2)),
    "dtype": (lambda: torch.zeros(2), lambda: torch.zeros(2, dtype=torch.int32)),
    "array": (lambda: np.arange(4), lambda: np.arange(4)[::-1]),
    "dataclass": (lambda: Config(16), lambda: Config(2)),
    "nested": (lambda: Config(nested=[Config(1)]), lambda: Config(nested=[Config(2)])),
    "slots": (lambda: Slotted(16), lambda: Slotted(2)),
    "object": (lambda: Plain(16), lambda: Plain(2)),
    "type": (lambda: Config(16), lambda: types.SimpleNamespace(width=16, nested=None)),
    "enum": (lambda: Kind.ONE, lambda: Kind.TWO),
    "path": (lambda: Path("a"), lambda: Path("b")),
    "mapping": (lambda: {"a": 1, "b": {2, 3}}, lambda: {"a": 1, "b": {2, 4}}),
    "list of its own": (lambda: Listed([1, 2]), lambda: Listed([2, 1])),
    "class": (lambda: nn.ReLU, lambda: nn.GELU),
    "module": (lambda: layer(0), lambda: layer(1)),
    "enclosed": (lambda: encloses(1), lambda: encloses(2)),
    "default": (lambda: with_default(1), lambda: with_default(2)),
    "partial": (lambda: functools.partial(layer, 1), lambda: functools.partial(layer, 2)),
    "method": (lambda: Listed([1]).index, lambda: Listed([2]).index),
    "builtin": (lambda: len, lambda: operator.add),
    "code": (lambda: lambda a: [a, 1], lambda: lambda a: [a, 2]),
    "code within": (lambda: lambda a: lambda: 1, lambda: lambda a: lambda: 2),
    "long": (lambda: "x" * 5000 + "a", lambda: "x" * 5000 + "b"),
}


@pytest.mark.parametrize("name", PAIRS)
def test_text_is_equal_for_equal_content_alone(name):
    one, other = PAIRS[name]
    assert text(one()) == text(one())
    assert text(one()) != text(other())
    assert len(text(one())) < 2001


@pytest.mark.full
def test_another_process_has_the_same_text():
    code = "import test_plain_text as t; print({n: [t.text(make()) for make in pair] for n, pair in t.PAIRS.items()})"
    paths = f"import sys; sys.path[:0] = {[str(Path(__file__).parent), *sys.path]!r}; "
    printed = run_python(paths + code).stdout.strip()
    here = {name: [text(make()) for make in pair] for name, pair in PAIRS.items()}
    assert printed == str(here).replace(__name__, "test_plain_text")


def test_a_constant_that_a_function_reads_is_told(monkeypatch):
    def build(activation):
        return activation, WIDTH

    before = text(build)
    monkeypatch.setitem(globals(), "WIDTH", 4)
    assert text(build) != before


def test_a_docstring_is_none_of_a_functions_content():
    assert text(documented("one")) == text(documented("other"))


def test_order_in_a_mapping_and_a_set_does_not_count():
    assert text({"a": 1, "b": 2}) == text({"b": 2, "a": 1})
    assert text({"aa", "b", "c"}) == text({"c", "b", "aa"})


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (threading.Lock(), "_thread.lock"),
        (Config(nested=[threading.Lock()]), "_thread.lock"),
        (io.FileIO(0, closefd=False), "_io.FileIO"),
        ((n for n in [1]), "generator"),
        (torch.empty(2, device="meta"), "torch.Tensor"),
        (nn.LazyLinear(3), "torch.nn.parameter.UninitializedParameter"),
    ],
    ids=["lock", "lock within", "file", "generator", "no storage", "not initialised"],
)
def test_what_has_no_content_is_said(value, said):
    untold = []
    assert "0x" not in told(value, untold)
    assert said in untold


def test_what_is_nested_too_deep_is_said():
    value = []
    for _ in range(100_000):
        value = [value]
    untold = []
    assert told(value, untold) == "list"
    assert untold == ["list"]


def test_many_ways_to_one_object_are_gone_once():
    value = Config()
    for _ in range(25):  # 2^25 ways
        value = Config(nested=[value, value])
    assert len(text(value)) < 2001
