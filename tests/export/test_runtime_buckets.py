"""Calls of any size through sessions of few sizes, and the CUDA stream that they are in order with."""

from types import SimpleNamespace

import onnx
import pytest
import torch
from export_cases import Centred, gelu_net
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper

from lit_gelu.export import ModelInputError, OnnxPredictor, ProviderError, export_onnx
from lit_gelu.export.runtime import CPU, CUDA, streams
from lit_gelu.export.runtime.binding import TensorRunner
from lit_gelu.export.runtime.buckets import BucketRunner, pieces
from lit_gelu.export.runtime.settings import BATCH


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("buckets") / "net.onnx"
    export_onnx(gelu_net(), path, torch.zeros(2, 6))
    return path


@given(rows=st.integers(0, 2000), largest=st.integers(1, 300))
def test_pieces_cover_every_row_once_in_as_few_runs_as_can_be(rows, largest):
    parts = pieces(rows, largest)
    assert [row for part in parts for row in range(part.start, part.stop)] == list(range(rows))
    assert len(parts) == max(1, -(-rows // largest))
    assert all(part.stop - part.start <= largest for part in parts)


@pytest.mark.parametrize("rows", [0, 1, 2, 3, 4, 5, 11])
def test_padded_and_divided_calls_give_the_same(path, rows):
    session = OnnxPredictor(path, [CPU]).session
    run = BucketRunner(TensorRunner(session, torch.device("cpu")), {BATCH: (1, 4)})
    run({"input": torch.full((4, 6), float("nan"))})  # what earlier calls leave behind does not matter
    x = torch.randn(rows, 6)
    (y,) = run({"input": x})
    torch.testing.assert_close(y, gelu_net().eval()(x).detach(), rtol=0, atol=1e-6)


def test_outputs_are_not_the_buffers(path):
    run = BucketRunner(TensorRunner(OnnxPredictor(path, [CPU]).session, torch.device("cpu")), {BATCH: (2,)})
    (first,) = run({"input": torch.ones(2, 6)})
    kept = first.clone()
    run({"input": torch.zeros(2, 6)})
    assert torch.equal(first, kept)


@pytest.mark.parametrize("sizes", [[0], [-1, 4], [2.5], [True]])
def test_sizes_that_are_none(path, sizes):
    with pytest.raises(ProviderError, match="Give positive whole numbers"):
        OnnxPredictor(path, [CPU], batch_buckets=sizes)


def test_the_cpu_has_no_cuda_graphs(path):
    with pytest.raises(ProviderError, match="are CUDA graphs; here CPUExecutionProvider comes first"):
        OnnxPredictor(path, [CPU], batch_buckets=[4])


def test_sizes_beside_the_batch_must_be_fixed(tmp_path):
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ("batch", "length", 4)) for name in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y])
    path = tmp_path / "net.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), path)
    session = OnnxPredictor(path, [CPU]).session
    with pytest.raises(ModelInputError, match=r"all other sizes fixed; here: x \('batch', 'length', 4\)"):
        BucketRunner(TensorRunner(session, torch.device("cpu")), {BATCH: (2,)})


class FakeStream:
    """A stream that notes what it waits for."""

    def __init__(self, handle, notes):
        self.cuda_stream, self.notes = handle, notes

    def wait_stream(self, other):
        self.notes.append((self.cuda_stream, other.cuda_stream))


@pytest.fixture
def fake_cuda(monkeypatch):
    notes = []
    current = SimpleNamespace(stream=FakeStream(0, notes))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: current.stream)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: FakeStream(77, notes))
    monkeypatch.setattr(torch.cuda, "ExternalStream", lambda handle, device: FakeStream(handle, notes))
    return current, notes


def test_the_default_stream_is_never_handed_over(fake_cuda):
    """onnxruntime reads the handle 0 as "no stream" and would make one that is in no order with torch's."""
    _, notes = fake_cuda
    stream = streams.ComputeStream(torch.device("cuda", 0))
    assert stream.provider_options() == {"user_compute_stream": "77"}
    with stream.in_order():
        notes.append("run")
    assert notes == [(77, 0), "run", (0, 77)]


def test_on_the_sessions_own_stream_nothing_waits(fake_cuda):
    current, notes = fake_cuda
    current.stream = FakeStream(5, notes)
    stream = streams.ComputeStream(torch.device("cuda", 0))
    assert stream.provider_options() == {"user_compute_stream": "5"}
    with stream.in_order():
        notes.append("run")
    assert notes == ["run"]


