"""Tensors in and out of a session: every element type, where they are, without copies."""

import gc
import tracemalloc
from itertools import pairwise

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from export_cases import gelu_net
from onnx import TensorProto, helper

from lit_gelu.export import ModelFileError, ModelInputError, OnnxPredictor, export_onnx
from lit_gelu.export.runtime import CPU, CUDA
from lit_gelu.export.runtime.binding import as_tensor_on, run_options

NUMBERS = {
    torch.float32: TensorProto.FLOAT,
    torch.float64: TensorProto.DOUBLE,
    torch.float16: TensorProto.FLOAT16,
    torch.bfloat16: TensorProto.BFLOAT16,
    torch.int64: TensorProto.INT64,
    torch.int32: TensorProto.INT32,
    torch.int8: TensorProto.INT8,
    torch.uint8: TensorProto.UINT8,
    torch.bool: TensorProto.BOOL,
}


def one_node(folder, operator, dtype=torch.float32, shape=("batch", 2), out_shape=("batch", 2), out=None):
    number = NUMBERS[dtype]
    x = helper.make_tensor_value_info("x", number, shape)
    y = helper.make_tensor_value_info("y", NUMBERS[out or dtype], out_shape)
    graph = helper.make_graph([helper.make_node(operator, ["x"], ["y"])], "g", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    path = folder / "node.onnx"
    onnx.save(model, path)
    return OnnxPredictor(path, [CPU])


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("binding") / "net.onnx"
    export_onnx(gelu_net(), path, torch.zeros(2, 6))
    return path


@pytest.mark.parametrize("dtype", NUMBERS)
@pytest.mark.parametrize("rows", [3, 1, 0])
def test_every_element_type(tmp_path, dtype, rows):
    x = torch.tensor([[0, 1], [2, 3], [4, 5]])[:rows].to(dtype)
    y = one_node(tmp_path, "Identity", dtype)(x)
    assert y.dtype == dtype
    assert torch.equal(y, x)


class _Noting:
    """The compiled part of a session, which notes where the arrays lie that it is given."""

    def __init__(self, inner):
        self.inner, self.given = inner, []

    def run(self, names, feed, *rest):
        self.given.extend(array.__array_interface__["data"][0] for array in feed.values())
        return self.inner.run(names, feed, *rest)

    def __getattr__(self, name):
        return getattr(self.inner, name)


def test_on_the_cpu_memory_is_passed_as_arrays(path):
    """A binding would take several times as long as a small net; onnxruntime hands out arrays of its own memory."""
    predictor, x = OnnxPredictor(path, [CPU]), torch.randn(4, 6)
    noting = predictor.session._sess = _Noting(predictor.session._sess)
    assert torch.equal(predictor(x), predictor(x))  # the longer way at first, which learns the type, then the quick one
    y, z = predictor(x), predictor(x.numpy())
    assert noting.given == [x.data_ptr()] * 4
    assert z.__array_interface__["data"][0] != y.data_ptr()  # each call has memory of its own
    assert torch.equal(y, torch.from_numpy(z))


def test_only_cuda_needs_options_of_a_run():
    """And then the number of a graph, without which onnxruntime throws and catches an exception at every bound run."""
    assert run_options(torch.device("cpu")) is None
    for number, given in (("-1", ()), ("3", (3,))):
        options = run_options(torch.device("cuda", 0), *given)
        assert options.get_run_config_entry("gpu_graph_id") == number
        assert options.get_run_config_entry("disable_synchronize_execution_providers") == "1"


def test_bound_memory_is_passed_not_copied(path, monkeypatch):
    """As on CUDA, and for element types that numpy has not."""
    bound = {"in": [], "out": []}
    into, out_of = onnxruntime.IOBinding.bind_input, onnxruntime.IOBinding.bind_output
    monkeypatch.setattr(
        onnxruntime.IOBinding, "bind_input", lambda self, *a: (bound["in"].append(a[-1]), into(self, *a))
    )
    monkeypatch.setattr(
        onnxruntime.IOBinding, "bind_output", lambda self, *a: (bound["out"].append(a[-1]), out_of(self, *a))
    )
    runner, x = OnnxPredictor(path, [CPU])._engine.runner, torch.randn(4, 6)
    (y,) = runner({"input": x})
    assert bound == {"in": [x.data_ptr()], "out": [y.data_ptr()]}
    (z,) = runner({"input": x})
    assert z.data_ptr() != y.data_ptr()  # each call has memory of its own
    assert torch.equal(y, z)


def test_an_output_outlives_its_predictor(tmp_path):
    """Of a shape that the inputs do not tell, so that onnxruntime allocates it."""
    predictor = one_node(tmp_path, "NonZero", out_shape=(2, "found"), out=torch.int64)
    x = torch.tensor([[0.0, 1.0], [2.0, 0.0]])
    found = predictor(x)
    del predictor
    assert torch.equal(found, x.nonzero().T)


def test_a_shape_that_the_file_names_wrongly(tmp_path, capfd):
    """Transpose gives (2, batch); the file says (batch, 2)."""
    predictor = one_node(tmp_path, "Transpose", torch.bfloat16)
    x = torch.arange(6.0).reshape(3, 2).bfloat16()
    assert torch.equal(predictor(x), x.T)
    capfd.readouterr()
    assert torch.equal(predictor(x), x.T)
    assert "computed output shape" not in capfd.readouterr().err  # learnt at the first call


def test_scalars(tmp_path):
    predictor = one_node(tmp_path, "Identity", shape=(), out_shape=())
    assert predictor(torch.tensor(2.5)).item() == 2.5


@pytest.mark.parametrize(
    "view", [lambda x: x[::2], lambda x: x.T.contiguous().T, lambda x: x[:, :6], lambda x: x.requires_grad_()]
)
def test_views_and_graphs(path, view):
    x = torch.randn(4, 6)
    expected = gelu_net().eval()(view(x.clone())).detach()
    y = OnnxPredictor(path, [CPU])(view(x))
    assert not y.requires_grad
    torch.testing.assert_close(y, expected, rtol=0, atol=1e-6)


def test_arrays_beside_tensors_and_arrays_that_torch_cannot_read(tmp_path):
    class Adds(torch.nn.Module):
        def forward(self, a, b):
            return torch.nn.functional.gelu(a) + b

    export_onnx(Adds(), tmp_path / "net.onnx", (torch.zeros(2, 3), torch.zeros(2, 3)))
    predictor = OnnxPredictor(tmp_path / "net.onnx", [CPU])
    a, b = torch.randn(4, 3), np.arange(12, dtype=np.float32).reshape(4, 3)
    expected = torch.nn.functional.gelu(a) + torch.from_numpy(b.copy())
    frozen = b.copy()
    frozen.flags.writeable = False
    for array in (b, frozen, b[::-1][::-1], np.asfortranarray(b)):
        torch.testing.assert_close(predictor(a, array), expected)
    assert isinstance(predictor(a.numpy(), b), np.ndarray)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (torch.zeros(2, 2, dtype=torch.float32), "is float32, the file takes bfloat16. Convert it first"),
        (np.zeros((2, 2), np.float32), "is bfloat16, which numpy has not: give a torch tensor"),
    ],
)
def test_inputs_of_another_type(tmp_path, value, message):
    with pytest.raises(ModelInputError, match=message):
        one_node(tmp_path, "Identity", torch.bfloat16)(value)


