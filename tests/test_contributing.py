"""The three steps of CONTRIBUTING.md, for everything that is there: a step that was missed fails here."""

import inspect
from pathlib import Path

import pytest
from activation_oracles import CASES, ELEMENTWISE

from lit_gelu import tasks
from lit_gelu.activations import functional
from lit_gelu.activations.families import ENTRIES
from lit_gelu.export.lowering.lowering_table import row_key

ROOT = Path(__file__).parents[1]
ACTIVATIONS = [entry.name for entry in ENTRIES if entry.preset is None]
GATED = sorted(set(ACTIVATIONS) - set(ELEMENTWISE))  # functions of two numbers, which have no f' and f''
WITHOUT_NODES = {"identity"}  # it leaves nothing in a graph
EXPECTATION_OF = {"zero_identity_map": "gelu"}  # random: its expectation has the oracle, its own tests the rest
TASKS = [
    name
    for name, member in vars(tasks).items()
    if inspect.isclass(member) and issubclass(member, tasks.ActivationTask) and not inspect.isabstract(member)
]


@pytest.mark.parametrize("name", [name for name in ACTIVATIONS if name in ELEMENTWISE])
def test_step_1_the_function_has_its_derivatives(name):
    (entry,) = (entry for entry in ENTRIES if entry.name == name)
    assert entry.derivative is not None


@pytest.mark.parametrize("name", GATED)
def test_a_gated_function_has_no_derivative_no_lowering_and_a_formula_of_its_own(name):
    """Torch decomposes it in an export; its test compares it with a formula and runs gradcheck on it."""
    (entry,) = (entry for entry in ENTRIES if entry.name == name)
    assert entry.derivative is None
    assert row_key(name, {}) is None
    assert f'"{name}"' in (ROOT / "tests" / "activations" / "families" / "test_gated.py").read_text()


@pytest.mark.parametrize("name", sorted(set(ACTIVATIONS) - WITHOUT_NODES - set(GATED)))
def test_step_2_every_activation_has_a_lowering(name):
    (entry,) = (entry for entry in ENTRIES if entry.name == name)
    arguments = {key: parameter.default for key, parameter in entry.parameters.items()}
    assert row_key(name, arguments) is not None


def test_steps_1_and_2_every_activation_is_exported_and_every_function_has_a_row():
    assert set(functional.__all__) - {"derivative"} == set(ACTIVATIONS)


@pytest.mark.parametrize("name", [name for name in ACTIVATIONS if name in ELEMENTWISE])
def test_step_3_every_activation_has_an_oracle_and_a_test_that_runs_it(name):
    assert EXPECTATION_OF.get(name, name) in {case.name for case in CASES}
    tests = (ROOT / "tests" / "activations" / "families" / "test_families.py").read_text()
    assert name in EXPECTATION_OF or f'"{name}"' in tests.partition("globals()")[0]


@pytest.mark.parametrize("name", TASKS)
def test_a_task_has_its_tests_and_a_configuration(name):
    module = inspect.getmodule(getattr(tasks, name)).__name__.rpartition(".")[2]
    assert (ROOT / "tests" / "tasks" / f"test_{module}.py").is_file()
    configurations = [path.read_text() for path in (ROOT / "examples").glob("*.yaml")]
    assert any(f"lit_gelu.tasks.{name}" in text for text in configurations)
