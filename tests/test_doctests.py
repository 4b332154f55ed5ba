"""Every docstring's example, run once under the name that users import."""

import doctest
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = {"lit_gelu": "lit_gelu", "callbacks": "lit_gelu.callbacks", "export": "lit_gelu.export"}


def modules() -> list[str]:
    return sorted(
        ".".join((package, *path.relative_to(ROOT / folder).with_suffix("").parts)).removesuffix(".__init__")
        for folder, package in FOLDERS.items()
        for path in (ROOT / folder).rglob("*.py")
        if path.name != "__main__.py"
    )


@pytest.mark.every
@pytest.mark.parametrize("name", modules())
def test_examples_in_docstrings(name):
    failed, _ = doctest.testmod(importlib.import_module(name))
    assert failed == 0
