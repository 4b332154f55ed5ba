"""ONNX files, files of tuning, other libraries' configurations that name programs."""

import json
import re
import sys
from contextlib import suppress

import onnx
import pytest
import torch
from hostile_files import MODULE, THING, nothing_ran, write_module
from torch import nn

from lit_gelu import activations
from lit_gelu.cli.main import main
from lit_gelu.errors import LitGeluError
from lit_gelu.export import ModelFileError, OnnxPredictor, check_parity, export_onnx
from lit_gelu.export.inspection import inspect_onnx
from lit_gelu.export.runtime.tuning_file import TuningChoice, digest, this_key, tuning_path, write_choice
from lit_gelu.export.serving import write_triton_repository
from lit_gelu.tasks import MNISTClassifier

DEEP = "[" * 100_000


def sites(**changes):
    return lambda found: json.dumps([{**row, **changes} for row in json.loads(found["lit_gelu.sites"])])


# From the metadata of a good file to what takes the place of some of its entries.
METADATA = {
    "spec is imported": {"lit_gelu.sites": sites(spec=THING)},
    "spec calls": {"lit_gelu.sites": sites(spec="torch.save(f='ran')")},
    "spec is a class path": {"lit_gelu.sites": sites(spec={"class_path": THING})},
    "spec looks alike": {"lit_gelu.sites": sites(spec="g\u0435lu")},
    "site is a class": {"lit_gelu.sites": sites(site=f"class:{THING}")},
    "recipe is code": {"lit_gelu.sites": sites(recipe=f"__import__({MODULE!r})")},
    "row is code": {"lit_gelu.sites": sites(row=THING, operators=[THING])},
    "calls are a text": {"lit_gelu.sites": sites(calls="1")},
    "sites are nested": {"lit_gelu.sites": lambda _: DEEP},
    "model class": {"lit_gelu.model_class": lambda _: THING},
    "preprocessing": {"lit_gelu.preprocessing": lambda _: THING},
    "labels are numbers": {"lit_gelu.labels": lambda _: "[1, 2]"},
    "labels are a class path": {"lit_gelu.labels": lambda _: json.dumps([{"class_path": THING}])},
    "labels lead out of the folder": {"lit_gelu.labels": lambda _: json.dumps(["../../ran\n", "a\u2028b", "\0"])},
    "labels are a text": {"lit_gelu.labels": lambda _: json.dumps(THING)},
    "notes are nested": {"lit_gelu.notes": lambda _: DEEP},
    "versions are a list": {"lit_gelu.versions": lambda _: "[]"},
    "parity is a text": {"lit_gelu.parity": lambda _: '"passed"'},
    "opset is a text": {"lit_gelu.opset": lambda _: '"20"'},
    "softmax is a number": {"lit_gelu.softmax": lambda _: "1"},
    "an unknown entry": {"lit_gelu.registry": lambda _: THING},
    "of another format": {"lit_gelu.format": lambda _: THING},
    "quantised": {"lit_gelu.dtype": lambda _: "int8", "lit_gelu_int8": lambda _: DEEP},
}
READERS = {
    "OnnxPredictor": lambda path, folder: OnnxPredictor(path),
    "inspect": lambda path, folder: inspect_onnx(path),
    "check_parity": lambda path, folder: check_parity(model(), path, strict=False),
    "triton": lambda path, folder: write_triton_repository(path, folder / "repository", device="cpu"),
}
COMMANDS = {
    "parity": ["parity", "bad.onnx", "--ckpt", "bad.ckpt"],
    "bench": ["bench", "bad.onnx", "--seconds", "0.1", "--no-compile", "--batch-sizes", "1"],
    "inspect": ["inspect", "bad.onnx"],
    "triton": ["triton", "bad.onnx", "repository", "--device", "cpu"],
}


def model():
    torch.manual_seed(0)
    return MNISTClassifier("gelu", hidden_layers=1)


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """A file with labels, as bytes."""
    path = tmp_path_factory.mktemp("good") / "good.onnx"
    export_onnx(model(), path, labels=[str(digit) for digit in range(10)])
    return path.read_bytes()


@pytest.fixture
def marker(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield write_module(tmp_path)
    sys.modules.pop(MODULE, None)


def refusal(read, *arguments):
    """Return what a reader says of a file; empty if it reads it."""
    try:
        read(*arguments)
    except (LitGeluError, UserWarning) as error:
        return str(error)
    return ""


def write_file(good, name, path):
    proto = onnx.load_from_string(good)
    found = {entry.key: entry.value for entry in proto.metadata_props}
    found |= {key: make(found) for key, make in METADATA[name].items()}
    del proto.metadata_props[:]
    onnx.helper.set_model_props(proto, found)
    proto.doc_string = proto.graph.doc_string = proto.graph.node[0].doc_string = f"{{class_path: {THING}}}"
    onnx.save(proto, path)
    return path


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("name", METADATA)
def test_nothing_that_an_onnx_file_names_runs(name, reader, good, marker, tmp_path):
    path = write_file(good, name, tmp_path / "bad.onnx")
    before = sorted(tmp_path.iterdir())
    error = refusal(READERS[reader], path, tmp_path)
    assert len(error) < 2000
    assert not error or sorted(tmp_path.iterdir()) == before
    assert nothing_ran(marker)


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    "name", ["spec is imported", "spec calls", "labels are numbers", "sites are nested", "quantised"]
)
def test_commands_say_what_is_wrong_with_an_onnx_file(name, command, good, marker, tmp_path, capsys):
    write_file(good, name, tmp_path / "bad.onnx")
    checkpoint = {"state_dict": model().state_dict(), "pytorch-lightning_version": "2.6.0", "epoch": 0}
    torch.save(checkpoint | {"hyper_parameters": {"hidden_layers": 1, "activation": "gelu"}}, tmp_path / "bad.ckpt")
    code = main(COMMANDS[command])
    error = capsys.readouterr().err
    if (command, name) in {
        ("parity", "spec is imported"),
        ("parity", "sites are nested"),
        ("triton", "labels are numbers"),
    }:
        assert code == 2
        assert re.search(r"lit_gelu(\.sites|\.labels|_int8)", error)
    assert code in {0, 2}
    assert "Traceback" not in error
    assert nothing_ran(marker)


