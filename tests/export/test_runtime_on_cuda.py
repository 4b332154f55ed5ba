"""Runs on a CUDA device: the thread's device, torch's captures, and the graphs' threads; torch.cuda is a fake."""

import threading
import warnings
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from export_cases import gelu_net

from lit_gelu.export import OnnxPredictor, ProviderError, export_onnx
from lit_gelu.export.runtime import CPU, CUDA, engine, on_cuda
from lit_gelu.export.runtime.on_cuda import CudaRunner, OtherDeviceWarning
from lit_gelu.export.runtime.settings import BATCH

HOST = torch.device("cpu")


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("on_cuda") / "net.onnx"
    export_onnx(gelu_net(), path, torch.zeros(2, 6))
    return path


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
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: None)
    return thread


class FakeStream:
    """The session's stream, which notes whose calls it was put in order with."""

    stream = "session"

    def __init__(self, thread):
        self.thread, self.callers = thread, []

    @contextmanager
    def in_order(self):
        self.callers.append(self.thread.stream)
        yield self.thread.stream


class NotedSession:
    """A session that notes which thread runs it, and on which stream; two at once are an error."""

    def __init__(self, session, thread):
        self.session, self.thread, self.runs, self.busy = session, thread, [], threading.Lock()

    def __getattr__(self, name):
        return getattr(self.session, name)

    def run_with_iobinding(self, binding, options):
        assert self.busy.acquire(blocking=False)
        self.runs.append((threading.current_thread().name, self.thread.stream))
        self.session.run_with_iobinding(binding, options)
        self.busy.release()


@pytest.fixture
def graphs(path, cuda):
    session = NotedSession(OnnxPredictor(path, [CPU]).session, cuda)
    return CudaRunner(session, HOST, FakeStream(cuda), {BATCH: (1, 4)}, {})


def test_every_graph_is_captured_when_the_file_is_opened(graphs):
    """For the thread that opens it and for the worker: onnxruntime keeps the graphs of each thread apart."""
    runs = graphs.runner.session.runs
    worker = runs[-1][0]
    assert runs == [("MainThread", "session")] * 2 + [(worker, "session")] * 2
    assert worker.startswith("lit_gelu_cuda_graphs")


def test_every_pair_of_named_sizes_is_a_graph(tmp_path, cuda):
    text = (
        '<ir_version: 10, opset_import: ["": 20]> g (float[batch, time] x) => (float[batch, time] y) { y = Gelu (x) }'
    )
    onnx.save(onnx.parser.parse_model(text), tmp_path / "net.onnx")
    session = NotedSession(OnnxPredictor(tmp_path / "net.onnx", [CPU]).session, cuda)
    made = CudaRunner(session, HOST, FakeStream(cuda), {"batch": (1, 2), "time": (3, 8)}, {"x": 0})
    assert Counter(name.partition("_")[0] for name, _ in session.runs) == {"MainThread": 4, "lit": 4}
    x = torch.randn(5, 6)
    torch.testing.assert_close(made({"x": x})[0], torch.nn.functional.gelu(x), rtol=0, atol=1e-6)
    assert len(session.runs) == 8 + 3


def test_calls_of_other_threads_take_turns_in_one_worker(graphs, cuda):
    """And are in the order of the stream that is current where they were made."""
    inputs = [torch.randn(rows, 6) for rows in (1, 2, 3, 4, 5, 9)] * 3
    captured = len(graphs.runner.session.runs)

    def call(number):
        cuda.stream = f"stream {number}"
        return graphs({"input": inputs[number]})[0]

    with ThreadPoolExecutor(4) as pool:
        outputs = list(pool.map(call, range(len(inputs))))
    for x, y in zip(inputs, outputs, strict=True):
        torch.testing.assert_close(y, gelu_net().eval()(x).detach(), rtol=0, atol=1e-6)
    runs = graphs.runner.session.runs[captured:]
    assert {name.rpartition("_")[0] for name, _ in runs} == {"lit_gelu_cuda_graphs"}
    assert {stream for _, stream in runs} == {"session"}
    assert set(graphs.stream.callers[1:]) == {f"stream {number}" for number in range(len(inputs))}
    graphs({"input": inputs[0]})
    assert graphs.runner.session.runs[-1] == ("MainThread", "session")


