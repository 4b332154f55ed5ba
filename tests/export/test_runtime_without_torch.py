"""A predictor where nothing is installed but onnxruntime, what that brings, and numpy."""

import json

import child_processes
import numpy as np
import onnx
import pytest
import stand_in_cuda
import torch
from export_cases import gelu_net
from onnx import TensorProto, helper

from lit_gelu.export import export_onnx
from lit_gelu.export.runtime import CPU, CUDA

# All that `pip install lit-gelu` brings but for those two, and what they need themselves (protobuf).
BLOCKED = """
import json, sys
for name in ("torch", "lightning", "onnx", "onnx_ir", "onnxscript", "torchmetrics", "jsonargparse", "rich",
             "matplotlib", "scipy", "sklearn", "torchvision", "timm", "transformers", "yaml"):
    sys.modules[name] = None
import numpy as np
import onnxruntime
from lit_gelu.export import ModelFileError, ModelInputError, ProviderError
from lit_gelu.export.runtime import CPU, CUDA, OnnxPredictor, open_session

def error_of(call):
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
"""


def child(code, *arguments, **options):
    done = child_processes.run_python(BLOCKED + code, *map(str, arguments), **options)
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("without_torch") / "net.onnx"
    export_onnx(gelu_net(), path, torch.zeros(2, 6))
    return path


def test_it_predicts_and_reads_the_metadata(path, tmp_path):
    x = torch.randn(5, 6)
    np.save(tmp_path / "x.npy", x.numpy())
    found = child(
        """
predictor = OnnxPredictor(sys.argv[1])
x = np.load(sys.argv[2])
print(json.dumps({"y": predictor(x).tolist(), "named": predictor({"input": x}).tolist(), "shown": repr(predictor),
                  "metadata": predictor.metadata, "placement": str(predictor.placement)}))
""",
        path,
        tmp_path / "x.npy",
    )
    np.testing.assert_allclose(found["y"], gelu_net().eval()(x).detach(), atol=1e-6)
    assert found["named"] == found["y"]
    assert found["metadata"] == {entry.key: entry.value for entry in onnx.load(path).metadata_props}
    assert found["shown"] == f"OnnxPredictor({str(path)!r}, {CPU})"
    assert found["placement"].startswith(f"{CPU}  5 nodes  3 Gemm")


def test_its_errors_are_clear(path, tmp_path):
    (tmp_path / "damaged.onnx").write_bytes(path.read_bytes()[:100])
    value = [helper.make_tensor_value_info(name, TensorProto.BFLOAT16, (2,)) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "g", value[:1], value[1:])
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), tmp_path / "half.onnx"
    )
    found = child(
        """
path, damaged, half = sys.argv[1:]
predictor = OnnxPredictor(path)
print(json.dumps([error_of(call) for call in (
    lambda: predictor(np.zeros((2, 6))),
    lambda: predictor(np.zeros((2, 5), np.float32)),
    lambda: predictor([[0.0]]),
    lambda: OnnxPredictor(half)(np.zeros(2, np.float32)),
    lambda: OnnxPredictor(damaged),
    lambda: OnnxPredictor("missing.onnx"),
    lambda: OnnxPredictor(path, ["CUDA"]),
    lambda: OnnxPredictor(path, batch_buckets=[4]),
)]))
""",
        path,
        tmp_path / "damaged.onnx",
        tmp_path / "half.onnx",
    )
    beginnings = [
        "ModelInputError: Input 'input' is float64, the file takes float32. Convert it first",
        "ModelInputError: Input 'input' has shape (2, 5), the file takes (batch, 6)",
        "ModelInputError: Input 'input' is list. Give a numpy array",
        "ModelInputError: Input 'x' is bfloat16, which numpy has not: give a torch tensor",
        f"ModelFileError: {str(tmp_path / 'damaged.onnx')!r} is truncated, damaged, or no ONNX model",
        "ModelFileError: There is no file 'missing.onnx'",
        "ProviderError: Unknown execution provider 'CUDA'. Did you mean",
        "ProviderError: batch_buckets=(4,) are CUDA graphs",
    ]
    for text, beginning in zip(found, beginnings, strict=True):
        assert text.startswith(beginning)


def test_the_default_is_cuda_where_the_driver_has_a_device(path, tmp_path):
    """The shipped provider on libraries that stand in for CUDA's: the file opens there, all of it."""
    stand_in_cuda.require_tools()
    found = child(
        """
onnxruntime.preload_dlls = lambda: None  # the real ones
predictor = OnnxPredictor(sys.argv[1])
print(json.dumps([predictor.providers[0], predictor.placement.counts]))
""",
        path,
        env=stand_in_cuda.environment(stand_in_cuda.build(tmp_path)),
    )
    assert found == [CUDA, {CUDA: 5}]
