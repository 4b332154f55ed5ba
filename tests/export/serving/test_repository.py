"""A model repository: what lies where, what is replaced and what is not, and what a failure leaves."""

import os
import shutil
import stat

import numpy as np
import onnx
import pytest
import torch
from export_cases import Centred, gelu_net, gelu_net_by_hand
from onnx import TensorProto, helper
from triton_proto import parsed

from lit_gelu.export import ExportOptionError, ModelFileError, OnnxPredictor, check_parity, export_onnx, write_proof
from lit_gelu.export.serving import TritonRepositoryError, layout, write_triton_repository
from lit_gelu.files import UnwritablePathError

LABELS = ["zero", "one", "two\nlines, größer"]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("file") / "net.onnx"
    export_onnx(gelu_net(), path, torch.zeros(2, 6), labels=LABELS, softmax=True)
    return path


@pytest.fixture(scope="module")
def other(path):
    """The same net with another output, and without labels."""
    other = path.with_name("other.onnx")
    export_onnx(gelu_net()[:-1], other, torch.zeros(2, 6))
    return other


def files(folder):
    return sorted(file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file())


def contents(folder):
    return {name: (folder / name).read_bytes() for name in files(folder)}


def test_the_layout_and_a_configuration_that_says_what_the_file_takes(path, tmp_path):
    written = write_triton_repository(path, tmp_path / "repository", device="cpu")
    assert files(tmp_path) == [f"repository/net/{name}" for name in ("1/model.onnx", "config.pbtxt", "labels.txt")]
    assert written.model.read_bytes() == path.read_bytes()
    assert written.config == (written.folder / "config.pbtxt").read_text()
    assert str(written.model) in str(written)
    config = parsed(written.config)
    session = OnnxPredictor(written.model).session
    for given, said in ((session.get_inputs(), config.input), (session.get_outputs(), config.output)):
        assert [(port.name, port.shape) for port in given] == [(t.name, ["batch", *t.dims]) for t in said]
    assert config.name == written.folder.name == "net"
    assert config.output[0].label_filename == "labels.txt"


def test_the_file_in_the_repository_computes_what_the_net_computes(path, tmp_path):
    written = write_triton_repository(path, tmp_path, device="cpu")
    x = np.random.default_rng(0).normal(scale=3, size=(64, 6)).astype(np.float32)
    logits = gelu_net_by_hand(gelu_net(), x, "none")
    powers = np.exp(logits - logits.max(1, keepdims=True))
    assert np.abs(OnnxPredictor(written.model)(x) - powers / powers.sum(1, keepdims=True)).max() < 1e-6


def test_each_label_has_one_line(path, tmp_path):
    written = write_triton_repository(path, tmp_path, device="cpu")
    lines = (written.folder / "labels.txt").read_text(encoding="utf-8").split("\n")
    assert lines == ["zero", "one", "two lines, größer", ""]


def test_a_file_without_labels_has_none(other, tmp_path):
    written = write_triton_repository(other, tmp_path, device="cpu", name="plain-1.0")
    assert files(tmp_path) == ["plain-1.0/1/model.onnx", "plain-1.0/config.pbtxt"]
    assert parsed(written.config).output[0].label_filename == ""


def test_a_second_version_beside_the_first(path, tmp_path):
    write_triton_repository(path, tmp_path, device="cpu")
    before = contents(tmp_path)
    assert write_triton_repository(path, tmp_path, device="cpu", version=20).version == 20
    assert contents(tmp_path) == {**before, "net/20/model.onnx": path.read_bytes()}


def test_a_version_that_is_there_is_replaced_only_if_asked_for(path, tmp_path):
    written = write_triton_repository(path, tmp_path, device="cpu")
    written.model.write_bytes(b"older")
    (written.model.parent / "stale.data").write_bytes(b"")
    with pytest.raises(TritonRepositoryError, match=r"Version 1 is there already.*overwrite=True"):
        write_triton_repository(path, tmp_path, device="cpu")
    assert written.model.read_bytes() == b"older"
    write_triton_repository(path, tmp_path, device="cpu", overwrite=True)
    assert written.model.read_bytes() == path.read_bytes()
    assert files(tmp_path) == ["net/1/model.onnx", "net/config.pbtxt", "net/labels.txt"]


