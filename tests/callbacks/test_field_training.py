"""Swaps in runs as people write them: each ends as the training in plain torch, the activation replaced by hand."""

import itertools

import pytest
import torch
from callback_helpers import SmallNet, loader, quiet_trainer
from torch import nn
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

from lit_gelu.callbacks import ActivationSwap

STEP = 3
RADIUS = 0.05


class Net(SmallNet):
    def __init__(self, activation=nn.ReLU):
        super().__init__(activation, dropout=0)


class Checkpointed(Net):
    def forward(self, x):
        return self.net[2:](checkpoint(self.net[:2], x, use_reentrant=False))


class InPlace(Net):
    def __init__(self):
        super().__init__(lambda: nn.ReLU(inplace=True))


class SpectralNorm(Net):
    def __init__(self):
        super().__init__()
        for number in (0, 4):
            parametrizations.spectral_norm(self.net[number])


class WeightNorms(Net):
    def __init__(self):
        super().__init__()
        parametrizations.weight_norm(self.net[0])
        with pytest.warns(FutureWarning):
            torch.nn.utils.weight_norm(self.net[4])


class Quasi(Net):
    def configure_optimizers(self):
        return torch.optim.LBFGS(self.parameters(), lr=0.1, max_iter=4)


class Sharpness(Net):
    """Sharpness-aware minimization: the gradient is that of the weights a step uphill."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch, batch_idx):
        update(self, self.optimizers(), batch, self.manual_backward)


def loss_of(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def update(model, optimizer, batch, backward=torch.Tensor.backward):
    """One step of what the model's class is for."""
    if not isinstance(model, Sharpness):

        def closure():
            optimizer.zero_grad()
            loss = loss_of(model, batch)
            loss.backward()
            return loss

        optimizer.step(closure)
        return
    optimizer.zero_grad()
    backward(loss_of(model, batch))
    gradients = [parameter.grad.clone() for parameter in model.parameters()]
    scale = RADIUS / torch.stack([gradient.norm() for gradient in gradients]).norm()
    for sign in (1, -1):
        with torch.no_grad():
            for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                parameter.add_(gradient, alpha=float(sign * scale))
        if sign == 1:
            optimizer.zero_grad()
            backward(loss_of(model, batch))
    optimizer.step()


def in_plain_torch(model, build):
    """Train for two epochs, and put in what `build` returns before a step."""
    optimizer, batches = model.configure_optimizers(), [*loader()] * 2
    model.train()
    for step, batch in enumerate(batches):
        if step == STEP:
            for number in (1, 5):
                model.net[number] = build()
            new = [p for number in (1, 5) for p in model.net[number].parameters()]
            if new:
                optimizer.add_param_group({"params": new, "weight_decay": 0.0})
        update(model, optimizer, batch)
    return model


@pytest.mark.parametrize(
    ("kind", "activation"),
    [
        *itertools.product([Checkpointed, InPlace, SpectralNorm, WeightNorms, Sharpness], ["gelu", "prelu"]),
        (Quasi, "gelu"),  # which takes no new parameters
    ],
)
def test_a_swap_is_the_module_replaced_by_hand(tmp_path, kind, activation):
    build = {"gelu": nn.GELU, "prelu": nn.PReLU}[activation]
    plain = in_plain_torch(kind(), build)
    model = kind()
    quiet_trainer(tmp_path, ActivationSwap({"activation:relu": activation}, at_step=STEP)).fit(model, loader())
    for (name, expected), actual in zip(plain.named_parameters(), model.parameters(), strict=True):
        assert torch.equal(expected, actual), name
