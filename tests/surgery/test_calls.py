"""Calls of functions: found in every way in which they are written, swapped, and undone to the last attribute."""

import copy
import io
import pickle

import functional_nets as nets
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from lit_gelu import surgery
from lit_gelu.surgery import NoMatchError, SwapConflictError, SwapError

ALL = nets.REWRITTEN | nets.INTERCEPTED | nets.HELD
SAMPLE = torch.randn(3, 4, generator=torch.Generator().manual_seed(1))


def build(cls):
    torch.manual_seed(0)
    return cls()


def state_of(model):
    """Return everything that a swap may touch, in order."""
    return [
        (name, type(module), list(vars(module)), list(module._modules), list(module._parameters))
        for name, module in model.named_modules()
    ], list(model.state_dict())


@pytest.mark.parametrize(("cls", "spec"), ALL.items())
def test_a_call_is_found_with_its_arguments(cls, spec):
    sites = surgery.find_sites(nn.Sequential(build(cls)), SAMPLE)
    assert {str(site.spec) for site in sites} == {spec}
    kind = "attribute" if cls in nets.HELD else "call"
    assert {site.kind for site in sites} == {kind}
    name = spec.partition("(")[0]
    expected = {"0.activation"} if kind == "attribute" else {f"0:{name}"}
    assert {site.name for site in sites} == ({"0:relu#0", "0:relu#1"} if cls is nets.Nested else expected)
    (call,) = sites[0].calls
    assert call.count == 3 if cls in {nets.Loop, nets.Comprehension} else call.count == 1
    assert call.where.startswith("functional_nets.py:")
    assert call.caller == "0"


@pytest.mark.parametrize("cls", ALL)
@pytest.mark.parametrize("training", [False, True])
def test_the_new_activation_is_computed_and_undo_is_exact(cls, training):
    model = build(cls).train(training)
    before, output = state_of(model), model(SAMPLE)
    report = surgery.swap(model, {f"activation:{ALL[cls].partition('(')[0]}": "softplus(beta=2.0)"}, SAMPLE)
    assert all("intercepted" in row.mechanism for row in report.rows) == (cls in nets.INTERCEPTED)
    assert torch.equal(model(SAMPLE), model.expected(SAMPLE, lambda x: F.softplus(x, beta=2)))
    assert all(module.training == training for module in model.modules())
    assert not any(site.kind == "call" for site in surgery.find_sites(model, SAMPLE))
    report.undo()
    assert state_of(model) == before
    assert torch.equal(model(SAMPLE), output)


@pytest.mark.parametrize("cls", ALL)
def test_the_new_parameters_belong_to_the_model(cls):
    model = nn.Sequential(build(cls)).double()
    plan = surgery.plan_swap(model, {"*": "prelu"}, SAMPLE.double())
    before = set(model.state_dict())
    report = plan.apply()
    assert (
        set(model.state_dict()) - before == set(plan.new_parameters) == {f"{row.place}.weight" for row in report.rows}
    )
    assert all(model.get_submodule(row.place).weight.dtype == torch.float64 for row in report.rows)
    model(SAMPLE.double()).sum().backward()
    assert all(parameter.grad is not None for _, parameter in model.named_parameters())


@pytest.mark.parametrize("cls", ALL)
def test_copies_and_pickles_keep_the_new_activation(cls):
    model = build(cls)
    surgery.swap(model, {"*": "prelu"}, SAMPLE)
    expected = model(SAMPLE)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), torch.load(file, weights_only=False)):
        assert torch.equal(twin(SAMPLE), expected)
        assert type(twin) is type(model)
        assert not {id(p) for p in twin.parameters()} & {id(p) for p in model.parameters()}


@pytest.mark.parametrize(
    ("cls", "backend"),
    [*((cls, "eager") for cls in ALL), *((cls, "aot_eager") for cls in (nets.Function, nets.Held, nets.ByHelper))],
)
def test_torch_compile_takes_it_whole_and_notices_every_swap(cls, backend):
    torch._dynamo.reset()
    model = build(cls).eval()
    compiled = torch.compile(model, backend=backend, fullgraph=True)
    before = compiled(SAMPLE)
    report = surgery.swap(compiled, {"*": "softplus"}, SAMPLE)
    torch.testing.assert_close(compiled(SAMPLE), model.expected(SAMPLE, F.softplus))
    report.undo()
    assert torch.equal(compiled(SAMPLE), before)


