"""Users' own modules in a group, each against its run alone by `Trainer.fit`."""

import functools
import random

import numpy as np
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
from torchmetrics import MetricCollection
from torchmetrics.classification import MulticlassAccuracy

from lit_gelu.activations import create
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


class Frozen(TwoHeads):
    """A body that is left in evaluation mode, and a step that turns a layer's mode for a while."""

    def __init__(self, lr=0.05, keep=0.5):
        super().__init__(lr, keep)
        self.body = nn.Sequential(nn.Linear(48, 48), nn.Dropout(0.5), create("zero_identity_map")).eval()
        self.late = nn.Sequential(create("zero_identity_map"), nn.Dropout(0.3))

    def forward(self, inputs):
        inputs = self.late.eval()(self.body(inputs))
        return super().forward(self.late.train()(inputs))


class InPlace(OwnModule):
    """Dropout that overwrites its input, which is read again."""

    def __init__(self, lr=0.05, keep=0.5, own=True):
        super().__init__(lr)
        self.first, self.second, self.drop = nn.Linear(48, 64), nn.Linear(64, 10), nn.Dropout(1 - keep, inplace=own)

    def forward(self, inputs):
        hidden = self.first(inputs)
        dropped = self.drop(hidden) if self.drop.inplace else functional.dropout(hidden, 0.25, self.training, True)
        return self.second(dropped + hidden)


class Transposed(OwnModule):
    """Dropout of tensors whose elements lie in another order, at once and behind functions and activations."""

    def __init__(self, lr=0.05, keep=0.5, activation=nn.GELU, norm=nn.LayerNorm, odd=0):
        super().__init__(lr)
        self.token, self.act, self.drop = nn.Linear(12, 16 + odd), activation(), nn.Dropout(1 - keep)
        self.norm, self.last = norm(4), nn.Linear(4 * (16 + odd), 10)

    def forward(self, inputs):
        hidden = self.token(inputs.view(-1, 4, 12)).transpose(1, 2)
        hidden = self.drop(self.act(self.drop(hidden)))
        hidden = functional.dropout(functional.softplus(hidden), 0.25, self.training)
        hidden = self.drop(self.norm(hidden.transpose(1, 2).transpose(1, 2)) + hidden)
        strided = self.drop(hidden[:, ::2])
        return self.last(
            torch.cat([strided, self.drop(hidden[:, 1::2].permute(2, 0, 1)).permute(1, 2, 0)], 1).flatten(1)
        )


class Listed(OwnModule):
    """Layers that are used in two places, under several names and out of lists."""

    def __init__(self, lr=0.05, keep=0.5, activation=nn.GELU):
        super().__init__(lr)
        self.act, self.drop = activation(), nn.Dropout(1 - keep)
        self.net = nn.Sequential(nn.Linear(48, 64), self.act, self.drop, nn.Linear(64, 64), self.act, self.drop)
        self.last, self.used = nn.Linear(64, 10), [self.act, self.drop]

    def forward(self, inputs):
        hidden = self.net(inputs)
        for layer in self.used:
            hidden = layer(hidden)
        return self.last(hidden)


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


@pytest.mark.filterwarnings("ignore:.*in eval mode at the start")
def test_layers_in_evaluation_mode_drop_nothing():
    compare(Frozen, [{}, {"keep": 0.8}, {"lr": 0.01}], batched_products_are_single_ones((12, 32), 64))


def test_dropout_in_place_changes_its_input():
    compare(InPlace, [{}, {"keep": 0.8}, {"keep": 1.0}])
    compare(InPlace, [{"own": False}, {"own": False}])


def test_activations_in_place_change_their_input():
    class Residual(OwnModule):
        def __init__(self, activation=nn.ReLU, odd=0):
            super().__init__()
            self.first, self.second, self.act = nn.Linear(48, 64 + odd), nn.Linear(64 + odd, 10), activation()

        def forward(self, inputs):
            hidden = self.first(inputs)
            return self.second(self.act(hidden) + hidden)

    in_place = [{"activation": functools.partial(kind, inplace=True)} for kind in (nn.ReLU, nn.SiLU, nn.ELU, nn.ReLU)]
    for odd in (0, 1):
        cells = [{**cell, "odd": odd} for cell in (*in_place, {"activation": nn.Mish}, {"activation": nn.PReLU})]
        exact = batched_products_are_single_ones((48, 64 + odd, 10), 16, len(cells))
        compare(Residual, cells, exact)
        compare(Residual, cells[:1] * 2, exact)


