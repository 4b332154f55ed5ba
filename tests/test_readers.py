"""ReaderContract: whatever a file holds, a reader reads it or refuses it in an error of this package, and runs nothing.

Three kinds of bad file, given to each reader: one that names programs (each would leave a marker if it were imported or
called), one that is damaged, and one of another kind.
"""

import ast
import copy
import io
import json
import os
import random
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from cifar_arrays import random_arrays
from lightning.pytorch import LightningModule
from small_task import SmallData, quiet_trainer
from torch import nn

import lit_gelu as lg
from lit_gelu import callbacks
from lit_gelu.callbacks import ActivationSwap, ExactResume
from lit_gelu.cli.main import main
from lit_gelu.data.cifar_files import read_arrays_file
from lit_gelu.data.npz import load_arrays
from lit_gelu.data.tweets import read_tweets
from lit_gelu.errors import LitGeluError
from lit_gelu.export import OnnxPredictor, check_parity, export_onnx
from lit_gelu.export.inspection import inspect_onnx
from lit_gelu.export.serving import write_triton_repository
from lit_gelu.tasks import MNISTClassifier

pytestmark = pytest.mark.filterwarnings("ignore:.*:UserWarning")
ROOT = Path(__file__).parents[1]
MODULE = "module_that_a_file_names"
THING = f"{MODULE}.Thing"
CLASS = "lit_gelu.tasks.MNISTClassifier"
INSTANTIATOR = "lightning.pytorch.cli.instantiate_module"
SITE = "hidden.0.activation"
DEEP = "[" * 100_000
LONGEST_MESSAGE = 4000  # characters


class Runs:
    """What pickle would build by a call."""

    def __reduce__(self):
        return open, ("ran", "w")


class UsersOwn(LightningModule):
    """Builds its activation from its hyper-parameters, as Lightning's docs show."""

    def __init__(self, activation="relu", **others):
        super().__init__()
        self.save_hyperparameters()
        self.hidden = nn.Sequential(nn.Sequential())
        self.hidden[0].linear = nn.Linear(784, 128)
        self.hidden[0].activation = lg.activations.create(activation)
        self.output = nn.Linear(128, 10)
        self.example_input_array = torch.zeros(2, 1, 28, 28)

    def forward(self, images):
        return self.output(self.hidden[0].activation(self.hidden[0].linear(images.flatten(1))))


# --- Files that name programs ---


def _swaps(site, new):
    record = {"epoch": 0, "step": 0, "logged_step": 0, "order": 0, "sites": {site: {"old": "relu", "new": new}}}
    return {"lit_gelu_activation_swaps": [{"state_key": "ActivationSwap{}", "record": record}]}


# From a name to what is put into the hyper-parameters, and at the top level.
CHECKPOINTS = {
    "activation calls sympy.lambdify": ({"activation": "sympy.lambdify(expr=\"open('ran', 'w')\")"}, {}),
    "activation is imported": ({"activation": THING}, {}),
    "activation is a class path": ({"activation": {"class_path": THING}}, {}),
    "activation in letters that look alike": ({"activation": f"{MODULE}\uff0eThing"}, {}),
    "class path": ({"_class_path": THING}, {}),
    "instantiator": ({"_class_path": CLASS, "_instantiator": f"{MODULE}.run"}, {}),
    "activation is YAML in disguise": (
        {"_class_path": CLASS, "_instantiator": INSTANTIATOR, "activation": '{"class\\u005fpath": "' + THING + '"}'},
        {},
    ),
    "arguments of an old release": ({}, {"hparams": {"activation": THING}, "hyper_parameters": {}}),
    "record": ({}, {"lit_gelu_activations": {SITE: THING}}),
    "record whose site is a class": ({}, {"lit_gelu_activations": {f"class:{THING}": "gelu"}}),
    "swap": ({}, _swaps(SITE, THING)),
    "pickle": ({}, {"extra": Runs()}),
    "pickle in the arguments": ({"activation": Runs()}, {}),
}


def _sites(**changes):
    return lambda entries: json.dumps([{**row, **changes} for row in json.loads(entries["lit_gelu.sites"])])


# From the metadata of a good file to what takes the place of some of its entries.
ONNX_FILES = {
    "spec is imported": {"lit_gelu.sites": _sites(spec=THING)},
    "spec looks alike": {"lit_gelu.sites": _sites(spec="g\u0435lu")},
    "recipe is code": {"lit_gelu.sites": _sites(recipe=f"__import__({MODULE!r})")},
    "sites are nested": {"lit_gelu.sites": lambda _: DEEP},
    "model class": {"lit_gelu.model_class": lambda _: THING},
    "labels lead out of the folder": {"lit_gelu.labels": lambda _: json.dumps(["../../ran\n", "a\u2028b", "\0"])},
    "quantised": {"lit_gelu.dtype": lambda _: "int8", "lit_gelu_int8": lambda _: DEEP},
}


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """The bytes of good files by kind."""
    folder = tmp_path_factory.mktemp("good")
    torch.manual_seed(0)
    model = MNISTClassifier("relu", hidden_layers=1)
    trainer = quiet_trainer(max_epochs=1, callbacks=[ActivationSwap({"activation:relu": "gelu"}, at_epoch=0)])
    trainer.fit(model, datamodule=SmallData())
    trainer.save_checkpoint(folder / "good.ckpt")
    export_onnx(model, folder / "good.onnx", labels=[str(digit) for digit in range(10)])
    arrays, images = io.BytesIO(), io.BytesIO()
    np.savez(arrays, numbers=np.arange(4), fractions=np.ones((2, 3), np.float32))
    np.savez_compressed(images, **random_arrays(2, 2, 3))
    return {
        "ckpt": (folder / "good.ckpt").read_bytes(),
        "onnx": (folder / "good.onnx").read_bytes(),
        "npz": arrays.getvalue(),
        "images.npz": images.getvalue(),
        "tweets": b"lol\t!\nhello\tN\n\n",
    }