def test_no_second_try_on_another_provider(path, monkeypatch):
    """onnxruntime's own `run` would open the session anew on the CPU when a provider fails, and print that."""
    predictor = OnnxPredictor(path, [CPU])
    assert predictor.session._enable_fallback is False

    def fail(*arguments):
        raise RuntimeError("the device is gone")

    monkeypatch.setattr(onnxruntime.InferenceSession, "run", fail)
    with pytest.raises(ModelFileError, match="the device is gone"):
        predictor(torch.zeros(1, 6))


@pytest.mark.parametrize("kind", [pytest.param("array", marks=pytest.mark.full), "tensor"])
def test_calls_leave_no_memory_behind(path, kind):
    """Three spells of ten thousand, of which the best counts: Python itself takes or gives back some hundred bytes."""
    predictor, x = OnnxPredictor(path, [CPU]), torch.randn(4, 6)
    value = x.numpy() if kind == "array" else x
    tracemalloc.start()  # numpy's arrays, of whose memory the tensors are, are traced too
    try:
        taken = []
        for _ in range(4):
            for _ in range(10_000):
                predictor(value)
            gc.collect()
            taken.append(tracemalloc.get_traced_memory()[0])
        assert min(after - before for before, after in pairwise(taken)) < 1_000  # one object a call were 160,000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("call", ["positional", "named", "mapping"])
def test_the_quick_way_gives_what_the_general_one_gives(path, monkeypatch, call):
    predictor, x = OnnxPredictor(path, [CPU]), torch.randn(4, 6)
    (expected,) = predictor._engine.run_tensors({"input": x})
    calls = {"positional": lambda v: predictor(v), "named": lambda v: predictor(input=v)}
    run = calls.get(call, lambda v: predictor({"input": v}))
    for value in (x, x[:, ::1], x.clone().requires_grad_(), torch.nn.Parameter(x), x.T.contiguous().T):
        assert torch.equal(run(value), expected)
    for array in (x.numpy(), np.asfortranarray(x.numpy()), x.numpy().view(np.ndarray)):
        np.testing.assert_array_equal(run(array), expected)
    general = []
    monkeypatch.setattr(type(predictor._engine), "run_arrays", lambda self, given: general.append(given) or [given])
    run(x.numpy())
    assert len(general) == (call != "positional")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64])
def test_on_cuda_memory_is_passed(tmp_path, dtype):
    one_node(tmp_path, "Identity", dtype)
    x = torch.arange(6, device="cuda").reshape(3, 2).to(dtype)
    y = OnnxPredictor(tmp_path / "node.onnx", [CUDA])(x)
    assert y.device == x.device
    assert torch.equal(y, x)


def test_a_negation_that_is_still_to_be_done_is_done(path):
    x = torch.randn(3, 6, dtype=torch.complex64).conj().imag
    assert x.is_neg()
    predictor = OnnxPredictor(path, [CPU])
    assert torch.equal(predictor(x), predictor(torch.from_numpy(x.resolve_neg().numpy())))
    assert torch.equal(predictor(input=x), predictor(x))
    assert torch.equal(as_tensor_on(torch.device("cpu"), x), x)
    assert not as_tensor_on(torch.device("cpu"), x).is_neg()


@pytest.mark.parametrize(
    ("x", "said"),
    [
        (torch.ones(2, 6).to_sparse(), r"Input 'input' is sparse \(torch.sparse_coo\).*Give input.to_dense\(\)"),
        (torch.ones(2, 6, device="meta"), "Input 'input' is on the device meta"),
    ],
)
def test_tensors_without_values_in_a_row_are_named_and_the_file_is_not(path, x, said):
    for call in (lambda p: p(x), lambda p: p(input=x), lambda p: p({"input": x})):
        with pytest.raises(ModelInputError, match=said):
            call(OnnxPredictor(path, [CPU]))
