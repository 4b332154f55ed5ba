"""One record of an export's options: function, file, callback and command line have all of it."""

import inspect

import onnx
import pytest
import torch
from torch import nn

from lit_gelu.callbacks import OnnxExport
from lit_gelu.cli.export import build_parser
from lit_gelu.export import ExportOptionError, ModelFileError, export_onnx
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


@pytest.mark.parametrize("name", OPTIONS)
def test_the_command_line_has_it_and_names_its_choices(name):
    parser = build_parser()
    action = next(action for action in parser._actions if action.dest == name)  # argparse has no other way to ask
    shown = (action.metavar or "").strip("{}").split(",")
    assert set(OPTIONS[name].metadata["choices"]) <= set(shown)
    given = parser.parse_args(["net.ckpt"])[name]
    assert (given[0] if name == "approximate" else given) in (OPTIONS[name].default, list(OPTIONS[name].default or ()))


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
