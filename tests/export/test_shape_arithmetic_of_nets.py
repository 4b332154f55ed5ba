"""How many nodes compute sizes in what torch exports, before they are folded and after, and that the values agree."""

from collections import Counter

import onnx_ir as ir
import pytest
import torch
from cuda_nets import encoder
from torch import nn
from torch.nn import functional as F

from lit_gelu.export import OnnxPredictor, export_onnx, trace
from lit_gelu.export.runtime import CPU
from lit_gelu.export.trace import fold_shape_arithmetic


class Flattened(nn.Module):
    """Rows of every batch together, and apart again."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 4)

    def forward(self, x):
        batch, time, _ = x.shape
        return self.layer(x.view(batch * time, -1)).view(batch, time, -1)


class Decoder(nn.Module):
    """One layer of attention as in GPT-2: a joint projection, a causal mask with padding."""

    def __init__(self):
        super().__init__()
        self.joint, self.out = nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, x, attention_mask):
        batch, time, width = x.shape
        q, k, v = (part.view(batch, time, -1, 4).transpose(1, 2) for part in self.joint(x).split(8, dim=2))
        mask = torch.ones(time, time, dtype=torch.bool).tril() & attention_mask[:, None, None, :].bool()
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.out(y.transpose(1, 2).reshape(batch, time, width))


def groups():
    """Groups of channels, as in detectors and diffusion models."""
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.GELU(), nn.Flatten(), nn.Linear(144, 2))


TIME = {"x": {1: "time"}}
ROWS, IMAGES = torch.randn(2, 5, 8), torch.randn(2, 3, 8, 8)
TOKENS = ROWS, torch.ones(2, 5, dtype=torch.int64)
ARITHMETIC = {"Add", "Concat", "Div", "Gather", "Mul", "Range", "Reshape", "Shape", "Slice", "Squeeze", "Sub"}

# By net: the module, its sample, its open sizes; nodes that compute whole numbers, which here are sizes, when they are
# folded; how many were there at least before; the sizes of inputs to compare at.
NETS = {
    "encoder": (encoder, ROWS, (), {}, 6, [(1, 5, 8), (0, 5, 8), (7, 5, 8)]),
    "encoder, length": (
        encoder, ROWS, {"src": {1: "time"}}, {"Shape": 2, "Concat": 2}, 15, [(1, 2, 8), (3, 9, 8), (0, 4, 8)],
    ),
    "rows, length": (Flattened, ROWS, TIME, {"Shape": 2, "Concat": 1}, 3, [(1, 1, 8), (4, 7, 8)]),
    "decoder": (Decoder, TOKENS, (), {}, 6, [(1, 5, 8), (3, 5, 8)]),
    "groups": (groups, IMAGES, (), {}, 0, [(1, 3, 8, 8), (0, 3, 8, 8), (5, 3, 8, 8)]),
}  # fmt: skip


def computed(model):
    """How often each operator makes whole numbers."""
    integers = [node.op_type for node in model.graph if node.outputs[0].dtype == ir.DataType.INT64]
    return dict(Counter(name for name in integers if name in ARITHMETIC))


@pytest.mark.parametrize("name", NETS)
def test_sizes_are_computed_where_shapes_do_not_tell_them_alone(name, tmp_path, monkeypatch):
    make, sample, sizes, after, before, shapes = NETS[name]
    counts = []

    def fold(model, *arguments):
        counts.append(computed(model))
        fold_shape_arithmetic(model, *arguments)
        counts.append(computed(model))

    monkeypatch.setattr(trace, "fold_shape_arithmetic", fold)
    net = make().eval()
    export_onnx(net, tmp_path / "net.onnx", sample, dynamic_shapes=sizes)
    file = OnnxPredictor(tmp_path / "net.onnx", [CPU])
    first, last = counts or ({}, {})  # a graph without Shape is not folded
    assert last == after
    assert sum(first.values()) >= before
    for shape in shapes:
        x = torch.randn(shape)
        inputs = (x, (torch.arange(5) < shape[0]).long().expand(shape[:2])) if isinstance(sample, tuple) else (x,)
        with torch.no_grad():
            expected = net(*inputs)
        torch.testing.assert_close(file(*inputs), expected, rtol=1e-5, atol=1e-5)
