"""Users' own modules in a group, each against its run alone by `Trainer.fit`."""

import functools

import pytest
import torch
from lightning.pytorch import LightningModule
from replica_runs import (
    batched_products_are_single_ones,
    check_equal,
    trained_alone,
    trained_together,
)
from torch import nn
from torch.nn import functional

from lit_gelu.replicas import EagerExecutor, NotReplicableError, ReplicaArgumentError, build_members


class OwnModule(LightningModule):
    """What the modules here share: a step as Lightning's tutorials have it."""

    def __init__(self, lr=0.05):
        super().__init__()
        self.save_hyperparameters()
        self.lr = lr

    def training_step(self, batch, index):
        inputs, labels = batch
        logits = self(inputs)
        loss = functional.cross_entropy(logits, labels)
        self.log("train_loss", loss, prog_bar=True)
        self.log_dict({"accuracy": (logits.argmax(1) == labels).float().mean(), "index": float(index)})
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), self.lr, momentum=0.9)


class Functional(OwnModule):
    """Parameters of its own, functions, no layers."""

    def __init__(self, lr=0.05):
        super().__init__(lr)
        self.first, self.bias = nn.Parameter(torch.randn(64, 48) / 7), nn.Parameter(torch.zeros(64))
        self.second = nn.Parameter(torch.randn(10, 64) / 8)

    def forward(self, inputs):
        hidden = functional.gelu(functional.linear(inputs, self.first, bias=self.bias), approximate="tanh")
        hidden = torch.cat([hidden[:, :51].sigmoid(), functional.silu(hidden[:, 51:])], dim=1)  # no whole vectors
        return functional.linear(functional.dropout(hidden, 0.3, self.training), self.second)


class TwoHeads(OwnModule):
    """Reshapes, a layer over the tokens of a sample, a layer that is used twice, and two losses."""

    def __init__(self, lr=0.05, keep=0.5, activation=nn.GELU):
        super().__init__(lr)
        self.token, self.act = nn.Linear(12, 32), activation()
        self.drop, self.first, self.second = nn.Dropout(1 - keep), nn.Linear(128, 10), nn.Linear(128, 10)

    def forward(self, inputs):
        tokens = self.drop(self.act(self.token(inputs.view(-1, 4, 12))))
        flat = self.drop(tokens).reshape(len(inputs), -1)
        return self.first(flat) + self.second(flat.roll(1, dims=1)).tanh()


class Normed(OwnModule):
    """BatchNorm, whose buffers are a state, and a learnable activation beside others."""

    def __init__(self, lr=0.05, norm=nn.BatchNorm1d, activation=nn.ELU):
        super().__init__(lr)
        self.net = nn.Sequential(nn.Linear(48, 64), norm(64), activation(), nn.Linear(64, 10))

    def forward(self, inputs):
        return self.net(inputs)


def data():
    return torch.randn(100, 48), torch.randint(10, (100,))


STEPS = (1, 10, 16)  # of epochs of six
SIZES = (48, 64, 10)


def compare(build, cells, exact=True, kinds=("vmap", "loop")):
    samples, seeds = data(), list(range(len(cells)))
    alone = [trained_alone(build, cell, seed, samples, 16, STEPS) for cell, seed in zip(cells, seeds, strict=True)]
    for kind in kinds:
        together = trained_together(build, cells, seeds, samples, 16, STEPS, kind)
        check_equal(alone, together, (exact and batched_products_are_single_ones(SIZES, 16)) or kind == "loop")


def test_functions_and_parameters_of_ones_own():
    compare(Functional, [{"lr": lr} for lr in (0.05, 0.01, 0.05)])


def test_reshapes_and_two_heads():
    cells = [{"keep": 0.5}, {"keep": 1.0, "lr": 0.01}, {"activation": nn.SiLU}, {"activation": nn.PReLU}]
    compare(
        TwoHeads,
        cells,
        batched_products_are_single_ones((12, 32), 64) and batched_products_are_single_ones((128, 10), 16),
    )


