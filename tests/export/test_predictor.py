"""`OnnxPredictor`: arrays and tensors in and out, in threads and other processes, and what is refused."""

import copy
import json
import multiprocessing
import os
import pickle
from collections import UserDict
from concurrent.futures import ThreadPoolExecutor

import export_zoo
import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from child_processes import PATIENCE, run_python
from export_zoo import net
from torch import nn
from torch.utils.data import DataLoader, Dataset

from lit_gelu.export import ModelFileError, ModelInputError, OnnxPredictor, ProviderError, export_onnx
from lit_gelu.export.runtime import CPU, CUDA, default_providers
from lit_gelu.export.runtime.cuda import TensorRunner, as_tensor_on
from lit_gelu.export.runtime.model_file import Port

SAMPLE = torch.zeros(2, 6)
NUMBERS = ["float", "double", "float16", "bfloat16", "uint16", "uint64", "int64", "int32", "int8", "uint8", "bool"]


@pytest.fixture(scope="module")
def path():
    return export_zoo.exported("gelu")[1]


@pytest.fixture(params=[0, 9], ids=["new", "repeated"])  # the ninth small call of a shape is in memory that is kept
def predictor(path, request):
    predictor = OnnxPredictor(path, [CPU])
    for _ in range(request.param):
        predictor(SAMPLE)
    return predictor


def of_graph(folder, text):
    onnx.save(onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 20]> g {text}'), folder / "net.onnx")
    return OnnxPredictor(folder / "net.onnx", [CPU])


def test_the_answer_is_of_the_inputs_kind(predictor):
    x = torch.linspace(-1, 1, 18).reshape(3, 6).requires_grad_()
    expected = net("gelu")(x)
    y, array = predictor(x), predictor(x.detach().numpy())
    assert isinstance(array, np.ndarray)
    assert not y.requires_grad
    torch.testing.assert_close(y, expected.detach(), rtol=0, atol=1e-6)
    np.testing.assert_array_equal(array, y)


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x[::2],
        lambda x: x.T.contiguous().T,
        lambda x: x.clone().requires_grad_(),
        lambda x: torch.complex(x, -x).conj().imag,  # a negation that is still to be done
    ],
)
def test_views_are_read_as_they_are(predictor, view):
    x = view(torch.randn(4, 6))
    torch.testing.assert_close(predictor(x), net("gelu")(x).detach(), rtol=0, atol=1e-6)
    assert torch.equal(as_tensor_on(torch.device("cpu"), x), x)


@pytest.mark.parametrize(
    ("inputs", "named"),
    [
        ((np.zeros((2, 6)),), {}),
        ((np.zeros((2, 5), np.float32),), {}),
        ((np.zeros(6, np.float32),), {}),
        ((np.ones((2, 6), np.dtype(np.float32).newbyteorder()),), {}),
        ((torch.ones(2, 6).to_sparse(),), {}),
        ((torch.ones(2, 6, device="meta"),), {}),
        (([[0.0] * 6],), {}),
        ((), {}),
        ((), {"x": np.zeros((2, 6), np.float32)}),
        (({"inputs": SAMPLE},), {}),
        (({},), {}),
        ((np.zeros((2, 6), np.float32),) * 2, {}),
        ((SAMPLE,), {"input": SAMPLE}),
    ],
)
def test_inputs_that_do_not_fit_are_refused(predictor, inputs, named):
    with pytest.raises(ModelInputError):
        predictor(*inputs, **named)


def test_inputs_by_name_or_as_a_tokenizer_gives_them(tmp_path):
    class Masked(nn.Module):
        def forward(self, x, mask):
            return nn.functional.gelu(x) * mask

    x, mask = torch.randn(3, 2), torch.ones(3, 2)
    export_onnx(Masked(), tmp_path / "net.onnx", (x, mask))
    predictor = OnnxPredictor(tmp_path / "net.onnx", [CPU])
    expected = predictor(x, mask)
    calls = (((x,), {"mask": mask}), (({"x": x, "mask": mask},), {}), ((UserDict(mask=mask, x=x),), {}))
    for inputs, named in (*calls, (({"x": x},), {"mask": mask})):
        assert torch.equal(predictor(*inputs, **named), expected)
    frozen = mask.numpy().copy()
    frozen.flags.writeable = False
    for array in (frozen, mask.numpy()[::-1], np.asfortranarray(mask.numpy())):
        assert torch.equal(predictor(x, array), expected)


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("rows", [3, 0])
def test_every_element_type(tmp_path, number, rows):
    x = torch.tensor([[0, 1], [2, 3], [4, 5]])[:rows].to(getattr(torch, number))
    predictor = of_graph(tmp_path, f"({number}[batch,2] x) => ({number}[batch,2] y) {{ y = Identity(x) }}")
    for each in (x, x, x, x, x.flip(0)):
        assert predictor(each).dtype == x.dtype
        assert torch.equal(predictor(each), each)


