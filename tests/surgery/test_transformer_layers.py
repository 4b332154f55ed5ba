"""Layers of torch: decoders put F.relu over a module when copied, encoders choose a fused kernel by flags."""

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from lit_gelu import surgery
from lit_gelu.export import OnnxPredictor, export_onnx

_GENERATOR = torch.Generator().manual_seed(3)
X, MEMORY = torch.randn(2, 3, 8, generator=_GENERATOR), torch.randn(2, 5, 8, generator=_GENERATOR)


def layer(activation):
    torch.manual_seed(0)
    return nn.TransformerDecoderLayer(8, 2, 16, dropout=0.0, activation=activation, batch_first=True).eval()


def by_hand(model, activation):
    """What a decoder layer computes: Vaswani et al. 2017, norms after the sums."""
    x = model.norm1(X + model.self_attn(X, X, X, need_weights=False)[0])
    x = model.norm2(x + model.multihead_attn(x, MEMORY, MEMORY, need_weights=False)[0])
    return model.norm3(x + model.linear2(activation(model.linear1(x))))


COPIES = {"deepcopy": copy.deepcopy, "copy": copy.copy, "pickle": lambda model: pickle.loads(pickle.dumps(model))}


@pytest.mark.parametrize("activation", [F.relu, nn.GELU()], ids=["function", "module"])
@pytest.mark.parametrize("make", COPIES.values(), ids=COPIES)
def test_a_copy_of_a_swapped_layer_computes_what_the_layer_computes(activation, make):
    model = layer(activation)
    surgery.swap(model, {"activation": "silu"})
    expected = by_hand(model, F.silu)
    torch.testing.assert_close(model(X, MEMORY), expected)
    torch.testing.assert_close(make(model)(X, MEMORY), expected)
    torch.testing.assert_close(model(X, MEMORY), expected)  # copy.copy of torch's own layer spoils the original


def test_what_was_swapped_can_be_swapped_again_undone_and_copied():
    model = layer(F.relu)
    first = surgery.swap(model, {"activation": "silu"})
    second = surgery.swap(model, {"activation": "tanh"})
    torch.testing.assert_close(copy.deepcopy(model)(X, MEMORY), by_hand(model, torch.tanh))
    second.undo()
    torch.testing.assert_close(copy.deepcopy(model)(X, MEMORY), by_hand(model, F.silu))
    first.undo()
    assert type(model) is nn.TransformerDecoderLayer
    assert model.activation is F.relu


@pytest.mark.parametrize("swapped", [False, True])
def test_the_file_computes_what_the_layer_computes(tmp_path, swapped):
    model = layer(F.relu if swapped else nn.GELU())
    if swapped:
        surgery.swap(model, {"activation": "silu"})
    report = export_onnx(model, tmp_path / "net.onnx", (X, MEMORY))
    assert [(site.site, site.calls) for site in report.sites if site.site == "activation"] == [("activation", 1)]
    expected = by_hand(model, F.silu if swapped else F.gelu)
    file = torch.from_numpy(OnnxPredictor(tmp_path / "net.onnx")(X.numpy(), MEMORY.numpy()))
    torch.testing.assert_close(file, expected, rtol=0, atol=2e-5)


class TrainingHead(nn.Module):
    """One of its activations runs in training alone."""

    def __init__(self):
        super().__init__()
        self.act, self.head = nn.GELU(), nn.SiLU()

    def forward(self, x):
        return self.head(self.act(x)) if self.training else self.act(x)


def test_an_activation_that_the_graph_never_calls_does_not_pass_in_silence(tmp_path):
    report = export_onnx(TrainingHead(), tmp_path / "net.onnx", torch.zeros(2, 4))
    assert any("head (silu)" in note for note in report.notes)


def test_a_hidden_activation_is_no_site_and_what_hides_it_is():
    torch.manual_seed(0)
    model = nn.Transformer(8, 2, 1, 1, 16, activation=nn.GELU(), batch_first=True).eval()
    decoder = model.decoder.layers[0]
    assert decoder.activation is F.relu  # torch's own copy of the layer
    sites = {site.name: (str(site.spec), site.kind) for site in surgery.find_sites(model)}
    assert sites == {
        "encoder.layers.0.activation": ("gelu", "module"),
        "decoder.layers.0.activation": ("relu", "attribute"),
    }
    before = model(X, X)
    report = surgery.swap(model, {"decoder.*": "silu"})
    swapped = model(X, X)
    assert not torch.equal(swapped, before)
    torch.testing.assert_close(copy.deepcopy(model)(X, X), swapped)
    report.undo()
    assert torch.equal(model(X, X), before)
    assert decoder.activation is F.relu
    assert type(decoder._modules["activation"]) is nn.GELU


# --- Encoders ---

MASK = torch.tensor([[False, False, True], [False, False, False]])


def encoder(activation):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, activation=activation, batch_first=True)
    return nn.TransformerEncoder(layer, 2).eval()


def flags(model):
    return [layer.activation_relu_or_gelu for layer in model.layers], model.use_nested_tensor


@pytest.mark.parametrize("old", [F.relu, nn.GELU()], ids=["F.relu", "GELU"])
@pytest.mark.parametrize(
    ("new", "expected"),
    [
        ("softplus", ([0, 0], False)),
        ("gelu(approximate='tanh')", ([0, 0], False)),
        ("prelu", ([0, 0], False)),
        ("relu(inplace=True)", ([1, 1], True)),
    ],
)
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage")
def test_flags_follow_and_come_back(old, new, expected):
    model = encoder(old)
    before, attributes = flags(model), [list(vars(layer)) for layer in model.layers]
    with torch.no_grad():
        output = model(X, src_key_padding_mask=MASK)
        report = surgery.swap(model, {"*": new}, X)
        assert flags(model) == expected
        fused = model(X, src_key_padding_mask=MASK)
        plain = model.train()(X, src_key_padding_mask=MASK)
        torch.testing.assert_close(fused[~MASK], plain[~MASK], rtol=1e-5, atol=1e-6)
        assert surgery.coverage(model, X).counts() == {str(report.rows[0].new).replace("(inplace=True)", ""): 2}
        report.undo()
        assert torch.equal(model.eval()(X, src_key_padding_mask=MASK), output)
    assert flags(model) == before
    assert [list(vars(layer)) for layer in model.layers] == attributes
    if not isinstance(old, nn.Module):
        assert all(layer.activation is old for layer in model.layers)


def test_an_activation_in_place_that_a_fused_kernel_passes_by_is_swapped():
    assert len(surgery.swap(encoder(nn.ReLU(inplace=True)), {"*": "silu"}, X)) == 2


def test_one_layer_alone_switches_nested_tensors_off():
    model = encoder(F.relu)
    report = surgery.swap(model, {"layers.1.*": "tanh"})
    assert flags(model) == ([1, 0], False)
    report.undo()
    assert flags(model) == ([1, 1], True)