def _resume(path):
    swap = ActivationSwap({"activation:relu": "gelu"}, at_epoch=0)
    trainer = quiet_trainer(max_epochs=2, callbacks=[swap, ExactResume()])
    trainer.fit(MNISTClassifier("relu", hidden_layers=1), datamodule=SmallData(), ckpt_path=path)


def _command(*words):
    """Return a reader that runs a command, which ends with 0, or with 2 and one message."""

    def read(path):
        code = main([str(path) if word == "FILE" else word for word in words])
        assert code in {0, 2}
        if code:
            raise LitGeluError("said on the screen")

    return read


def _parity(path):
    torch.manual_seed(0)
    check_parity(MNISTClassifier("gelu", hidden_layers=1), path, strict=False)


# From a reader to the kind of file, and the call.
READERS = {
    "MNISTClassifier.load_from_checkpoint": ("ckpt", MNISTClassifier.load_from_checkpoint),
    "load_from_checkpoint of a user's own": (
        "ckpt",
        lambda path: callbacks.load_from_checkpoint(UsersOwn, path, strict=False),
    ),
    "Trainer.fit with ActivationSwap and ExactResume": ("ckpt", _resume),
    "lit-gelu export": ("ckpt", _command("export", "FILE", "--no-check")),
    "OnnxPredictor": ("onnx", OnnxPredictor),
    "inspect_onnx": ("onnx", inspect_onnx),
    "check_parity": ("onnx", _parity),
    "Triton": ("onnx", lambda path: write_triton_repository(path, path.with_name("repository"), device="cpu")),
    "lit-gelu inspect": ("onnx", _command("inspect", "FILE")),
    "arrays": ("npz", load_arrays),
    "images": ("images.npz", lambda path: read_arrays_file(path, 3)),
    "tweets": ("tweets", read_tweets),
}
NAMES_PROGRAMS = {"ckpt": CHECKPOINTS, "onnx": ONNX_FILES}
OF_LIGHTNING = "Trainer.fit with ActivationSwap and ExactResume"  # it opens the file itself, and says so its own way


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty folder to run in, with the module that nobody may import and its marker."""
    (tmp_path / f"{MODULE}.py").write_text(
        "open('ran', 'w').close()\nfrom lightning.pytorch import LightningModule\n"
        "class Thing(LightningModule):\n    def __init__(self, *args, **kwargs):\n        super().__init__()\n"
        "def run(*args, **kwargs):\n    return args\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop(MODULE, None)


def refusal(reader, path):
    """Return what a reader says of a file, empty if it reads it; assert the contract."""
    try:
        READERS[reader][1](path)
    except LitGeluError as error:
        text = str(error)
        assert 10 < len(text) < LONGEST_MESSAGE
        assert "weights_only" not in text  # torch advises to turn that off
    except Exception as error:
        if reader != OF_LIGHTNING:
            raise
        text = type(error).__name__
    else:
        text = ""
    assert not (path.parent / "ran").exists()
    assert MODULE not in sys.modules
    return text


def write(folder, kind, content):
    path = folder / f"file.{kind}"
    path.write_bytes(content)
    return path


def naming_programs(good, kind, name):
    """Return a good file with one of the entries above in it."""
    file = io.BytesIO()
    if kind == "ckpt":
        checkpoint = torch.load(io.BytesIO(good["ckpt"]), weights_only=True)
        arguments, top = CHECKPOINTS[name]
        checkpoint = copy.deepcopy(checkpoint)
        checkpoint["hyper_parameters"] |= arguments
        torch.save(checkpoint | top, file)
        return file.getvalue()
    proto = onnx.load_from_string(good["onnx"])
    entries = {entry.key: entry.value for entry in proto.metadata_props}
    entries |= {key: make(entries) for key, make in ONNX_FILES[name].items()}
    del proto.metadata_props[:]
    onnx.helper.set_model_props(proto, entries)
    return proto.SerializeToString()


@pytest.mark.parametrize("reader", READERS)
def test_a_good_file_is_read(reader, good, folder):
    """So that the refusals below are for what was put in."""
    kind = READERS[reader][0]
    assert refusal(reader, write(folder, kind, good[kind])) == ""


SLOW = {OF_LIGHTNING, "lit-gelu export", "lit-gelu inspect"}


@pytest.mark.parametrize(
    ("reader", "name"),
    [
        pytest.param(reader, name, marks=[pytest.mark.full] if reader in SLOW and number % 4 else [])
        for reader, (kind, _) in READERS.items()
        for number, name in enumerate(NAMES_PROGRAMS.get(kind, ()))
    ],
)
def test_nothing_that_a_file_names_runs(reader, name, good, folder):
    kind = READERS[reader][0]
    text = refusal(reader, write(folder, kind, naming_programs(good, kind, name)))
    if reader == "MNISTClassifier.load_from_checkpoint" and name.startswith("activation "):
        assert text  # refused, and not passed over


def damaged(content, seed):
    """Return a file's content with a stretch changed, cut off, taken out or put in."""
    draw = random.Random(seed)
    start = draw.randrange(len(content))
    added, removed = draw.randbytes(draw.randrange(9)), draw.choice([0, 1, 8, 100, len(content)])
    return content[:start] + added + content[start + removed :]


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(
    "seeds", [range(12), pytest.param(range(12, 500), marks=pytest.mark.full)], ids=["few", "many"]
)
def test_a_damaged_file_is_read_or_refused(reader, seeds, good, folder):
    kind = READERS[reader][0]
    for seed in seeds[:3] if reader in SLOW and len(seeds) < 20 else seeds:
        refusal(reader, write(folder, kind, damaged(good[kind], seed)))


