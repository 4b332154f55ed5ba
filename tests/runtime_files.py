"""A file of one GELU for each runtime, written as its users write it, and how to damage files."""

import importlib

import pytest
import torch

SIZE = 64
SUFFIXES = {
    "onnxruntime": ".onnx",
    "openvino": ".xml",
    "ncnn": ".param",
    "ai_edge_litert": ".tflite",
    "executorch": ".pte",
}


def need(name):
    """Skip a test where a package is missing; importing it may warn."""
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed")


def write_gelu(runtime, folder, approximate):
    """Write a file; `approximate` is torch's. Return its path."""
    need(runtime)
    path = folder / f"gelu{SUFFIXES[runtime]}"
    {
        "onnxruntime": _onnx, "openvino": _openvino, "ncnn": _ncnn, "ai_edge_litert": _litert, "executorch": write_pte
    }[runtime](path, approximate)  # fmt: skip
    return path


def _onnx(path, approximate):
    from onnx import TensorProto, helper, save

    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n"]) for name in "xy"]
    node = helper.make_node("Gelu", ["x"], ["y"], approximate=approximate)
    graph = helper.make_graph([node], "gelu", ports[:1], ports[1:])
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), path)


def _openvino(path, approximate):
    import openvino
    from openvino import opset15

    x = opset15.parameter([-1], openvino.Type.f32, name="x")
    y = opset15.gelu(x, {"none": "erf", "tanh": "tanh"}[approximate])
    openvino.save_model(openvino.Model([y], [x]), path, compress_to_fp16=False)


def _ncnn(path, approximate):
    fast = int(approximate == "tanh")
    path.write_text(f"7767517\n2 2\nInput in0 0 1 in0\nGELU act 1 1 in0 out0 0={fast}\n")
    path.with_suffix(".bin").touch()


def _litert(path, approximate):
    """Build the flatbuffer from TensorFlow Lite's published schema: a converter is a gigabyte."""
    import flatbuffers

    gelu, gelu_options = 150, 116  # BuiltinOperator.GELU, BuiltinOptions.GeluOptions
    builder = flatbuffers.Builder()

    def table(*fields):
        builder.StartObject(max(number for number, *_ in fields) + 1 if fields else 0)
        for number, kind, value in fields:
            getattr(builder, f"Prepend{kind}Slot")(number, value, 0)
        return builder.EndObject()

    def vector(values, kind="Int32", width=4):
        builder.StartVector(width, len(values), width)
        for value in reversed(values):
            getattr(builder, f"Prepend{kind}")(value)
        return builder.EndVector()

    names, shapes = [builder.CreateString(name) for name in "xy"], [vector([SIZE]) for _ in "xy"]
    tensors = [
        table((0, "UOffsetTRelative", shape), (2, "Uint32", 0), (3, "UOffsetTRelative", name))
        for shape, name in zip(shapes, names, strict=True)
    ]
    options = table((0, "Bool", approximate == "tanh"))
    first, last = vector([0]), vector([1])
    operator = table(
        (1, "UOffsetTRelative", first), (2, "UOffsetTRelative", last),
        (3, "Uint8", gelu_options), (4, "UOffsetTRelative", options),
    )  # fmt: skip
    rows, operators = vector(tensors, "UOffsetTRelative"), vector([operator], "UOffsetTRelative")
    subgraph = table(*((i, "UOffsetTRelative", value) for i, value in enumerate((rows, first, last, operators))))
    code = table((0, "Int8", 127), (2, "Int32", 1), (3, "Int32", gelu))
    parts = [vector([part], "UOffsetTRelative") for part in (code, subgraph, table())]
    builder.Finish(
        table((0, "Uint32", 3), *zip((1, 2, 4), ["UOffsetTRelative"] * 3, parts, strict=True)), file_identifier=b"TFL3"
    )
    path.write_bytes(builder.Output())


def write_pte(path, approximate, partitioners=()):
    from executorch.exir import to_edge_transform_and_lower

    exported = torch.export.export(torch.nn.GELU(approximate).eval(), (torch.zeros(SIZE),))
    path.write_bytes(to_edge_transform_and_lower(exported, partitioner=[*partitioners]).to_executorch().buffer)