def test_batch_norm():
    cells = [{}, {"activation": nn.PReLU}, {"lr": 0.01}]
    compare(Normed, cells)


def test_layer_norm_and_learnable_activations():
    cells = [{"norm": nn.LayerNorm, "activation": nn.PReLU}, {"norm": nn.LayerNorm, "lr": 0.01}]
    compare(Normed, cells)


class LayerDrop(Normed):
    """A step that uses some of its parameters at times only."""

    def __init__(self, kind):
        super().__init__()
        self.kind, self.sometimes = kind, nn.Linear(48, 48)

    def forward(self, inputs):
        return self.net(inputs + self.sometimes(inputs) if torch.rand(()) < 0.5 else inputs)

    def configure_optimizers(self):
        return self.kind(self.parameters(), 1e-2)


@pytest.mark.parametrize("kind", [torch.optim.Adam, functools.partial(torch.optim.SGD, momentum=0.9, weight_decay=0.1)])
def test_a_parameter_that_a_step_does_not_use_has_no_gradient(kind):
    compare(LayerDrop, [{"kind": kind}] * 3, kinds=["loop"])


def test_what_is_logged():
    members = build_members(Normed, [{}, {"lr": 0.5}])
    inputs, labels = data()
    batch = inputs.view(2, 50, 48), labels.view(2, 50)
    for kind in ("vmap", "loop"):
        logged = EagerExecutor(members, kind).step(batch, index=3)
        assert logged.keys() == {"train_loss", "accuracy", "index"}
        assert [tuple(values.shape) for values in logged.values()] == [(2,)] * 3
        assert logged["index"].tolist() == [3.0, 3.0]
        assert not any(values.requires_grad for values in logged.values())


class Reading(Normed):
    """A step that reads what only the optimizer should."""

    def training_step(self, batch, index):
        return super().training_step(batch, index) * self.read()

    def read(self):
        return self.lr


class ReadingHyperParameters(Reading):
    def read(self):
        return self.hparams.lr


class Branching(Reading):
    def read(self):
        return 1.0 if self.net[0].bias.sum() > 0 else 2.0


class MakingNumbers(Reading):
    def read(self):
        return self.net[0].bias.sum().item()


class Drawing(Reading):
    def read(self):
        return torch.rand(())


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (Reading, "reads 'lr', in which the members differ"),
        (ReadingHyperParameters, "reads 'lr', in which the members differ"),
        (Branching, "branches on a tensor"),
        (MakingNumbers, "makes a Python number of a tensor"),
        (Drawing, "draws random numbers"),
    ],
)
def test_what_vmap_would_do_wrong_is_refused(build, said):
    cells, inputs = [{"lr": 0.1, "norm": nn.LayerNorm}, {"lr": 0.2, "norm": nn.LayerNorm}], data()
    with pytest.raises(NotReplicableError, match=rf"(?s){said}.*loop"):
        trained_together(build, cells, [0, 1], inputs, 16, (1,), "vmap")
    compare(build, cells, kinds=["loop"])


def test_the_way_is_chosen_by_the_net(caplog):
    class Convolutions(OwnModule):
        def __init__(self):
            super().__init__()
            self.net = nn.Conv2d(1, 1, 3)

    with caplog.at_level("INFO"):
        assert EagerExecutor(build_members(Convolutions, [{}] * 2)).kind == "loop"
        assert EagerExecutor(build_members(Normed, [{}] * 2)).kind == "vmap"
    assert [record.message.count("convolutions") for record in caplog.records] == [1]
    assert EagerExecutor(build_members(Normed, [{}])).kind == "loop"  # nothing is gained by mapping one
    with pytest.raises(ReplicaArgumentError, match=r"stacked.*does not know the forward pass of Normed"):
        EagerExecutor(build_members(Normed, [{}]), "stacked")
    with pytest.raises(ReplicaArgumentError, match=r"one of auto, .*vmap, loop"):
        EagerExecutor(build_members(Normed, [{}]), "fastest")