def test_calls_of_several_threads_do_not_meet_in_kept_memory(predictor):
    inputs = [torch.randn(2 + i % 2 * (i > 40), 6) for i in range(80)]
    with ThreadPoolExecutor(4) as threads:
        outputs = list(threads.map(predictor, inputs))
    for x, y in zip(inputs, outputs, strict=True):
        assert np.array_equal(predictor.session.run(None, {"input": x.numpy()})[0], y)


@pytest.mark.parametrize("size", ["some", "batch"])  # the second is not true
def test_an_output_whose_size_depends_on_values(tmp_path, size, capfd):
    predictor = of_graph(tmp_path, f"(float[batch,2] x) => (int64[2,{size}] y) {{ y = NonZero(x) }}")
    for x in (*[torch.eye(2)] * 9, torch.ones(2, 2), torch.zeros(2, 2)):
        assert torch.equal(predictor(x), x.nonzero().T)
    assert size == "batch" or not capfd.readouterr().err  # where onnxruntime reports a run that failed


@pytest.mark.parametrize(("x", "dtype"), [("string[n]", object), ("float[]", np.float32)])
def test_an_input_of_texts_or_of_any_shape(tmp_path, x, dtype):
    predictor = of_graph(tmp_path, f"({x} x) => (float[n] y) {{ y = Cast<to=1>(x) }}")
    for value in range(12):
        assert predictor(np.array([str(value)], object).astype(dtype)).item() == value


def test_an_input_that_is_the_output(tmp_path):
    predictor = of_graph(tmp_path, "(float[batch,2] x) => (float[batch,2] x) {}")
    for value in range(12):
        assert predictor(np.full((1, 2), value, np.float32)).max() == value


def test_bound_memory_is_passed_not_copied(predictor, monkeypatch):
    """As on CUDA, and for element types that numpy has not."""
    bound = {"in": [], "out": []}
    into, out_of = onnxruntime.IOBinding.bind_input, onnxruntime.IOBinding.bind_output
    monkeypatch.setattr(onnxruntime.IOBinding, "bind_input", lambda b, *a: (bound["in"].append(a[-1]), into(b, *a)))
    monkeypatch.setattr(onnxruntime.IOBinding, "bind_output", lambda b, *a: (bound["out"].append(a[-1]), out_of(b, *a)))
    runner, x = TensorRunner(predictor.session, torch.device("cpu")), torch.randn(4, 6)
    (y,), (z,) = runner({"input": x}), runner({"input": x})
    assert bound == {"in": [x.data_ptr()] * 2, "out": [y.data_ptr(), z.data_ptr()]}
    assert z.data_ptr() != y.data_ptr()  # each call has memory of its own
    assert torch.equal(y, z)


def test_one_name_is_one_size(tmp_path):
    class Weighted(nn.Module):
        def forward(self, x, weight):
            return nn.functional.gelu(x) * weight

    x, weight = torch.ones(5, 4), torch.full((1, 1), 2.0)
    export_onnx(Weighted(), tmp_path / "net.onnx", (torch.zeros(3, 4), torch.zeros(3, 1)))
    predictor = OnnxPredictor(tmp_path / "net.onnx")
    for inputs in ((x, weight), (x.numpy(), weight.numpy())):
        with pytest.raises(ModelInputError):
            predictor(*inputs)
    torch.testing.assert_close(predictor(x, weight.repeat(5, 1)), Weighted()(x, weight))


@pytest.mark.full
def test_no_rows_that_would_end_the_process_are_refused():
    predictor, x = OnnxPredictor(export_zoo.exported("recurrent")[1], [CPU]), torch.randn(2, 3, 4)
    torch.testing.assert_close(predictor(x), net("recurrent")(x).detach(), rtol=0, atol=1e-6)
    for empty in (x[:0], x[:0].numpy()):
        with pytest.raises(ModelInputError):
            predictor(empty)


def test_a_failure_while_running_is_the_files(tmp_path, predictor, monkeypatch):
    """And onnxruntime's own `run` does not open the session anew on the CPU, and print that."""

    class Gathers(nn.Module):
        def forward(self, x, index):
            return nn.functional.gelu(x)[index]

    export_onnx(Gathers(), tmp_path / "gather.onnx", (torch.zeros(3, 2), torch.tensor([0, 1, 2])))
    with pytest.raises(ModelFileError):
        OnnxPredictor(tmp_path / "gather.onnx")(torch.zeros(3, 2), torch.tensor([0, 1, 9]))

    def fail(*arguments):
        raise RuntimeError("the device is gone")

    monkeypatch.setattr(onnxruntime.InferenceSession, "run", fail)
    with pytest.raises(ModelFileError):
        predictor(torch.zeros(1, 6))