@pytest.mark.parametrize("name", ["spec is imported", "spec calls", "spec is a class path", "spec looks alike"])
def test_a_spec_that_is_none_is_named(name, good, marker, tmp_path):
    with pytest.raises(ModelFileError, match=r"lit_gelu\.sites"):
        check_parity(model(), write_file(good, name, tmp_path / "bad.onnx"))


def test_the_modules_own_activation_is_compared_before_the_files_text_is_looked_at(tmp_path):
    """A name that is not registered here, of a file whose module has its own activation at that site."""
    with activations.registry.scope():
        activations.register("my_cube")(lambda x: x**3)
        net = nn.Sequential(nn.Linear(3, 3), activations.create("my_cube")).eval()
        export_onnx(net, tmp_path / "net.onnx", torch.zeros(1, 3))
    assert check_parity(net, tmp_path / "net.onnx", input_sample=torch.randn(2, 3), strict=False).rows


TUNING = {
    "class path": {"class_path": THING},
    "library of operators": {"session.register_custom_ops_library": THING},
    "profile": {"enable_profiling": True, "profile_file_prefix": "ran"},
    "optimised model": {"optimized_model_filepath": "ran"},
}


@pytest.mark.parametrize("name", TUNING)
def test_nothing_that_a_file_of_tuning_names_runs(name, good, marker, tmp_path):
    path = tmp_path / "good.onnx"
    path.write_bytes(good)
    key = this_key("CPUExecutionProvider", torch.device("cpu"))
    write_choice(path, TuningChoice(key, TUNING[name], 0.5, 0.0, 1.0, 1))
    assert json.loads(tuning_path(path).read_text())["model_sha256"] == digest(path)
    for read in (OnnxPredictor, lambda file: write_triton_repository(file, tmp_path / "repository", device="cpu")):
        assert "tune" in refusal(read, path)
    assert nothing_ran(marker)


NAMES = [
    THING,
    f"{THING}()",
    f"opaque:{THING}",
    "torch.save(f='ran')",
    "builtins.open(file='ran', mode='w')",
    f"gelu_new.{THING}",
    f"{MODULE}\uff0eThing",
    f"{MODULE}\u2024Thing",
    "{class_path: " + THING + "}",
    f"gelu(approximate={THING})",
    {"class_path": THING},
    {"name": "gelu", "approximate": {"class_path": THING}},
]


@pytest.mark.parametrize("name", NAMES, ids=str)
def test_nothing_that_a_configuration_of_transformers_names_runs(name, marker, tmp_path):
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
    config = {"model_type": "bert", "vocab_size": 20, "hidden_act": name, **sizes}
    (tmp_path / "config.json").write_text(json.dumps(config))
    # transformers refuses what is no text since some release, and before it keeps it without calling it.
    expected = pytest.raises((LitGeluError, KeyError)) if isinstance(name, str) else suppress(Exception)
    with activations.install("transformers"), expected:
        transformers.BertModel(transformers.BertConfig.from_pretrained(tmp_path))
    assert nothing_ran(marker)


@pytest.mark.parametrize("name", [name for name in NAMES if isinstance(name, str)])
def test_nothing_that_a_configuration_of_timm_names_runs(name, marker):
    timm = pytest.importorskip("timm")
    with activations.install("timm"):
        for look_up in (timm.layers.get_act_layer, timm.layers.get_act_fn):
            with pytest.raises((LitGeluError, KeyError)):
                look_up(name)
    assert nothing_ran(marker)


def test_a_configuration_that_is_no_text_is_named(good, tmp_path):
    (tmp_path / "net.onnx").write_bytes(good)
    folder = tmp_path / "repository"
    write_triton_repository(tmp_path / "net.onnx", folder, device="cpu")
    (folder / "net/config.pbtxt").write_bytes(b"name: \xff")
    for options in ({}, {"keep_config": True}):
        with pytest.raises(LitGeluError, match=r"config\.pbtxt.*no text in UTF-8"):
            write_triton_repository(tmp_path / "net.onnx", folder, device="cpu", version=2, **options)
    write_triton_repository(tmp_path / "net.onnx", folder, device="cpu", version=2, overwrite=True)
    assert (folder / "net/config.pbtxt").read_text().startswith('name: "net"')
