"""What every test shares: random numbers that depend on the test's name alone."""

import random

import numpy as np
import pytest
import torch

pytest_plugins = ["pytester"]
DRAWS = """
import random
import numpy as np
import pytest
import torch

IMPORTED = torch.rand(()).item()

@pytest.fixture(scope="module")
def shared():
    return torch.rand(()).item()

def draws():
    return [random.random(), np.random.random(), torch.rand(()).item()]

def note(name, numbers):
    with open("drawn.txt", "a") as file:
        print(name, *numbers, file=file)

def test_one():
    note("one", [*draws(), IMPORTED])

def test_two(shared):
    note("two", [*draws(), shared])

def test_three(request):
    note("three", [*draws(), request.getfixturevalue("shared"), *draws()])
"""


@pytest.fixture
def drawn(pytester, request):
    """Run the three tests, or some of them, with this project's conftest; return what each has drawn."""
    pytester.makeconftest((request.config.rootpath / "tests" / "conftest.py").read_text())
    file = pytester.makepyfile(test_draws=DRAWS).parent / "drawn.txt"

    def run(*names):
        file.unlink(missing_ok=True)
        pytester.runpytest_inprocess(*(f"test_draws.py::test_{name}" for name in names)).assert_outcomes(
            passed=len(names)
        )
        return {name: numbers for name, *numbers in map(str.split, file.read_text().splitlines())}

    return run


def test_every_test_draws_the_same_alone_and_in_any_order(drawn):
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    try:
        every = drawn("one", "two", "three")
        assert drawn("three", "one", "two") == every
        assert {name: drawn(name)[name] for name in every} == every
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])  # noqa: NPY002
        torch.set_rng_state(states[2])
    assert every["two"][3] == every["three"][3]  # what they share
    assert len({numbers[i] for numbers in every.values() for i in range(3)}) == 9
    assert len(set(every["three"])) == 7


MANY = """
import pytest

@pytest.mark.one_in(3)
@pytest.mark.parametrize("dtype", "abc")
@pytest.mark.parametrize("name", "wxyz")
def test_many(name, dtype):
    pass
"""


@pytest.mark.parametrize(
    ("options", "ran"),
    [(["-m", "not full"], ["w-a", "x-b", "y-c", "z-a"]), ([], [f"{n}-{d}" for n in "wxyz" for d in "abc"])],
)
def test_one_in_three_parameters_runs_and_in_the_full_run_all(pytester, request, options, ran):
    root = request.config.rootpath
    pytester.makeconftest((root / "tests" / "conftest.py").read_text())
    pytester.makeini("[pytest]\nmarkers =\n    full\n    one_in(n)\n    gpu\n    forks\n    realdata")
    pytester.makepyfile(test_many=MANY)
    found = pytester.runpytest_inprocess("-v", *options)
    names = [line.split("[")[1].split("]")[0] for line in found.outlines if "PASSED" in line]
    assert names == ran
