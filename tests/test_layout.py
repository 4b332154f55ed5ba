"""What the package's layout promises: each part loads what it needs and no more; no bare top-level names.

One interpreter goes from what needs least to what needs most, and says after each step what is loaded by then.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from child_processes import run_python

STEPS = """
import json, sys
steps = {}

def done(name):
    steps[name] = sorted({module.partition(".")[0] for module in sys.modules})

import lit_gelu
done("import lit_gelu")
parts = [name for name in sys.modules if name.startswith("lit_gelu.")]
from lit_gelu.cli.main import main
codes = [main(["--help"]), main(["--version"]), main(["nothing"])]
done("help and an unknown command")

import lit_gelu.activations.integrations
done("integrations")
for line in ("gelu --json", "relu gelu", "gelu", "compare gelu silu"):
    codes.append(main(["activations", *line.split()]))
done("lit-gelu activations")
from importlib.util import find_spec
bare = [name for name in ("callbacks", "export") if find_spec(name)]
tasks = [lit_gelu.tasks.__name__, "tasks" in dir(lit_gelu)]
with open("steps.json", "w") as file:
    json.dump({"loaded": steps, "parts": parts, "codes": codes, "bare": bare, "tasks": tasks}, file)
"""
LIBRARIES = {"diffusers", "keras", "timm", "transformers"}
TRAINING = {"lightning", "onnx", "onnxscript", "onnxruntime", "torchvision", "sklearn"}


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    folder = tmp_path_factory.mktemp("layout")
    run_python(STEPS, cwd=folder)
    return json.loads((folder / "steps.json").read_text())


@pytest.mark.parametrize(
    ("step", "absent"),
    [
        ("import lit_gelu", {"torch"} | TRAINING | LIBRARIES | {"matplotlib", "rich", "jsonargparse"}),
        ("help and an unknown command", {"torch"} | TRAINING | {"matplotlib", "rich"}),
        ("integrations", LIBRARIES),
        ("lit-gelu activations", TRAINING | {"matplotlib"}),
    ],
)
def test_what_is_not_loaded(record, step, absent):
    assert absent & set(record["loaded"][step]) == set()


def test_the_commands_did_their_work(record):
    assert record["codes"] == [0, 0, 2, 0, 0, 0, 0]
    assert "torch" in record["loaded"]["integrations"]


def test_parts_are_imported_when_first_used(record):
    assert "lit_gelu.tasks" not in record["parts"]
    assert record["tasks"] == ["lit_gelu.tasks", True]


def test_nothing_is_importable_under_a_bare_name(record):
    assert record["bare"] == []


def test_python_started_in_a_checkout_finds_the_folders_beside_the_package():
    # As behind `pip install .`: the checkout comes first on the path, and no finder of an editable install helps.
    root = Path(__file__).parent.parent
    script = """
import sys
sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in getattr(finder, "__module__", "")]
import lit_gelu.callbacks, lit_gelu.export
print(lit_gelu.__file__, lit_gelu.callbacks.__file__, lit_gelu.export.__file__, sep="\\n")
"""
    places = subprocess.run(
        [sys.executable, "-c", script], cwd=root, check=True, capture_output=True, text=True, timeout=600
    ).stdout.split()
    assert places == [str(root / folder / "__init__.py") for folder in ("lit_gelu", "callbacks", "export")]
