"""Kinds of modules that people export: files give what the modules give, at other batches too, and proofs pass."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations

from lit_gelu.export import OnnxPredictor, check_parity, export_onnx


class OwnLSTM(nn.Module):
    """A recurrent net by hand, over the places of the sample."""

    def __init__(self):
        super().__init__()
        self.gates, self.head = nn.Linear(6 + 5, 20), nn.Linear(5, 3)

    def forward(self, x):
        h = c = x.new_zeros(x.shape[0], 5)
        for step in x.unbind(1):
            i, f, g, o = self.gates(torch.cat([step, h], 1)).chunk(4, 1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
        return F.gelu(self.head(h))


class Masked(nn.Module):
    """Attention whose mask is the least number of its dtype, behind a norm of root mean squares."""

    def __init__(self):
        super().__init__()
        self.norm, self.qkv = nn.RMSNorm(6), nn.Linear(6, 18)

    def forward(self, x, kept):
        q, k, v = self.qkv(self.norm(x)).unsqueeze(1).chunk(3, -1)
        mask = (1 - kept[:, None, None].to(x.dtype)) * torch.finfo(x.dtype).min
        return F.gelu(F.scaled_dot_product_attention(q, k, v, mask))


@torch.jit.script
def scripted_gelu(x: torch.Tensor) -> torch.Tensor:
    return 0.5 * x * (1.0 + torch.erf(x * 0.7071067811865476))


class Scripted(nn.Linear):
    def forward(self, x):
        return scripted_gelu(super().forward(x))


class Clamps(nn.Linear):
    """Overwrites its input."""

    def forward(self, x):
        return F.gelu(super().forward(x.clamp_(0, 1)))


def layers(wrap=lambda layer: layer):
    return nn.Sequential(wrap(nn.Linear(6, 8)), nn.GELU(), wrap(nn.Linear(8, 3)))


X = torch.randn(2, 6, generator=torch.Generator().manual_seed(1))
KINDS = {
    "an LSTM by hand": (OwnLSTM, (X[:, None].repeat(1, 4, 1),)),
    "weight norm, by a hook": (lambda: layers(nn.utils.weight_norm), (X,)),
    "spectral norm": (lambda: layers(parametrizations.spectral_norm), (X,)),
    "batch norm without statistics": (
        lambda: nn.Sequential(layers(), nn.BatchNorm1d(3, track_running_stats=False)),
        (X,),
    ),
    "masked attention": (Masked, (X[:, None].repeat(1, 4, 1), torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0]]))),
    "an input that is overwritten": (lambda: Clamps(6, 3), (X,)),
    "a scripted function": (lambda: Scripted(6, 3), (X,)),
}


@pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm` is deprecated", "ignore:.*torch.jit.*is deprecated")
@pytest.mark.parametrize("name", KINDS)
def test_kinds_of_modules(tmp_path, name):
    build, sample = KINDS[name]
    torch.manual_seed(0)
    net, path = build().eval(), tmp_path / "net.onnx"
    state = copy.deepcopy(net.state_dict())
    before = [tensor.clone() for tensor in sample]
    export_onnx(net, path, sample)
    assert all(map(torch.equal, sample, before))
    assert all(torch.equal(tensor, state[key]) for key, tensor in net.state_dict().items())
    assert check_parity(net, path, input_sample=sample).passed
    others = [t[torch.tensor([1, 0, 1])] * 2 if t.is_floating_point() else t[torch.tensor([1, 0, 1])] for t in sample]
    with torch.no_grad():
        expected = net(*[tensor.clone() for tensor in others])
    torch.testing.assert_close(OnnxPredictor(path)(*others), expected, rtol=0, atol=2e-5)


def test_masked_attention_in_16_bit_is_finite(tmp_path):
    net, path = KINDS["masked attention"][0]().eval(), tmp_path / "net.onnx"
    sample = KINDS["masked attention"][1]
    export_onnx(net, path, sample, target="ort-cuda", dtype="fp16", io_dtype="fp32")
    assert OnnxPredictor(path, ["CPUExecutionProvider"])(*sample).isfinite().all()
