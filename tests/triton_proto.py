"""Triton's ``ModelConfig`` as a protobuf message, from the fields and numbers that its model_config.proto documents.

What a configuration of ours may hold is here.
"""

from __future__ import annotations

import functools

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format

PACKAGE = "inference"
_TYPES = {
    name: getattr(descriptor_pb2.FieldDescriptorProto, f"TYPE_{name.upper()}")
    for name in ("int32", "int64", "uint64", "string")
}
_DATA_TYPES = "INVALID BOOL UINT8 UINT16 UINT32 UINT64 INT8 INT16 INT32 INT64 FP16 FP32 FP64 STRING BF16"
ENUMS = {
    "DataType": [f"TYPE_{name}" for name in _DATA_TYPES.split()],
    "ModelInstanceGroup.Kind": ["KIND_AUTO", "KIND_GPU", "KIND_CPU", "KIND_MODEL"],
}
_OPTIMIZATION = "ModelOptimizationPolicy"
_ACCELERATORS = f"{_OPTIMIZATION}.ExecutionAccelerators"

# Field by field: "type name number", with * for repeated ones, and < > around the value of a map from texts.
MESSAGES = {
    "ModelTensorReshape": "int64* shape 1",
    "ModelInput": "string name 1; DataType data_type 2; int64* dims 4; ModelTensorReshape reshape 5",
    "ModelOutput": """string name 1; DataType data_type 2; int64* dims 3; string label_filename 4;
        ModelTensorReshape reshape 5""",
    "ModelInstanceGroup": "int32 count 2; ModelInstanceGroup.Kind kind 4",
    "ModelDynamicBatching": "uint64 max_queue_delay_microseconds 2",
    f"{_ACCELERATORS}.Accelerator": "string name 1; <string> parameters 2",
    _ACCELERATORS: f"{_ACCELERATORS}.Accelerator* gpu_execution_accelerator 1",
    _OPTIMIZATION: f"{_ACCELERATORS} execution_accelerators 4",
    "ModelConfig": """string name 1; int32 max_batch_size 4; ModelInput* input 5; ModelOutput* output 6;
        ModelInstanceGroup* instance_group 7; ModelDynamicBatching dynamic_batching 11;
        ModelOptimizationPolicy optimization 12; string backend 17""",
}


def parsed(text: str):
    """Parse a ``config.pbtxt``; an unknown field, value or type is an error."""
    return text_format.Parse(text, message_type("ModelConfig")())


@functools.cache  # messages of two pools are never equal
def message_type(name: str):
    """A message's class."""
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file_description())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{name}"))


def file_description() -> descriptor_pb2.FileDescriptorProto:
    """The whole file."""
    file = descriptor_pb2.FileDescriptorProto(name="model_config.proto", package=PACKAGE, syntax="proto3")
    messages: dict[str, descriptor_pb2.DescriptorProto] = {}
    for name in sorted(MESSAGES, key=lambda name: name.count(".")):
        parent, _, leaf = name.rpartition(".")
        messages[name] = (messages[parent].nested_type if parent else file.message_type).add(name=leaf)
    for name, values in ENUMS.items():
        parent, _, leaf = name.rpartition(".")
        enum = (messages[parent] if parent else file).enum_type.add(name=leaf)
        for number, value in enumerate(values):
            enum.value.add(name=value, number=number)
    for name, fields in MESSAGES.items():
        for field in fields.split(";"):
            _add_field(messages[name], name, *field.split())
    return file


def _add_field(message, path: str, kind: str, name: str, number: str) -> None:
    """Add one field; a map is a repeated message of key and value, as protoc makes it."""
    field = message.field.add(name=name, number=int(number), label=3 if kind[-1] in "*>" else 1)
    if kind.startswith("<"):
        entry = message.nested_type.add(name=f"{name.title()}Entry")
        entry.options.map_entry = True
        _add_field(entry, "", "string", "key", "1")
        _add_field(entry, "", kind.strip("<>"), "value", "2")
        _set_type(field, f"{path}.{entry.name}")
    else:
        _set_type(field, kind.rstrip("*"))


def _set_type(field, kind: str) -> None:
    """Set a field's type."""
    if kind in _TYPES:
        field.type = _TYPES[kind]
    else:
        field.type = field.TYPE_ENUM if kind in ENUMS else field.TYPE_MESSAGE
        field.type_name = f".{PACKAGE}.{kind}"
