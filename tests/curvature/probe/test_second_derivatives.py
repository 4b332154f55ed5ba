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
        return hessian(vector), hessian.method


def expected(net, batch, vector):
    return full_hessian(net, lambda outputs: F.cross_entropy(outputs, batch[1]), batch[0]) @ vector


@pytest.mark.parametrize("make", [mlp, Attention, Fused])
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_products_equal_those_of_the_full_hessian(make, mode):
    net, batch = make().double(), batch_of(dtype=torch.float64)
    vector = torch.randn(sum(p.numel() for p in net.parameters()), dtype=torch.float64)
    result, method = product(Plain(net), batch, vector, mode=mode)
    torch.testing.assert_close(result, expected(net, batch, vector), rtol=1e-9, atol=1e-11)
    assert method == "reverse_over_reverse"


def test_the_fused_kernel_has_no_double_backward():
    # Why the probe chooses the kernel: if torch gains one, this test says so.
    module, batch = Plain(Fused().double()), batch_of(dtype=torch.float64)
    hessian = hessian_operator(lambda: module.training_step(batch, 0), dict(module.named_parameters()))
    hessian(torch.ones(hessian.size, dtype=torch.float64))
    assert hessian.method == "finite_differences"


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
    result, method = product(module, batch, vector)
    torch.testing.assert_close(result, expected(net, batch, vector), rtol=1e-9, atol=1e-11)
    assert method == "reverse_over_reverse"


class Checkpointed(Plain):
    reentrant = False

    def forward(self, x):
        return self.net[2:](checkpoint(self.net[1], self.net[0](x), use_reentrant=self.reentrant))


def test_checkpointed_activations():
    net, batch = mlp(), batch_of(dtype=torch.float64)
    vector = torch.randn(sum(p.numel() for p in net.parameters()), dtype=torch.float64)
    result, method = product(Checkpointed(net), batch, vector)
    torch.testing.assert_close(result, expected(net, batch, vector), rtol=1e-9, atol=1e-11)
    assert method == "reverse_over_reverse"


def test_checkpointed_attention_is_computed_again_by_the_same_kernel():
    class Whole(Plain):
        def forward(self, x):
            return checkpoint(self.net, x, use_reentrant=False)

    net, batch = Fused().double(), batch_of(dtype=torch.float64)
    vector = torch.randn(sum(p.numel() for p in net.parameters()), dtype=torch.float64)
    result, method = product(Whole(net), batch, vector)
    torch.testing.assert_close(result, expected(net, batch, vector), rtol=1e-9, atol=1e-11)
    assert method == "reverse_over_reverse"


def test_reentrant_checkpoints_are_refused_with_the_remedy():
    module = Checkpointed(mlp())
    module.reentrant = True
    with pytest.raises(ArgumentError, match="use_reentrant=False"):
        product(module, batch_of(dtype=torch.float64), torch.ones(1))


class FirstBlock(Plain):
    """Its first layers are checkpointed: no other parameter lies behind them, so autograd does not go there."""

    reentrant = True

    def forward(self, x):
        return self.net[2:](checkpoint(self.net[:2], x.detach().requires_grad_(), use_reentrant=self.reentrant))


class BehindFrozen(FirstBlock):
    """As with a frozen embedding whose outputs are made to require a gradient."""

    def __init__(self, net):
        super().__init__(net)
        self.embedding = nn.Linear(4, 4).double().requires_grad_(False)

    def forward(self, x):
        return super().forward(self.embedding(x).requires_grad_())


@pytest.mark.parametrize("kind", [FirstBlock, BehindFrozen])
@pytest.mark.parametrize("method", ["auto", "reverse_over_reverse", "forward_over_reverse", "finite_differences"])
def test_a_first_block_in_a_reentrant_checkpoint_is_refused_by_every_method(kind, method):
    module, batch = kind(mlp()), batch_of(dtype=torch.float64)
    with (
        pytest.raises(ArgumentError, match="use_reentrant=False"),
        LossProbe(module, [batch]) as probe,
        hessian_operator(probe.closures, probe.parameters, method=method, module=module) as hessian,
    ):
        hessian(torch.ones(hessian.size, dtype=torch.float64))
    with pytest.raises(ArgumentError, match="use_reentrant=False"):  # without a probe, too
        hessian_operator(lambda: module.training_step(batch, 0), dict(module.named_parameters()))


def test_a_first_block_in_a_checkpoint_that_is_not_reentrant():
    net, batch = mlp(), batch_of(dtype=torch.float64)
    module = FirstBlock(net)
    module.reentrant = False
    vector = torch.randn(sum(p.numel() for p in net.parameters()), dtype=torch.float64)
    result, _ = product(module, batch, vector)
    torch.testing.assert_close(result, expected(net, batch, vector), rtol=1e-9, atol=1e-11)


def test_d14_mish_of_large_inputs_is_finite():
    batch = batch_of()
    net = mlp(nn.Mish).float()
    with torch.no_grad():
        net[0].bias.fill_(100.0)
    vector = torch.ones(sum(p.numel() for p in net.parameters()))
    result, _ = product(Plain(net), batch, vector)
    exact = expected(copy.deepcopy(net).double(), (batch[0].double(), batch[1]), vector.double())
    assert (result - exact).norm() < 1e-3 * exact.norm()


class Scattered(Plain):
    """Its loss is of many kinds at once: unused, frozen and tied parameters."""

    def __init__(self):
        super().__init__(mlp())
        self.unused = nn.Parameter(torch.ones(3, dtype=torch.float64))
        self.tied = self.net[3].weight
        self.net[2].requires_grad_(False)


def test_unused_frozen_and_tied_parameters():
    module, batch = Scattered(), batch_of(dtype=torch.float64)
    trained = {id(p): p for p in module.parameters() if p.requires_grad}
    size = sum(p.numel() for p in trained.values())
    assert size == 3 + 15 + 20 + 5 + 3  # unused, tied once, first layer, last bias
    with LossProbe(module, [batch]) as probe, hessian_operator(probe.closures, probe.parameters) as hessian:
        assert hessian.size == size
        matrix = torch.stack([hessian(row) for row in torch.eye(size, dtype=torch.float64)])
        order = list(hessian.layout)
    full = full_hessian(module, lambda outputs: F.cross_entropy(outputs, batch[1]), batch[0])
    assert order == [name for name, p in module.named_parameters() if p.requires_grad]
    torch.testing.assert_close(matrix, full, rtol=1e-9, atol=1e-11)


def test_batches_of_uneven_length_are_weighted_by_their_examples():
    net, (x, y) = mlp(), batch_of(16, dtype=torch.float64)
    vector = torch.randn(sum(p.numel() for p in net.parameters()), dtype=torch.float64)
    batches = [(x[:13], y[:13]), (x[13:], y[13:])]
    with LossProbe(Plain(net), batches) as probe:
        hessian = hessian_operator(probe.closures, probe.parameters, samples=probe.samples)
        result = hessian(vector)
    torch.testing.assert_close(result, expected(net, (x, y), vector), rtol=1e-9, atol=1e-11)
