"""Libraries of extras: what asks for them, what is said where they are missing, and what goes on without them."""

import ast
import sys
import tomllib
from pathlib import Path

import pytest
from callback_helpers import SmallNet, collected_warnings, loader, quiet_trainer
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from lit_gelu.callbacks import LossCurvatureMonitor
from lit_gelu.cli.main import main

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
DISTRIBUTIONS = {  # by the name that is imported
    "ai_edge_litert.interpreter": "ai-edge-litert",
    "executorch": "executorch",
    "executorch.exir._serialize._program": "executorch",
    "executorch.runtime": "executorch",
    "ncnn": "ncnn",
    "openvino": "openvino",
    "flatbuffers": "ai-edge-litert",  # which brings it
    "matplotlib": "matplotlib",
    "open_clip": "open-clip-torch",
    "sentence_transformers": "sentence-transformers",
    "timm": "timm",
    "timm.layers.create_act": "timm",
    "transformers": "transformers",
    "transformers.activations": "transformers",
    "transformers.modeling_utils": "transformers",
    "sklearn": "scikit-learn",
    "soundfile": "soundfile",
    "tensorboard": "tensorboard",
}
SOURCES = [path for folder in ("lit_gelu", "callbacks", "export") for path in sorted((ROOT / folder).rglob("*.py"))]


def brought_by(extra):
    """The distributions of an extra, those of extras that it names included."""
    names = set()
    for requirement in map(Requirement, EXTRAS[extra]):
        nested = requirement.name == PROJECT["name"]
        names |= set().union(*map(brought_by, requirement.extras)) if nested else {canonicalize_name(requirement.name)}
    return names


def calls_of_need(tree):
    """Yield a call's library and extra, as far as they are literals."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "need":
            extra = next(keyword.value.value for keyword in node.keywords if keyword.arg == "extra")
            yield getattr(node.args[0], "value", None), extra


@pytest.fixture(scope="module")
def trees():
    return {path.relative_to(ROOT).as_posix(): ast.parse(path.read_text(encoding="utf-8")) for path in SOURCES}


def test_every_call_names_an_extra_that_brings_the_library(trees):
    calls = [(path, *call) for path, tree in trees.items() for call in calls_of_need(tree)]
    assert {library for _, library, _ in calls} >= {"matplotlib", "sklearn", "soundfile"}
    wrong = [call for call in calls if call[1] and DISTRIBUTIONS[call[1]] not in brought_by(call[2])]
    assert wrong == []


@pytest.mark.parametrize(
    ("library", "extra", "line"),
    [
        ("matplotlib", "plots", "activations plot gelu -o gelu.png"),
        ("matplotlib", "plots", "curvature last.ckpt --data DigitsData --figure all.png"),
        ("sklearn", "demo", "demo"),
    ],
    ids=lambda value: value.split(" -")[0],
)
def test_a_command_without_its_library(tmp_path, monkeypatch, capsys, library, extra, line):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, library, None)
    (tmp_path / "last.ckpt").touch()
    assert main(line.split()) == 2
    message = capsys.readouterr().err
    assert f"pip install 'lit-gelu[{extra}]'" in message
    assert "Traceback" not in message
    assert [path.name for path in tmp_path.iterdir()] == ["last.ckpt"]


def test_a_monitor_without_matplotlib_logs_figures_and_says_what_is_left_out(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monitor = LossCurvatureMonitor("spectral_density", at_steps=[1], fraction=None)
    with collected_warnings("pip install 'lit-gelu[plots]'") as messages:
        quiet_trainer(tmp_path, monitor, max_epochs=1).fit(SmallNet(), loader())
    assert len(messages) == 1
    assert monitor.latest["spectrum_largest_node"] > 0
    assert not list(tmp_path.glob("**/*.png"))
