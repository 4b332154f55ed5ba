"""One record of an export's options: function, file, callback and command line have all of it."""

import inspect
import json

import numpy as np
import onnx
import pytest
import torch
from torch import nn

from lit_gelu.callbacks import OnnxExport
from lit_gelu.cli.commands import parser_of
from lit_gelu.export import ExportOptionError, ModelFileError, check_parity, export_onnx
from lit_gelu.export.metadata import PREFIX, FileMetadata, read_metadata
from lit_gelu.export.options import ExportOptions

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


@pytest.mark.parametrize("name", sorted(OPTIONS.keys() - {"layout"}))
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
    metadata = export_onnx(
        net, tmp_path / "net.onnx", torch.zeros(1, 3, 4), approximate={"1": "tanh"}, **given
    ).metadata
    assert {key.removeprefix(PREFIX) for key in metadata.to_properties()} >= OPTIONS.keys()
    recorded = ExportOptions.checked(**given, approximate={"1": "tanh"}).recorded
    assert {name: getattr(metadata, name) for name in OPTIONS} == {**recorded, "opset": 20}
    assert issubclass(FileMetadata, ExportOptions)
    kept = {entry.key: entry.value for entry in onnx.load(tmp_path / "net.onnx").metadata_props}
    assert read_metadata(kept, "net.onnx") == metadata


def test_files_of_before_have_no_open_sizes_and_damaged_ones_are_refused(tmp_path):
    export_onnx(nn.GELU(), tmp_path / "net.onnx", torch.zeros(1, 4))
    kept = {entry.key: entry.value for entry in onnx.load(tmp_path / "net.onnx").metadata_props}
    assert kept.pop("lit_gelu.dynamic_shapes") == "{}"
    assert read_metadata(kept, "net.onnx").dynamic_shapes == {}
    for damaged in ("[1]", '{"x": 1}', '{"x": {"one": "n"}}', '{"x": {"1": 2}}', "{"):
        with pytest.raises(ModelFileError, match=r"lit_gelu\.dynamic_shapes"):
            read_metadata({**kept, "lit_gelu.dynamic_shapes": damaged}, "net.onnx")


def test_labels_are_refused_before_any_work():
    with pytest.raises(ExportOptionError, match="one for each class"):
        OnnxExport(labels="cat")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"softmax": "no"}, "softmax='no' is not accepted. Accepted: True, False"),
        ({"softmax": 1}, "softmax=1 is not accepted"),
        ({"softmax": None}, "softmax=None is not accepted"),
        ({"labels": 5}, "labels=5 is not accepted. Give a list of texts, one for each class"),
        ({"labels": None}, "labels=None is not accepted"),
        ({"labels": {0: "cat"}}, "labels={0: 'cat'} is not accepted"),
        ({"keep_fp32": None, "dtype": "fp16"}, "keep_fp32=None is not accepted. Give a list of texts, operators or"),
        ({"keep_fp32": [3], "dtype": "fp16"}, r"keep_fp32=\[3\] is not accepted"),
        ({"keep_fp32": "Softmax", "dtype": "fp16"}, r"keep_fp32='Softmax' is one text.*such as \['Softmax'\]"),
        ({"dtype": ["fp16"]}, r"Unknown dtype=\['fp16'\].* Accepted: 'fp32', 'fp16', 'bf16'"),
        ({"dtype": torch.int8}, "Unknown dtype='torch.int8'"),
        ({"dtype": 16}, "Unknown dtype=16"),
        ({"target": ["ort-cpu"]}, r"Unknown target=\['ort-cpu'\]"),
        ({"approximate": {1: "tanh"}}, r"approximate={1: 'tanh'} names a site by 1. Accepted: {name pattern: form}"),
        ({"approximate": {"1": ["tanh"]}}, r"Unknown approximate\['1'\]=\['tanh'\]"),
    ],
)
def test_values_of_another_type_are_refused_in_words_before_any_work(tmp_path, given, message):
    with pytest.raises(ExportOptionError, match=message):
        export_onnx(nn.GELU(), tmp_path / "net.onnx", torch.zeros(1, 4), **given)
    assert not list(tmp_path.iterdir())


def test_a_boolean_of_numpy_is_one(tmp_path):
    report = export_onnx(nn.GELU(), tmp_path / "net.onnx", torch.zeros(1, 4), softmax=np.bool_(True))
    assert report.metadata.softmax is True
    assert report.census["Softmax"] == 1
    assert check_parity(nn.GELU(), tmp_path / "net.onnx").passed
    assert ExportOptions.checked(softmax=np.bool_(False)).softmax is False


def test_entries_of_later_releases_are_passed_over(tmp_path):
    """But for another format, which says that the entries mean something else."""
    metadata = export_onnx(nn.GELU(), tmp_path / "net.onnx", torch.zeros(1, 4)).metadata
    properties = {**metadata.to_properties(), "lit_gelu.later": "[1, 2]"}
    properties["lit_gelu.sites"] = json.dumps([
        {**site, "later": [3]} for site in json.loads(properties["lit_gelu.sites"])
    ])
    assert read_metadata(properties, "net.onnx") == metadata
    with pytest.raises(ModelFileError, match="another release"):
        read_metadata({**properties, "lit_gelu.format": "2"}, "net.onnx")
