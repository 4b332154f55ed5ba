"""The flags by which torch's transformer layers choose their fused kernel follow a swap, and come back with it."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from lit_gelu import surgery

X = torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(0))
MASK = torch.tensor([[False, False, True], [False, False, False]])


def encoder(activation):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, activation=activation, batch_first=True)
    return nn.TransformerEncoder(layer, 2).eval()


def flags(model):
    return [layer.activation_relu_or_gelu for layer in model.layers], model.use_nested_tensor


@pytest.mark.parametrize("old", [F.relu, F.gelu, nn.ReLU(), nn.GELU()], ids=["F.relu", "F.gelu", "ReLU", "GELU"])
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


def test_one_layer_alone_switches_nested_tensors_off():
    model = encoder(F.relu)
    report = surgery.swap(model, {"layers.1.*": "tanh"})
    assert flags(model) == ([1, 0], False)
    report.undo()
    assert flags(model) == ([1, 1], True)
