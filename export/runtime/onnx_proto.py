"""ONNX's messages, as far as a predictor reads them: where files run, the package onnx need not be installed."""

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory  # type: ignore[import-untyped]

FLOAT16, BFLOAT16, INT8 = 10, 16, 3  # TensorProto.DataType
EXTERNAL = 1  # TensorProto.DataLocation

# A line a message, a field as name=number:type, with * for several of them: https://github.com/onnx/onnx,
# onnx/onnx.proto. Protobuf passes over fields that it is not told of.
_MESSAGES = """
    Model ir_version=1:int64 graph=7:Graph opset_import=8:Opset* metadata_props=14:Entry* functions=25:Function*
    Graph node=1:Node* initializer=5:Tensor* input=11:Value* sparse_initializer=15:Sparse*
    Node input=1:string* output=2:string* name=3:string op_type=4:string attribute=5:Attribute* domain=7:string
    Attribute t=5:Tensor g=6:Graph tensors=10:Tensor* graphs=11:Graph*
    Tensor dims=1:int64* data_type=2:int32 name=8:string external_data=13:Entry* data_location=14:int32
    Sparse values=1:Tensor indices=2:Tensor
    Function name=1:string node=7:Node* domain=10:string
    Entry key=1:string value=2:string
    Opset domain=1:string version=2:int64
    Value name=1:string type=2:Type
    Type tensor_type=1:TensorType
    TensorType elem_type=1:int32
"""


def _model_class() -> Any:
    """Return the class of a model, from a pool of its own, beside that of the package onnx."""
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="lit_gelu.onnx", package="lit_gelu.onnx", syntax="proto2")
    for line in _MESSAGES.strip().splitlines():
        name, *fields = line.split()
        message = file.message_type.add(name=name)
        for field in fields:
            key, _, kind = field.partition(":")
            word, _, number = key.partition("=")
            label = kinds.LABEL_REPEATED if kind.endswith("*") else kinds.LABEL_OPTIONAL
            made = message.field.add(name=word, number=int(number), label=label)
            kind = kind.rstrip("*")
            if kind.islower():
                made.type = getattr(kinds, f"TYPE_{kind.upper()}")
            else:
                made.type, made.type_name = kinds.TYPE_MESSAGE, f".lit_gelu.onnx.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("lit_gelu.onnx.Model"))


_Model = _model_class()


def parsed_model(content: bytes) -> Any:
    """Return a model; protobuf's ``DecodeError`` if the bytes are none."""
    model = _Model()
    model.ParseFromString(content)
    return model