def test_blocks_share_one_class_so_that_one_graph_serves_them():
    model = nn.Sequential(*(build(nets.Function) for _ in range(4)))
    surgery.swap(model, {"*": "silu"}, SAMPLE)
    assert len({type(block) for block in model}) == 1
    assert type(model[0]).__name__ == "Function"
    assert isinstance(model[0], nets.Function)


def test_only_the_named_block_changes():
    model = nn.Sequential(build(nets.Function), build(nets.Function))
    other = type(model[0])
    report = surgery.swap(model, {"1:gelu": "silu"}, SAMPLE)
    assert str(report) == "1:gelu: gelu -> silu, call rewritten: 1.gelu_call"
    assert type(model[0]) is other
    assert [(site.name, str(site.spec), site.call) for site in surgery.find_sites(model, SAMPLE)] == [
        ("0:gelu", "gelu", ""),
        ("1.gelu_call", "silu", "1:gelu"),
    ]


def test_a_swapped_call_is_still_known_by_its_name_and_numbers_stay():
    model = build(nets.Nested)
    first = surgery.swap(model, {":relu#0": "silu"}, SAMPLE)
    assert {site.name for site in surgery.find_sites(model, SAMPLE)} == {"relu_call_0", ":relu#1"}
    second = surgery.swap(model, {":relu#1": "mish"}, SAMPLE)
    assert torch.equal(model(SAMPLE), model.second(F.mish(F.silu(model.first(SAMPLE)) - 0.1)))
    third = surgery.swap(model, {":relu#0": "gelu"})  # it is a module now, so no sample is needed
    assert torch.equal(model(SAMPLE), model.second(F.mish(F.gelu(model.first(SAMPLE)) - 0.1)))
    twin = pickle.loads(pickle.dumps(model))
    assert torch.equal(twin(SAMPLE), model(SAMPLE))
    with pytest.raises(SwapError, match="Undo the later swap first"):
        first.undo()
    for report in (third, second, first):
        report.undo()
    assert type(model) is nets.Nested
    assert [name for name, _ in model.named_children()] == ["first", "second"]


def test_one_call_of_a_reused_module_gets_its_own_activation():
    model = build(nets.ReusedModule)
    (site,) = surgery.find_sites(model, SAMPLE)
    assert [call.name for call in site.calls] == ["act#0", "act#1"]
    h = model.first(SAMPLE)
    report = surgery.swap(model, {"act#1": "prelu"}, SAMPLE)
    assert torch.equal(model(SAMPLE), F.prelu(model.second(h.relu()), model.act_call_1.weight))
    report.undo()
    surgery.swap(model, {"act#*": "silu"}, SAMPLE)
    assert model.act_call_0 is not model.act_call_1
    assert torch.equal(model(SAMPLE), F.silu(model.second(F.silu(h))))


def test_a_module_and_one_of_its_calls_cannot_both_be_claimed():
    with pytest.raises(SwapConflictError, match="'act#0' is claimed by 'act' and by 'act#0'"):
        surgery.swap(build(nets.ReusedModule), {"act": "silu", "act#0": "gelu"}, SAMPLE)


def test_one_place_of_a_module_shared_within_a_sequential():
    act = nn.ReLU()
    model = nn.Sequential(nn.Linear(4, 4), act, nn.Linear(4, 4), act)
    (site,) = surgery.find_sites(model, SAMPLE)
    assert [call.name for call in site.calls] == ["1#0", "1#1"]
    report = surgery.swap(model, {"1#1": "silu"}, SAMPLE)
    assert model[1] is act
    assert type(model[3]) is nn.SiLU
    assert torch.equal(model(SAMPLE), F.silu(model[2](model[0](SAMPLE).relu())))
    report.undo()
    assert model[3] is act


