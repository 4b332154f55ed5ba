"""The runtimes of ``docs/who_computes_what.md``: how their users write each activation, as functions to be called."""

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F  # noqa: N812 - the name that torch's own documentation gives it

from lit_gelu.audit.adapters import open_runtime_file

EXACT, TANH, SIGMOID = "gelu", "gelu(approximate='tanh')", "gelu(approximate='sigmoid')"
COLUMNS = (EXACT, TANH, SIGMOID, "silu", "mish", "softplus", "elu", "hard_swish")
SIZE = 4096  # of the tensors that files are made for

Function = Callable[[Any], Any]
Call = tuple[str, str, Function]  # what it should be, how it is written, and what computes it


class Net(torch.nn.Module):
    """A function as a module, behind a linear layer that changes nothing where a width is given."""

    def __init__(self, function: Function, width: int = 0) -> None:
        super().__init__()
        self.function = function
        self.linear = torch.nn.Linear(width, width, bias=False) if width else torch.nn.Identity()
        if width:
            torch.nn.init.eye_(self.linear.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the function's values."""
        return self.function(self.linear(x))


TORCH: tuple[Call, ...] = (
    (EXACT, "F.gelu(x)", F.gelu),
    (TANH, "F.gelu(x, approximate='tanh')", lambda x: F.gelu(x, approximate="tanh")),
    (SIGMOID, "x * torch.sigmoid(1.702 * x)", lambda x: x * torch.sigmoid(1.702 * x)),
    ("silu", "F.silu(x)", F.silu),
    ("mish", "F.mish(x)", F.mish),
    ("softplus", "F.softplus(x)", F.softplus),
    ("elu", "F.elu(x)", F.elu),
    ("hard_swish", "F.hardswish(x)", F.hardswish),
)


def _eager(_dtype: str, _folder: Path) -> Iterator[Call]:
    yield from TORCH


def _inductor(_dtype: str, _folder: Path) -> Iterator[Call]:
    for spec, call, function in TORCH:
        torch.compiler.reset()
        yield spec, call, torch.compile(function, dynamic=True)


def _converted(save: Callable[[Net, torch.Tensor, Path], None], suffix: str, width: int = 0) -> Any:
    """Return a runtime of files, which `save` makes of modules."""

    def calls(dtype: str, folder: Path) -> Iterator[Call]:
        for place, (spec, call, function) in enumerate(TORCH):
            path = folder / f"{place}{suffix}"
            shape = (SIZE // width, width) if width else (SIZE,)
            try:
                save(Net(function, width).eval(), torch.zeros(shape, dtype=getattr(torch, dtype)), path)
                run = open_runtime_file(path).function()
            except Exception as error:  # noqa: BLE001 - each converter has errors of its own
                print(f"{call} in {dtype}: {error}", file=sys.stderr)
            else:
                yield spec, call, run

    return calls


def _save_onnx(net: Net, sample: torch.Tensor, path: Path) -> None:
    torch.onnx.export(net, (sample,), path, dynamo=True, opset_version=20, verbose=False)


def _save_openvino(net: Net, sample: torch.Tensor, path: Path) -> None:
    import openvino

    openvino.save_model(
        openvino.convert_model(net, example_input=sample, input=[sample.shape]), path, compress_to_fp16=False
    )


def _save_executorch(net: Net, sample: torch.Tensor, path: Path, partitioners: tuple[Any, ...] = ()) -> None:
    from executorch.exir import to_edge_transform_and_lower

    program = to_edge_transform_and_lower(torch.export.export(net, (sample,)), partitioner=list(partitioners))
    path.write_bytes(program.to_executorch().buffer)


def _save_xnnpack(net: Net, sample: torch.Tensor, path: Path) -> None:
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner

    _save_executorch(net, sample, path, (XnnpackPartitioner(),))


def _tensorflow_functions() -> tuple[Call, ...]:
    import tensorflow as tf

    def tanh(x: Any) -> Any:
        return tf.nn.gelu(x, approximate=True)

    def sigmoid(x: Any) -> Any:
        return x * tf.sigmoid(1.702 * x)

    return (
        (EXACT, "tf.nn.gelu(x)", tf.nn.gelu),
        (TANH, "tf.nn.gelu(x, approximate=True)", tanh),
        (SIGMOID, "x * tf.sigmoid(1.702 * x)", sigmoid),
        ("silu", "tf.nn.silu(x)", tf.nn.silu),
        ("mish", "tf.keras.activations.mish(x)", tf.keras.activations.mish),
        ("softplus", "tf.nn.softplus(x)", tf.nn.softplus),
        ("elu", "tf.nn.elu(x)", tf.nn.elu),
        ("hard_swish", "tf.keras.activations.hard_swish(x)", tf.keras.activations.hard_swish),
    )


def _tensorflow(_dtype: str, _folder: Path) -> Iterator[Call]:
    import tensorflow as tf

    for spec, call, function in _tensorflow_functions():
        yield spec, call, lambda x, function=function: np.asarray(function(tf.constant(x)))


def _litert(dtype: str, folder: Path) -> Iterator[Call]:
    import tensorflow as tf

    for place, (spec, call, function) in enumerate(_tensorflow_functions() if dtype == "float32" else ()):
        graph = tf.function(function, input_signature=[tf.TensorSpec([SIZE], tf.float32)], autograph=False)
        converter = tf.lite.TFLiteConverter.from_concrete_functions([graph.get_concrete_function()])
        path = folder / f"{place}.tflite"
        path.write_bytes(converter.convert())
        yield spec, call, open_runtime_file(path).function()


def _ncnn(dtype: str, folder: Path) -> Iterator[Call]:
    layers = {
        EXACT: "GELU 0=0", TANH: "GELU 0=1", "silu": "Swish", "mish": "Mish", "softplus": "Softplus", "elu": "ELU 0=1",
        "hard_swish": "HardSwish 0=0.16666667 1=0.5",
    }  # fmt: skip
    for place, (spec, call) in enumerate(layers.items() if dtype == "float32" else ()):
        kind, _, parameters = call.partition(" ")
        path = folder / f"{place}.param"
        path.write_text(f"7767517\n2 2\nInput in0 0 1 in0\n{kind} act 1 1 in0 out0 {parameters}\n")
        path.with_suffix(".bin").touch()
        yield spec, call, open_runtime_file(path).function()


def _jax(_dtype: str, _folder: Path) -> Iterator[Call]:
    import jax

    for spec, call, function in (
        (TANH, "jax.nn.gelu(x)", jax.nn.gelu),
        (EXACT, "jax.nn.gelu(x, approximate=False)", lambda x: jax.nn.gelu(x, approximate=False)),
        (SIGMOID, "x * jax.nn.sigmoid(1.702 * x)", lambda x: x * jax.nn.sigmoid(1.702 * x)),
        ("silu", "jax.nn.silu(x)", jax.nn.silu),
        ("mish", "jax.nn.mish(x)", jax.nn.mish),
        ("softplus", "jax.nn.softplus(x)", jax.nn.softplus),
        ("elu", "jax.nn.elu(x)", jax.nn.elu),
        ("hard_swish", "jax.nn.hard_swish(x)", jax.nn.hard_swish),
    ):
        compiled = jax.jit(function)
        yield spec, call, lambda x, function=compiled: np.array(function(x))


def _mlx(_dtype: str, _folder: Path) -> Iterator[Call]:
    import mlx.core
    import mlx.nn

    names = ("gelu", "gelu_approx", "gelu_fast_approx", "silu", "mish", "softplus", "elu", "hardswish")
    for spec, name in zip(COLUMNS, names, strict=True):
        function = getattr(mlx.nn, name)
        yield spec, f"mlx.nn.{name}(x)", lambda x, function=function: np.array(function(mlx.core.array(x)))


def _tinygrad(_dtype: str, _folder: Path) -> Iterator[Call]:
    import tinygrad

    for spec, name in zip(COLUMNS[1:], ("gelu", "quick_gelu", *COLUMNS[3:7], "hardswish"), strict=True):
        yield spec, f"x.{name}()", lambda x, name=name: getattr(tinygrad.Tensor(x), name)().numpy()


def _paddle(_dtype: str, _folder: Path) -> Iterator[Call]:
    import paddle
    from paddle.nn import functional

    names = ("gelu", "gelu", "silu", "mish", "softplus", "elu", "hardswish")
    for spec, name in zip((*COLUMNS[:2], *COLUMNS[3:]), names, strict=True):
        options = {"approximate": True} if spec == TANH else {}
        call = f"F.{name}(x{', approximate=True' if options else ''})"
        function = getattr(functional, name)
        yield spec, call, lambda x, f=function, options=options: f(paddle.to_tensor(x), **options).numpy()


def _mnn(_dtype: str, _folder: Path) -> Iterator[Call]:
    """Give the functions of its Python package. Its converter of files is not run: it installs packages by itself."""
    from MNN import expr

    def called(function: Function, x: np.ndarray) -> np.ndarray:
        variable = expr.placeholder([len(x)], expr.NCHW, expr.float)
        variable.write(x)
        return np.array(function(variable).read())

    yield TANH, "MNN.expr.gelu(x)", lambda x: called(expr.gelu, x)
    yield "softplus", "MNN.expr.softplus(x)", lambda x: called(expr.softplus, x)
    yield "elu", "MNN.expr.elu(x, 1.0)", lambda x: called(lambda variable: expr.elu(variable, 1.0), x)


@dataclass(frozen=True)
class Runtime:
    """A runtime, the distribution whose version it has, and its calls in a dtype."""

    name: str
    distribution: str
    calls: Callable[[str, Path], Iterator[Call]]
    dtypes: tuple[str, ...] = ("float32", "float16")


RUNTIMES = (
    Runtime("PyTorch", "torch", _eager, ("float32", "float16", "bfloat16")),
    Runtime("torch.compile", "torch", _inductor, ("float32", "float16", "bfloat16")),
    Runtime("onnxruntime", "onnxruntime-gpu", _converted(_save_onnx, ".onnx")),
    Runtime("ExecuTorch", "executorch", _converted(_save_executorch, ".pte")),
    Runtime("ExecuTorch, XNNPACK", "executorch", _converted(_save_xnnpack, ".pte")),
    Runtime("OpenVINO", "openvino", _converted(_save_openvino, ".xml")),
    Runtime("OpenVINO, behind a linear layer", "openvino", _converted(_save_openvino, ".xml", 64), ("float32",)),
    Runtime("LiteRT, from TensorFlow", "ai-edge-litert", _litert, ("float32",)),
    Runtime("ncnn", "ncnn", _ncnn, ("float32",)),
    Runtime("TensorFlow", "tensorflow-cpu", _tensorflow),
    Runtime("JAX", "jax", _jax),
    Runtime("MLX", "mlx", _mlx),
    Runtime("PaddlePaddle", "paddlepaddle", _paddle, ("float32",)),
    Runtime("tinygrad", "tinygrad", _tinygrad),
    Runtime("MNN", "mnn", _mnn, ("float32",)),
)
