"""What of a model is watched and nothing else changes; where inputs have channels; samples of whole rows."""

import copy
import io

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.nn import functional as F

from lit_gelu.activations import registry
from lit_gelu.curvature import activation_statistics
from lit_gelu.curvature.activation.recorder import ActivationRecorder
from lit_gelu.curvature.activation.sites import (
    ChannelLayout,
    ModuleTree,
    count_rows,
    layout_of_layer,
    spread_rows,
    take_rows,
    watchable_sites,
)
from lit_gelu.surgery import find_sites


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(4, 8), nn.Linear(8, 4)
        self.act = nn.ReLU()
        self.held = F.silu
        self.slope = nn.Parameter(torch.tensor([0.1]))
        self.seen = {}

    def keep(self, name, x):
        self.seen.setdefault(name, []).append(x.detach().clone())
        return x

    def forward(self, x):
        y = F.gelu(self.keep(":gelu#0", self.up(x)), approximate="tanh")
        y = self.down(self.act(self.keep("act#0", y)))
        y = self.keep(":relu", y).relu()
        y = self.act(self.keep("act#1", y - 0.2))
        y = self.held(self.keep("held", y))
        y = F.prelu(y, self.slope)
        return torch.tanh(F.leaky_relu(self.keep(":leaky_relu", F.gelu(self.keep(":gelu#1", y))), 0.2))


NAMES = ("act", "held", ":gelu#0", ":gelu#1", ":relu", ":leaky_relu", "act#0", "act#1")
SPECS = {":gelu#0": "gelu_tanh", ":gelu#1": "gelu", ":leaky_relu": "leaky_relu(negative_slope=0.2)", "held": "silu"}


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Sequential(Block(), Block())


X = torch.randn(30, 4, generator=torch.Generator().manual_seed(1))


def test_every_call_is_seen_with_its_own_input_and_activation(model):
    sites = watchable_sites(model, X, registry=registry)
    expected = {name.join(["0", ""]) if name[0] == ":" else f"0.{name}" for name in NAMES}
    assert {name for name in sites.calls if name[0] == "0"} == expected
    with ActivationRecorder(sites.calls, None) as recorder:
        model[0].seen.clear()
        recorder.start()
        model(X)
        recorder.stop()
        figures = recorder.statistics()
    for name, inputs in model[0].seen.items():
        site = f"0{name}" if name[0] == ":" else f"0.{name}"
        assert figures[site] == pytest.approx(activation_statistics(SPECS.get(name, "relu"), inputs[-1]), nan_ok=True)
    both = torch.cat([*model[0].seen["act#0"], *model[0].seen["act#1"]], dim=1)
    assert figures["0.act"]["mean"] == pytest.approx(both.mean().item(), rel=1e-5)


def test_what_cannot_be_observed_is_named_with_the_reason(model):
    refused = watchable_sites(model, X, registry=registry).refused
    assert set(refused) == {"0:prelu", "1:prelu"}
    assert "arguments of the call" in refused["0:prelu"]
    read = watchable_sites(model, registry=registry).refused
    sites = [site for site in find_sites(model, X) if site.kind == "call" and site.role == "activation"]
    assert set(read) == {"0.held", "1.held", *(site.name.partition("#")[0] for site in sites)}
    assert all("only by running the model on a sample" in reason for reason in read.values())


def test_nothing_but_the_class_changes_and_removal_restores_it(model):
    torch.manual_seed(3)
    before = model(X)
    before.sum().backward()
    gradients = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    state, names = list(model.state_dict()), [name for name, _ in model.named_modules()]
    sites = watchable_sites(model, X, registry=registry)
    assert type(model[0]) is not Block
    assert isinstance(model[0], Block)
    after = model(X)
    after.sum().backward()
    assert torch.equal(before, after)
    assert all(torch.equal(a, p.grad) for a, p in zip(gradients, model.parameters(), strict=True))
    assert list(model.state_dict()) == state
    assert [name for name, _ in model.named_modules()] == names
    sites.remove()
    assert type(model[0]) is Block
    assert not any("probe" in name for name in vars(model[0]))


