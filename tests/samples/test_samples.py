"""Files that earlier code wrote are read as they were meant then. `make.py` wrote them."""

import csv
import json
import shutil
import subprocess
import sys
import warnings
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from lit_gelu import activations
from lit_gelu.callbacks import ActivationCurvatureMonitor, load_from_checkpoint
from lit_gelu.export import OnnxPredictor, check_parity
from lit_gelu.export.runtime.tuning_file import choices_beside
from lit_gelu.tasks import CIFAR10ConvNet

# The newest Lightning of its time wrote the checkpoints; the oldest that is supported reads them too, and says so.
pytestmark = pytest.mark.filterwarnings("ignore:The loaded checkpoint was produced with Lightning")
HERE = Path(__file__).parent
SETS = sorted(path.parent for path in HERE.glob("*/said.json"))
NETS = ["plain", "swapped"]
HEAT_MAP = [1, 3, 5, 7]  # steps of its columns: those that the checkpoint holds, and what came after


def loaded_script():
    """Return `make.py` as a module."""
    import importlib.util

    spec = importlib.util.spec_from_file_location("make_samples", HERE / "make.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


make = loaded_script()


@pytest.fixture(params=SETS, ids=lambda path: path.name)
def kept(request, tmp_path):
    """A copy of a set, and what the code that wrote it said of it."""
    folder = tmp_path / "set"
    shutil.copytree(request.param, folder)
    return folder, json.loads((folder / "said.json").read_text())


def test_there_are_samples():
    assert SETS
    for folder in SETS:
        assert {path.name for path in folder.iterdir()} >= {
            *(f"{net}.{end}" for net in NETS for end in ("ckpt", "onnx", "parity.json")),
            "plain.onnx.tuning.json",
        }


def test_specs(kept):
    _, said = kept
    assert {text: str(activations.spec_of(activations.create(text))) for text in said["specs"]} == said["specs"]


@pytest.mark.parametrize("net", NETS)
def test_a_checkpoint_gives_the_same_model(kept, net):
    folder, said = kept
    model = load_from_checkpoint(CIFAR10ConvNet, folder / f"{net}.ckpt", map_location="cpu").eval()
    with torch.no_grad():
        torch.testing.assert_close(model(make.images()), torch.tensor(said[net]["output"]), rtol=1e-4, atol=1e-5)


def test_training_goes_on_from_a_checkpoint_of_every_callback(kept):
    folder, _ = kept
    ours = make.callbacks()
    stored = torch.load(folder / "swapped.ckpt", map_location="cpu", weights_only=True)["callbacks"]
    assert {each.state_key for each in ours} <= stored.keys()  # Lightning only warns of a state that nobody asks for
    runner = make.trainer(folder, ours, max_steps=8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        runner.fit(CIFAR10ConvNet("gelu", channels=(4, 6), epochs=2), make.batches(), ckpt_path=folder / "swapped.ckpt")
    assert runner.global_step == 8
    (monitor,) = (each for each in ours if isinstance(each, ActivationCurvatureMonitor))
    assert monitor.heat_maps.table("curvature")[0] == HEAT_MAP
    names = {str(activations.spec_of(module)) for module in runner.model.modules() if _is_activation(module)}
    assert names == {"swish(beta=1.25)"}


def _is_activation(module):
    return str(activations.spec_of(module)) in {"gelu", "swish(beta=1.25)"}


def test_the_monitors_log_what_they_logged(kept):
    folder, said = kept
    runner = make.trainer(folder, make.callbacks())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        runner.fit(CIFAR10ConvNet("gelu", channels=(4, 6), epochs=2), make.batches())
    with (folder / "logs" / "metrics.csv").open() as rows:
        assert set(said["logged"]) <= set(next(csv.reader(rows)))


@pytest.mark.parametrize("net", NETS)
def test_a_file_gives_the_same_figures(kept, net):
    folder, said = kept
    predictor = OnnxPredictor(folder / f"{net}.onnx", providers=["CPUExecutionProvider"])
    file = torch.as_tensor(predictor(make.images()))
    torch.testing.assert_close(file, torch.tensor(said[net]["file"]), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("net", NETS)
def test_a_file_is_proved_by_the_facts_that_it_carries(kept, net):
    folder, _ = kept
    model = load_from_checkpoint(CIFAR10ConvNet, folder / f"{net}.ckpt", map_location="cpu").eval()
    report = check_parity(model, folder / f"{net}.onnx", make.images(), providers=["CPUExecutionProvider"])
    then = json.loads((folder / f"{net}.parity.json").read_text())
    assert report.passed
    assert then.keys() <= json.loads(report.to_json()).keys()


def test_a_tuning_file_is_read(kept):
    """Whatever machine it was made on: what is kept for another one is not used, and is no error."""
    folder, _ = kept
    (choice,) = choices_beside(folder / "plain.onnx")
    (entry,) = json.loads((folder / "plain.onnx.tuning.json").read_text())["choices"]
    assert json.loads(json.dumps(asdict(choice))) == entry
    OnnxPredictor(folder / "plain.onnx", providers=["CPUExecutionProvider"])


@pytest.mark.full
def test_the_command_writes_what_it_wrote(kept):
    folder, said = kept
    subprocess.run([sys.executable, "-P", "-m", "lit_gelu", "curvature", *make.CURVATURE], cwd=folder, check=True)
    then, now = said["curvature"], json.loads((folder / "curvature.json").read_text())
    for key in then["json"]:
        assert key in now
        if isinstance(then["json"][key], dict):
            assert then["json"][key].keys() <= now[key].keys()
    with (folder / "curvature.csv").open() as rows:
        columns = list(csv.reader(rows))
    assert columns[0] == then["csv"][0]
    assert {tuple(row[:3]) for row in then["csv"]} <= {tuple(row[:3]) for row in columns}
