"""onnxruntime's integer kernels on a processor without VNNI, which QEMU imitates: which weights they pair."""

import json
import shutil
import subprocess
import sys

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(shutil.which("qemu-x86_64") is None, reason="QEMU (Debian: qemu-user) is not installed"),
]

RUN = """
import json, sys
import numpy as np, onnxruntime
errors = {}
for name in sys.argv[2:]:
    case = np.load(f"{sys.argv[1]}/{name}.npz")
    session = onnxruntime.InferenceSession(f"{sys.argv[1]}/{name}.onnx", providers=["CPUExecutionProvider"])
    errors[name] = [
        int(np.abs(session.run(None, {"x": case["x"][:n]})[0].astype(np.int64) - case["y"][:n]).max()) for n in (1, 7)
    ]
print(json.dumps(errors))
"""


def worst_rows(summands, pattern):
    """Weights in which any two neighbours sum to 128 at most, and other pairs to 254 or -254."""
    return np.resize(np.array(pattern), summands).astype(np.int8)


def saved(folder, name, node, x, weight, y, kind):
    """One operator on int8 weights as a file, with its inputs and right outputs."""
    zero = numpy_helper.from_array(np.array(0, np.uint8), "zero")
    weights = numpy_helper.from_array(weight, "w")
    ports = [helper.make_tensor_value_info("x", TensorProto.UINT8, ["n", *x.shape[1:]])]
    outputs = [helper.make_tensor_value_info("y", kind, ["n", *y.shape[1:]])]
    one = numpy_helper.from_array(np.array(1, np.float32), "one")
    many = numpy_helper.from_array(np.array(y.max() / 255 or 1, np.float32), "many")
    none = numpy_helper.from_array(np.zeros(1, np.int8), "none")
    graph = helper.make_graph([node], "g", ports, outputs, [weights, zero, one, many, none])
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9), folder / f"{name}.onnx"
    )
    np.savez(folder / f"{name}.npz", x=x, y=y)


def products(folder, name, summands, pattern):
    weight = np.stack([worst_rows(summands, np.roll(pattern, i)) for i in range(20)], 1)
    x = np.full((7, summands), 255, np.uint8)
    y = x.astype(np.int64) @ weight.astype(np.int64)
    node = helper.make_node("MatMulInteger", ["x", "w", "zero"], ["y"])
    saved(folder, name, node, x, weight, y, TensorProto.INT32)


def convolution(folder, name, channels, size, pattern, group=1):
    """QLinearConv, rounded to 8 bits: its largest value is 255 where nothing saturated."""
    inside = channels // group
    row = worst_rows(inside * size * size, pattern).reshape(size, size, inside)
    weight = np.stack([row.transpose(2, 0, 1)] * 2 * group)
    x = np.full((7, channels, size + 1, size + 1), 255, np.uint8)
    sums = np.full((7, 2 * group, 2, 2), 255 * int(row.astype(np.int64).sum()))
    scale = np.float32(sums.max() / 255 or 1)
    y = np.rint(sums / scale).astype(np.int64)
    node = helper.make_node("QLinearConv", ["x", "one", "zero", "w", "one", "none", "many", "zero"], ["y"], group=group)
    saved(folder, name, node, x, weight, y, TensorProto.UINT8)
    model = onnx.load(folder / f"{name}.onnx")
    next(t for t in model.graph.initializer if t.name == "many").CopyFrom(numpy_helper.from_array(scale, "many"))
    onnx.save(model, folder / f"{name}.onnx")


def errors(folder, processor):
    names = sorted(path.stem for path in folder.glob("*.npz"))
    command = ["qemu-x86_64", "-cpu", processor, sys.executable, "-c", RUN, str(folder), *names]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("processor", ["Haswell", "Nehalem"])
def test_neighbours_are_what_kernels_pair(tmp_path, processor):
    for summands in (1, 2, 3, 5, 16, 63, 64, 257, 1030):
        for i, pattern in enumerate(([127, 1], [64, 64], [-127, -1], [1, 100, 28])):
            products(tmp_path, f"product-{summands}-{i}", summands, pattern)
    for channels, group in ((1, 1), (3, 1), (4, 1), (5, 1), (6, 2), (8, 8), (16, 1), (64, 1)):
        for size in (1, 2, 3):
            for i, pattern in enumerate(([127, 1], [64, 64], [1, 100, 28])):
                convolution(tmp_path, f"convolution-{channels}-{group}-{size}-{i}", channels, size, pattern, group)
    found = errors(tmp_path, processor)
    assert len(found) == 9 * 4 + 8 * 3 * 3
    assert {name: wrong for name, wrong in found.items() if any(wrong)} == {}


def test_wider_sums_are_wrong_there(tmp_path):
    """So the emulation shows what it is for."""
    products(tmp_path, "product", 64, [127, 127])
    convolution(tmp_path, "convolution", 16, 3, [127, 127])
    found = errors(tmp_path, "Haswell")
    assert min(map(min, found.values())) > 0