@pytest.mark.parametrize("odd", [0, 1])
@pytest.mark.parametrize("norm", [nn.LayerNorm, nn.Identity])
def test_dropout_draws_in_the_order_in_which_elements_lie_in_memory(odd, norm):
    cells = [{}, {"activation": nn.SiLU}, {"keep": 0.8, "activation": nn.PReLU}, {"activation": nn.SiLU, "keep": 1.0}]
    cells = [{**cell, "odd": odd, "norm": norm} for cell in cells]
    compare(Transposed, cells, batched_products_are_single_ones((12, 16 + odd), 64))


def test_layers_under_several_names():
    cells = [{}, {"activation": nn.SiLU, "keep": 0.8}, {"activation": nn.PReLU}, {"keep": 1.0}]
    compare(Listed, cells)


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


class LoggingAtTimes(Normed):
    """A step that logs figures in some steps only, and one that only a member logs."""

    def __init__(self, lr=0.05, extra=False):
        super().__init__(lr)
        self.hparams.extra = extra

    def training_step(self, batch, index):
        if index % 2:
            self.log("odd", float(index))
        if self.hparams.extra:
            self.log("extra", 7)
        return super().training_step(batch, index)


def test_figures_that_are_logged_at_times():
    inputs, labels = data()
    rows = torch.arange(32).view(4, 2, 4)
    for kind, cells in (("vmap", [{}, {}]), ("loop", [{}, {"extra": True}])):
        logged = EagerExecutor(build_members(LoggingAtTimes, cells), kind).steps(inputs, labels, rows)
        assert logged["index"][:, 0].tolist() == [0, 1, 2, 3]
        assert logged["odd"].tolist() == [[1, 1], [3, 3]]
        if kind == "loop":
            assert logged["extra"][:, 0].isnan().all()
            assert logged["extra"][:, 1].tolist() == [7] * 4


class ByClosure(Normed):
    """A function in an attribute that has the module from around it."""

    def __init__(self, lr=0.05):
        super().__init__(lr)
        self.run = lambda inputs: self.net(inputs)

    def forward(self, inputs):
        return self.run(inputs)


class Averaging(Normed):
    """A buffer that is not changed in place but assigned, also in a view of itself, and read in the next step."""

    def __init__(self, lr=0.05, widens=False):
        super().__init__(lr)
        self.register_buffer("mean", torch.zeros(10))
        self.widens = widens

    def training_step(self, batch, index):
        self.mean = 0.9 * self.mean.flip(0) + 0.1 * self.net(batch[0]).detach().mean(0)
        if self.widens:
            self.mean = torch.zeros(11)
        return super().training_step(batch, index) * (1 + self.mean.square().mean())


def test_a_buffer_that_is_assigned():
    compare(Averaging, [{}, {"lr": 0.01}], kinds=["loop"])
    executor = EagerExecutor(build_members(Averaging, [{}, {}], [0, 1]), "loop")
    executor.step((torch.randn(2, 16, 48), torch.randint(10, (2, 16))))
    for replica, member in enumerate(executor.stacks.modules):
        assert torch.equal(executor.stacks.buffers["mean"][replica], member.mean)
        assert member.mean.untyped_storage().data_ptr() == executor.stacks.buffers["mean"].untyped_storage().data_ptr()
    with pytest.raises(NotReplicableError, match=r"\[11\].*'mean'.*\[10\]"):
        trained_together(Averaging, [{"widens": True}] * 2, [0, 1], data(), 16, (1,), "loop")


class Reading(Normed):
    """A step that reads what only the optimizer should."""

    def training_step(self, batch, index):
        return super().training_step(batch, index) * self.read()

    def read(self):
        return self.lr


class ReadingHyperParameters(Reading):
    def read(self):
        return self.hparams.lr


class GettingHyperParameters(Reading):
    def read(self):
        return self.hparams.get("lr", 1.0)


class ToNumbers(Reading):
    def read(self):
        return float(self.net[0].bias.detach().numpy().sum())


class OfDistributions(Reading):
    def read(self):
        return torch.distributions.Beta(0.4, 0.4).sample()


class Unmapped(Reading):
    def read(self):
        return 1 + functional.rrelu(self.net[0].bias, training=True).square().mean()


