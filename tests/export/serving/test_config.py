"""A configuration says what the file takes and gives, in the words of Triton's ModelConfig."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from triton_proto import ENUMS, parsed

from lit_gelu.export import ExportOptionError, ModelFileError
from lit_gelu.export.serving.backend import BackendSettings
from lit_gelu.export.serving.config import ServingOptions, model_config, no_batch_note, to_text
from lit_gelu.export.serving.tensors import inputs_and_outputs

# Triton's types by ONNX's, as the onnxruntime backend's documentation pairs them.
PAIRS = {
    "BOOL": "TYPE_BOOL",
    "UINT8": "TYPE_UINT8",
    "INT64": "TYPE_INT64",
    "FLOAT16": "TYPE_FP16",
    "FLOAT": "TYPE_FP32",
    "DOUBLE": "TYPE_FP64",
    "STRING": "TYPE_STRING",
}


def model(inputs, outputs):
    """A model without nodes: (element type, sizes) by name."""
    values = [
        [helper.make_tensor_value_info(name, element, sizes) for name, (element, sizes) in given.items()]
        for given in (inputs, outputs)
    ]
    return helper.make_model(helper.make_graph([], "g", *values))


def config_of(inputs, outputs, backend=None, labels=False, **options):
    tensors = inputs_and_outputs(model(inputs, outputs), "'net.onnx'")
    options = ServingOptions(**{"device": "cpu", **options})
    return parsed(to_text(model_config("net", *tensors, options, backend or BackendSettings(), labels=labels)))


def one(*sizes, element=TensorProto.FLOAT):
    return {"x": (element, list(sizes))}, {"y": (TensorProto.FLOAT, [sizes[0], 10] if sizes else [])}


def test_a_batch_is_left_out_of_the_sizes():
    config = config_of(*one("batch", 3, "height", 8), labels=True)
    assert (config.name, config.backend, config.max_batch_size) == ("net", "onnxruntime", 128)
    assert [list(config.input[0].dims), list(config.output[0].dims)] == [[3, -1, 8], [10]]
    assert config.output[0].label_filename == "labels.txt"
    assert config.HasField("dynamic_batching")
    assert not config.HasField("optimization")
    assert [(group.kind, group.count) for group in config.instance_group] == [(2, 1)]  # KIND_CPU


@pytest.mark.parametrize(
    ("sizes", "said"),
    [((4, 3), "x: 4"), ((), "x: no sizes"), (("n", 3), "x: n, y: batch"), ((None, 3), "x: dynamic, no name")],
)
def test_without_a_batch_that_all_share_requests_are_passed_on_as_they_are(sizes, said):
    given = {"x": (TensorProto.FLOAT, list(sizes))}, {"y": (TensorProto.FLOAT, ["batch", 10])}
    config = config_of(*given)
    assert config.max_batch_size == 0
    assert not config.HasField("dynamic_batching")
    assert list(config.output[0].dims) == [-1, 10]
    assert said in no_batch_note([*sum(inputs_and_outputs(model(*given), ""), ())])
    with pytest.raises(ExportOptionError, match="needs a dynamic batch as the first size of every input and output"):
        config_of(*given, max_batch_size=8)


def test_what_is_only_a_multiple_of_the_batch_is_no_batch():
    x, y = (TensorProto.FLOAT, ["batch", 2]), (TensorProto.FLOAT, ["2*batch", 2])
    assert config_of({"x": x}, {"y": y}).max_batch_size == 0


@pytest.mark.parametrize("size", ["batch", "batch + 1", "2*batch", "floor(batch/2)"])
@pytest.mark.parametrize("place", ["x", "y"])
def test_a_batch_that_is_the_size_of_something_else_is_none(size, place):
    """Each row of a similarity of all with all has as many entries as the batch that Triton would join."""
    last = {"x": 4, "y": 4, place: size}
    given = [{name: (TensorProto.FLOAT, ["batch", last[name]])} for name in "xy"]
    config = config_of(*given)
    assert config.max_batch_size == 0
    assert not config.HasField("dynamic_batching")
    assert [tensor.dims for tensor in (*config.input, *config.output)] == [
        [-1, 4 if place == "y" else -1],
        [-1, 4 if place == "x" else -1],
    ]
    note = no_batch_note([*sum(inputs_and_outputs(model(*given), ""), ())])
    assert "one by one: rows of a batch see each other" in note
    assert note.endswith(f"for 'batch' is also in axis 1 of {place!r}.")
    with pytest.raises(ExportOptionError, match="max_batch_size=8 needs rows that do not see each other"):
        config_of(*given, max_batch_size=8)


def test_a_size_whose_name_only_begins_like_the_batch_is_another_one():
    x, y = (TensorProto.FLOAT, ["batch", "batch_2"]), (TensorProto.FLOAT, ["batch", "my_batch"])
    assert config_of({"x": x}, {"y": y}).max_batch_size == 128


def test_a_tensor_without_sizes_of_its_own_is_reshaped_to_one():
    """Triton takes no empty ``dims``."""
    x, scale = (TensorProto.FLOAT, ["batch"]), (TensorProto.FLOAT, [])
    config = config_of({"x": x}, {"y": x})
    assert list(config.input[0].dims) == [1]
    assert config.input[0].HasField("reshape")
    assert list(config.input[0].reshape.shape) == []
    config = config_of({"x": x, "scale": scale}, {"y": x})
    assert [(list(i.dims), i.HasField("reshape")) for i in config.input] == [([-1], False), ([1], True)]


@pytest.mark.parametrize(("element", "expected"), PAIRS.items())
def test_element_types(element, expected):
    config = config_of(*one("batch", 3, element=TensorProto.DataType.Value(element)))
    assert config.input[0].data_type == ENUMS["DataType"].index(expected)


@pytest.mark.parametrize("element", ["COMPLEX64", "FLOAT8E4M3FN", "INT4", "BFLOAT16"])
def test_types_that_triton_does_not_take(element):
    with pytest.raises(ModelFileError, match=rf"'x' of 'net.onnx' is {element}, which Triton's .* does not take"):
        config_of(*one("batch", 3, element=TensorProto.DataType.Value(element)))


def test_sizes_that_are_not_written_down_and_sequences():
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, None)
    many = helper.make_tensor_sequence_value_info("many", TensorProto.FLOAT, [1])
    for value in (x, many):
        with pytest.raises(ModelFileError, match="is no tensor whose sizes are written down"):
            inputs_and_outputs(helper.make_model(helper.make_graph([], "g", [value], [])), "net")


def test_weights_among_the_inputs_are_not_asked_for():
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 2])
    w = helper.make_tensor_value_info("w", TensorProto.FLOAT, [2])
    weights = onnx.numpy_helper.from_array(np.zeros(2, np.float32), "w")
    made = helper.make_model(helper.make_graph([], "g", [x, w], [x], [weights]))
    assert [tensor.name for tensor in inputs_and_outputs(made, "net")[0]] == ["x"]


def test_batching_instances_and_warm_up():
    given = {"x": (TensorProto.FLOAT, ["b", 3]), "i": (TensorProto.INT64, ["b"])}, {"y": (TensorProto.FLOAT, ["b"])}
    config = config_of(
        *given,
        device="gpu",
        max_batch_size=64,
        preferred_batch_sizes=(32, 8),
        max_queue_delay_us=500,
        instances=2,
        warmup=(1, 64),
    )
    assert config.max_batch_size == 64
    assert list(config.dynamic_batching.preferred_batch_size) == [8, 32]
    assert config.dynamic_batching.max_queue_delay_microseconds == 500
    assert [(group.kind, group.count) for group in config.instance_group] == [(1, 2)]  # KIND_GPU
    assert [request.batch_size for request in config.model_warmup] == [1, 64]
    inputs = config.model_warmup[1].inputs
    assert {name: (list(i.dims), i.data_type, i.zero_data) for name, i in inputs.items()} == {
        "x": ([3], ENUMS["DataType"].index("TYPE_FP32"), True),
        "i": ([1], ENUMS["DataType"].index("TYPE_INT64"), True),
    }


@pytest.mark.parametrize("largest", [0, 1])
def test_no_dynamic_batching_where_no_batch_holds_two_requests(largest):
    config = config_of(*one("batch", 3), max_batch_size=largest)
    assert config.max_batch_size == largest
    assert not config.HasField("dynamic_batching")
    assert list(config.input[0].dims) == ([3] if largest else [-1, 3])


def test_what_the_backend_is_told():
    backend = BackendSettings(-1, {"intra_op_thread_count": "2"}, {"use_tf32": "0"})
    config = config_of(*one("batch", 3), backend, device="gpu")
    assert config.optimization.graph.level == -1
    (cuda,) = config.optimization.execution_accelerators.gpu_execution_accelerator
    assert (cuda.name, dict(cuda.parameters)) == ("cuda", {"use_tf32": "0"})
    assert config.parameters["intra_op_thread_count"].string_value == "2"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "cuda"}, "Give 'cpu' or 'gpu'"),
        ({"max_batch_size": -1}, "max_batch_size=-1 is not accepted"),
        ({"max_queue_delay_us": -1}, "max_queue_delay_us=-1 is not accepted"),
        ({"instances": 0}, "instances=0 is not accepted"),
        ({"warmup": (0,)}, r"warmup=\(0,\) is not accepted"),
        ({"preferred_batch_sizes": (8, 0)}, "preferred_batch_sizes=.* is not accepted"),
        ({"max_batch_size": 8, "preferred_batch_sizes": (16,)}, r"\[16\] goes beyond .* max_batch_size=8"),
        ({"max_batch_size": 8, "warmup": (9,)}, r"warmup=\[9\] goes beyond the largest batch"),
        ({"max_batch_size": 0, "warmup": (2,)}, r"warmup=\[2\] goes beyond the largest batch"),
    ],
)
def test_options_that_triton_would_refuse(options, message):
    with pytest.raises(ExportOptionError, match=message):
        config_of(*one("batch", 3), **options)


def test_a_warm_up_needs_sizes():
    with pytest.raises(ExportOptionError, match=r"input 'x' has \[-1, -1\]"):
        config_of(*one("batch", "length"), warmup=(1,))