def test_several_modules_share_a_site_name_only_by_alias():
    block = build(nets.Function)
    model = nn.ModuleDict({"a": block, "b": block})
    model.forward = lambda x: model["b"](model["a"](x))
    (site,) = surgery.find_sites(model, SAMPLE)
    assert site.names == ("a:gelu", "b:gelu")
    assert site.calls[0].count == 2
    surgery.swap(model, {"b:gelu": "silu"}, SAMPLE)
    assert torch.equal(model(SAMPLE), block.expected(block.expected(SAMPLE, F.silu), F.silu))


def test_gates_are_listed_and_swapped_only_if_named():
    class Gated(nn.Module):
        def forward(self, x):
            return torch.tanh(x) * torch.sigmoid(x) * F.hardsigmoid(x) * x.softmax(-1) * F.relu(x)

    model = Gated()
    roles = {site.name: site.role for site in surgery.find_sites(model, SAMPLE)}
    assert roles == {
        ":tanh": "gate",
        ":sigmoid": "gate",
        ":hard_sigmoid": "gate",
        ":softmax": "gate",
        ":relu": "activation",
    }
    assert [row.name for row in surgery.swap(model, {"*": "silu"}, SAMPLE).rows] == [":relu"]
    surgery.swap(model, {":softmax": "relu", "activation:tanh": "identity"}, SAMPLE)
    x = SAMPLE
    expected = x * torch.sigmoid(x) * F.hardsigmoid(x) * x.relu() * F.silu(x)
    torch.testing.assert_close(model(x), expected)


def test_softmax_modules_are_gates():
    model = nn.Sequential(nn.Linear(4, 4), nn.Softmax(dim=-1))
    (site,) = surgery.find_sites(model)
    assert (site.role, site.spec.opaque, site.spec.arguments) == ("gate", True, {"dim": -1})
    with pytest.raises(NoMatchError):
        surgery.swap(model, {"*": "relu"})
    surgery.swap(model, {nn.Softmax: "relu"})
    assert type(model[1]) is nn.ReLU


@pytest.mark.parametrize(
    ("cls", "message"),
    [
        (nets.ByTwoHelpers, "helper makes the call.*and gelu is called from other places too"),
        (nets.ByCheckpoint, "through torch.utils.checkpoint"),
        (nets.StatementOnly, "its result is not used"),
        (nets.AliasedFunction, "':relu' overwrites its input, and the model uses the overwritten input again"),
        (nets.AliasedModule, "'act' overwrites its input, and the model uses"),
    ],
)
def test_what_cannot_be_done_is_refused_and_nothing_changes(cls, message):
    model = build(cls)
    before = state_of(model)
    with pytest.raises(SwapError, match=message):
        surgery.swap(model, {"*": "silu"}, SAMPLE)
    assert state_of(model) == before


def test_an_activation_in_place_is_replaced_if_nobody_relies_on_it():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), build(nets.InPlaceMethod))
    assert len(surgery.swap(model, {"*": "silu"}, SAMPLE)) == 2


def test_a_new_activation_is_not_caught_by_an_interception():
    model = nn.Sequential(build(nets.ByHelper), nn.ReLU())
    model[0].inner = nn.ReLU()
    surgery.swap(model, {"0:gelu": "silu"}, SAMPLE)
    with pytest.raises(SwapError, match=r"'0\.inner' cannot become gelu: calls of gelu are intercepted"):
        surgery.swap(model, {"0.inner": "gelu"}, SAMPLE)


def test_source_that_is_not_what_runs_is_not_rewritten(tmp_path, monkeypatch):
    import importlib.util

    path = tmp_path / "changing_net.py"
    text = "import torch.nn.functional as F\nfrom torch import nn\n\nclass Net(nn.Module):\n    def forward(self, x):\n"
    path.write_text(text + "        return F.gelu(x)\n")
    found = importlib.util.spec_from_file_location("changing_net", path)
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    path.write_text(text + "        y = x + 1\n        return F.gelu(y)\n")
    model = module.Net()
    report = surgery.swap(model, {"*": "silu"}, SAMPLE)
    assert "is not what runs" in report.rows[0].mechanism  # intercepted instead
    assert torch.equal(model(SAMPLE), F.silu(SAMPLE))


