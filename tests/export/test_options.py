"""One record of an export's options: function, file, callback and command line have all of it."""

import inspect
from dataclasses import fields

import export_zoo
import onnx
import pytest
import torch
from jsonargparse import ArgumentError as ParserError
from jsonargparse import ArgumentParser
from lightning.pytorch import Callback
from torch import nn

from lit_gelu.callbacks import OnnxExport
from lit_gelu.cli.commands import parser_of
from lit_gelu.errors import ArgumentError
from lit_gelu.export import ModelFileError, export_onnx
from lit_gelu.export.metadata import PREFIX, ExportOptions, FileMetadata, read_metadata

OPTIONS = {option.name: option.default for option in fields(ExportOptions)}
# What says how the file comes about, and is no text that a file could keep.
OBJECTS = {"model", "path", "input_sample", "registry", "preprocessing"}


def test_export_onnx_has_the_options_of_the_record_and_their_defaults():
    parameters = {n: p.default for n, p in inspect.signature(export_onnx).parameters.items() if n not in OBJECTS}
    assert parameters.keys() == OPTIONS.keys()
    assert ExportOptions.checked(**parameters) == ExportOptions()


def test_a_configuration_of_the_callback_has_all_of_them():
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--callback", type=Callback)
    values = {
        "approximate": "tanh", "lowering": "native", "target": "ort-cuda", "dtype": "fp16", "policy": "fast",
        "opset": 21, "keep_fp32": ["Softmax"], "io_dtype": "fp32", "softmax": True, "labels": ["cat", "dog"],
        "dynamic_shapes": {"x": {1: "length"}},
    }  # fmt: skip
    assert values.keys() == OPTIONS.keys()
    options = [f"--callback.{name}={str(value).replace(chr(39), chr(34))}" for name, value in values.items()]
    words = ["--callback", "lit_gelu.callbacks.OnnxExport", *options]
    parsed = vars(parser.parse_args(words).callback.init_args)
    lists = {"keep_fp32": ["Softmax"], "labels": ["cat", "dog"]}
    assert {**{name: parsed[name] for name in values}, **lists} == values
    with pytest.raises(ParserError):
        parser.parse_args([*words, "--callback.labls", "[cat]"])


def test_the_command_line_has_all_of_them_with_their_defaults():
    parsed = parser_of("export").parse_args(["net.ckpt"])
    defaults = {name: parsed[name] for name in OPTIONS}
    assert ExportOptions.checked(**defaults) == ExportOptions()


def test_the_file_keeps_all_of_them(tmp_path):
    net = nn.Sequential(nn.Conv1d(3, 8, 1), nn.GELU(), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(8, 2))
    options = {"dtype": "fp16", "keep_fp32": ["Gemm"], "io_dtype": "fp32", "softmax": True, "labels": ["a", "b"]}
    options["dynamic_shapes"] = {"input": {2: "time"}}
    metadata = export_onnx(net, tmp_path / "net.onnx", torch.zeros(1, 3, 4), approximate="tanh", **options).metadata
    assert {key.removeprefix(PREFIX) for key in metadata.to_properties()} >= OPTIONS.keys()
    recorded = vars(ExportOptions.checked(**options, approximate="tanh"))
    assert {name: getattr(metadata, name) for name in OPTIONS} == {**recorded, "opset": 20}
    assert issubclass(FileMetadata, ExportOptions)
    kept = {entry.key: entry.value for entry in onnx.load(tmp_path / "net.onnx").metadata_props}
    assert read_metadata(kept, "net.onnx") == metadata


@pytest.mark.parametrize(
    "options",
    [
        {"approximate": "tahn"},
        {"approximate": {"1": "tanh"}},
        {"lowering": "primitive"},
        {"target": "ort_cuda"},
        {"target": ["ort-cpu"]},
        {"dtype": torch.int8},
        {"dtype": ["fp16"]},
        {"dtype": 16},
        {"policy": "lenient"},
        {"opset": "twenty"},
        {"opset": 17},
        {"opset": 24},
        {"opset": True},
        {"softmax": "no"},
        {"softmax": 1},
        {"labels": 5},
        {"labels": "cat"},
        {"keep_fp32": [3], "dtype": "fp16"},
        {"keep_fp32": "Softmax", "dtype": "fp16"},
        {"keep_fp32": ["Softmax"]},
        {"io_dtype": "fp32"},
        {"lowering": "contrib", "target": "tensorrt"},
    ],
    ids=str,
)
def test_options_that_do_not_exist_or_do_not_fit_are_refused_before_any_work(tmp_path, options):
    with pytest.raises(ArgumentError):
        export_onnx(nn.GELU(), tmp_path / "net.onnx", torch.zeros(1, 4), **options)
    with pytest.raises(ArgumentError):
        OnnxExport(**options)
    assert not list(tmp_path.iterdir())


DAMAGES = {
    "opset": ["true", "1e3", "x"],
    "versions": ["[]", '{"torch": 2}'],
    "labels": ['"cat"', "[1]"],
    "softmax": ["1", '"true"'],
    "dynamic_shapes": ["[1]", '{"x": 1}', '{"x": {"one": "n"}}', '{"x": {"1": 2}}', "{"],
    "sites": ["{}", "[1]", "[{}]", "[" * 100_000],
    "parity": ["[]", "1"],
}


@pytest.mark.parametrize("entry", DAMAGES)
def test_metadata_that_are_damaged_or_missing_are_refused(entry):
    kept = export_zoo.exported("gelu")[0].metadata.to_properties()
    for damaged in DAMAGES[entry]:
        with pytest.raises(ModelFileError):
            read_metadata({**kept, PREFIX + entry: damaged}, "net.onnx")
    with pytest.raises(ModelFileError):
        read_metadata({key: text for key, text in kept.items() if key != PREFIX + entry}, "net.onnx")
