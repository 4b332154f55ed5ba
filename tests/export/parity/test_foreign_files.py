"""`check_parity` and the activations of files that torch.onnx, onnxruntime and others wrote."""

import importlib
import warnings

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from corruptions import plus
from integration_models import FirstOutput, randomised
from onnx import TensorProto, helper, numpy_helper
from torch import nn
from torch.nn import functional as F

from lit_gelu import activations
from lit_gelu.errors import ModelFileError, ModelInputError, ParityError
from lit_gelu.export import check_parity, export_onnx, inspect_onnx, site_nodes
from lit_gelu.export.graph_activations import activation_function, graph_activations

LAYERS = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
TEXT = {"vocab_size": 20, **LAYERS}
IMAGES = {"image_size": 8, "patch_size": 4, **LAYERS}
TIMM = {"pretrained": False, "num_classes": 5}


def transformer(name, **configuration):
    library = pytest.importorskip("transformers")
    return FirstOutput(getattr(library, f"{name}Model")(getattr(library, f"{name}Config")(**configuration)))


def from_timm(name, **arguments):
    return pytest.importorskip("timm").create_model(name, **TIMM, **arguments)


def from_torchvision(name, *arguments, **options):
    pytest.importorskip("torchvision")
    module, _, name = name.rpartition(".")
    return getattr(importlib.import_module(f"torchvision.models.{module}"), name)(*arguments, **options)


def mixer():
    kind = pytest.importorskip("timm").models.mlp_mixer.MlpMixer
    return kind(num_classes=5, img_size=16, patch_size=8, num_blocks=2, embed_dim=16)


def convnext():
    blocks = [from_torchvision("convnext.CNBlockConfig", *sizes) for sizes in ((8, 16, 1), (16, None, 1))]
    return from_torchvision("convnext.ConvNeXt", blocks, num_classes=5)


GPT2 = {"vocab_size": 20, "n_positions": 16, "n_embd": 16, "n_layer": 2, "n_head": 2, "use_cache": False}
GPT2 |= {"bos_token_id": 0, "eos_token_id": 1}
VIT = {"image_size": 8, "patch_size": 4, "num_layers": 2, "num_heads": 2, "hidden_dim": 16, "mlp_dim": 24}
# Twelve nets: how each is built, and the activation that it computes as its authors say.
NETS = {
    "transformers.Bert": (lambda: transformer("Bert", **TEXT), "gelu"),
    "transformers.GPT2": (lambda: transformer("GPT2", **GPT2), "gelu(approximate='tanh')"),
    "transformers.Llama": (lambda: transformer("Llama", use_cache=False, **TEXT), "silu"),
    "transformers.ViT": (lambda: transformer("ViT", **IMAGES), "gelu"),
    "transformers.CLIPVision": (lambda: transformer("CLIPVision", **IMAGES), "gelu(approximate='sigmoid')"),
    "transformers.SiglipVision": (lambda: transformer("SiglipVision", **IMAGES), "gelu(approximate='tanh')"),
    "timm.vit": (lambda: from_timm("vit_tiny_patch16_224", img_size=32, depth=2, embed_dim=24, num_heads=2), "gelu"),
    "timm.mixer": (mixer, "gelu"),
    "timm.convnext": (lambda: from_timm("convnext_atto", depths=(1, 1, 1, 1), dims=(8, 8, 16, 16)), "gelu"),
    "timm.tinynet": (lambda: from_timm("tinynet_e"), "silu"),
    "torchvision.vit": (lambda: from_torchvision("vision_transformer.VisionTransformer", **VIT), "gelu"),
    "torchvision.convnext": (convnext, "gelu"),
}
OF_TOKENS = {"transformers.Bert", "transformers.GPT2", "transformers.Llama"}
BY_TRACING = {"transformers.Bert", "transformers.ViT", "timm.mixer", "torchvision.vit"}  # the older exporter


def nets(names):
    return [pytest.param(name, marks=[] if name == "transformers.Bert" else [pytest.mark.full]) for name in names]


def sample(name):
    generator = torch.Generator().manual_seed(1)
    if name in OF_TOKENS:
        return torch.randint(20, (2, 5), generator=generator)
    size = {"timm.vit": 32, "timm.mixer": 16, "timm.convnext": 32, "timm.tinynet": 32}.get(name, 8)
    return torch.randn((2, 3, size, size), generator=generator)


