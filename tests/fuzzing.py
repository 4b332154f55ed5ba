"""Any content, through what reads it: it works, or an error of this package says why not, and nothing else happens.

A fuzz test is ``test_x = fuzzed(strategy, read)`` in a module of ``tests/fuzz``, with ``read(value, folder)``. It runs
twice: with some dozens of cases, the same each time, and, marked ``full``, with a thousand new ones.
"""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lit_gelu.errors import LitGeluError

SHORT, FULL = 25, 1000
LONGEST_MESSAGE = 4000

# Importable, not imported by anything here, and each would be noticed: a window, a browser, text on the screen.
UNWANTED = ("antigravity.geohash", "this.s", "turtle.Turtle", "idlelib.idle.main", "lib2to3.main.main")
CALLS = ("os.system(command='touch ran')", "torch.save(f='ran')", "builtins.open(file='ran', mode='w')")
NAMES = (
    "gelu",
    "gelu_tanh",
    "quick_gelu",
    "swish",
    "prelu",
    "elu",
    "leaky_relu",
    "gaussian_gelu",
    "cdf_linear",
    "xielu",
)
KEYS = (
    "name", "class_path", "init_args", "dict_kwargs", "_class_path", "_instantiator", "activation", "registry", "old",
    "new", "approximate", "beta", "alpha", "learnable", "channels", "num_parameters", "memory", "sigma", "inplace",
)  # fmt: skip

numbers = (
    st.integers(-3, 3)
    | st.integers()
    | st.sampled_from([10**12, 2**63, 10**400, -(2**40)])
    | st.floats(allow_nan=True, allow_infinity=True)
)
words = (
    st.sampled_from([
        *NAMES,
        *UNWANTED,
        *CALLS,
        "none",
        "tanh",
        "infer",
        "recompute",
        "opaque:os.system",
        "inf",
        "1e999",
    ])
    | st.text(max_size=12)
    | st.text(alphabet="[{(\"':,.=-_ \n\0ge\u0435\uff0e)}]", max_size=20)
    | st.builds(lambda text: "{class_path: " + text + "}", st.sampled_from(UNWANTED))
)
scalars = st.none() | st.booleans() | numbers | words
plain = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=6), inner, max_size=4)
        | st.builds(lambda value, depth: nested(value, depth), inner, st.sampled_from([5, 50, 500]))
    ),
    max_leaves=10,
)
literals = st.recursive(
    scalars.map(repr) | st.sampled_from(["1e999", "-inf", "nan", "x", "--1", "0x" + "f" * 4000]),
    lambda inner: st.lists(inner, max_size=3).map(lambda items: f"({', '.join(items)})"),
    max_leaves=5,
)
spec_texts = words | st.builds(
    lambda name, arguments: f"{name}({', '.join(f'{key}={value}' for key, value in arguments)})",
    st.sampled_from([*NAMES, *UNWANTED]) | st.text(max_size=6),
    st.lists(st.tuples(st.sampled_from(KEYS) | st.text(max_size=4), literals), max_size=3),
)


def nested(value: Any, depth: int) -> Any:
    """Return a value within as many lists."""
    for _ in range(depth):
        value = [value]
    return value


def damaged(content: bytes) -> st.SearchStrategy[bytes]:
    """Return a file's content with some bytes changed, cut off or put in."""

    def change(edits: list[tuple[float, int, bytes]]) -> bytes:
        made = bytearray(content)
        for place, removed, added in edits:
            start = int(place * len(made))
            made[start : start + removed] = added
        return bytes(made)

    edit = st.tuples(st.floats(0, 1), st.sampled_from([0, 1, 8, 100, 10**6]), st.binary(max_size=9))
    return st.lists(edit, min_size=1, max_size=4).map(change)


def fuzzed(strategy: st.SearchStrategy[Any], read: Callable[[Any, Path], Any]) -> Callable[..., None]:
    """Return a test that hands values to a reader.

    Args:
        strategy: The values.
        read: Takes a value and an empty folder that it may write to.
    """

    @pytest.mark.parametrize(
        "cases", [SHORT, pytest.param(FULL, marks=[pytest.mark.full, pytest.mark.timeout(3600)])], ids=["short", "full"]
    )
    @pytest.mark.filterwarnings("ignore")  # what a reader warns of, it read
    def test(cases: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "here").mkdir()
        monkeypatch.chdir(tmp_path / "here")

        @settings(
            max_examples=cases,
            deadline=None,
            database=None,
            derandomize=cases == SHORT,
            suppress_health_check=list(HealthCheck),
        )
        @given(strategy.map(Given))
        def read_one(given: Given) -> None:
            _read_one(given.value, tmp_path, read)

        read_one()

    return test


class Given:
    """A value that Hypothesis can print, however deep it is nested."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __repr__(self) -> str:
        """Return the value's own."""
        with recursion_limit(20_000):
            return repr(self.value)


@contextmanager
def recursion_limit(limit: int) -> Iterator[None]:
    """Let Python's functions be nested so deep."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(limit)
    try:
        yield
    finally:
        sys.setrecursionlimit(before)


def _read_one(value: Any, folder: Path, read: Callable[[Any, Path], Any]) -> None:
    before = {name.partition(".")[0] for name in sys.modules}
    try:
        read(value, folder)
    except LitGeluError as error:
        message = str(error)
    else:
        message = "read"
    assert 0 < len(message) < LONGEST_MESSAGE, f"{message[:200]}... ({len(message)} characters)"
    new = {name.partition(".")[0] for name in sys.modules} - before
    assert not new & {text.partition(".")[0] for text in UNWANTED}
    assert os.listdir(folder / "here") == []  # noqa: PTH208 - names alone