def test_a_configuration_for_all_versions_is_not_changed_in_passing(path, other, tmp_path):
    config = write_triton_repository(path, tmp_path, device="cpu").folder / "config.pbtxt"
    before = contents(tmp_path)
    with pytest.raises(TritonRepositoryError, match=r"config.pbtxt' holds for all versions.*dims: \[ 3 \]"):
        write_triton_repository(other, tmp_path, device="cpu", name="net", version=2)
    with pytest.raises(TritonRepositoryError, match=r"'kind: KIND_CPU' to 'kind: KIND_GPU'"):
        write_triton_repository(path, tmp_path, device="gpu", version=2)
    assert contents(tmp_path) == before
    write_triton_repository(path, tmp_path, device="gpu", version=2, overwrite=True)
    assert parsed(config.read_text()).instance_group[0].kind == 1


def test_a_configuration_edited_by_hand_can_stay(path, tmp_path):
    config = write_triton_repository(path, tmp_path, device="cpu").folder / "config.pbtxt"
    edited = config.read_text() + "version_policy { all {} }\n"
    config.write_text(edited)
    with pytest.raises(TritonRepositoryError, match=r"'version_policy \{ all \{\} \}' to 'end'.*keep_config=True"):
        write_triton_repository(path, tmp_path, device="cpu", version=2)
    written = write_triton_repository(path, tmp_path, device="gpu", version=2, keep_config=True)
    assert written.config == config.read_text() == edited
    assert written.model.is_file()
    new = write_triton_repository(path, tmp_path, device="cpu", name="new", keep_config=True)
    assert parsed(new.config).name == "new"


@pytest.mark.parametrize("failing", ["copyfile", "rename"])
@pytest.mark.parametrize("there", [False, True])
def test_a_failure_leaves_what_was_there(path, tmp_path, monkeypatch, failing, there):
    if there:
        write_triton_repository(path, tmp_path / "repository", device="cpu").model.write_bytes(b"older")
    before = contents(tmp_path)

    def full(*_):
        raise OSError(28, "No space left on device")

    rename = type(path).rename

    def no_new_version(self, target):
        return full() if self.parent.name.startswith(".net-") and self.name == "1" else rename(self, target)

    if failing == "copyfile":
        monkeypatch.setattr(shutil, "copyfile", full)
    else:
        monkeypatch.setattr(type(path), "rename", no_new_version if there else full)
    with pytest.raises(UnwritablePathError, match=r"No space left on device.*What was there before is unchanged"):
        write_triton_repository(path, tmp_path / "repository", device="cpu", overwrite=True)
    assert contents(tmp_path) == before
    assert not list(tmp_path.rglob(".net-*"))


def test_a_repository_that_cannot_be_made(path, tmp_path):
    (tmp_path / "file").write_text("")
    for repository in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(UnwritablePathError, match="Give a repository that you may write to"):
            write_triton_repository(path, repository, device="cpu")
    (tmp_path / "net").write_text("")
    with pytest.raises(UnwritablePathError):
        write_triton_repository(path, tmp_path, device="cpu")
    assert (tmp_path / "net").read_text() == ""


def test_a_server_under_another_account_may_read_it(path, tmp_path):
    mask = os.umask(0o022)
    try:
        written = write_triton_repository(path, tmp_path, device="cpu")
    finally:
        os.umask(mask)
    for entry in (written.folder, written.model.parent, written.model, written.folder / "config.pbtxt"):
        assert entry.stat().st_mode & stat.S_IROTH, entry


def with_external_data(folder, location):
    """A model whose weights are in a file of their own."""
    folder.mkdir()
    (folder / location).parent.mkdir(exist_ok=True)
    np.array([1, 2], np.float32).tofile(folder / location)
    weights = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[2], data_location=TensorProto.EXTERNAL)
    weights.external_data.add(key="location", value=location)
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 2]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Add", ["x", "w"], ["y"])], "g", [x], [y], [weights])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    (folder / "big.onnx").write_bytes(made.SerializeToString())
    return folder / "big.onnx"


