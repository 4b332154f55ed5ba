"""Runs on a CUDA device: its streams, the thread's device, torch's captures, graphs; torch.cuda is a fake."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import SimpleNamespace

import export_zoo
import numpy as np
import onnxruntime
import pytest
import torch
from export_zoo import net

from lit_gelu.export import OnnxPredictor, ProviderError
from lit_gelu.export.runtime import CPU, CUDA, predictor
from lit_gelu.export.runtime import cuda as cuda_module
from lit_gelu.export.runtime.cuda import BatchGraphs, ComputeStream, CudaRunner, TensorRunner

HOST = torch.device("cpu")


@pytest.fixture(scope="module")
def path():
    return export_zoo.exported("gelu")[1]


def runner_of(name):
    return TensorRunner(OnnxPredictor(export_zoo.exported(name)[1], [CPU]).session, HOST)


@pytest.mark.parametrize(("rows", "size"), [(0, 1), (1, 1), (2, 4), (4, 4)])
def test_padded_calls_give_the_same(rows, size):
    graphs, x = BatchGraphs(runner_of("gelu"), (1, 4)), torch.randn(rows, 6)
    assert graphs.size_for({"input": x}) == size
    graphs.run(4, {"input": torch.full((4, 6), float("nan"))})  # what earlier calls leave behind does not matter
    (y,) = graphs.run(size, {"input": x})
    kept = y.clone()
    graphs.run(4, {"input": torch.zeros(4, 6)})
    assert torch.equal(y, kept)  # outputs are not the buffers
    torch.testing.assert_close(y, net("gelu")(x).detach(), rtol=0, atol=1e-6)


def test_what_no_graph_takes():
    """Rows that see each other are not padded."""
    tensors = [{"x": torch.randn(rows, 6)} for rows in (1, 2, 3, 4, 5)]
    for name, sizes in (("gelu", [2, 2, 4, 4, None]), ("centred", [None, 2, None, 4, None])):
        graphs = BatchGraphs(runner_of(name), (2, 4))
        assert list(map(graphs.size_for, tensors)) == sizes


class FakeStream:
    """A stream that notes what it waits for."""

    def __init__(self, handle, notes):
        self.cuda_stream, self.notes = handle, notes

    def wait_stream(self, other):
        self.notes.append((self.cuda_stream, other.cuda_stream))


@pytest.fixture
def streams(monkeypatch):
    notes = []
    current = SimpleNamespace(stream=FakeStream(0, notes))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: current.stream)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: FakeStream(77, notes))
    monkeypatch.setattr(torch.cuda, "ExternalStream", lambda handle, device: FakeStream(handle, notes))
    return current, notes


def test_the_default_stream_is_never_handed_over(streams):
    """onnxruntime reads the handle 0 as "no stream" and would make one that is in no order with torch's."""
    _, notes = streams
    stream = ComputeStream(torch.device("cuda", 0))
    assert stream.stream.cuda_stream == 77
    with stream.in_order():
        notes.append("run")
    assert notes == [(77, 0), "run", (0, 77)]
    with pytest.raises(ZeroDivisionError), stream.in_order():
        raise ZeroDivisionError
    assert notes[-1] == (0, 77)  # the order holds when the run fails


@pytest.mark.parametrize("handle", [0, 9])
def test_on_the_sessions_own_stream_nothing_waits(streams, handle):
    """A stream is known by its handle: two objects of one stream are the same to the device."""
    current, notes = streams
    current.stream = FakeStream(handle or 5, notes)
    stream = ComputeStream(torch.device("cuda", 0), handle)
    current.stream = FakeStream(handle or 5, notes)
    with stream.in_order():
        notes.append("run")
    assert notes == ["run"]


class FakeCuda(threading.local):
    """What a thread has of CUDA: its current device and stream."""

    device, stream = 0, "default"


@pytest.fixture
def cuda(monkeypatch):
    thread = FakeCuda()

    @contextmanager
    def set_for_now(name, value):
        before = getattr(thread, name)
        setattr(thread, name, value)
        try:
            yield
        finally:
            setattr(thread, name, before)

    monkeypatch.setattr(torch.cuda, "device", lambda device: set_for_now("device", device.index or 0))
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: set_for_now("stream", stream))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: thread.stream)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: None)
    return thread


class SessionStream:
    """The session's stream, which notes whose calls it was put in order with."""

    stream = "session"

    def __init__(self, thread):
        self.thread, self.callers = thread, []

    @contextmanager
    def in_order(self):
        self.callers.append(self.thread.stream)
        yield self.thread.stream


class NotedSession:
    """A session that notes on which stream it runs; two runs at once are an error."""

    def __init__(self, session, thread):
        self.session, self.thread, self.runs, self.busy = session, thread, [], threading.Lock()

    def __getattr__(self, name):
        return getattr(self.session, name)

    def run_with_iobinding(self, binding, options):
        assert self.busy.acquire(blocking=False)
        self.runs.append(self.thread.stream)
        self.session.run_with_iobinding(binding, options)
        self.busy.release()


