"""A model repository of Triton: the configuration says what the file takes, and nothing half made is ever seen."""

import shutil
import stat

import numpy as np
import onnx
import pytest
import torch
from export_cases import gelu_net
from onnx import TensorProto, helper
from torch import nn
from triton_proto import ENUMS, parsed

from lit_gelu.errors import ArgumentError, LitGeluError, ModelFileError
from lit_gelu.export import OnnxPredictor, export_onnx
from lit_gelu.export.runtime import CPU
from lit_gelu.export.serving import write_triton_repository
from lit_gelu.files import UnwritablePathError


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("file") / "net.onnx"
    export_onnx(gelu_net(), path, torch.zeros(2, 6), labels=["a", "b", "c"])
    return path


def files(folder):
    return sorted(file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file())


def written(path, repository, **options):
    return write_triton_repository(path, repository, **{"device": "cpu", **options})


def configured(folder, inputs, outputs, **options):
    """The configuration of a file without nodes, for a GPU, where onnxruntime does not open it."""
    values = [
        [helper.make_tensor_value_info(name, element, sizes) for name, (element, sizes) in ports.items()]
        for ports in (inputs, outputs)
    ]
    model = helper.make_model(helper.make_graph([], "g", *values), opset_imports=[helper.make_opsetid("", 20)])
    onnx.save(model, folder / "net.onnx")
    return parsed(written(folder / "net.onnx", folder / "repository", device="gpu", **options).config)


def floats(**ports):
    return {name: (TensorProto.FLOAT, list(sizes)) for name, sizes in ports.items()}


def test_a_model_with_all_options(path, tmp_path):
    result = written(path, tmp_path / "r", device="gpu", name="digits", version=3, max_batch_size=64)
    assert files(tmp_path / "r") == ["digits/3/model.onnx", "digits/config.pbtxt", "digits/labels.txt"]
    assert result.model.read_bytes() == path.read_bytes()
    assert (tmp_path / "r" / "digits" / "labels.txt").read_text() == "a\nb\nc\n"
    config = parsed(result.config)
    assert (config.name, config.backend, config.max_batch_size) == ("digits", "onnxruntime", 64)
    assert [list(config.input[0].dims), list(config.output[0].dims)] == [[6], [3]]
    assert config.output[0].label_filename == "labels.txt"
    assert config.HasField("dynamic_batching")
    assert [(group.kind, group.count) for group in config.instance_group] == [(1, 1)]  # KIND_GPU
    for entry in (result.model, result.model.parent, result.model.parents[1]):  # a server under another account
        assert entry.stat().st_mode & stat.S_IROTH


@pytest.mark.parametrize("sizes", [(4, 3), (), ("n", 3), (None, 3)])
def test_without_a_batch_that_all_share_requests_are_passed_on_as_they_are(tmp_path, sizes):
    ports = floats(x=sizes), floats(y=("batch", 10))
    config = configured(tmp_path, *ports)
    assert (config.max_batch_size, config.HasField("dynamic_batching")) == (0, False)
    assert list(config.output[0].dims) == [-1, 10]
    with pytest.raises(ArgumentError):
        configured(tmp_path, *ports, max_batch_size=8, version=2)


@pytest.mark.parametrize("size", ["batch", "batch + 1", "2*batch", "floor(batch/2)"])
@pytest.mark.parametrize("place", ["x", "y"])
def test_a_batch_that_is_the_size_of_something_else_is_none(tmp_path, size, place):
    """Each row of a similarity of all with all has as many entries as the batch that Triton would join."""
    last = {"x": 4, "y": 4, place: size}
    config = configured(tmp_path, floats(x=("batch", last["x"])), floats(y=("batch", last["y"])))
    assert config.max_batch_size == 0


def test_names_of_any_text_are_read_back(tmp_path):
    name = 'a "quoted" \\ größe\n\t'
    assert configured(tmp_path, floats(**{name: ("batch", 3)}), floats(y=("batch", 3))).input[0].name == name


def test_a_tensor_without_sizes_of_its_own_is_reshaped_to_one(tmp_path):
    """Triton takes no empty ``dims``."""
    config = configured(tmp_path, floats(x=("batch",)), floats(y=("batch", "length")))
    assert (list(config.input[0].dims), list(config.input[0].reshape.shape)) == ([1], [])
    assert config.input[0].HasField("reshape")
    assert list(config.output[0].dims) == [-1]


class Centred(nn.Module):
    def forward(self, x):
        return x - x.mean(0, keepdim=True)


def test_requests_whose_rows_see_each_other_are_not_joined(tmp_path):
    export_onnx(Centred(), tmp_path / "net.onnx", torch.zeros(2, 6))
    config = parsed(written(tmp_path / "net.onnx", tmp_path / "r").config)
    assert (config.max_batch_size, config.HasField("dynamic_batching")) == (0, False)