def test_sizes_between_the_buckets_run_without_a_graph_unless_they_are_padded(graphs, path):
    graphs.padding = None
    x = torch.randn(3, 6)
    graphs.bucketed._buffers = dict.fromkeys(graphs.bucketed._buffers)  # so that the buckets could not answer
    torch.testing.assert_close(graphs({"input": x})[0], gelu_net().eval()(x).detach(), rtol=0, atol=1e-6)
    with pytest.raises(AttributeError):
        graphs({"input": x[:1]})


def test_graphs_made_under_inference_mode_can_be_used_outside(path, cuda):
    with torch.inference_mode():
        made = CudaRunner(OnnxPredictor(path, [CPU]).session, HOST, FakeStream(cuda), {BATCH: (2,)})
    x = torch.randn(2, 6)
    torch.testing.assert_close(made({"input": x})[0], gelu_net().eval()(x).detach(), rtol=0, atol=1e-6)
    np.testing.assert_allclose(made.run_arrays({"input": x.numpy()})[0], gelu_net().eval()(x).detach(), atol=1e-6)


@pytest.mark.parametrize("value", [torch.zeros(1, 6), np.zeros((1, 6), np.float32)], ids=["tensor", "array"])
def test_a_call_while_torch_captures_is_refused(path, cuda, monkeypatch, value):
    """onnxruntime's error would end the process when it is torn down."""
    predictor = OnnxPredictor(path, [CPU])
    runner = CudaRunner(predictor.session, HOST, FakeStream(cuda))
    predictor._opened = replace(predictor._opened, on_cuda=runner)
    assert predictor(value).shape == (1, 3)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(ProviderError, match=r"called under torch.cuda.graph.*Call it outside.*batch_buckets"):
        predictor(value)


def test_a_run_leaves_the_threads_device(path, cuda, monkeypatch):
    """onnxruntime sets it to its own, and does not set it back."""

    def run(session, *arguments):
        cuda.device = 1
        return []

    runner = CudaRunner(OnnxPredictor(path, [CPU]).session, HOST, FakeStream(cuda))
    monkeypatch.setattr(onnxruntime.InferenceSession, "run", run)
    runner.run_arrays({})
    assert cuda.device == 0


def test_opening_leaves_the_threads_device(path, cuda, monkeypatch):
    session = SimpleNamespace(get_inputs=list, get_outputs=list)

    def opened(*arguments, **options):
        assert cuda.device == 1
        cuda.device = 7
        return session

    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [CUDA, CPU])
    monkeypatch.setattr(engine, "_device", lambda *arguments: "cuda:1")
    monkeypatch.setattr(engine, "_hand_over_stream", lambda *arguments: None)
    monkeypatch.setattr(engine, "_open", opened)
    monkeypatch.setattr(on_cuda, "CudaRunner", lambda *arguments, **options: None)
    predictor = OnnxPredictor(path, [CUDA], tuning=False)
    assert (predictor.session, cuda.device) == (session, 0)


def test_a_tensor_of_another_gpu_is_warned_of_once(path, cuda, monkeypatch):
    class Elsewhere(torch.Tensor):
        is_cuda, device = True, torch.device("cuda", 1)

    runner = CudaRunner(OnnxPredictor(path, [CPU]).session, HOST, FakeStream(cuda))
    monkeypatch.setattr(on_cuda, "as_tensor_on", lambda device, value: torch.zeros(1, 6))
    on_cuda._warn_of_device.cache_clear()
    with pytest.warns(OtherDeviceWarning, match=r"on cuda:1 was given to an OnnxPredictor on cpu.*'device_id': 1"):
        runner({"input": Elsewhere()})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        runner({"input": Elsewhere()})
    on_cuda._warn_of_device.cache_clear()