class UsingMetric(Normed):
    def __init__(self, lr=0.05):
        super().__init__(lr)
        self.metrics = MetricCollection({"micro": MulticlassAccuracy(10, average="micro")})

    def training_step(self, batch, index):
        self.log_dict(self.metrics(self(batch[0]), batch[1]))
        return super().training_step(batch, index)


class WithoutIndex(OwnModule):
    """Steps as Lightning also takes them: without the batch's number, or with any arguments."""

    def __init__(self, lr=0.05):
        super().__init__(lr)
        self.net = nn.Linear(48, 10)

    def training_step(self, batch):
        loss = functional.cross_entropy(self.net(batch[0]), batch[1])
        self.log("train_loss", loss)
        return {"loss": loss}


class WithAnyArguments(WithoutIndex):
    def training_step(self, *given):
        return WithoutIndex.training_step(self, given[0])["loss"] * (1 + given[1])


class LoggingMetric(UsingMetric):
    def training_step(self, batch, index):
        loss = super().training_step(batch, index)
        self.log("micro", self.metrics["micro"])
        return loss


@pytest.mark.parametrize("build", [WithoutIndex, WithAnyArguments])
def test_arguments_of_a_step(build):
    if build is WithAnyArguments:  # the index is given by a Trainer only
        batch = torch.randn(2, 8, 48), torch.randint(10, (2, 8))
        for kind in ("vmap", "loop"):
            losses = EagerExecutor(build_members(build, [{}] * 2), kind).forward.losses
            torch.testing.assert_close(losses(batch, 2)[0], 3 * losses(batch, 0)[0])
    else:
        compare(build, [{}, {"lr": 0.01}], batched_products_are_single_ones((48, 10), 16))


def test_a_metric_is_not_logged_itself():
    with pytest.raises(NotReplicableError, match=r"metric 'micro' itself.*self\.log\(name"):
        trained_together(LoggingMetric, [{}, {}], [0, 1], data(), 16, (1,), "loop")


def test_a_step_without_a_loss_is_refused():
    class Nothing(WithoutIndex):
        def training_step(self, batch, index):
            return {"losses": 1}

    with pytest.raises(NotReplicableError, match="returned NoneType"):
        trained_together(Nothing, [{}, {}], [0, 1], data(), 16, (1,), "loop")


class Branching(Reading):
    def read(self):
        return 1.0 if self.net[0].bias.sum() > 0 else 2.0


class MakingNumbers(Reading):
    def read(self):
        return self.net[0].bias.sum().item()


class Drawing(Reading):
    def read(self):
        return torch.rand(())


class Mixing(Normed):
    """Mixup by NumPy's global generator, and a flip by Python's, from the constructor on."""

    def __init__(self, lr=0.05):
        super().__init__(lr)
        self.net[0].bias.data += random.random() + np.random.rand()  # noqa: NPY002

    def training_step(self, batch, index):
        inputs, labels = batch
        share = float(np.random.beta(0.4, 0.4))  # noqa: NPY002
        if random.random() < 0.5:
            inputs = inputs.flip(1)
        loss = super().training_step((inputs, labels), index) * share
        return loss + (1 - share) * functional.cross_entropy(self(inputs.flip(0)), labels)


@pytest.mark.parametrize("library", [random.random, np.random.rand])
def test_random_numbers_of_python_and_numpy_are_each_replicas_own(library):
    compare(Mixing, [{}, {"lr": 0.01}], kinds=["loop"])

    class One(Reading):
        def read(self):
            return library()

    with pytest.raises(NotReplicableError, match=r"of Python or NumPy.*loop"):
        trained_together(One, [{}, {}], [0, 1], data(), 16, (1,), "vmap")


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (Reading, "reads 'lr', in which the members differ"),
        (ReadingHyperParameters, "reads 'lr', in which the members differ"),
        (GettingHyperParameters, "reads 'lr', in which the members differ"),
        (ByClosure, "reads 'run', in which the members differ"),
        (ToNumbers, "to NumPy or into a list"),
        (OfDistributions, "a gradient of its own"),
        (Unmapped, "what torch.vmap cannot"),
        (UsingMetric, "uses the metric 'metrics.micro'"),
        (Averaging, "assigns a new tensor to 'mean'"),
        (Branching, "branches on a tensor"),
        (MakingNumbers, "makes a Python number of a tensor"),
        (Drawing, "draws random numbers"),
    ],
)
def test_what_vmap_would_do_wrong_is_refused(build, said):
    cells, inputs = [{"lr": 0.1}, {"lr": 0.2}], data()
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
