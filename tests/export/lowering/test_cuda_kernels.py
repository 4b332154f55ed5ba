"""Which operators have a kernel on CUDA, by dtype and opset: what is known of it, and that files keep to it.

`tests/cuda_kernels.txt` is the oracle: the registry of the released provider, by which onnxruntime itself places nodes.
"""

import cuda_kernel_table
import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
import stand_in_cuda
import torch
from cuda_kernel_table import registered
from cuda_nets import VisionTransformer, encoder
from onnx import TensorProto
from torch import nn

from lit_gelu import activations, tasks
from lit_gelu.export import export_onnx
from lit_gelu.export.lowering.policy import DTYPES, NEWEST_OPSET, OLDEST_OPSET, has_kernel

KERNELS = cuda_kernel_table.read()
KINDS = {"fp32": "tensor(float)", "fp16": "tensor(float16)", "bf16": "tensor(bfloat16)"}
NAMES = {TensorProto.FLOAT: "fp32", TensorProto.FLOAT16: "fp16", TensorProto.BFLOAT16: "bf16"}
# They are functions of others, which onnxruntime puts in their place: what these have is what counts.
COMPOSED = {
    "AffineGrid", "Bernoulli", "BlackmanWindow", "CastLike", "CenterCropPad", "HammingWindow", "HannWindow",
    "Mish", "NegativeLogLikelihoodLoss", "SequenceMap", "SoftmaxCrossEntropyLoss",
}  # fmt: skip
# No floating-point data of a net goes through them.
APART = {
    "ConcatFromSequence", "Constant", "DequantizeLinear", "DynamicQuantizeLinear", "MelWeightMatrix", "Multinomial",
    "NonMaxSuppression", "Optional", "OptionalGetElement", "OptionalHasElement", "QLinearConv", "QLinearMatMul",
    "QuantizeLinear", "Scatter", "SequenceInsert", "SplitToSequence", "TfIdfVectorizer", "Upsample",
}  # fmt: skip
# CUDA has no kernel of them in any dtype. In float32 and float16 the CPU runs them; the default predictor refuses that.
NOWHERE = {
    "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Celu", "Col2Im", "Cosh", "DFT", "Det", "GlobalLpPool",
    "Hardmax", "LpPool", "MaxRoiPool", "MaxUnpool", "Mean", "MeanVarianceNormalization", "STFT", "Sinh", "Tan",
    "Unique",
}  # fmt: skip


def kinds_of(schema, parameter):
    """Which of the three types a parameter of an operator may have."""
    text = parameter.type_str
    allowed = next((c.allowed_type_strs for c in schema.type_constraints if c.type_param_str == text), [text])
    return {name for name, kind in KINDS.items() if kind in allowed}


def test_the_table_is_the_registry_of_the_installed_provider(tmp_path):
    stand_in_cuda.require_tools()
    if onnxruntime.__version__ != cuda_kernel_table.RELEASE:
        pytest.skip(f"the table is of onnxruntime {cuda_kernel_table.RELEASE}")
    written = cuda_kernel_table.lines_of(stand_in_cuda.registry(tmp_path))
    assert cuda_kernel_table.DATA.read_text(encoding="utf-8").splitlines() == written


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("opset", range(OLDEST_OPSET, NEWEST_OPSET + 1))
def test_what_is_known_of_kernels_is_the_table(dtype, opset):
    """Nothing is forgotten, and nothing is said to be missing that is there."""
    wrong = []
    for name in sorted({schema.name for schema in onnx.defs.get_all_schemas_with_history() if schema.domain == ""}):
        try:
            schema = onnx.defs.get_schema(name, opset, "")
        except onnx.defs.SchemaError:
            continue
        data = [each for each in (*schema.inputs, *schema.outputs) if kinds_of(schema, each)]
        if name == "OneHot":
            data = data[2:]  # what is spread; indices and a depth are integers
        if not data or dtype not in kinds_of(schema, data[0]) or name in COMPOSED | APART:
            continue
        if name in NOWHERE and dtype != "bf16":
            assert not KERNELS.get(name)
            continue
        theirs = registered(KERNELS, name, schema.since_version, {data[0].type_str: dtype})
        if theirs != has_kernel("ort-cuda", name, dtype, opset):
            wrong.append(f"{name}: {theirs}")
    assert not wrong