def test_copies_and_pickles_of_a_probed_model_compute_the_same_and_record_nothing(model):
    sites = watchable_sites(model, X, registry=registry)
    with ActivationRecorder(sites.calls, None) as recorder:
        recorder.start()
        buffer = io.BytesIO()
        torch.save(model, buffer)
        buffer.seek(0)
        for twin in (copy.deepcopy(model), torch.load(buffer, weights_only=False)):
            assert torch.equal(twin(X), model(X))
        recorder.sums()
        recorder.start()
        copy.deepcopy(model)(X)
        assert recorder.sums()[:, 0].count_nonzero() == 0


@pytest.mark.full
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_hooks_and_probes_live_in_one_compiled_graph():
    """Idle and active are two graphs without a break; what they record is what runs eagerly."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.act, self.second = nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 3)

        def forward(self, x):
            return F.silu(self.second(self.act(self.first(x))))

    torch.manual_seed(0)
    net = Net()
    sites = watchable_sites(net, X, registry=registry)
    with ActivationRecorder(sites.calls, 10) as recorder:
        graphs = CompileCounterWithBackend("aot_eager")
        compiled = torch.compile(net, backend=graphs, fullgraph=True)
        compiled(X).sum().backward()
        for seed in (1, 2, 3):
            figures = []
            for run in (compiled, net):
                recorder.start(seed)
                run(X)
                recorder.stop()
                figures.append(recorder.statistics())
            assert figures[0][":silu"]["mean"] == pytest.approx(figures[1][":silu"]["mean"], rel=1e-6)
            assert figures[0]["act"] == pytest.approx(figures[1]["act"], rel=1e-6, abs=1e-8)
            compiled(X)
        assert graphs.frame_count == 2


def test_a_module_at_several_places_of_a_sequential():
    relu = nn.ReLU()
    net = nn.Sequential(nn.Linear(4, 4), relu, nn.Linear(4, 4), relu)
    sites = watchable_sites(net, X, registry=registry)
    assert list(sites.calls) == ["1", "1#0", "1#1"]
    with ActivationRecorder(sites.calls, None) as recorder:
        recorder.start()
        net(X)
        net(2 * X)
        figures = recorder.statistics()
    first = torch.cat([net[0](X), net[0](2 * X)])
    second = torch.cat([net[:3](X), net[:3](2 * X)])
    assert figures["1#0"]["mean"] == pytest.approx(first.mean().item(), rel=1e-5)
    assert figures["1#1"]["mean"] == pytest.approx(second.mean().item(), rel=1e-5)


class WithBias(nn.Module):
    """As transformers' ``Conv1D``, a linear layer of its own."""

    def __init__(self):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.zeros(3, 8)), nn.Parameter(torch.zeros(8))


@pytest.mark.parametrize(
    ("layer", "layout"),
    [
        (nn.Linear(3, 8, bias=False), ChannelLayout(8, -1)),
        (nn.Bilinear(3, 4, 8), ChannelLayout(8, -1)),
        (nn.Conv2d(3, 8, 1), ChannelLayout(8, 1)),
        (nn.ConvTranspose1d(3, 8, 1), ChannelLayout(8, 1)),
        (nn.BatchNorm3d(8, affine=False), ChannelLayout(8, 1)),
        (nn.InstanceNorm2d(8), ChannelLayout(8, 1)),
        (nn.GroupNorm(2, 8), ChannelLayout(8, 1)),
        (nn.LayerNorm(8), ChannelLayout(8, -1)),
        (nn.RMSNorm(8), ChannelLayout(8, -1)),
        (nn.LayerNorm((8, 7, 7)), None),
        (type("LayerNorm2d", (nn.LayerNorm,), {})(8), ChannelLayout(8, None)),  # timm's turns its input
        (WithBias(), ChannelLayout(8, None)),
        (nn.Embedding(3, 8), None),
        (nn.Dropout(), None),
    ],
)
def test_what_layers_say(layer, layout):
    assert layout_of_layer(layer) == layout


def layouts_of(model, sample=None):
    return {name: call.layout for name, call in watchable_sites(model, sample, registry=registry).calls.items()}