def test_the_default_is_cuda_without_tf32_where_torch_has_it(monkeypatch):
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [CUDA, CPU])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert default_providers() == [(CUDA, {"use_tf32": 0}), CPU]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert default_providers() == [CPU]


@pytest.mark.parametrize("sizes", [[0], [-1, 4], [2.5], [4]])
def test_the_cpu_has_no_cuda_graphs(path, sizes):
    with pytest.raises(ProviderError):
        OnnxPredictor(path, [CPU], batch_buckets=sizes)


def test_it_is_pickled_in_one_folder_and_opened_in_another(path, tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "net.onnx").write_bytes(path.read_bytes())
    monkeypatch.chdir(tmp_path / "here")
    predictor = OnnxPredictor("net.onnx", [CPU])
    monkeypatch.chdir(tmp_path)
    for again in (pickle.loads(pickle.dumps(predictor)), copy.deepcopy(predictor)):
        assert again.path == tmp_path / "here" / "net.onnx"
        assert torch.equal(again(SAMPLE), predictor(SAMPLE))


class Predicted(Dataset):
    """Rows through a predictor, which a worker process got by fork."""

    def __init__(self, predictor):
        self.predictor = predictor

    def __len__(self):
        return 6

    def __getitem__(self, index):
        return self.predictor(torch.full((1, 6), float(index)))[0], os.getpid()


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="this system cannot fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_in_the_workers_of_a_dataloader(path):
    """A session with several threads hangs in a forked process, where they are missing."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 2
    predictor = OnnxPredictor(path, [CPU], options)
    expected = torch.stack([Predicted(predictor)[index][0] for index in range(6)])
    loader = DataLoader(Predicted(predictor), 3, num_workers=2, multiprocessing_context="fork", timeout=PATIENCE)
    rows, processes = zip(*loader, strict=True)
    assert os.getpid() not in torch.cat(processes).tolist()
    torch.testing.assert_close(torch.cat(rows), expected, rtol=0, atol=1e-6)


_RUN = """
import sys
import numpy as np
from lit_gelu.export.runtime import OnnxPredictor

for path in sys.argv[1:]:
    predict = OnnxPredictor(path, ["CPUExecutionProvider"])
    (port,) = predict.ports.values()
    print(np.isfinite(predict(np.zeros([2 if isinstance(n, str) else n for n in port.shape], np.float16))).all())
"""


@pytest.mark.full
def test_a_float16_transformer_does_not_end_the_process():
    """onnxruntime 1.31 follows a null pointer in one of its optimisations on x86-64: another process tries it."""
    paths = [str(export_zoo.exported(name, "fp16")[1]) for name in ("encoder", "vision transformer")]
    assert run_python(_RUN, *paths).stdout.split() == ["True", "True"]


_WITHOUT_TORCH = """
import json, sys
for name in ("torch", "lightning", "onnx_ir", "onnxscript", "torchmetrics", "jsonargparse", "rich", "matplotlib",
             "scipy", "sklearn", "torchvision", "timm", "transformers", "yaml"):
    sys.modules[name] = None
import numpy as np
from lit_gelu.export import ModelFileError, ModelInputError, ProviderError
from lit_gelu.export.runtime import OnnxPredictor

path, inputs = sys.argv[1:]
predictor = OnnxPredictor(path)
calls = {
    ModelInputError: lambda: predictor(np.zeros((2, 6))),
    ModelFileError: lambda: OnnxPredictor("missing.onnx"),
    ProviderError: lambda: OnnxPredictor(path, batch_buckets=[4]),
}
for kind, call in calls.items():
    try:
        call()
        sys.exit(f"no {kind}")
    except kind:
        pass
print(json.dumps({"y": predictor(np.load(inputs)).tolist(), "metadata": predictor.metadata,
                  "placement": str(predictor.placement)}))
"""


def test_onnxruntime_onnx_and_numpy_are_enough_to_run_a_file(path, tmp_path):
    x = torch.randn(5, 6)
    np.save(tmp_path / "x.npy", x.numpy())
    result = json.loads(run_python(_WITHOUT_TORCH, str(path), str(tmp_path / "x.npy")).stdout)
    np.testing.assert_allclose(result["y"], net("gelu")(x).detach(), atol=1e-6)
    assert result["metadata"] == {entry.key: entry.value for entry in onnx.load(path).metadata_props}
    assert result["placement"].startswith(CPU)


@pytest.mark.parametrize(("kind", "dtype"), [("bfloat16", "float64"), ("float", "float64"), ("float16", "float32")])
def test_an_array_of_another_dtype_fits_no_input(kind, dtype):
    port = Port("x", f"tensor({kind})", ("batch", 2))
    assert not port.fits(np.zeros((3, 2), dtype))