@pytest.mark.parametrize("location", ["big.onnx.data", "weights/part 1.bin"])
def test_external_data_lie_beside_the_model(tmp_path, location):
    source = with_external_data(tmp_path / "source", location)
    written = write_triton_repository(source, tmp_path / "repository", device="cpu")
    shutil.rmtree(tmp_path / "source")
    assert files(written.folder) == sorted(["config.pbtxt", "1/model.onnx", f"1/{location}"])
    x = np.array([[10, 20]], np.float32)
    np.testing.assert_array_equal(OnnxPredictor(written.model, ["CPUExecutionProvider"])(x), [[11, 22]])


def test_external_data_under_the_name_of_the_model_are_refused(tmp_path):
    source = with_external_data(tmp_path / "source", "model.onnx")
    with pytest.raises(ExportOptionError, match="which is the model's own name in a repository"):
        write_triton_repository(source, tmp_path / "repository", device="cpu")
    assert not (tmp_path / "repository").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "../net"}, "no name of a model"),
        ({"name": ".net"}, "no name of a model"),
        ({"name": ""}, "no name of a model"),
        ({"version": 0}, "version=0 is not accepted"),
        ({"version": True}, "version=True is not accepted. Give a whole number"),
        ({"version": 10**30}, "is not accepted. Give a whole number from 1 to 9223372036854775807"),
        ({"device": "cuda"}, "Give 'cpu' or 'gpu'"),
    ],
)
def test_options_that_do_not_exist(path, tmp_path, options, message):
    with pytest.raises(ExportOptionError, match=message):
        write_triton_repository(path, tmp_path / "repository", **{"device": "cpu", **options})
    assert not (tmp_path / "repository").exists()


def test_files_that_are_no_models(tmp_path):
    (tmp_path / "net.onnx").write_bytes(b"\x89PNG\r\n")
    with pytest.raises(ModelFileError, match="no ONNX model"):
        write_triton_repository(tmp_path / "net.onnx", tmp_path, device="cpu")


def test_bfloat16_is_for_gpus(tmp_path):
    path = tmp_path / "net.onnx"
    export_onnx(gelu_net(), path, torch.zeros(2, 6), dtype="bf16")
    with pytest.raises(ModelFileError, match="BFLOAT16, which Triton's onnxruntime backend does not take"):
        write_triton_repository(path, tmp_path / "repository", device="gpu")
    export_onnx(gelu_net(), path, torch.zeros(2, 6), dtype="bf16", io_dtype="fp32")
    with pytest.raises(ExportOptionError, match="no bfloat16 kernels on the CPU"):
        write_triton_repository(path, tmp_path / "repository", device="cpu")
    config = parsed(write_triton_repository(path, tmp_path / "repository", device="gpu").config)
    assert config.input[0].data_type == 11  # TYPE_FP32
    (cuda,) = config.optimization.execution_accelerators.gpu_execution_accelerator
    assert dict(cuda.parameters) == {"use_tf32": "1"}


def test_a_proof_that_failed_is_said(path, tmp_path):
    copy = tmp_path / "net.onnx"
    for seed, notes in ((0, ()), (1, ("net.onnx failed its comparison with PyTorch: see the report beside it.",))):
        shutil.copyfile(path, copy)
        write_proof(check_parity(gelu_net(seed=seed), copy, input_sample=torch.zeros(2, 6), strict=False), copy, [])
        assert write_triton_repository(copy, tmp_path / f"r{seed}", device="cpu").notes == notes


def test_the_metadata_of_a_file_of_others_is_not_asked_for(path, tmp_path):
    model = onnx.load(path)
    del model.metadata_props[:]
    onnx.save(model, tmp_path / "net.onnx")
    assert files(write_triton_repository(tmp_path / "net.onnx", tmp_path / "r", device="cpu").folder) == [
        "1/model.onnx",
        "config.pbtxt",
    ]