def exported(model, inputs, path, *, dynamo=True, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the older exporter, and of its traces
        torch.onnx.export(model, inputs, path, dynamo=dynamo, **({"verbose": False} if dynamo else {}), **options)
    return path


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Each net with its file, made once."""
    cache = {}

    def net_and_file(name):
        if name not in cache:
            torch.manual_seed(0)
            model = randomised(NETS[name][0]()).eval()
            path = exported(model, (sample(name),), tmp_path_factory.mktemp("foreign") / "net.onnx")
            cache[name] = model, path
        return cache[name]

    return net_and_file


def put(model, x, y, spec):
    """Compute a value as another activation of its input; what computed it before is read by nobody."""
    place = next(i for i, node in enumerate(model.graph.node) if y in node.output)
    before = model.graph.node[place]
    before.output[0] = f"{y}.before"
    if spec == "silu":
        sigmoid = helper.make_node("Sigmoid", [x], [f"{y}.gate"])
        after = helper.make_node("Mul", [x, f"{y}.gate"], [y])
        model.graph.node.insert(place + 1, sigmoid)
    else:
        form = "tanh" if "tanh" in spec else "none"
        after = helper.make_node("Gelu", [x], [y], approximate=form)
    after.metadata_props.extend(before.metadata_props)
    model.graph.node.insert(place + (2 if spec == "silu" else 1), after)


def changed(path, target, change):
    model = onnx.load(path)
    change(model)
    onnx.save(model, target)
    return target


@pytest.mark.parametrize("name", nets(NETS))
def test_a_plain_file_passes_and_each_fault_is_named(files, name, tmp_path):
    model, path = files(name)
    inputs, (_, spec) = sample(name), NETS[name]
    report = check_parity(model, path, input_sample=inputs)
    assert report.passed
    assert any(spec in note for note in report.notes)
    rows = [each for each in graph_activations(path) if each.spec == spec]
    assert inspect_onnx(path).activations[spec] == len(rows) > 0
    sites = [each.scope for each in rows]

    other_form = "gelu" if spec == "gelu(approximate='tanh')" else "gelu(approximate='tanh')"
    for other in (other_form, "gelu" if spec == "silu" else "silu"):
        wrong = changed(
            path, tmp_path / "wrong.onnx", lambda graph, other=other: [put(graph, e.x, e.y, other) for e in rows]
        )
        with pytest.raises(ParityError) as caught:
            check_parity(model, wrong, input_sample=inputs)
        (fault,) = caught.value.report.faults
        assert fault.startswith(f"{sites[0]} is {spec} in the module, and {other} in the file")
        assert fault in str(caught.value)

    vectors = {tensor.name for tensor in onnx.load(path).graph.initializer if len(tensor.dims) == 1}
    biases = [name for name, _ in model.named_parameters() if name.endswith("bias") and name in vectors]
    # The earlier ones of an untrained TinyNet are lost on the way: its signal shrinks from layer to layer.
    bias = (
        "conv_head.weight_bias"
        if name == "timm.tinynet"
        else next(iter(biases or sorted(v for v in vectors if "norm" in v)))
    )
    report = check_parity(
        model, changed(path, tmp_path / "bias.onnx", plus(bias, 0, 1e-2)), input_sample=inputs, strict=False
    )
    assert not report.passed
    assert report.divergence.layer.site in sites
    assert any(spec in note for note in report.notes)


@pytest.mark.parametrize("name", nets(sorted(BY_TRACING)))
def test_files_of_the_older_exporter(files, name, tmp_path):
    model, _ = files(name)
    inputs, (_, spec) = sample(name), NETS[name]
    for opset in (17, 20):
        path = exported(model, (inputs,), tmp_path / f"{opset}.onnx", dynamo=False, opset_version=opset)
        assert check_parity(model, path, input_sample=inputs).passed
        rows = [each for each in graph_activations(path) if each.spec == spec]
        assert {each.operator for each in rows} == {"Erf formula" if opset < 20 else "Gelu(none)"}
    first = rows[0]
    wrong = changed(path, tmp_path / "wrong.onnx", lambda graph: put(graph, first.x, first.y, "silu"))
    (fault,) = check_parity(model, wrong, input_sample=inputs, strict=False).faults
    assert fault.startswith(f"{first.scope} is {spec} in the module, and silu in the file")


class Block(nn.Module):
    """One of each form, a call of a function among them."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.third = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 3)
        self.exact, self.tanh = nn.GELU(), nn.GELU(approximate="tanh")

    def forward(self, x, scale):
        return self.third(F.silu(self.tanh(self.second(self.exact(self.first(x))))) * scale)


BLOCK = (torch.randn(4, 6, generator=torch.Generator().manual_seed(0)), torch.ones(4, 1))


@pytest.fixture(scope="module")
def block(tmp_path_factory):
    model = Block().eval()
    folder = tmp_path_factory.mktemp("block")
    names = {"input_names": ["features", "factor"], "output_names": ["y"]}
    rows = {"features": {0: "n"}, "factor": {0: "n"}}
    exported(model, BLOCK, folder / "18.onnx", dynamo=False, opset_version=18, dynamic_axes=rows, **names)
    exported(model, BLOCK, folder / "20.onnx", opset_version=20)
    return model, folder


def optimised(path, target, level):
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath, options.log_severity_level = str(target), 3
    options.graph_optimization_level = level
    onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return target


def specs(path):
    return [each.spec for each in graph_activations(path)]


OF_BLOCK = ["gelu", "gelu(approximate='tanh')", "silu"]


@pytest.mark.parametrize("level", ["ORT_ENABLE_EXTENDED", "ORT_ENABLE_ALL"])
@pytest.mark.parametrize("opset", [18, 20])
def test_what_onnxruntime_optimised_passes(block, opset, level, tmp_path):
    model, folder = block
    level = getattr(onnxruntime.GraphOptimizationLevel, level)
    path = optimised(folder / f"{opset}.onnx", tmp_path / "net.onnx", level)
    assert specs(path) == OF_BLOCK
    assert check_parity(model, path, input_sample=BLOCK).passed


def test_what_onnxruntimes_transformer_optimiser_fuses(files, tmp_path):
    optimizer = pytest.importorskip("onnxruntime.transformers.optimizer")
    model, _ = files("transformers.Bert")
    inputs = sample("transformers.Bert")
    path = exported(model, (inputs,), tmp_path / "net.onnx", dynamo=False, opset_version=17)
    fused = {}
    for name, options in {"BiasGelu": {}, "FastGelu": {"enable_gelu_approximation": True}}.items():
        chosen = importlib.import_module("onnxruntime.transformers.fusion_options").FusionOptions("bert")
        for key, value in options.items():
            setattr(chosen, key, value)
        graph = optimizer.optimize_model(str(path), "bert", 2, 16, optimization_options=chosen, opt_level=0)
        graph.save_model_to_file(str(tmp_path / f"{name}.onnx"))
        fused[name] = tmp_path / f"{name}.onnx"
        assert {each.operator for each in graph_activations(fused[name])} == {name}
    assert check_parity(model, fused["BiasGelu"], input_sample=inputs).passed
    report = check_parity(model, fused["FastGelu"], input_sample=inputs, strict=False)
    assert "is gelu in the module, and gelu(approximate='tanh') in the file (FastGelu)" in report.faults[0]
    (first, _) = graph_activations(fused["BiasGelu"])
    x = np.linspace(-5, 5, 101)
    exact = F.gelu(torch.from_numpy(x)).numpy()
    assert np.abs(activation_function(fused["BiasGelu"], first)(x) - exact).max() < 1e-6


def test_inputs_are_matched_by_name_then_by_order_and_shape(block, tmp_path):
    model, folder = block
    report = check_parity(model, folder / "18.onnx", input_sample=BLOCK)
    assert "inputs were matched by order and shape: 'features' is x, 'factor' is scale." in report.notes
    assert report.row("gaussian, batch 32", output="y").passed

    def exchange(graph):
        ports = list(graph.graph.input)[::-1]
        del graph.graph.input[:]
        graph.graph.input.extend(ports)

    turned = changed(folder / "18.onnx", tmp_path / "turned.onnx", exchange)
    data = torch.utils.data.TensorDataset(*BLOCK)  # in forward's order, whatever the file's is
    loader = torch.utils.data.DataLoader(data, batch_size=2)
    assert check_parity(model, turned, loader, input_sample=BLOCK).row("data", output="y").passed
    with pytest.raises(ModelInputError):
        check_parity(nn.Linear(6, 3), turned, input_sample=BLOCK[0])


def test_a_file_with_one_of_two_outputs_is_compared_on_that(tmp_path):
    class Two(Block):
        def forward(self, x):
            return {"hidden": self.exact(self.first(x)), "logits": self.third(self.exact(self.first(x)))}

    model = Two().eval()
    path = exported(model, BLOCK[:1], tmp_path / "net.onnx", dynamo=False, output_names=["hidden", "logits"])
    path = changed(path, tmp_path / "one.onnx", lambda graph: graph.graph.output.pop(0))
    report = check_parity(model, path, input_sample=BLOCK[0])
    assert {row.output for row in report.rows if row.output} == {"logits"}
    assert "the file has no output 'hidden'." in report.notes


def small(path, nodes, weights=(), *, functions=(), domains=(), element=TensorProto.FLOAT):
    """Write a graph from x to y."""
    ports = [helper.make_tensor_value_info(name, element, ["n", 4]) for name in ("x", "y")]
    opsets = [helper.make_opsetid("", 20), *(helper.make_opsetid(domain, 1) for domain in domains)]
    tensors = [numpy_helper.from_array(np.asarray(value), name) for name, value in dict(weights).items()]
    graph = helper.make_graph(nodes, "net", ports[:1], ports[1:], tensors)
    onnx.save(helper.make_model(graph, opset_imports=opsets, functions=list(functions), ir_version=10), path)
    return path


def erf_formula(half):
    node = helper.make_node
    nodes = [node("Mul", ["x", "r"], ["a"]), node("Erf", ["a"], ["b"]), node("Add", ["one", "b"], ["c"])]
    nodes += [node("Mul", ["c", "x"], ["d"]), node("Mul", ["half", "d"], ["y"])]
    return nodes, {"r": np.float32(half), "one": np.float32(1), "half": np.float32(0.5)}


def test_a_formula_with_a_short_constant_is_unknown_and_runs(tmp_path):
    path = small(tmp_path / "net.onnx", *erf_formula(0.7071))
    (activation,) = graph_activations(path)
    assert (activation.spec, activation.operator) == (None, "unknown formula like gelu")
    assert inspect_onnx(path).activations == {"unknown formula like gelu": 1}
    x = np.linspace(-4, 4, 81)
    expected = 0.5 * x * (1 + torch.erf(0.7071 * torch.from_numpy(x)).numpy())
    assert np.abs(activation_function(path, activation)(x) - expected).max() < 1e-6


@pytest.mark.parametrize("dtype", [np.float16, "bfloat16"])
def test_a_formula_in_16_bit(tmp_path, dtype):
    nodes, weights = erf_formula(0.5**0.5)
    if dtype == "bfloat16":
        tensors = {name: torch.tensor(float(value)).bfloat16() for name, value in weights.items()}
        path = small(tmp_path / "net.onnx", nodes, element=TensorProto.BFLOAT16)
        model = onnx.load(path)
        for name, tensor in tensors.items():
            bits = tensor.view(torch.int16).numpy().tobytes()
            model.graph.initializer.append(helper.make_tensor(name, TensorProto.BFLOAT16, [], bits, raw=True))
        onnx.save(model, path)
    else:
        path = small(
            tmp_path / "net.onnx",
            nodes,
            {name: dtype(value) for name, value in weights.items()},
            element=TensorProto.FLOAT16,
        )
    (activation,) = graph_activations(path)
    assert activation.spec == "gelu"
    x = torch.linspace(-3, 3, 61)
    y = torch.from_numpy(activation_function(path, activation)(x.numpy()))
    assert (y - F.gelu(x)).abs().max() < 0.03


def test_a_function_of_the_file_is_looked_into(tmp_path):
    nodes, weights = erf_formula(0.5**0.5)
    constants = [
        helper.make_node("Constant", [], [name], value=numpy_helper.from_array(np.asarray(value)))
        for name, value in weights.items()
    ]
    function = helper.make_function(
        "elsewhere", "Activation", ["x"], ["y"], [*constants, *nodes], [helper.make_opsetid("", 20)]
    )
    call = helper.make_node("Activation", ["x"], ["y"], domain="elsewhere")
    path = small(tmp_path / "net.onnx", [call], functions=[function], domains=["elsewhere"])
    assert specs(path) == ["gelu"]
    assert check_parity(nn.GELU(), path, input_sample=torch.zeros(2, 4)).passed
    report = check_parity(nn.GELU(approximate="tanh"), path, input_sample=torch.zeros(2, 4), strict=False)
    assert "gelu(approximate='tanh') in the module, and gelu in the file" in report.faults[0]


def test_activations_that_convolutions_have_fused_in(tmp_path):
    net = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU6(), nn.Conv2d(16, 16, 3), nn.LeakyReLU(0.2), nn.Conv2d(16, 4, 3))
    inputs = torch.randn(2, 3, 12, 12)
    path = exported(net.eval(), (inputs,), tmp_path / "plain.onnx", dynamo=False)
    path = optimised(path, tmp_path / "net.onnx", onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED)
    relu6, leaky = graph_activations(path)
    assert [relu6.spec, leaky.spec] == ["relu6", "leaky_relu(negative_slope=0.2)"]
    assert (relu6.operator, relu6.x) == ("Clip in FusedConv", "")
    x = np.linspace(-3, 9, 49)
    for activation in (relu6, leaky):
        exact = activations.create(activation.spec)(torch.from_numpy(x)).numpy()
        assert np.abs(activation_function(path, activation)(x) - exact).max() < 1e-6
    assert check_parity(net, path, input_sample=inputs).passed


