"""`OnnxPredictor`: arrays and tensors in and out, and what is refused."""

from collections import UserDict
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onnxruntime
import pytest
import torch
from export_cases import gelu_net
from torch import nn

from lit_gelu.export import ModelFileError, ModelInputError, OnnxPredictor, ProviderError, export_onnx, runtime

SAMPLE = torch.zeros(2, 6)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("runtime") / "net.onnx"
    export_onnx(gelu_net(), path, SAMPLE)
    return path


def test_the_answer_is_of_the_inputs_kind(path):
    predictor = OnnxPredictor(path)
    x = torch.linspace(-1, 1, 18).reshape(3, 6).requires_grad_()
    expected = gelu_net().eval()(x)
    assert torch.allclose(predictor(x), expected, atol=1e-6)
    array = predictor(x.detach().numpy())
    assert isinstance(array, np.ndarray)
    np.testing.assert_allclose(array, expected.detach(), atol=1e-6)
    assert torch.equal(predictor(input=x), predictor(x))
    assert torch.equal(predictor(x.detach().T.contiguous().T), predictor(x))  # not contiguous


@pytest.mark.parametrize(
    ("inputs", "named", "message"),
    [
        ((np.zeros((2, 6)),), {}, "is float64, the file takes float32"),
        ((np.zeros((2, 5), np.float32),), {}, r"has shape \(2, 5\), the file takes \(batch, 6\)"),
        ((np.zeros(6, np.float32),), {}, r"has shape \(6,\)"),
        (([[0.0] * 6],), {}, "is list. Give a numpy array or a torch tensor"),
        ((), {}, "missing: input"),
        ((), {"x": np.zeros((2, 6), np.float32)}, "unknown or given twice: x; missing: input. The file takes: input"),
        (({"inputs": SAMPLE},), {}, "unknown or given twice: inputs; missing: input. The file takes: input"),
        (({},), {}, "Inputs missing: input"),
        ((np.zeros((2, 6), np.float32),) * 2, {}, "2 inputs were given, the file takes 1"),
        ((SAMPLE,), {"input": SAMPLE}, "given twice: input"),
    ],
)
def test_wrong_inputs(path, inputs, named, message):
    with pytest.raises(ModelInputError, match=message):
        OnnxPredictor(path)(*inputs, **named)


def test_threads_share_a_predictor(path):
    predictor = OnnxPredictor(path)
    inputs = [np.full((4, 6), i, np.float32) for i in range(16)]
    expected = [predictor(x) for x in inputs]
    with ThreadPoolExecutor(4) as pool:
        for result, alone in zip(pool.map(predictor, inputs), expected, strict=True):
            np.testing.assert_array_equal(result, alone)


def test_options_and_providers_reach_onnxruntime(path):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    predictor = OnnxPredictor(path, providers=["CPUExecutionProvider"], sess_options=options)
    assert predictor.providers == ["CPUExecutionProvider"]
    assert predictor.session.get_session_options().intra_op_num_threads == 1


def test_a_provider_that_does_not_exist(path):
    with pytest.raises(ProviderError, match=r"Unknown execution provider 'CUDAProvider'.*In this installation: "):
        OnnxPredictor(path, providers=["CUDAProvider"])


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_silent_fallback_to_the_cpu_is_an_error(path):
    if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        pytest.skip("this onnxruntime has no CUDA provider")
    with pytest.raises(ProviderError, match="CUDAExecutionProvider"):
        OnnxPredictor(path, providers=["CUDAExecutionProvider"])


def test_nothing_is_printed_where_there_is_no_gpu(path, capfd):
    OnnxPredictor(path)(SAMPLE)
    assert capfd.readouterr() == ("", "")


def test_the_default_is_cuda_without_tf32_where_torch_has_it(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [runtime.CUDA, runtime.CPU])
    assert runtime.default_providers() == [(runtime.CUDA, {"use_tf32": 0}), runtime.CPU]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert runtime.default_providers() == [runtime.CPU]


@pytest.mark.parametrize("content", [b"", b"no model", b"\x08\x07" + b"\xff" * 40])
def test_files_that_are_no_models(tmp_path, content):
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    with pytest.raises(ModelFileError, match=r"model\.onnx"):
        OnnxPredictor(path)
    with pytest.raises(ModelFileError, match="There is no file"):
        OnnxPredictor(tmp_path / "missing.onnx")


def test_a_failure_while_running_is_named(tmp_path):
    class Gathers(nn.Module):
        def forward(self, x, index):
            return nn.functional.gelu(x)[index]

    path = tmp_path / "gather.onnx"
    export_onnx(Gathers(), path, (torch.zeros(3, 2), torch.tensor([0, 1, 2])))
    with pytest.raises(ModelFileError, match="failed while it ran"):
        OnnxPredictor(path)(torch.zeros(3, 2), torch.tensor([0, 1, 9]))