def bad_model(folder, kind):
    """A model that onnx can parse and onnxruntime cannot load."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 2]) for name in "xy")
    nodes = {
        "cycle": [helper.make_node("Add", ["x", "b"], ["a"]), helper.make_node("Relu", ["a"], ["b"])],
        "unknown": [helper.make_node("Frobnicate", ["x"], ["b"])],
    }.get(kind, [helper.make_node("Relu", ["x"], ["b"])])
    graph = helper.make_graph([*nodes, helper.make_node("Relu", ["b"], ["y"])], "g", [x], [y])
    opset = 99 if kind == "opset" else 20
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    (folder / "bad.onnx").write_bytes(made.SerializeToString())
    return folder / "bad.onnx"


@pytest.mark.parametrize("kind", ["cycle", "unknown", "opset"])
@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_what_onnxruntime_cannot_open_is_not_written(tmp_path, kind, device):
    with pytest.raises(ModelFileError, match="cannot load"):
        write_triton_repository(bad_model(tmp_path, kind), tmp_path / "repository", device=device)
    assert not (tmp_path / "repository").exists()


def test_a_size_below_zero(path, tmp_path):
    model = onnx.load(path)
    model.graph.output[0].type.tensor_type.shape.dim[1].dim_value = -3
    onnx.save(model, tmp_path / "net.onnx")
    with pytest.raises(ModelFileError, match=r"has the sizes \[-1, -3\], and none can be below 0"):
        write_triton_repository(tmp_path / "net.onnx", tmp_path / "repository", device="cpu")


@pytest.mark.parametrize("linked", ["net", "net/1"])
def test_nothing_is_written_through_a_link(path, tmp_path, linked):
    repository, elsewhere = tmp_path / "repository", tmp_path / "elsewhere"
    elsewhere.mkdir()
    (repository / linked).parent.mkdir(parents=True)
    (repository / linked).symlink_to(elsewhere)
    for options in ({}, {"overwrite": True}):
        with pytest.raises(TritonRepositoryError, match=r"is a link to .*elsewhere.*Remove the link"):
            write_triton_repository(path, repository, device="cpu", **options)
    assert list(elsewhere.iterdir()) == []


def test_a_repository_that_is_a_link_itself_is_the_users_own(path, tmp_path):
    (tmp_path / "disk" / "repository").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "disk" / "repository")
    write_triton_repository(path, tmp_path / "link", device="cpu")
    assert files(tmp_path / "disk") == [
        f"repository/net/{name}" for name in ("1/model.onnx", "config.pbtxt", "labels.txt")
    ]


@pytest.mark.parametrize("there", [False, True])
def test_a_polling_server_sees_no_half_made_model(path, tmp_path, monkeypatch, there):
    """While the model's file is copied, the repository holds what it held, but for a folder beside the versions."""
    repository = tmp_path / "repository"
    if there:
        write_triton_repository(path, repository, device="cpu")
    seen, copyfile = [], shutil.copyfile

    def noted(source, target):
        seen.append(sorted(entry.name for entry in repository.iterdir()))
        copyfile(source, target)

    monkeypatch.setattr(shutil, "copyfile", noted)
    write_triton_repository(path, repository, device="cpu", version=2)
    assert seen == [["net"] if there else []]
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["repository"]


def test_a_repository_on_a_disk_of_its_own(path, tmp_path, monkeypatch):
    """Such as a mounted volume: above it lies another disk, and a rename from there would be a copy."""
    monkeypatch.setattr(layout.os, "access", lambda *_: False)  # nor may one write above it
    written = write_triton_repository(path, tmp_path / "repository", device="cpu")
    assert written.model.read_bytes() == path.read_bytes()
    assert sorted(entry.name for entry in (tmp_path / "repository").iterdir()) == ["net"]


def test_requests_whose_rows_see_each_other_are_not_joined(tmp_path):
    path = tmp_path / "net.onnx"
    export_onnx(Centred(), path, torch.zeros(2, 6))
    written = write_triton_repository(path, tmp_path / "repository", device="cpu")
    config = parsed(written.config)
    assert config.max_batch_size == 0
    assert not config.HasField("dynamic_batching")
    assert [list(tensor.dims) for tensor in (*config.input, *config.output)] == [[-1, 6], [-1, 6]]
    said = "rows of 'batch' see each other, as the export found"
    assert written.notes == (f"Triton passes requests on one by one: {said}.",)
    with pytest.raises(ExportOptionError, match=f"max_batch_size=8 needs rows that do not see each other; .*{said}"):
        write_triton_repository(path, tmp_path / "other", device="cpu", max_batch_size=8)