def test_slopes_beside_a_large_file_are_read_from_its_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(site_nodes, "_LOADED_BELOW", 0)
    net, path, x = nn.Sequential(nn.Linear(4, 512), nn.PReLU(512)), tmp_path / "net.onnx", torch.randn(2, 4)
    export_onnx(net, path, x)
    model = onnx.load(path)
    model.ClearField("metadata_props")
    onnx.save(model, path, save_as_external_data=True, location="weights", size_threshold=1024)
    assert check_parity(net, path, input_sample=x).passed


def test_our_own_files_by_their_record(tmp_path):
    path = tmp_path / "net.onnx"
    export_onnx(nn.Sequential(nn.Linear(4, 4), nn.GELU()), path, torch.zeros(2, 4), approximate="tanh")
    (activation,) = graph_activations(path)
    assert (activation.scope, activation.spec) == ("1", "gelu(approximate='tanh')")
    entry = next(entry for entry in onnx.load(path).metadata_props if entry.key == "lit_gelu.sites")
    partial = changed(path, tmp_path / "partial.onnx", lambda graph: graph.metadata_props.remove(entry))
    for read in (graph_activations, inspect_onnx):
        with pytest.raises(ModelFileError):
            read(partial)
    with pytest.raises(ModelFileError):
        check_parity(nn.Linear(4, 4), partial)