def test_a_stream_is_known_by_its_handle(fake_cuda):
    """Two objects of one stream are the same to the device: two events a call would be for nothing."""
    current, notes = fake_cuda
    stream = streams.ComputeStream(torch.device("cuda", 0), 9)
    current.stream = FakeStream(9, notes)
    with stream.in_order() as given:
        notes.append("run")
    assert (notes, given) == (["run"], current.stream)


def test_a_stream_of_the_callers_choice(fake_cuda):
    assert streams.ComputeStream(torch.device("cuda", 0), 9).provider_options() == {"user_compute_stream": "9"}


def test_the_order_holds_when_the_run_fails(fake_cuda):
    _, notes = fake_cuda
    with pytest.raises(ZeroDivisionError), streams.ComputeStream(torch.device("cuda", 0)).in_order():
        raise ZeroDivisionError
    assert notes[-1] == (0, 77)


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [1, 3, 4, 9])
def test_cuda_graphs_give_what_the_session_gives(path, rows):
    x = torch.randn(rows, 6, device="cuda")
    graphs = OnnxPredictor(path, [(CUDA, {"use_tf32": 0})], batch_buckets=[1, 4])
    expected = gelu_net().eval().cuda()(x)
    for _ in range(3):  # captured, then replayed
        torch.testing.assert_close(graphs(x), expected, rtol=0, atol=1e-5)


@pytest.mark.gpu
def test_calls_are_in_order_with_the_callers_streams(path):
    predictor = OnnxPredictor(path, [(CUDA, {"use_tf32": 0})])
    net = gelu_net().eval().cuda()
    for stream in (torch.cuda.current_stream(), torch.cuda.Stream(), torch.cuda.Stream()):
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream), torch.no_grad():
            x = torch.zeros(4096, 6, device="cuda")
            torch.cuda._sleep(10_000_000)  # the input is written long after the call is queued
            x += 1
            y = predictor(x)
            torch.testing.assert_close(y, net(x), rtol=0, atol=1e-5)


@pytest.fixture(scope="module")
def centred(tmp_path_factory):
    path = tmp_path_factory.mktemp("centred") / "net.onnx"
    export_onnx(Centred(), path, torch.zeros(2, 6))
    return TensorRunner(OnnxPredictor(path, [CPU]).session, torch.device("cpu"))


@pytest.mark.parametrize("rows", [1, 3, 5, 9])
def test_rows_that_see_each_other_are_neither_padded_nor_divided(centred, rows):
    run = BucketRunner(centred, {BATCH: (2, 4)})
    x = torch.randn(4, 6)
    torch.testing.assert_close(run({"x": x})[0], Centred()(x), rtol=0, atol=1e-6)
    with pytest.raises(ModelInputError, match=rf"has {rows} rows, and the buckets of 'batch' are \[2, 4\]") as error:
        run({"x": torch.randn(rows, 6)})
    assert "padding={'x': 0}" in str(error.value)


def test_who_says_what_stands_behind_rows_gets_that(centred):
    run = BucketRunner(centred, {"batch": (2, 4)}, {"x": 2.5})
    run({"x": torch.full((4, 6), float("nan"))})
    x = torch.randn(3, 6)
    expected = Centred()(torch.cat([x, torch.full((1, 6), 2.5)]))[:3]
    torch.testing.assert_close(run({"x": x})[0], expected, rtol=0, atol=1e-6)
    with pytest.raises(ModelInputError, match="at most 4, its largest bucket"):
        run({"x": torch.randn(5, 6)})


def test_rows_beyond_a_call_are_zeros(tmp_path):
    """A file that says nothing of its rows, as those of others and older ones, gets the padding that is promised."""
    path = tmp_path / "net.onnx"
    export_onnx(Centred(), path, torch.zeros(2, 6))
    model = onnx.load(path)
    del model.metadata_props[:]
    onnx.save(model, path)
    run = BucketRunner(TensorRunner(OnnxPredictor(path, [CPU]).session, torch.device("cpu")), {BATCH: (4,)})
    run({"x": torch.randn(4, 6)})
    x = torch.randn(3, 6)
    expected = Centred()(torch.cat([x, torch.zeros(1, 6)]))[:3]
    torch.testing.assert_close(run({"x": x})[0], expected, rtol=0, atol=1e-6)