class Usual(nn.Module):
    """Operators that nets are made of, each on its own output."""

    def __init__(self, spec="gelu"):
        super().__init__()
        torch.manual_seed(0)
        act = activations.create
        self.images = nn.ModuleDict({
            "max": nn.MaxPool2d(2), "padded": nn.MaxPool2d(3, 2, 1), "rounded up": nn.MaxPool2d(3, 2, ceil_mode=True),
            "average": nn.AvgPool2d(2), "mean": nn.AdaptiveAvgPool2d(1),
            "batch": nn.BatchNorm2d(4), "transposed": nn.ConvTranspose2d(4, 3, 2, stride=2),
            "nearest": nn.Upsample(scale_factor=2),
            "bilinear": nn.Upsample(scale_factor=2, mode="bilinear"), "shuffle": nn.PixelShuffle(2),
            "reflected": nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect"), "zeros": nn.ZeroPad2d(1),
            "relu6": act("relu6"), "hardtanh": nn.Hardtanh(), "dropout": nn.Dropout(),
        })  # fmt: skip
        self.stem = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), act(spec))
        self.head = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8), nn.LogSoftmax(-1))
        self.embedding = nn.Embedding(5, 8)
        for module in self.modules():
            if isinstance(module, nn.BatchNorm2d):
                nn.init.uniform_(module.running_var, 0.5, 2.0)
                nn.init.normal_(module.running_mean)
        self.example_input_array = (torch.randn(2, 3, 8, 8), torch.randint(5, (2, 4)))

    def forward(self, images, tokens):
        stem = self.stem(images)
        h = self.embedding(tokens)
        a, b = torch.cat([h, h.flip(-1)], -1).split(8, -1)
        outputs = {name: module(stem) for name, module in self.images.items()}
        outputs["where"] = torch.where(a > b, a, b.clamp(min=-1))
        outputs["largest"], outputs["mean of"] = stem.amax((2, 3)), h.mean(1)
        outputs["softmax"] = torch.softmax(a @ b.mT, -1)
        outputs["head"] = self.head(h)
        outputs["most"] = h.argmax(-1)
        return outputs


NETS = {
    "usual": lambda: (Usual().eval(), None),
    "encoder": lambda: (encoder().eval(), torch.zeros(2, 5, 8)),
    "vision transformer": lambda: (VisionTransformer().eval(), torch.zeros(2, 3, 8, 8)),
    **{
        name: lambda name=name: (getattr(tasks, name)().eval(), None)
        for name in ("MNISTClassifier", "MNISTAutoencoder", "TweetTagger", "TIMITFrameClassifier", "CIFAR10ConvNet")
    },
}


def without_kernel(model):
    """Say which nodes of a file have no kernel of CUDA's provider."""
    model = onnx.shape_inference.infer_shapes(model, strict_mode=True)
    opset = next(each.version for each in model.opset_import if not each.domain)
    graph, types = model.graph, {}
    for value in (*graph.input, *graph.output, *graph.value_info):
        types[value.name] = value.type.tensor_type.elem_type
    types |= {tensor.name: tensor.data_type for tensor in graph.initializer}
    missing = []
    for node in graph.node:
        if node.op_type == "Constant":
            continue
        if node.domain:
            kinds = {"T": NAMES[types[node.input[0]]]}
            if not registered(KERNELS, f"{node.domain}::{node.op_type}", 1, kinds):
                missing.append(f"{node.op_type} {kinds}")
            continue
        schema, kinds = onnx.defs.get_schema(node.op_type, opset, ""), {}
        for names, formal in ((node.input, schema.inputs), (node.output, schema.outputs)):
            for i, name in enumerate(names):
                if types.get(name) in NAMES:
                    kinds[formal[min(i, len(formal) - 1)].type_str] = NAMES[types[name]]
        if kinds and not registered(KERNELS, node.op_type, schema.since_version, kinds):
            missing.append(f"{node.op_type} {kinds}")
    return missing