def test_files_that_cannot_be_compared(tmp_path):
    node = helper.make_node
    unknown = small(tmp_path / "unknown.onnx", [node("Magic", ["x"], ["y"], domain="elsewhere")], domains=["elsewhere"])
    scale = {"s": np.float32(0.1), "z": np.int8(0)}
    steps = [node("QuantizeLinear", ["x", "s", "z"], ["q"]), node("DequantizeLinear", ["q", "s", "z"], ["y"])]
    fused = [node("DynamicQuantizeMatMul", ["x", "w", "s", "z"], ["y"], domain="com.microsoft")]
    weights = {**scale, "w": np.ones((4, 4), np.int8)}
    int8 = [small(tmp_path / "int8.onnx", steps, scale)]
    int8.append(small(tmp_path / "fused.onnx", fused, weights, domains=["com.microsoft"]))
    for path in (unknown, *int8):
        with pytest.raises(ModelFileError):
            check_parity(nn.Identity(), path, input_sample=torch.zeros(2, 4))


def test_an_activation_that_is_random_in_training_is_judged_in_evaluation(tmp_path):
    net = nn.Sequential(nn.Linear(4, 8), activations.create("zero_identity_map"), nn.Linear(8, 2)).eval()
    torch.onnx.export(net, (torch.zeros(2, 4),), tmp_path / "net.onnx", dynamo=True, verbose=False)
    state = torch.get_rng_state()
    assert check_parity(net, tmp_path / "net.onnx", input_sample=torch.randn(2, 4, generator=torch.Generator())).passed
    assert torch.equal(torch.get_rng_state(), state)
