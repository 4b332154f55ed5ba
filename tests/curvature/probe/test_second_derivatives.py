"""Second derivatives through what models are made of: the probe's Hessian against the full one."""

import copy

import pytest
import torch
from lightning.pytorch import LightningModule
from probe_nets import CLASSES, batch_of, full_hessian
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from lit_gelu.curvature.loss import hessian_operator
from lit_gelu.curvature.probe.loss_probe import LossProbe
from lit_gelu.errors import ArgumentError


class Plain(LightningModule):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        return F.cross_entropy(self(batch[0]), batch[1])


def mlp(activation=nn.GELU):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), activation(), nn.LayerNorm(5), nn.Linear(5, CLASSES)).double()


class Attention(nn.Module):
    def __init__(self, **options):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.TransformerEncoderLayer(
            4, 2, dim_feedforward=4, dropout=0.0, activation="gelu", batch_first=True, **options
        )
        self.head = nn.Linear(4, CLASSES)

    def forward(self, x):
        return self.head(self.layer(x.unsqueeze(1).expand(-1, 3, -1) * torch.arange(1, 4).view(1, 3, 1)).mean(1))


class Fused(nn.Module):
    """Calls the fused kernel itself, whatever its size."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.keys, self.head = nn.Linear(4, 4), nn.Linear(4, CLASSES)

    def forward(self, x):
        tokens = (x.unsqueeze(1) * torch.arange(1, 4).view(1, 3, 1)).unsqueeze(1)
        return self.head(F.scaled_dot_product_attention(tokens, self.keys(tokens), tokens)[:, 0].mean(1))


def product(module, batch, vector, **options):
    with (
        LossProbe(module, [batch], **options) as probe,
        hessian_operator(probe.closures, probe.parameters, samples=probe.samples) as hessian,
    ):
        return hessian(vector)


def expected(net, batch, vector):
    return full_hessian(net, lambda outputs: F.cross_entropy(outputs, batch[1]), batch[0]) @ vector


@pytest.mark.parametrize("make", [mlp, Attention, Fused])
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_products_equal_those_of_the_full_hessian(make, mode):
    net, batch = make().double(), batch_of(dtype=torch.float64)
    vector = torch.randn(sum(p.numel() for p in net.parameters()), dtype=torch.float64)
    result = product(Plain(net), batch, vector, mode=mode)
    torch.testing.assert_close(result, expected(net, batch, vector), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("how", ["compile", "torch.compile", "whole"])
def test_of_a_compiled_module_the_original_is_differentiated(how):
    net, batch = mlp(), batch_of(dtype=torch.float64)
    module = Plain(copy.deepcopy(net))
    if how == "compile":
        module.net.compile(backend="aot_eager")
    elif how == "torch.compile":
        module.net = torch.compile(module.net, backend="aot_eager")
    else:
        module = torch.compile(module, backend="aot_eager")
    module.training_step(batch, 0).backward()  # compiles
    vector = torch.randn(sum(p.numel() for p in net.parameters()), dtype=torch.float64)
    result = product(module, batch, vector)
    torch.testing.assert_close(result, expected(net, batch, vector), rtol=1e-9, atol=1e-11)


class FirstBlock(Plain):
    """Its first layers are checkpointed: no other parameter lies behind them, so autograd does not go there."""

    def forward(self, x):
        return self.net[2:](checkpoint(self.net[:2], x.detach().requires_grad_(), use_reentrant=True))


class BehindFrozen(FirstBlock):
    """As with a frozen embedding whose outputs are made to require a gradient."""

    def __init__(self, net):
        super().__init__(net)
        self.embedding = nn.Linear(4, 4).double().requires_grad_(False)

    def forward(self, x):
        return super().forward(self.embedding(x).requires_grad_())


@pytest.mark.parametrize("kind", [FirstBlock, BehindFrozen])
def test_a_first_block_in_a_reentrant_checkpoint_is_refused(kind):
    module, batch = kind(mlp()), batch_of(dtype=torch.float64)
    with (
        pytest.raises(ArgumentError),
        LossProbe(module, [batch]) as probe,
        hessian_operator(probe.closures, probe.parameters) as hessian,
    ):
        hessian(torch.ones(hessian.size, dtype=torch.float64))
    with pytest.raises(ArgumentError):  # without a probe, too
        hessian_operator(lambda: module.training_step(batch, 0), dict(module.named_parameters()))