def exported(folder, names, **options):
    paths = {}
    for name in names:
        model, sample = NETS[name]()
        paths[name] = folder / f"{len(paths)}.onnx"
        export_onnx(model, paths[name], sample, target="ort-cuda", **options)
    return paths


@pytest.fixture(
    scope="module",
    params=[
        ("fp16", ("usual", "vision transformer", "CIFAR10ConvNet")),
        *(pytest.param((dtype, tuple(NETS)), marks=pytest.mark.full) for dtype in ("fp16", "bf16")),
    ],
    ids=["fp16", "fp16, all nets", "bf16, all nets"],
)
def files(request, tmp_path_factory):
    dtype, names = request.param
    return exported(tmp_path_factory.mktemp(dtype), names, dtype=dtype)


def test_every_node_has_a_kernel(files):
    assert not {name: missing for name, path in files.items() if (missing := without_kernel(onnx.load(path)))}


def test_the_provider_opens_them_and_nothing_is_copied(files, tmp_path):
    """The shipped one, on stand-in libraries."""
    stand_in_cuda.require_tools()
    entries = stand_in_cuda.opened(stand_in_cuda.build(tmp_path), [(path, {}, {}) for path in files.values()])
    for name, entry in zip(files, entries, strict=True):
        assert "error" not in entry, (name, entry["error"])
        assert entry["copies"] == 0


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("policy", ["strict", "fast"])
def test_every_activation_but_those_with_an_arctangent(every_activation, dtype, policy):
    """Of Atan there is no kernel in any dtype: the CPU runs it, in float32."""
    graph, _ = every_activation.lowered("ort-cuda", dtype, policy)
    missing = without_kernel(ir.to_proto(graph))
    kind = "fp16" if (dtype, policy) == ("fp16", "fast") else "fp32"
    assert set(missing) <= {f"Atan {{'T': '{kind}'}}", "Mish {'T': 'fp32'}", "Mish {'T': 'fp16'}", "Mish {'T': 'bf16'}"}


POOLS = [
    (nn.MaxPool2d, 2, {}),
    (nn.MaxPool2d, 4, {"dilation": 2, "stride": 1}),
    (nn.MaxPool2d, (1, 3), {"stride": (2, 1)}),
    (nn.MaxPool2d, 5, {"stride": 3, "padding": 2, "ceil_mode": True}),
    (nn.MaxPool3d, 3, {"stride": 2, "padding": 1}),
]


@pytest.mark.parametrize(("make", "size", "options"), POOLS, ids=str)
def test_the_largest_values_over_windows_are_torchs_to_the_bit(tmp_path, make, size, options):
    """Of any batch and any length."""
    model, path, sizes = make(size, **options).eval(), tmp_path / "net.onnx", [9] * (2 if make is nn.MaxPool2d else 3)
    open_sizes = {"input": {2: "length"}}
    export_onnx(model, path, torch.zeros(2, 3, *sizes), target="ort-cuda", opset=22, dynamic_shapes=open_sizes)
    assert "MaxPool" not in {node.op_type for node in onnx.load(path).graph.node}
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    for rows, length in ((1, 9), (3, 10), (2, 14), (2, 15)):
        x = -torch.rand(rows, 3, length, *sizes[1:]) - 1  # all below the 0 that a wrong padding would be
        (y,) = session.run(None, {"input": x.numpy()})
        np.testing.assert_array_equal(y, model(x).numpy())


def test_what_is_not_the_same_in_slices_stays_and_is_said(tmp_path):
    """Gaps in a window that reaches over the edge: it need not hold the value there."""
    model = nn.MaxPool2d(3, dilation=2, padding=1)
    report = export_onnx(model, tmp_path / "net.onnx", torch.zeros(2, 3, 9, 9), target="ort-cuda", opset=22)
    assert report.census == {"MaxPool": 1}
    assert any("MaxPool at opset 22 on ort-cuda: runs on the CPU" in note for note in report.notes)
