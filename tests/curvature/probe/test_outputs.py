"""The Gauss-Newton matrix of a training step as it stands, against J' B J row by row."""

import pytest
import torch
from lightning.pytorch import LightningModule
from torch import nn
from torch.nn import functional as F

from lit_gelu.curvature.loss import gauss_newton_operator
from lit_gelu.curvature.probe.loss_probe import LossProbe, ParsedLoss
from lit_gelu.errors import ArgumentError

X = torch.randn(5, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
LABELS = torch.tensor([0, 1, 1, 0, 1])


class Step(LightningModule):
    def __init__(self, loss):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(3, 3), nn.GELU(), nn.Linear(3, 2)).double()
        self.loss = loss

    def training_step(self, batch, batch_idx):
        return {"loss": self.loss(self.net(batch[0]), batch[1])}


def two_column(labels):
    return F.one_hot(labels, 2).double()


LOSSES = {
    "cross_entropy": lambda z, y: F.cross_entropy(z, y, label_smoothing=0.1),
    "module": nn.CrossEntropyLoss(weight=torch.tensor([0.3, 0.7], dtype=torch.float64)),
    "keywords": lambda z, y: F.cross_entropy(target=y, input=z),
    "mse": lambda z, y: F.mse_loss(z, two_column(y)),
    "bce": lambda z, y: F.binary_cross_entropy_with_logits(z, two_column(y)),
}


@pytest.mark.parametrize("name", LOSSES)
def test_the_matrix_is_that_of_its_definition(name):
    module = Step(LOSSES[name])
    with LossProbe(module, [(X, LABELS)]) as probe:
        parsed = [ParsedLoss(closure) for closure in probe.closures]
        matrix = gauss_newton_operator(
            [loss.outputs for loss in parsed], [loss.loss for loss in parsed], probe.parameters
        )
        rows = torch.stack([matrix(row) for row in torch.eye(matrix.size, dtype=torch.float64)])
    flat = torch.cat([p.detach().flatten() for p in module.net.parameters()])

    def outputs(flat):
        pieces = flat.split([p.numel() for p in module.net.parameters()])
        named = zip(module.net.named_parameters(), pieces, strict=True)
        return torch.func.functional_call(module.net, {name: piece.view(p.shape) for (name, p), piece in named}, X)

    jacobian = torch.autograd.functional.jacobian(outputs, flat).flatten(0, 1)
    bend = torch.autograd.functional.hessian(lambda z: LOSSES[name](z, LABELS), outputs(flat)).reshape(10, 10)
    torch.testing.assert_close(rows, jacobian.T @ bend @ jacobian, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    "loss",
    [
        lambda z, y: F.cross_entropy(z, y) + z.square().mean(),
        lambda z, y: z.square().mean(),
        lambda z, y: F.l1_loss(z, two_column(y)),
    ],
)
def test_other_losses_are_refused_with_the_remedy(loss):
    with LossProbe(Step(loss), [(X, LABELS)]) as probe, pytest.raises(ArgumentError):
        ParsedLoss(probe.closures[0]).outputs()


def test_targets_that_depend_on_parameters_are_refused():
    """The matrix of the outputs alone would leave out what the targets owe to the parameters."""

    class Reconstruction(Step):
        def training_step(self, batch, batch_idx):
            code = self.net[0](batch[0])
            return F.mse_loss(self.net[1:](code).sum(-1), code.sum(-1) if self.loss is None else self.loss(code))

    batch = (X, LABELS)
    with LossProbe(Reconstruction(None), [batch]) as probe, pytest.raises(ArgumentError):
        ParsedLoss(probe.closures[0]).outputs()
    with LossProbe(Reconstruction(lambda code: code.sum(-1).detach()), [batch]) as probe:
        assert ParsedLoss(probe.closures[0]).outputs().shape == (5,)
