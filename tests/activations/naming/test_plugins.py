"""Activations of installed distributions."""

import sys
import textwrap

import pytest
from child_processes import run_command

GOOD = """
import torch


def bent(x, amount=0.5):
    return x + amount * (torch.sqrt(x * x + 1) - 1)
"""

DECORATED = """
import torch
import lit_gelu

assert lit_gelu.activations.create("gelu") is not None  # a plugin may look names up while it loads


@lit_gelu.activations.register("isru", aliases=("inverse_square_root",))
class ISRU(torch.nn.Module):
    def __init__(self, alpha: float = 1.0):
        super().__init__()
        self.alpha = alpha

    def forward(self, x):
        return x / torch.sqrt(1 + self.alpha * x * x)
"""


def _install(folder, distribution, code, entry_points):
    """Lay out a distribution as pip would: the module, its metadata, its entry points."""
    module = distribution.replace("-", "_")
    (folder / f"{module}.py").write_text(code)
    info = folder / f"{module}-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.2\n")
    lines = [f"{name} = {value}" for name, value in entry_points.items()]
    (info / "entry_points.txt").write_text("\n".join(["[lit_gelu.activations]", *lines, ""]))


@pytest.fixture
def site(tmp_path):
    _install(tmp_path, "bent-acts", GOOD, {"bent": "bent_acts:bent"})
    _install(tmp_path, "decorated-acts", DECORATED, {"decorated": "decorated_acts"})
    return tmp_path


def _run(site, code, **environment):
    command = [sys.executable, "-P", "-W", "always", "-c", textwrap.dedent(code)]
    result = run_command(command, env={"PYTHONPATH": str(site), "PATH": "", "OMP_NUM_THREADS": "1", **environment})
    return result.stdout.strip().splitlines(), result.stderr


@pytest.mark.full
def test_a_plugin_registers_a_function_and_a_class(site):
    output, errors = _run(
        site,
        """
        import sys, lit_gelu as lg
        print("bent_acts" in sys.modules)
        print(lg.activations.spec_of(lg.activations.create("bent(amount=1.0)")))
        print(lg.activations.create("inverse_square_root(alpha=2)").alpha)
        print(lg.activations.info("bent").registered_by)
        print(lg.activations.info("isru").registered_by)
        print("bent" in lg.activations.ActivationRegistry())
        """,
    )
    assert output == [
        "False",  # plugins are loaded at the first look-up
        "bent(amount=1.0)",
        "2",
        "plugin bent-acts 1.2 (bent_acts:bent)",
        "plugin decorated-acts 1.2 (decorated_acts)",
        "False",
    ]
    assert "could not be loaded" not in errors


@pytest.mark.full
def test_one_broken_plugin_warns_and_the_rest_work(site):
    _install(site, "broken-acts", "raise RuntimeError('no licence file')", {"a_broken": "broken_acts:thing"})
    _install(site, "greedy-acts", "def gelu(x): return x", {"gelu": "greedy_acts:gelu"})
    _install(site, "absent-acts", "", {"absent": "absent_acts:no_such_name"})
    output, errors = _run(
        site,
        """
        import torch, lit_gelu as lg
        print("bent" in lg.activations.list_activations(), lg.activations.create("gelu"))
        """,
    )
    assert output == ["True GELU(approximate='none')"]
    assert "'a_broken' of plugin broken-acts 1.2" in errors
    assert "no licence file" in errors
    assert "'gelu' of plugin greedy-acts 1.2" in errors
    assert "is registered already, by lit-gelu" in errors
    assert "absent_acts" in errors
    assert "LIT_GELU_PLUGINS=0" in errors


@pytest.mark.parametrize("value", ["0", pytest.param("off", marks=pytest.mark.full)])
def test_the_environment_switch_turns_discovery_off(site, value):
    output, _ = _run(
        site,
        """
        import sys, lit_gelu as lg
        print("bent" in lg.activations.list_activations(), "bent_acts" in sys.modules)
        """,
        LIT_GELU_PLUGINS=value,
    )
    assert output == ["False False"]