OTHERS = {
    "empty": b"",
    "zeros": bytes(1000),
    "no UTF-8": b"\xff\xfe\x00key",
    "nested": DEEP.encode(),
    "a picture": b"\x89PNG\r\n\x1a\n" + bytes(40),
}


@pytest.mark.parametrize("reader", READERS)
def test_a_file_of_another_kind_is_refused(reader, good, folder):
    kind = READERS[reader][0]
    others = OTHERS | {name: content for name, content in good.items() if name in {"ckpt", "onnx"} - {kind}}
    if reader == "arrays":
        del others["ckpt"]  # an archive without arrays, as both are
    for name, content in others.items():
        text = refusal(reader, write(folder, kind, content))
        assert text or kind == "tweets", name  # of which any text is a file
    with pytest.raises((LitGeluError, OSError)):
        READERS[reader][1](folder / "missing" / f"file.{kind}")


@pytest.mark.parametrize("layers", [10**9, 90_000])
@pytest.mark.parametrize("reader", ["MNISTClassifier.load_from_checkpoint", "lit-gelu export", "lit-gelu test"])
def test_layers_that_a_checkpoint_has_no_weights_for_are_not_built(reader, layers, good, folder, monkeypatch):
    built = []
    monkeypatch.setattr(nn.Linear, "reset_parameters", lambda self: built.append(self))
    checkpoint = torch.load(io.BytesIO(good["ckpt"]), weights_only=True)
    checkpoint["hyper_parameters"] |= {"_class_path": CLASS, "_instantiator": INSTANTIATOR, "hidden_layers": layers}
    torch.save(checkpoint, folder / "file.ckpt")
    monkeypatch.setitem(READERS, "lit-gelu test", ("ckpt", _command("test", "--ckpt_path", "FILE")))
    assert refusal(reader, folder / "file.ckpt")
    assert len(built) < 1000


@pytest.mark.parametrize("reader", [reader for reader in READERS if reader != OF_LIGHTNING])
def test_a_pipe_is_refused_and_not_waited_for(reader, folder):
    os.mkfifo(folder / "pipe")
    with pytest.raises((LitGeluError, OSError)):
        READERS[reader][1](folder / "pipe")


# --- The source ---

SOURCES = {
    path.relative_to(ROOT).as_posix(): ast.parse(path.read_text(encoding="utf-8"))
    for folder in ("lit_gelu", "callbacks", "export")
    for path in sorted((ROOT / folder).rglob("*.py"))
}
UNSAFE = {"pickle.load", "pickle.loads", "joblib.load", "dill.load", "yaml.load", "yaml.unsafe_load", "yaml.full_load"}


def test_torch_and_numpy_read_plain_data_only():
    for file, tree in SOURCES.items():
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call):
                continue
            name, options = ast.unparse(node.func), {each.arg: ast.unparse(each.value) for each in node.keywords}
            if name in {"torch.load", "load_from_anywhere"} or name.endswith(".load_checkpoint"):
                assert options["weights_only"] == "True", f"{file}:{node.lineno}"
            if name in {"np.load", "numpy.load"}:
                assert options["allow_pickle"] == "False", f"{file}:{node.lineno}"
            assert name not in UNSAFE, f"{file}:{node.lineno}"


def test_what_imports_by_name_is_asked_by_names_and_by_selectors_of_code_alone():
    askers = {
        file
        for file, tree in SOURCES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        and "lit_gelu.activations.naming.importing" in f"{node.module}.{node.names[0].name}"
    }
    names = {f"lit_gelu/activations/{file}.py" for file in ("__init__", "naming/names")}
    assert askers == {*names, "lit_gelu/surgery/swap.py"}
