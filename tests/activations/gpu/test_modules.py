"""Fused modules as others see them: pickles, copies, scripts, traces, wrappers, questions for their class."""

import copy
import inspect
import io
import pickle
import subprocess
import sys
from collections import OrderedDict

import numpy as np
import pytest
import torch
from dispatched import Operations
from torch import nn

from lit_gelu import activations, kernels, surgery
from lit_gelu.activations.gpu.modules import is_fused
from lit_gelu.surgery.activation_record import record_activations

MODULES = [nn.GELU(), nn.GELU("tanh"), nn.SiLU(), nn.Mish(), nn.ELU(0.5), nn.Hardswish(), nn.SiLU(inplace=True)]
X = torch.linspace(-4, 4, 48).reshape(6, 8)


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8), nn.Sequential(nn.SiLU(), nn.ELU(0.5))).eval()


def fused_net():
    model = kernels.fuse(net())
    assert [name for name, module in model.named_modules() if is_fused(module)] == ["1", "3.0", "3.1"]
    return model


def kinds(model):
    return [type(module) for module in model.modules()]


def read(data, **options):
    return torch.load(io.BytesIO(data), **options)


def saved(model):
    buffer = io.BytesIO()
    torch.save(model, buffer)
    return buffer.getvalue()


@pytest.mark.parametrize("module", MODULES, ids=repr)
def test_the_class_is_called_and_called_as_torchs(module):
    fused = kernels.fuse(copy.deepcopy(module))
    kind, plain = type(fused), type(module)
    assert (kind.__module__, kind.__qualname__, kind.__name__) == (plain.__module__, plain.__qualname__, plain.__name__)
    assert inspect.signature(fused.forward) == inspect.signature(module.forward)
    assert isinstance(fused, plain)
    assert torch.equal(fused(input=X.clone()), module(X.clone()))
    for arguments in ((), (X, X)):
        with pytest.raises(TypeError, match="argument"):
            fused(*arguments)
    with pytest.raises(TypeError, match="unexpected keyword argument 'x'"):
        fused(x=X)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_holds_what_there_was_before(protocol):
    data = pickle.dumps(fused_net(), protocol)
    assert b"lit_gelu" not in data
    again = pickle.loads(data)
    assert kinds(again) == kinds(net())
    assert torch.equal(again(X), net()(X))


def test_a_saved_model_is_read_without_this_package(tmp_path):
    torch.save(fused_net(), tmp_path / "model.pt")
    code = f"""
import sys
sys.modules["lit_gelu"] = None
import torch
print(torch.load({str(tmp_path / "model.pt")!r}, weights_only=False)[3][1].alpha)
"""
    found = subprocess.run([sys.executable, "-P", "-c", code], check=True, capture_output=True, text=True)
    assert found.stdout.strip() == "0.5"


def test_it_takes_no_more_trust_to_read_one_than_the_model_s(tmp_path):
    trusted = [nn.Sequential, nn.Linear, nn.GELU, nn.SiLU, nn.ELU, OrderedDict, set]
    for model in (net(), fused_net()):
        with torch.serialization.safe_globals(trusted):
            assert kinds(read(saved(model), weights_only=True)) == kinds(net())
        with torch.serialization.safe_globals(trusted[:2]), pytest.raises(pickle.UnpicklingError, match="GELU"):
            read(saved(model), weights_only=True)


def test_modules_that_need_arguments():
    registry = activations.ActivationRegistry()
    registry.register("threshold", kernel="generated")(nn.Threshold)
    for plain in (nn.Threshold(0.5, 7.0), nn.PReLU(3, 0.1)):
        fused = kernels.fuse(copy.deepcopy(plain), registry)
        assert is_fused(fused)
        again = pickle.loads(pickle.dumps(fused))
        assert type(again) is type(plain)
        assert torch.equal(again(X[:, :3]), plain(X[:, :3]))


def test_what_a_module_holds_goes_along():
    module = kernels.fuse(nn.ELU(0.25))
    module.note, module.itself = ["kept"], [module]
    module.eval()
    for again in (pickle.loads(pickle.dumps(module)), copy.deepcopy(module), copy.copy(module)):
        assert (again.alpha, again.note, again.training) == (0.25, ["kept"], False)
    deep, flat = copy.deepcopy(module), copy.copy(module)
    assert deep.itself[0] is deep
    assert deep.note is not module.note
    assert flat.itself[0] is module
    assert type(deep) is type(flat) is type(module)


def test_functions_of_ones_own():
    registry = activations.ActivationRegistry()

    @registry.register("ramp")
    def ramp(x, slope=0.5):
        return slope * x.clamp(min=0)

    plain = registry.create("ramp(slope=0.25)")
    fused = kernels.fuse(copy.deepcopy(plain), registry)
    assert is_fused(fused)
    assert type(copy.deepcopy(fused)) is type(fused)
    assert torch.equal(copy.deepcopy(fused)(X), plain(X))
    assert registry.spec_of(copy.deepcopy(fused)) == registry.spec_of(plain)


def test_torch_script():
    plain, fused = (torch.jit.script(model) for model in (net(), fused_net()))
    assert _code(plain) == _code(fused)
    buffer = io.BytesIO()
    torch.jit.save(fused, buffer)
    buffer.seek(0)
    assert torch.equal(torch.jit.load(buffer)(X), net()(X))


def test_a_scripted_model_stays_fused():
    model = fused_net()
    before = kinds(model)
    torch.jit.script(model)
    assert kinds(model) == before


def _code(scripted):
    return [module.code for module in scripted.modules() if module.original_name not in {"Sequential"}]