@pytest.fixture
def graphs(path, cuda):
    session = NotedSession(OnnxPredictor(path, [CPU]).session, cuda)
    return CudaRunner(session, HOST, SessionStream(cuda), (1, 4))


def test_every_graph_is_captured_when_the_file_is_opened(graphs):
    assert graphs.runner.session.runs == ["session"] * 2


def test_calls_of_other_threads_take_turns_and_run_without_graphs(graphs, cuda, monkeypatch):
    """And are in the order of the stream that is current where they were made."""
    inputs = [torch.randn(rows, 6) for rows in (1, 2, 3, 4, 5, 9)] * 3
    captured = len(graphs.runner.session.runs)
    in_graphs = []
    run = BatchGraphs.run
    monkeypatch.setattr(BatchGraphs, "run", lambda *arguments: in_graphs.append(1) or run(*arguments))

    def call(number):
        cuda.stream = f"stream {number}"
        return graphs({"input": inputs[number]})[0]

    with ThreadPoolExecutor(4) as pool:
        outputs = list(pool.map(call, range(len(inputs))))
    for x, y in zip(inputs, outputs, strict=True):
        torch.testing.assert_close(y, net("gelu")(x).detach(), rtol=0, atol=1e-6)
    assert graphs.runner.session.runs[captured:] == ["session"] * len(inputs)
    assert set(graphs.stream.callers[1:]) == {f"stream {number}" for number in range(len(inputs))}
    assert not in_graphs
    graphs({"input": inputs[0]})
    assert in_graphs


def test_graphs_made_under_inference_mode_can_be_used_outside(path, cuda):
    with torch.inference_mode():
        runner = CudaRunner(OnnxPredictor(path, [CPU]).session, HOST, SessionStream(cuda), (2,))
    x = torch.randn(2, 6)
    torch.testing.assert_close(runner({"input": x})[0], net("gelu")(x).detach(), rtol=0, atol=1e-6)
    np.testing.assert_allclose(runner.run_arrays({"input": x.numpy()})[0], net("gelu")(x).detach(), atol=1e-6)


@pytest.mark.parametrize("value", [torch.zeros(1, 6), np.zeros((1, 6), np.float32)], ids=["tensor", "array"])
def test_a_call_while_torch_captures_is_refused(path, cuda, monkeypatch, value):
    """onnxruntime's error would end the process when it is torn down."""
    runner = CudaRunner(OnnxPredictor(path, [CPU]).session, HOST, SessionStream(cuda))
    call = runner if isinstance(value, torch.Tensor) else runner.run_arrays
    assert call({"input": value})[0].shape == (1, 3)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(ProviderError):
        call({"input": value})


def test_opening_leaves_the_threads_device_and_hands_the_stream_over(path, cuda, monkeypatch):
    session = OnnxPredictor(path, [CPU]).session

    def opened(path, providers, **options):
        assert cuda.device == 1
        cuda.device = 7
        assert dict(providers)[CUDA] == {"use_tf32": "0", "device_id": "1", "user_compute_stream": "33"}
        return session

    stream = SimpleNamespace(stream=SimpleNamespace(cuda_stream=33))
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [CUDA, CPU])
    monkeypatch.setattr(predictor, "_device", lambda *arguments: "cuda:1")
    monkeypatch.setattr(predictor, "open_session", opened)
    monkeypatch.setattr(cuda_module, "ComputeStream", lambda *arguments: stream)
    monkeypatch.setattr(
        cuda_module, "CudaRunner", lambda session, *a, **o: SimpleNamespace(runner=SimpleNamespace(session=session))
    )
    model = OnnxPredictor(path, [(CUDA, {"use_tf32": 0})])
    assert (model.session, model.device, cuda.device) == (session, torch.device("cuda", 1), 0)


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [1, 3, 4, 9])
def test_cuda_graphs_give_what_the_session_gives(path, rows):
    x = torch.randn(rows, 6, device="cuda")
    graphs = OnnxPredictor(path, [(CUDA, {"use_tf32": 0})], batch_buckets=[1, 4])
    expected = net("gelu").cpu()(x.cpu()).cuda()
    for _ in range(3):  # captured, then replayed
        torch.testing.assert_close(graphs(x), expected, rtol=0, atol=1e-5)


@pytest.mark.gpu
def test_calls_are_in_order_with_the_callers_streams(path):
    run = OnnxPredictor(path, [(CUDA, {"use_tf32": 0})])
    expected = net("gelu")(torch.ones(4096, 6)).detach()
    for stream in (torch.cuda.current_stream(), torch.cuda.Stream(), torch.cuda.Stream()):
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream), torch.no_grad():
            x = torch.zeros(4096, 6, device="cuda")
            torch.cuda._sleep(10_000_000)  # the input is written long after the call is queued
            x += 1
            torch.testing.assert_close(run(x).cpu(), expected, rtol=0, atol=1e-5)
