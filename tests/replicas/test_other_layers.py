"""Layers and hooks of torch whose objects are a member's own: trained in a group as alone, or refused."""

import pytest
from measured_replicas import SEEDS, Measuring, Sets, check_as_alone
from small_task import quiet_trainer
from torch import nn
from torch.nn.utils import parametrizations

from lit_gelu.replicas import NotReplicableError, ReplicaDataModule, ReplicaGroup


class First(nn.Module):
    """Gives the first of what a layer returns."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, inputs):
        return self.layer(inputs)[0]


class With(Measuring):
    """A net with something more in it."""

    def __init__(self, change):
        super().__init__()
        change(self)


def recurrent(kind):
    return lambda module: module.net.insert(0, First(kind(24, 24)))


def parametrized(make):
    return lambda module: make(module.net[0])


def scale(module, inputs, outputs):
    return 2 * outputs


def hooked(module):
    module.net[0].register_forward_hook(scale, always_call=True)
    module.net[3].register_forward_pre_hook(lambda _, inputs: (inputs[0] * module.scale,))
    module.scale = 0.5


def clamped(module):
    module.net[3].register_full_backward_hook(lambda _, given, __: (given[0].clamp(-0.001, 0.001),))


@pytest.mark.one_in(2)
@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
@pytest.mark.parametrize(
    ("change", "executor"),
    [
        (recurrent(nn.LSTM), "auto"),
        (recurrent(nn.GRU), "loop"),
        (parametrized(parametrizations.weight_norm), "vmap"),
        (parametrized(parametrizations.weight_norm), "loop"),
        (parametrized(parametrizations.spectral_norm), "auto"),
        (parametrized(parametrizations.orthogonal), "auto"),
        (lambda module: module.net[0].register_forward_hook(scale), "vmap"),
        (hooked, "loop"),
        (clamped, "loop"),
    ],
)
def test_members_are_their_runs_alone(change, executor):
    check_as_alone(With, [{"change": change}] * 3, executor=executor)


def listed(module):
    module.weights = [module.net[0].weight]


class Penalized(With):
    def training_step(self, batch, index):
        return super().training_step(batch, index) + self.weights[0].square().sum()


@pytest.mark.parametrize(
    ("build", "change", "executor", "said"),
    [
        (With, clamped, "vmap", '_backward_hooks.*executor="loop"'),
        (With, hooked, "vmap", '_forward_pre_hooks.*executor="loop"'),
        (With, recurrent(nn.LSTM), "vmap", '_flat_weight.*executor="loop"'),
        (With, parametrized(parametrizations.spectral_norm), "vmap", 'torch.vmap.*executor="loop"'),
        (Penalized, listed, "vmap", 'weights.*executor="loop"'),
        (Penalized, listed, "loop", r"a gradient in 'net\.0\.weight' of a member"),
    ],
)
@pytest.mark.parametrize("count", [1, 2])
def test_what_a_group_would_compute_otherwise_is_refused(build, change, executor, said, count):
    group = ReplicaGroup.of(build, [{"change": change}] * count, SEEDS[:count], executor=executor)
    with pytest.raises(NotReplicableError, match=said):
        quiet_trainer(max_epochs=1).fit(group, datamodule=ReplicaDataModule(Sets()))