def test_traces():
    plain, fused = (torch.jit.trace(model, X) for model in (net(), fused_net()))
    assert str(plain) == str(fused)
    assert plain.code == fused.code
    assert plain.inlined_graph.str(False).split("return")[0].count("aten::gelu") == 1
    assert [node.scopeName() for node in plain.inlined_graph.nodes()] == [
        node.scopeName() for node in fused.inlined_graph.nodes()
    ]


def test_symbolic_traces():
    plain, fused = (torch.fx.symbolic_trace(model) for model in (net(), fused_net()))
    assert plain.code == fused.code
    assert [node.op for node in fused.graph.nodes] == [node.op for node in plain.graph.nodes]
    assert is_fused(fused.get_submodule("3.0"))


def test_what_a_compiler_is_given_on_a_cpu():
    found = []
    for model in (net(), fused_net()):
        graphs = []
        torch._dynamo.reset()
        compiled = torch.compile(
            model, backend=lambda graph, _, graphs=graphs: graphs.append(graph) or graph, fullgraph=True
        )
        outputs = compiled(X)
        (graph,) = graphs
        found.append(([(node.op, str(node.target)) for node in graph.graph.nodes], outputs))
    (plain, before), (fused, after) = found
    assert [row for row in fused if row[0] == "call_function"] == [row for row in plain if row[0] == "call_function"]
    assert sum("gelu" in target for _, target in fused) == 1
    assert torch.equal(before, after)


def test_the_fast_path_of_transformers():
    outputs = []
    for activation in (nn.GELU(), kernels.fuse(nn.GELU())):
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(8, 2, 16, activation=activation, batch_first=True).eval()
        if not is_fused(activation):
            kernels.fuse(layer)
        assert is_fused(layer.activation)
        with torch.no_grad(), Operations() as seen:
            outputs.append(layer(X.reshape(1, 6, 8)))
        assert "_transformer_encoder_layer_fwd" in seen.names
    assert torch.equal(*outputs)


@pytest.mark.parametrize("target", [nn.GELU, "class:torch.nn.GELU", "activation:gelu", "1"], ids=str)
def test_a_swap_finds_them_by_class_name_and_place(target):
    model = fused_net()
    report = surgery.swap(model, {target: "relu"})
    assert type(model[1]) is nn.ReLU
    report.undo()
    assert is_fused(model[1])


def test_checkpoints_record_the_same_activations():
    assert record_activations(fused_net()) == record_activations(net())
    assert {"1", "3.0", "3.1"} <= set(record_activations(net()))


@pytest.mark.filterwarnings("ignore")
def test_dynamic_quantization():
    plain, fused = (torch.ao.quantization.quantize_dynamic(model, {nn.Linear}) for model in (net(), fused_net()))
    assert repr(plain) == repr(fused)
    assert torch.equal(plain(X), fused(X))


def test_a_class_that_torch_makes_of_them_stays():
    """As FSDP's `fully_shard` and `torch.nn.utils.parametrize` do: a subclass of the instance's class."""
    module = kernels.fuse(nn.GELU())
    module.__class__ = made = type("FSDPGELU", (type(module),), {})
    assert not is_fused(module)
    assert type(kernels.unfuse(module)) is made
    assert type(kernels.fuse(module)) is made
    assert repr(module) == "FSDPGELU(approximate='none')"
    assert torch.equal(module(X), nn.GELU()(X))


@pytest.fixture
def one_rank(tmp_path):
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize("wrap", ["replicated", "sharded"])
def test_distributed_wrappers(wrap):
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    gradients = []
    for model in (net(), fused_net()):
        wrapped = DistributedDataParallel(model) if wrap == "replicated" else fully_shard(model)
        wrapped(X).square().sum().backward()
        found = [parameter.grad for parameter in model.parameters()]
        gradients.append([getattr(each, "full_tensor", lambda each=each: each)() for each in found])
    assert is_fused(model[1])
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


def test_hooks_see_the_same_calls():
    calls = []
    for model in (net(), fused_net()):
        seen = []
        model[1].register_forward_pre_hook(
            lambda _, args, kwargs, seen=seen: seen.append((len(args), list(kwargs))), with_kwargs=True
        )
        model[1].register_full_backward_hook(
            lambda _, before, after, seen=seen: seen.append((before[0].shape, after[0].shape))
        )
        model(X.clone().requires_grad_()).sum().backward()
        model[1](input=X)
        calls.append(seen)
    assert calls[0] == calls[1]
    assert len(calls[0]) == 3


@pytest.mark.parametrize("spec", ["gaussian_gelu(mu=0.5)", "swish(beta=2.0)", "gelu_sigmoid", "geglu", "soi"])
def test_pickles_of_earlier_versions_say_nothing_of_kernels(spec):
    module = activations.create(spec).eval()
    wanted, text = module(X), repr(module)
    del module.kernels
    if spec == "soi":
        del module.memory  # it is as new
    again = pickle.loads(pickle.dumps(module))
    assert torch.equal(again(X), wanted)
    assert repr(again) == text
    assert activations.spec_of(again) == activations.spec_of(activations.create(spec))


@pytest.mark.parametrize("attribute", [{"a"}, np.zeros(2), [{"b": {1, 2}}]], ids=["set", "array", "nested"])
def test_attributes_without_a_hash(attribute):
    """They say nothing against a kernel, and asking for one must not fail."""
    registry = activations.ActivationRegistry()

    @registry.register("tagged", kernel="generated")
    class Tagged(nn.Module):
        def __init__(self):
            super().__init__()
            self.tags = attribute

        def forward(self, x):
            return x * torch.sigmoid(x)

    module = kernels.fuse(Tagged(), registry)
    assert isinstance(module.kernel().lacks(torch.zeros(4)), str)
    assert torch.equal(module(torch.ones(3)), torch.ones(3) * torch.sigmoid(torch.ones(3)))
