"""One record of an export's options: function, file, callback and command line have all of it."""

import inspect

import export_zoo
import numpy as np
import onnx
import pytest
import torch
from torch import nn

from lit_gelu.callbacks import OnnxExport
from lit_gelu.cli.commands import parser_of
from lit_gelu.errors import ArgumentError
from lit_gelu.export import ModelFileError, check_parity, export_onnx
from lit_gelu.export.metadata import PREFIX, ExportOptions, FileMetadata, read_metadata

OPTIONS = {option.name: option for option in ExportOptions.all()}
# What says how the file comes about, and is no text that a file could keep.
OBJECTS = {"model", "path", "input_sample", "registry", "preprocessing"}


def test_export_onnx_has_the_options_of_the_record_and_their_defaults():
    parameters = {n: p for n, p in inspect.signature(export_onnx).parameters.items() if n not in OBJECTS}
    assert parameters.keys() == OPTIONS.keys()
    assert ExportOptions.checked(**{n: p.default for n, p in parameters.items()}) == ExportOptions()


def test_the_callback_has_all_of_them_with_the_same_defaults():
    function, callback = inspect.signature(export_onnx).parameters, inspect.signature(OnnxExport).parameters
    assert {name: callback[name].default for name in OPTIONS} == {name: function[name].default for name in OPTIONS}
    assert OnnxExport(softmax=True).options.keys() == OPTIONS.keys()


@pytest.mark.parametrize("name", OPTIONS)
def test_the_command_line_has_it_with_its_default_and_its_choices(name):
    parser, option = parser_of("export"), OPTIONS[name]
    default = parser.parse_args(["net.ckpt"])[name]
    assert (default[0] if name == "approximate" else default) in (option.default, list(option.default or ()))
    for choice in option.metadata["choices"]:
        assert parser.parse_args(["net.ckpt", f"--{name.replace('_', '-')}", choice])[name] in (choice, [choice])


def test_the_file_keeps_all_of_them(tmp_path):
    net = nn.Sequential(nn.Conv1d(3, 8, 1), nn.GELU(), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(8, 2))
    given = {"dtype": "fp16", "keep_fp32": ["Gemm"], "io_dtype": "fp32", "softmax": True, "labels": ["a", "b"]}
    given["dynamic_shapes"] = {"input": {2: "time"}}
    metadata = export_onnx(net, tmp_path / "net.onnx", torch.zeros(1, 3, 4), approximate="tanh", **given).metadata
    assert {key.removeprefix(PREFIX) for key in metadata.to_properties()} >= OPTIONS.keys()
    recorded = vars(ExportOptions.checked(**given, approximate="tanh"))
    assert {name: getattr(metadata, name) for name in OPTIONS} == {**recorded, "opset": 20}
    assert issubclass(FileMetadata, ExportOptions)
    kept = {entry.key: entry.value for entry in onnx.load(tmp_path / "net.onnx").metadata_props}
    assert read_metadata(kept, "net.onnx") == metadata


@pytest.mark.parametrize(
    "given",
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
def test_options_that_do_not_exist_or_do_not_fit_are_refused_before_any_work(tmp_path, given):
    with pytest.raises(ArgumentError):
        export_onnx(nn.GELU(), tmp_path / "net.onnx", torch.zeros(1, 4), **given)
    with pytest.raises(ArgumentError):
        OnnxExport(**given)
    assert not list(tmp_path.iterdir())


DAMAGES = {
    "opset": ["-1", "true", "1e3", "x"],
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


def test_a_boolean_of_numpy_is_one(tmp_path):
    report = export_onnx(nn.GELU(), tmp_path / "net.onnx", torch.zeros(1, 4), softmax=np.bool_(True))
    assert report.metadata.softmax is True
    assert report.census["Softmax"] == 1
    assert check_parity(nn.GELU(), tmp_path / "net.onnx").passed
    assert ExportOptions.checked(softmax=np.bool_(False)).softmax is False
