"""Kernels that keep the output and a bit: values, slopes, layouts and failures; see `interpreted_outputs`."""

import interpreted_checks
import pytest

SCRIPT = "interpreted_outputs.py"


@pytest.fixture(scope="module")
def found():
    pytest.importorskip("triton", reason="Triton has no build for this system")
    return interpreted_checks.run(SCRIPT)


@pytest.mark.parametrize("name", interpreted_checks.names_in(SCRIPT))
def test_check(found, name):
    assert not found[name], found[name]