class Shared(nn.Module):
    """One activation after two layers, and one after a layer that is registered behind it."""

    def __init__(self, second):
        super().__init__()
        self.act, self.late = nn.GELU(), nn.ReLU()
        self.one, self.two = nn.Linear(4, 4), second
        self.three = nn.Linear(4, 9)

    def forward(self, x):
        return self.late(self.three(self.act(self.two(self.act(self.one(x))))))


@pytest.mark.parametrize(("second", "expected"), [(nn.Linear(4, 4), ChannelLayout(4, -1)), (nn.GroupNorm(1, 4), None)])
def test_layers_that_do_not_agree_say_nothing(second, expected):
    layouts = layouts_of(Shared(second), torch.zeros(2, 4, 4))
    assert layouts["act"] == expected
    assert layouts["late"] == ChannelLayout(9, -1)
    assert layouts_of(Shared(second)) == {"act": None, "late": None}  # no layer is registered before them


def test_an_activation_with_channels_of_its_own_says_it_itself():
    model = nn.Sequential(
        nn.Linear(3, 8), registry.create("swish(learnable=True, channels=8, channel_dim=-1)"), nn.PReLU(8)
    )
    layouts = layouts_of(model)
    assert layouts == {"1": ChannelLayout(8, -1), "2": ChannelLayout(8, 1)}
    assert layouts_of(nn.Sequential(nn.Linear(3, 8), nn.PReLU()))["1"] == ChannelLayout(8, -1)


def draw_rows(count, rows, seed):
    generator = torch.Generator().manual_seed(seed)
    return spread_rows(count, torch.arange(rows) + torch.rand(rows, dtype=torch.float64, generator=generator))


@pytest.mark.parametrize(
    ("shape", "rows", "row_shape"),
    [
        ((), 1, ()),
        ((5,), 5, ()),
        ((5, 3), 5, (3,)),
        ((5, 4, 3), 20, (3,)),
        ((5, 3, 2, 2), 20, (3,)),
        ((2, 3, 2, 2, 2), 16, (3,)),
    ],
)
def test_rows_are_whole_channel_vectors(shape, rows, row_shape):
    x = torch.arange(float(max(1, torch.Size(shape).numel()))).reshape(shape)
    assert count_rows(x) == rows
    taken = take_rows(x, torch.arange(rows))
    assert taken.shape == (rows, *row_shape)
    reference = x.movedim(1, -1) if len(shape) >= 4 else x
    assert torch.equal(taken, reference.reshape(rows, *row_shape))


def test_mean_over_drawn_rows_is_unbiased_and_no_channel_is_left_out():
    x = torch.randn(256, 64, generator=torch.Generator().manual_seed(0)) + torch.arange(64)
    means = []
    for seed in range(1000):
        taken = take_rows(x, draw_rows(256, 16, seed))
        assert taken.shape == (16, 64)
        means.append(taken.double().mean())
    means = torch.stack(means)
    assert abs(means.mean() - x.double().mean()) < 4 * means.std() / 1000**0.5
    assert 0.5 < means.std() / (1 / (16 * 64) ** 0.5) < 1.5


def nested():
    shared = nn.GELU()
    inner = nn.Sequential(nn.Linear(2, 2), nn.Tanh(), shared)
    return nn.Sequential(inner, nn.ReLU(), shared, nn.Linear(2, 2))


def point_elsewhere(net):
    net[2] = net[1]


def exchange(net):
    net[1], net[2] = net[2], net[1]


CHANGES = {
    "replaced by one alike": lambda net: setattr(net[0], "1", nn.Tanh()),
    "a leaf got a child": lambda net: net[3].add_module("child", nn.Identity()),
    "removed": lambda net: net.pop(3),
    "appended": lambda net: net.append(nn.Identity()),
    "set to None": lambda net: setattr(net[0], "2", None),
    "one shared module instead of another": point_elsewhere,
    "exchanged": exchange,
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_change_is_noticed(change):
    net = nested()
    tree = ModuleTree(net)
    assert tree.is_unchanged()
    change(net)
    assert not tree.is_unchanged()
