"""Whole nets on the CUDA provider, with NHWC, with CUDA graphs and with both: they open, or the reason is said.

The shipped provider opens the files on stand-in libraries, all of them in one process. Which nets can have NHWC is not
written down here: onnxruntime's own optimised graphs say it, by their copies.
"""

import importlib
import warnings
from collections import Counter

import onnx
import pytest
import stand_in_cuda
import torch
from cuda_nets import VisionTransformer, encoder
from onnx import TensorProto, helper
from torch import nn

from lit_gelu.export import export_onnx

NHWC, GRAPH = {"prefer_nhwc": "1"}, {"enable_cuda_graph": "1"}
OPTIONS = {"plain": {}, "NHWC": NHWC, "graph": GRAPH, "both": NHWC | GRAPH}
ARRANGING = frozenset({
    "Shape", "Slice", "Concat", "Reshape", "Squeeze", "Unsqueeze", "Split", "Gather", "Expand", "Transpose", "Range",
    "Cast", "MemcpyFromHost", "MemcpyToHost",
})  # fmt: skip


class LastState(nn.Module):
    """A language model's last hidden state."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids, attention_mask):
        return self.model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state


def bert():
    library = importlib.import_module("transformers")
    size = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}
    return LastState(library.BertModel(library.BertConfig(vocab_size=20, **size)))


def convnext():
    sizes = {"depths": (1, 1, 1, 1), "dims": (8, 8, 8, 8), "num_classes": 3}
    return importlib.import_module("timm").create_model("convnext_atto", pretrained=False, **sizes)


def timm_vit():
    sizes = {"img_size": 32, "patch_size": 8, "embed_dim": 16, "depth": 2, "num_heads": 2, "dynamic_img_size": True}
    return importlib.import_module("timm").create_model("vit_tiny_patch16_224", pretrained=False, **sizes)


def task(name):
    return getattr(importlib.import_module("lit_gelu.tasks"), name)(activation="gelu")


IDS, IMAGES = torch.randint(20, (2, 8)), torch.zeros(2, 3, 32, 16)
TOKENS = {"input_ids": IDS, "attention_mask": torch.ones_like(IDS)}
# By name: the net, a sample, its open sizes beside the batch.
NETS = {
    "encoder": (encoder, torch.zeros(2, 5, 8), ()),
    "encoder, any length": (encoder, torch.zeros(2, 5, 8), {"src": {1: "sequence"}}),
    "ViT": (VisionTransformer, torch.zeros(2, 3, 8, 8), ()),
    "ViT, any image": (VisionTransformer, torch.zeros(2, 3, 16, 8), "image-size"),
    "BERT": (bert, TOKENS, "sequence"),
    "ConvNeXt": (convnext, torch.zeros(2, 3, 32, 32), ()),
}
FULL = {
    "ViT of timm": (timm_vit, IMAGES, "image-size"),
    "ConvNeXt, any image": (convnext, torch.zeros(2, 3, 64, 32), "image-size"),
    "CIFAR-10": (lambda: task("CIFAR10ConvNet"), None, ()),
    "WRN-40-4": (lambda: task("CIFAR100WideResNet"), None, ()),
}

# How many of each operator that computes values run on the GPU.
_BLOCK = "1 FusedMatMul, {} Gemm, 2 LayerNormalization, 4 MatMul, 1 Softmax"
GOLDEN = {
    "encoder": f"4 Add, 1 BiasGelu, {_BLOCK.format(1)}",
    "encoder, any length": f"4 Add, 1 BiasGelu, {_BLOCK.format(1)}",
    "ViT": f"4 Add, 1 BiasGelu, 1 Conv, {_BLOCK.format(2)}",
    "ViT, any image": f"4 Add, 1 BiasGelu, 1 Conv, {_BLOCK.format(2)}",
}
# Of nets whose masks and norms depend on the version of a library: some of them.
AMONG = {"BERT": {"1 BiasGelu", "1 FusedMatMul", "1 Softmax"}, "ConvNeXt": {"4 Gelu"}}
PIECES = {"Erf", "Tanh"}  # of a GELU


def exported(folder, nets, **options):
    paths = {}
    for name, (make, sample, sizes) in nets.items():
        paths[name] = folder / f"{len(paths)}.onnx"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the exporter and of the libraries, on the way to the graph
            export_onnx(make().eval(), paths[name], sample, target="ort-cuda", dynamic_shapes=sizes, **options)
    return paths


def by_hand(folder, *nodes, kind=TensorProto.FLOAT, layout=""):
    """A convolution, and nodes from ``a``, which is its output, to ``y``."""
    ends = [helper.make_tensor_value_info(name, kind, ["batch", 4, 8, 8]) for name in ("x", "y")]
    ends[1].type.tensor_type.ClearField("shape")
    made = [helper.make_node("Conv", ["x", "w"], ["a"], name="conv")]
    made += [helper.make_node(operator, inputs, [output], name=f"the {operator}") for operator, inputs, output in nodes]
    graph = helper.make_graph(made, "g", ends[:1], ends[1:], [helper.make_tensor("w", kind, (4, 4, 1, 1), [1.0] * 16)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    helper.set_model_props(model, {"lit_gelu.layout": layout})
    path = folder / f"{len(list(folder.iterdir()))}.onnx"
    onnx.save(model, path)
    return path


@pytest.fixture(scope="module")
def libraries(tmp_path_factory):
    stand_in_cuda.require_tools()
    return stand_in_cuda.build(tmp_path_factory.mktemp("stand_in_cuda"))


def opened_with_each(libraries, paths):
    cells = [(name, option) for name in paths for option in OPTIONS]
    found = stand_in_cuda.opened(libraries, [(paths[name], OPTIONS[option], {}) for name, option in cells])
    return dict(zip(cells, found, strict=True))


@pytest.fixture(scope="module")
def found(libraries, tmp_path_factory):
    return opened_with_each(libraries, exported(tmp_path_factory.mktemp("nets"), NETS))


def judged(found, name):
    """Open with a graph and plain; with NHWC exactly where onnxruntime inserts no copies; with both where with NHWC."""
    plain, nhwc, graph, both = (found[name, option] for option in OPTIONS)
    for entry in (plain, graph):
        assert "error" not in entry, entry
        assert entry["providers"][0] == "CUDAExecutionProvider"
        assert entry["copies"] == 0
    assert computing(graph) == computing(plain)
    assert ("error" in nhwc) == (nhwc["copies"] > 0), nhwc
    assert ("error" in both) == ("error" in nhwc), both
    if "error" in nhwc:
        assert nhwc["error"].startswith("ProviderError: prefer_nhwc=1: ")
        assert "computes sizes: " in nhwc["error"]
        assert "Leave the option out" in nhwc["error"]
        assert "cannot use the graph capture" in both["error"]
        assert "copies to the CPU and back at every call. CUDA graphs allow none." in both["error"]
    else:
        assert computing(nhwc) == computing(plain)
        assert ("nhwc:Conv" in nhwc["operators"]) == ("Conv" in plain["operators"])


def computing(entry, where="operators"):
    """How many of each operator that computes values; those of sizes are among them, but on the GPU alone."""
    plain = Counter()
    for name, count in entry[where].items():
        plain[name.removeprefix("nhwc:")] += count
    return {name: plain[name] for name in sorted(plain) if name not in ARRANGING}


def found_on_gpu(found, name):
    return [f"{count} {operator}" for operator, count in computing(found[name, "plain"], "on_gpu").items()]


@pytest.mark.full
@pytest.mark.parametrize("name", NETS)
def test_nets_open_or_the_reason_is_said(found, name):
    judged(found, name)
    operators = found_on_gpu(found, name)
    if name in GOLDEN:
        assert ", ".join(operators) == GOLDEN[name]
    else:
        assert AMONG[name] <= set(operators)
        assert not PIECES & {operator.split()[1] for operator in operators}


@pytest.mark.parametrize("name", ["encoder", "ConvNeXt"])
def test_without_sizes_to_compute_nhwc_and_cuda_graphs_go_together(found, name):
    assert "error" not in found[name, "both"]
    assert found[name, "plain"]["left"] == []


def test_the_rows_of_the_class_token_are_left_on_the_cpu(found):
    assert found["ViT", "plain"]["left"] == ["Concat"]


@pytest.mark.full
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", FULL)
def test_larger_nets_open_or_the_reason_is_said(libraries, tmp_path, name):
    paths = exported(tmp_path, {name: FULL[name]})
    opened = opened_with_each(libraries, paths)
    judged(opened, name)
    if FULL[name][1] is None:
        assert "error" not in opened[name, "both"]


@pytest.fixture(scope="module")
def made(libraries, tmp_path_factory):
    """Files by hand, with NHWC asked for; the last two only wish for it."""
    folder = tmp_path_factory.mktemp("by_hand")
    computed = ("Shape", ["x"], "s"), ("Abs", ["s"], "t"), ("Reshape", ["a", "t"], "y")
    files = {
        "computed": by_hand(folder, *computed),
        "read": by_hand(folder, ("Shape", ["x"], "s"), ("Expand", ["a", "s"], "y")),
        "read behind": by_hand(folder, ("Shape", ["a"], "s"), ("Expand", ["a", "s"], "y")),
        "lacking": by_hand(folder, ("Atan", ["a"], "y")),
        "bfloat16": by_hand(folder, ("Relu", ["a"], "y"), kind=TensorProto.BFLOAT16),
        "wish": by_hand(folder, *computed, layout="nhwc"),
        "granted": by_hand(folder, ("Relu", ["a"], "y"), layout="nhwc"),
    }
    wanted = [(path, {} if name in ("wish", "granted") else NHWC, {}) for name, path in files.items()]
    return dict(zip(files, stand_in_cuda.opened(libraries, wanted), strict=True))


@pytest.mark.parametrize(("name", "node"), [("computed", "Abs 'the Abs'"), ("read behind", "Gather 'Gather'")])
def test_a_size_that_is_computed_is_copied_under_nhwc(made, name, node):
    """The second is onnxruntime's own: it moves its Transpose past the Shape."""
    assert made[name]["copies"] == 2
    assert f"computes sizes: {node}. In sessions with NHWC" in made[name]["error"]


def test_a_size_that_goes_where_host_memory_is_read_is_not(made):
    assert made["read"]["copies"] == 0
    assert "error" not in made["read"]


def test_a_node_without_a_kernel_is_refused_under_nhwc_too(made):
    assert "run on the CPU" in made["lacking"]["error"]
    assert "Atan 'the Atan'" in made["lacking"]["error"]


def test_bfloat16_convolutions_in_nhwc_are_refused_before_they_are_tried(made):
    assert "no bfloat16 convolutions in NHWC" in made["bfloat16"]["error"]
    assert "dtype='fp16'" in made["bfloat16"]["error"]
    assert made["bfloat16"]["operators"] == {}


def test_a_files_wish_for_nhwc_is_granted_where_it_costs_no_copies(made):
    assert "nhwc:Conv" in made["granted"]["operators"]
    assert made["granted"]["said"] == []
    assert made["wish"]["operators"]["Conv"] == 1
    assert made["wish"]["copies"] == 0
    (said,) = made["wish"]["said"]
    assert "is opened without prefer_nhwc, its wish: it computes sizes." in said
