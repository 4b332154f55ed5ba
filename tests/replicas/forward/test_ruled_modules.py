"""What a training step may read of the activations that a rule computes, and what it may not."""

import pytest
import torch
from lightning.pytorch import LightningModule
from replica_runs import batched_products_are_single_ones, check_equal, trained_alone, trained_together
from torch import nn
from torch.nn import functional

from lit_gelu.activations import ActivationRegistry, create
from lit_gelu.replicas import EagerExecutor, NotReplicableError, build_members

SIZES = (12, 8, 4)


class Penalised(LightningModule):
    """A loss of what a function finds in the module, beside the cross-entropy."""

    def __init__(self, penalty, activation="prelu", lr=0.05):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(12, 8), create(activation), nn.Linear(8, 4))
        self.penalty, self.lr = penalty, lr

    def training_step(self, batch, index):
        loss = functional.cross_entropy(self.net(batch[0]), batch[1]) + self.penalty(self)
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), self.lr)


class Named(Penalised):
    """A slope that is there under another name, or that two activations have in common."""

    def __init__(self, penalty, tied):
        super().__init__(penalty)
        if tied:
            self.net.insert(2, nn.Linear(8, 8))
            self.net.insert(3, nn.PReLU())
            self.net[3].weight = self.net[1].weight
        else:
            self.slope = self.net[1].weight


def squares(module):
    return sum(parameter.square().sum() for parameter in module.parameters())


def named_squares(module):
    return 0.1 * sum(parameter.square().sum() for name, parameter in module.named_parameters() if "net.1" in name)


def of_the_activation(module):
    return module.net[1].weight.square().sum()


def of_all_of_a_class(module):
    return sum(part.weight.square().sum() for part in module.modules() if isinstance(part, nn.PReLU))


def by_another_name(module):
    return module.slope.square().sum()


def nothing(module):
    return 0.0


def data():
    return torch.randn(40, 12), torch.randint(4, (40,))


def compare(build, cells, kinds=("vmap", "loop")):
    samples, seeds = data(), list(range(len(cells)))
    alone = [trained_alone(build, cell, seed, samples, 8, (1, 12)) for cell, seed in zip(cells, seeds, strict=True)]
    for kind in kinds:
        together = trained_together(build, cells, seeds, samples, 8, (1, 12), kind)
        check_equal(alone, together, batched_products_are_single_ones(SIZES, 8) or kind == "loop")


@pytest.mark.parametrize("penalty", [squares, named_squares])
@pytest.mark.parametrize("activation", ["prelu", "swish(learnable=True)", "gaussian_gelu(learnable=True)"])
def test_a_penalty_has_the_activations_parameters(penalty, activation):
    cell = {"penalty": penalty, "activation": activation}
    compare(Penalised, [cell, {**cell, "lr": 0.01}])


@pytest.mark.parametrize("penalty", [of_the_activation, of_all_of_a_class])
def test_a_step_reads_a_parameter_of_the_activation(penalty):
    compare(Penalised, [{"penalty": penalty}] * 2)


def test_a_parameter_with_two_names():
    compare(Named, [{"penalty": by_another_name, "tied": False}] * 2)
    compare(Named, [{"penalty": penalty, "tied": True} for penalty in (squares, squares)])


def made_a_step(penalty, *activations):
    members = build_members(Penalised, [{"penalty": penalty, "activation": one} for one in activations])
    batch = torch.randn(len(members), 8, 12), torch.randint(4, (len(members), 8))
    executor = EagerExecutor(members, "vmap")
    executor.step(batch)
    return executor


@pytest.mark.parametrize("penalty", [squares, named_squares, of_the_activation])
def test_parameters_that_some_members_have_are_not_read(penalty):
    with pytest.raises(NotReplicableError, match=r"reads weight of the activation 'net.1'.* executor=\"loop\""):
        made_a_step(penalty, "prelu", "relu")
    executor = made_a_step(nothing, "prelu", "relu")
    assert [name for name, _ in executor.stacks.tree.named_parameters() if "net.1" in name] == ["net.1.weight"]


def test_what_else_activations_hold_is_read_where_it_is_the_same():
    def alpha(module):
        return module.net[1].alpha

    def none(module):
        return float(hasattr(module.net[1], "none_has_it") or getattr(module.net[1], "inplace", True))

    made_a_step(alpha, "elu(alpha=0.3)", "elu(alpha=0.3)")
    made_a_step(none, "elu", "elu")
    with pytest.raises(NotReplicableError, match="reads alpha of the activation"):
        made_a_step(alpha, "elu(alpha=0.3)", "elu")


def test_buffers_are_read_where_parameters_differ():
    made_a_step(lambda module: float(len(list(module.buffers()))), "prelu", "relu")


class Scaled(nn.Module):
    """A default of the class that the constructor overrides, and a layer of its own."""

    scale = 1.0

    def __init__(self):
        super().__init__()
        self.scale, self.inner = 3.0, nn.Linear(8, 8)

    def forward(self, inputs):
        return self.inner(inputs).tanh() * self.scale


def test_an_own_class_is_never_half_read():
    own = ActivationRegistry()
    own.register("scaled")(Scaled)

    def scale(module):
        return 0.1 * module.net[1].scale * module.net[0].weight.square().sum()

    def layers(module):
        return sum(part.weight.square().sum() for part in module.modules() if isinstance(part, nn.Linear))

    class Registered(Penalised):
        def __init__(self, penalty):
            super().__init__(penalty, "relu")
            self.registry = own
            self.net[1] = Scaled()

    compare(Registered, [{"penalty": scale}] * 2)
    with pytest.raises(NotReplicableError, match="reads inner of the activation"):
        compare(Registered, [{"penalty": layers}] * 2, kinds=("vmap",))
    compare(Registered, [{"penalty": layers}] * 2, kinds=("loop",))