def test_a_mapping_of_inputs_by_name(tmp_path):
    """As a tokenizer gives them, positionally."""

    class Masked(torch.nn.Module):
        def forward(self, x, mask):
            return torch.nn.functional.gelu(x) * mask

    x, mask = torch.randn(3, 2), torch.ones(3, 2)
    export_onnx(Masked(), tmp_path / "net.onnx", (x, mask))
    predictor = OnnxPredictor(tmp_path / "net.onnx", ["CPUExecutionProvider"])
    expected = predictor(x, mask)
    for given in ({"x": x, "mask": mask}, UserDict(mask=mask, x=x)):
        assert torch.equal(predictor(given), expected)
    assert torch.equal(predictor({"x": x}, mask=mask), expected)
    with pytest.raises(ModelInputError, match=r"unknown or given twice: token_type_ids. The file takes: x, mask"):
        predictor({"x": x, "mask": mask, "token_type_ids": x})
    with pytest.raises(ModelInputError, match="missing: mask"):
        predictor({"x": x})


def test_an_array_in_the_byte_order_of_another_processor(tmp_path):
    export_onnx(torch.nn.GELU(), tmp_path / "net.onnx", torch.zeros(2, 3))
    predictor = OnnxPredictor(tmp_path / "net.onnx", ["CPUExecutionProvider"])
    x = np.ones((2, 3), np.dtype(np.float32).newbyteorder())
    with pytest.raises(ModelInputError, match=r"byte order of another processor.*value.astype\('float32'\)"):
        predictor(x)
    assert predictor(x.astype("float32")).shape == (2, 3)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU])
@pytest.mark.parametrize("kind", ["array", "tensor"])
def test_no_rows_that_would_end_the_process_are_refused(tmp_path, layer, kind):
    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.net, self.act = layer(4, 5, batch_first=True), nn.GELU()

        def forward(self, x):
            return self.act(self.net(x)[0])

    torch.manual_seed(0)
    net, x = Recurrent().eval(), torch.randn(2, 7, 4)
    export_onnx(net, tmp_path / "net.onnx", x)
    predictor = OnnxPredictor(tmp_path / "net.onnx", ["CPUExecutionProvider"])
    for _ in range(2):  # a predictor learns a quicker way
        y = predictor(x if kind == "tensor" else x.numpy())
        torch.testing.assert_close(torch.as_tensor(y), net(x).detach(), rtol=0, atol=1e-6)
        with pytest.raises(ModelInputError, match=r"'x' has shape \(0, 7, 4\), which holds no values"):
            predictor(x[:0] if kind == "tensor" else x[:0].numpy())


class Weighted(nn.Module):
    def forward(self, x, weight):
        return nn.functional.gelu(x) * weight


class Squared(nn.Module):
    def forward(self, x):
        return nn.functional.gelu(x + 1)


def test_one_name_is_one_size_and_other_names_broadcast(tmp_path):
    x, weight = torch.ones(5, 4), torch.full((1, 1), 2.0)
    export_onnx(Weighted(), tmp_path / "net.onnx", (torch.zeros(3, 4), torch.zeros(3, 1)))
    predictor = OnnxPredictor(tmp_path / "net.onnx")
    message = "'batch' is one size in the file, and the inputs have 5 on axis 0 of 'x', 1 on axis 0 of 'weight'"
    for given in ((x, weight), (x.numpy(), weight.numpy())):
        with pytest.raises(ModelInputError, match=message):
            predictor(*given)
    torch.testing.assert_close(predictor(x, weight.repeat(5, 1)), Weighted()(x, weight))
    export_onnx(Weighted(), tmp_path / "net.onnx", (torch.zeros(3, 4), torch.zeros(1, 1)))
    torch.testing.assert_close(OnnxPredictor(tmp_path / "net.onnx")(x, weight), Weighted()(x, weight))
    sizes = {"x": {0: "n", 1: "n"}}
    export_onnx(Squared(), tmp_path / "net.onnx", torch.zeros(3, 3), dynamic_shapes=sizes)
    predictor = OnnxPredictor(tmp_path / "net.onnx")
    assert predictor(torch.ones(4, 4)).shape == (4, 4)
    with pytest.raises(ModelInputError, match="'n' is one size in the file, and the inputs have 4 on axis 0 of 'x', 5"):
        predictor(torch.ones(4, 5))


@pytest.mark.parametrize("padding", [{"input": 1}, {"unknown": 1}])
def test_padding_without_buckets_is_refused(path, padding):
    with pytest.raises(ModelInputError, match=r"there are no buckets\. Give buckets= or batch_buckets=, or leave"):
        OnnxPredictor(path, padding=padding)