@pytest.mark.parametrize(
    ("element", "expected"),
    {"BOOL": "TYPE_BOOL", "UINT8": "TYPE_UINT8", "INT64": "TYPE_INT64", "FLOAT16": "TYPE_FP16", "FLOAT": "TYPE_FP32",
     "DOUBLE": "TYPE_FP64", "STRING": "TYPE_STRING", "COMPLEX64": "", "INT4": "", "BFLOAT16": ""}.items(),
)  # fmt: skip
def test_element_types_as_the_backend_pairs_them(tmp_path, element, expected):
    ports = {"x": (TensorProto.DataType.Value(element), ["batch", 3])}, floats(y=("batch", 3))
    if expected:
        assert configured(tmp_path, *ports).input[0].data_type == ENUMS["DataType"].index(expected)
    else:
        with pytest.raises(ModelFileError):
            configured(tmp_path, *ports)


def test_float32_runs_without_tf32_and_bfloat16_with_it_on_a_gpu_alone(tmp_path):
    path = tmp_path / "net.onnx"
    for io_dtype, error, device in ((None, ModelFileError, "gpu"), ("fp32", LitGeluError, "cpu")):
        export_onnx(gelu_net(), path, torch.zeros(2, 6), dtype="bf16", **({"io_dtype": io_dtype} if io_dtype else {}))
        with pytest.raises(error):
            written(path, tmp_path / "r", device=device)
    config = parsed(written(path, tmp_path / "r", device="gpu").config)
    (cuda,) = config.optimization.execution_accelerators.gpu_execution_accelerator
    assert dict(cuda.parameters) == {"use_tf32": "1"}


def test_what_is_there_stays(path, tmp_path):
    written(path, tmp_path)
    config = tmp_path / "net" / "config.pbtxt"
    config.write_text("# by hand\xff", encoding="latin-1")
    before = {file: (tmp_path / file).read_bytes() for file in files(tmp_path)}
    with pytest.raises(ArgumentError):
        written(path, tmp_path)
    (tmp_path / "net" / "labels.txt").write_text("others\n")
    before["net/labels.txt"] = b"others\n"
    notes = written(path, tmp_path, version=2).notes
    assert all(any(name in note for note in notes) for name in ("config.pbtxt", "labels.txt"))
    assert {file: (tmp_path / file).read_bytes() for file in before} == before
    assert files(tmp_path) == sorted([*before, "net/2/model.onnx"])
    assert parsed(written(path, tmp_path, overwrite=True).config).name == "net"
    assert parsed(config.read_text()).name == "net"


@pytest.mark.parametrize("there", [False, True])
def test_a_polling_server_sees_no_half_made_model_and_a_failure_leaves_nothing(path, tmp_path, monkeypatch, there):
    repository = tmp_path / "repository"
    if there:
        written(path, repository)
    before, seen, copyfile = files(tmp_path), [], shutil.copyfile

    def full(source, target):
        seen.append(sorted(entry.name for entry in repository.iterdir()))
        copyfile(source, target)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shutil, "copyfile", full)
    with pytest.raises(UnwritablePathError):
        written(path, repository, version=2)
    assert seen == [["net"] if there else []]
    assert files(tmp_path) == before
    assert not list(tmp_path.rglob(".net-*"))


def test_external_data_lie_beside_the_model(tmp_path):
    (tmp_path / "source" / "weights").mkdir(parents=True)
    np.array([1, 2], np.float32).tofile(tmp_path / "source" / "weights" / "part 1.bin")
    weights = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[2], data_location=TensorProto.EXTERNAL)
    weights.external_data.add(key="location", value="weights/part 1.bin")
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 2]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Add", ["x", "w"], ["y"])], "g", [x], [y], [weights])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    (tmp_path / "source" / "big.onnx").write_bytes(model.SerializeToString())
    result = written(tmp_path / "source" / "big.onnx", tmp_path / "r")
    shutil.rmtree(tmp_path / "source")
    np.testing.assert_array_equal(OnnxPredictor(result.model, [CPU])(np.array([[10, 20]], np.float32)), [[11, 22]])


@pytest.mark.parametrize(
    "options",
    [{"name": "../net"}, {"name": ".net"}, {"name": ""}, {"version": 0}, {"device": "cuda"}, {"max_batch_size": -1}],
)
def test_options_that_triton_would_refuse(path, tmp_path, options):
    with pytest.raises(ArgumentError):
        written(path, tmp_path / "r", **options)
    assert not (tmp_path / "r").exists()


def test_files_and_places_that_are_refused(path, tmp_path):
    (tmp_path / "bad.onnx").write_bytes(b"\x89PNG\r\n")
    (tmp_path / "file").write_text("")
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "net").symlink_to(tmp_path)
    for error, source, repository in (
        (ModelFileError, tmp_path / "bad.onnx", tmp_path / "r"),
        (ModelFileError, tmp_path / "none.onnx", tmp_path / "r"),
        (UnwritablePathError, path, tmp_path / "file"),
        (ArgumentError, path, tmp_path / "r"),
    ):
        with pytest.raises(error):
            written(source, repository)
    with pytest.raises(ModelFileError):
        configured(tmp_path, floats(x=(-3,)), floats(y=("batch", 2)))