def test_code_without_source_is_intercepted():
    scope = {"F": F, "nn": nn}
    exec("class Net(nn.Module):\n    def forward(self, x):\n        return F.gelu(x)\n", scope)
    model = scope["Net"]()
    report = surgery.swap(model, {"*": "silu"}, SAMPLE)
    assert "the source of Net.forward is not to be had" in report.rows[0].mechanism
    assert torch.equal(model(SAMPLE), F.silu(SAMPLE))


def test_tracebacks_and_inspect_show_what_runs():
    import inspect
    import traceback

    model = build(nets.ManyLines)
    before = inspect.getsource(type(model).forward)
    surgery.swap(model, {"*": "silu"}, SAMPLE)
    source = inspect.getsource(type(model).forward)
    assert "self.gelu_call(\n\nself.first(x) + 0\n\n)" in source  # lines keep their numbers
    assert "F.gelu" not in source
    assert source.count("\n") == before.count("\n")
    assert inspect.signature(model.forward) == inspect.signature(nets.ManyLines.forward.__get__(model))
    with pytest.raises(RuntimeError) as caught:
        model(torch.zeros(3, 5))
    assert "\n    self.first(x) + 0\n" in "".join(traceback.format_tb(caught.value.__traceback__))


def test_torchscript_compiles_the_rewritten_source():
    model = build(nets.Function)
    surgery.swap(model, {"*": "silu"}, SAMPLE)
    with pytest.warns(FutureWarning, match="deprecated"):
        scripted = torch.jit.script(model)
    torch.testing.assert_close(scripted(SAMPLE), model(SAMPLE))


