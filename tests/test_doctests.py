"""Every docstring's example, run once under the name that users import."""

import doctest
import importlib
import pkgutil

import pytest

ROOTS = ("lit_gelu", "lit_gelu.callbacks", "lit_gelu.export")


def _modules() -> list[str]:
    found = set(ROOTS)
    for root in ROOTS:
        package = importlib.import_module(root)
        found.update(module.name for module in pkgutil.walk_packages(package.__path__, f"{root}."))
    return sorted(found)


@pytest.mark.parametrize("name", _modules())
def test_examples_in_docstrings(name):
    failed, _ = doctest.testmod(importlib.import_module(name))
    assert failed == 0


def test_all_three_roots_are_walked():
    names = _modules()
    assert {"lit_gelu.activations.naming.spec", "lit_gelu.callbacks.swap.activation_swap"} <= set(names)
    assert any(name.startswith("lit_gelu.export.") for name in names)