def test_the_pass_leaves_no_trace():
    class Noisy(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.drop = nn.BatchNorm1d(4), nn.Dropout(0.5).eval()
            self.register_buffer("count", torch.zeros(()))

        def forward(self, x):
            self.count += 1
            return F.relu(self.drop(self.norm(x + torch.rand(())))) + float(__import__("random").random())

    import random

    model = Noisy()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    flags = [module.training for module in model.modules()]
    torch_state, python_state = torch.get_rng_state(), random.getstate()
    surgery.find_sites(model, SAMPLE)
    surgery.coverage(model, SAMPLE)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert [module.training for module in model.modules()] == flags
    assert torch.equal(torch.get_rng_state(), torch_state)
    assert random.getstate() == python_state
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert not nn.modules.module._global_forward_pre_hooks


def test_the_sample_is_not_overwritten():
    model, x = nn.Sequential(nn.ReLU(inplace=True)), SAMPLE.clone()
    surgery.swap(model, {"*": "silu"}, x).undo()
    surgery.coverage(model, x)
    assert torch.equal(x, SAMPLE)


def test_a_pickle_is_refused_where_the_source_is_another():
    model = build(nets.Function)
    surgery.swap(model, {"*": "silu"}, SAMPLE)
    content = pickle.dumps(model)
    assert content.count(b"F.gelu(self.first(x))") == 1
    with pytest.raises(SwapError, match=r"Function\.forward has been changed"):
        pickle.loads(content.replace(b"F.gelu(self.first(x))", b"F.silu(self.first(x))"))


def test_a_module_with_a_pickle_of_its_own_is_refused():
    class Own(nets.Function):
        def __reduce_ex__(self, protocol):
            return nets.Function, ()

    model = build(Own)
    surgery.swap(model, {"*": "silu"}, SAMPLE)
    with pytest.raises(pickle.PicklingError, match="Save its state_dict"):
        pickle.dumps(model)


def test_a_class_that_cannot_be_derived_from_is_refused():
    class Final(nets.Function):
        def __init_subclass__(cls, *, reason):
            super().__init_subclass__()

    with pytest.raises(SwapError, match="cannot be derived from"):
        surgery.swap(build(Final), {"*": "silu"}, SAMPLE)


def test_samples_of_every_form_and_a_failing_one():
    class Two(nn.Module):
        def forward(self, x, scale=1.0):
            return F.relu(x * scale)

    for sample in (SAMPLE, (SAMPLE, 2.0), [SAMPLE], {"x": SAMPLE, "scale": 2.0}):
        assert [site.name for site in surgery.find_sites(Two(), sample)] == [":relu"]
    with pytest.raises(SwapError, match=r"Two\.forward fails on input_sample \(TypeError"):
        surgery.find_sites(Two(), {"y": SAMPLE})


def test_channels_are_those_that_the_sample_shows():
    class Conv(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 8, 1)
            self.act = nn.ReLU()

        def forward(self, x):
            return self.act(F.relu(self.conv(x)).flatten(2).transpose(1, 2))

    model, x = Conv(), torch.zeros(2, 3, 5, 5)
    surgery.swap(model, {":relu": "swish(learnable=True, channels='infer')"}, x)
    assert model.relu_call.log_scale.shape == (8,)
    surgery.swap(model, {"act": "swish(learnable=True, channels='infer', channel_dim=1)"}, x)
    assert model.act.log_scale.shape == (25,)  # the layer before it has 8
    loop = build(nets.ReusedModule)
    with pytest.raises(SwapError, match=r"dimension 1 of its inputs, \(3, 6\), \(3, 4\), is not one number"):
        surgery.swap(loop, {"act": "swish(learnable=True, channels='infer')"}, SAMPLE)


def test_a_frozen_activation_stays_frozen():
    model = nn.Sequential(nn.PReLU(), nn.ReLU())
    model[0].requires_grad_(False)
    surgery.swap(model, {"0": "swish(learnable=True)", "1": "prelu"})
    assert [parameter.requires_grad for parameter in model.parameters()] == [False, True]


def test_a_report_says_what_the_sample_never_called():
    class Unused(nets.Function):
        def __init__(self):
            super().__init__()
            self.act = nn.ReLU()

    report = surgery.swap(build(Unused), {"act": "silu"}, SAMPLE)
    assert str(report) == "act: relu -> silu, which input_sample never called"
    assert report.to_dict()["swapped"][0]["calls"] == 0


def test_ddp_wraps_a_swapped_model(tmp_path):
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        model = build(nets.Function)
        surgery.swap(model, {"*": "prelu"}, SAMPLE)
        wrapped = DistributedDataParallel(model)
        wrapped(SAMPLE).sum().backward()
        assert model.gelu_call.weight.grad is not None
        assert [site.name for site in surgery.find_sites(wrapped, SAMPLE)] == ["module.gelu_call"]
    finally:
        torch.distributed.destroy_process_group()


def test_a_lightning_module_that_calls_functions_is_trained(tmp_path):
    from lightning.pytorch import LightningModule, Trainer

    class Task(LightningModule):
        def __init__(self):
            super().__init__()
            self.save_hyperparameters()
            self.layer = nn.Linear(4, 4)

        def forward(self, x):
            return F.gelu(self.layer(x))

        def training_step(self, batch, _):
            return self(batch).square().mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.1)

    model = Task()
    surgery.swap(model, {"*": "prelu"}, SAMPLE)
    Trainer(
        max_steps=2, logger=False, enable_checkpointing=False, enable_progress_bar=False, accelerator="cpu",
        enable_model_summary=False, default_root_dir=tmp_path,
    ).fit(model, torch.utils.data.DataLoader(SAMPLE, batch_size=3))  # fmt: skip
    assert model.gelu_call.weight.item() != 0.25


@pytest.mark.parametrize("cls", [nets.Function, nets.Held, nets.ByHelper])
def test_onnx_export_of_a_swapped_model_has_parity(cls, tmp_path):
    from lit_gelu.export import check_parity, export_onnx

    model = build(cls).eval()
    surgery.swap(model, {"*": "gelu(approximate='tanh')"}, SAMPLE)
    path = tmp_path / "net.onnx"
    report = export_onnx(model, path, SAMPLE)
    (site,) = report.sites
    assert site.spec == "gelu(approximate='tanh')"
    assert check_parity(model, path, SAMPLE).passed
