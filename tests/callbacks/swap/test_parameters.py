"""Parameters that a swap brings and leaves: in the right optimizer and group, scheduled like their neighbours."""

from types import SimpleNamespace

import pytest
import torch
from callback_helpers import SaveEachEpoch, SmallNet, collected_warnings, loader, quiet_trainer
from lightning.pytorch.callbacks import BackboneFinetuning
from torch import nn
from torch.optim import lr_scheduler

from lit_gelu.callbacks import ActivationSwap
from lit_gelu.errors import CheckpointError, UnsupportedRunError
from lit_gelu.tasks import AdamEpsilonInsideRoot
from lit_gelu.tasks.optimizers import HalvesSchedule, LasagneNesterovSGD, cosine_factor

BASE, STEPS = 0.1, 16


class NoScheduler(SimpleNamespace):
    """A scheduler of another library, which a module steps itself."""

    state_dict = load_state_dict = dict


class Configured(SmallNet):
    """A `SmallNet` with the optimizer and scheduler that a test gives."""

    def __init__(self, make, activation=nn.ReLU):
        super().__init__(activation, dropout=0)
        self.make = make

    def configure_optimizers(self):
        result = self.make(self)
        if isinstance(result, tuple):
            optimizer, scheduler = result
            interval = {"scheduler": scheduler, "interval": "step", "monitor": "train_loss"}
            return {"optimizer": optimizer, "lr_scheduler": interval}
        return result

    def lr_scheduler_step(self, scheduler, metric):
        if not isinstance(scheduler, NoScheduler):
            super().lr_scheduler_step(scheduler, metric)


def sgd(net, **options):
    return torch.optim.SGD(net.parameters(), lr=BASE, momentum=0.9, weight_decay=0.01, **options)


def two_groups(net):
    weights = [p for p in net.parameters() if p.dim() > 1]
    others = [p for p in net.parameters() if p.dim() < 2]
    return torch.optim.AdamW([{"params": others, "lr": 0.5}, {"params": weights, "lr": 0.2, "betas": (0.8, 0.9)}])


def fit(folder, model, *swaps, ckpt_path=None, **options):
    trainer = quiet_trainer(folder, *swaps, **({"max_epochs": 2} | options))
    trainer.fit(model, loader(), ckpt_path=ckpt_path)
    return trainer


def prelu_at(step, target="activation:relu", **options):
    return ActivationSwap({target: "prelu"}, at_step=step, **options)


def holdings(optimizer):
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def test_each_new_parameter_is_once_in_a_group_like_that_of_the_neighbouring_weights(tmp_path):
    model = Configured(two_groups)
    optimizer = fit(tmp_path, model, prelu_at(3)).optimizers[0]
    held = [id(parameter) for parameter in holdings(optimizer)]
    assert sorted(held) == sorted(id(parameter) for parameter in model.parameters())
    new = optimizer.param_groups[2]
    assert (new["lr"], new["betas"], new["weight_decay"]) == (0.2, (0.8, 0.9), 0.0)
    for site in ("net.1", "net.5"):  # two of equal value: both were trained
        assert model.get_parameter(f"{site}.weight").item() != 0.25


def test_parameters_that_go_leave_the_optimizer_with_their_state(tmp_path):
    model = Configured(sgd, activation=nn.PReLU)
    gone = [model.net[1].weight, model.net[5].weight]
    swap = ActivationSwap({"activation:prelu": "gelu"}, at_step=3)
    optimizer = fit(tmp_path, model, swap).optimizers[0]
    kept = {id(parameter) for parameter in holdings(optimizer)}
    assert kept == {id(parameter) for parameter in model.parameters()}
    assert not any(parameter in optimizer.state for parameter in gone)
    assert len(optimizer.state) == len(kept)


def cosine(step):
    return cosine_factor(step, STEPS)


@pytest.mark.parametrize(
    "make",
    [
        lambda net: (o := AdamEpsilonInsideRoot(net.parameters(), lr=0.01), HalvesSchedule(o, STEPS)),
        lambda net: (o := LasagneNesterovSGD(net.parameters(), lr=0.01), lr_scheduler.LambdaLR(o, cosine)),
        lambda net: torch.optim.AdamW(net.named_parameters(), lr=0.01),
        lambda net: torch.optim.Adam(net.parameters(), lr=torch.tensor(0.01), capturable=False, foreach=False),
        lambda net: torch.optim.Adam(net.parameters(), lr=0.01, fused=True),
    ],
)
def test_resumed_with_every_optimizer(tmp_path, make):
    swaps = [prelu_at(3, "net.1"), ActivationSwap({"net.1": "gelu"}, at_step=9), prelu_at(6, "net.5")]
    reference = Configured(make)
    trainer = fit(tmp_path, reference, *swaps, SaveEachEpoch(tmp_path), max_epochs=4)
    assert all(bool(trainer.optimizers[0].state[parameter]) for parameter in reference.parameters())
    for epoch in (0, 1, 2):
        again = [prelu_at(3, "net.1"), ActivationSwap({"net.1": "gelu"}, at_step=9), prelu_at(6, "net.5")]
        resumed, checkpoint = Configured(make), tmp_path / f"epoch{epoch}.ckpt"
        fit(tmp_path / str(epoch), resumed, *again, max_epochs=4, ckpt_path=checkpoint)
        for (name, a), b in zip(reference.state_dict().items(), resumed.state_dict().values(), strict=True):
            assert torch.equal(a, b), (epoch, name)


# --- Schedulers ------------------------------------------------------------------------------------------------------

SCHEDULERS = {
    "step": lambda o: lr_scheduler.StepLR(o, 3),
    "lambda": lambda o: lr_scheduler.LambdaLR(o, lambda step: 0.9**step),
    "multiplicative": lambda o: lr_scheduler.MultiplicativeLR(o, lambda step: 0.95),
    "one cycle": lambda o: lr_scheduler.OneCycleLR(o, max_lr=BASE, total_steps=40),
    "cyclic": lambda o: lr_scheduler.CyclicLR(o, base_lr=BASE / 5, max_lr=BASE, step_size_up=5),
    "sequential": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o, 0.1, total_iters=4), lr_scheduler.ExponentialLR(o, 0.9)], milestones=[4]
    ),
    "chained": lambda o: lr_scheduler.ChainedScheduler([
        lr_scheduler.ConstantLR(o, 0.5, total_iters=4),
        lr_scheduler.ExponentialLR(o, 0.9),
    ]),
}


def scheduled(name):
    def make(net):
        optimizer = sgd(net)
        return optimizer, SCHEDULERS[name](optimizer)

    return make


class Rates(SaveEachEpoch):
    """Notes the rates of all groups at every step."""

    def __init__(self, folder):
        super().__init__(folder)
        self.rates = {}

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        rates = [float(group["lr"]) for group in trainer.optimizers[0].param_groups]
        self.rates[trainer.global_step] = rates


@pytest.mark.parametrize("name", SCHEDULERS)
def test_the_new_group_follows_the_schedule_of_its_neighbour(tmp_path, name):
    def rates(folder, *swaps, ckpt_path=None):
        seen = Rates(tmp_path / folder)
        fit(tmp_path / folder, Configured(scheduled(name)), *swaps, seen, max_epochs=4, ckpt_path=ckpt_path)
        return seen.rates

    def swaps():
        return prelu_at(5, "net.1"), prelu_at(6, "net.5")

    reference, alone = rates("whole", *swaps()), rates("alone")
    for step in range(7, STEPS):
        assert reference[step] == pytest.approx(alone[step] * 3, rel=1e-9)
    # The same again from a checkpoint after the first epoch with both.
    resumed = rates("resumed", *swaps(), ckpt_path=tmp_path / "whole" / "epoch1.ckpt")
    assert resumed == {step: reference[step] for step in resumed}


def test_reduce_on_plateau_reduces_the_new_group_too(tmp_path):
    def make(net):
        optimizer = sgd(net)
        return optimizer, lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=1e9, min_lr=[BASE / 8])

    trainer = fit(tmp_path, Configured(make), prelu_at(2), max_epochs=3)
    assert [group["lr"] for group in trainer.optimizers[0].param_groups] == [BASE / 8, BASE / 8]


@pytest.mark.parametrize(
    "make",
    [
        lambda net: (o := sgd(net), NoScheduler(optimizer=o)),
        lambda net: torch.optim.LBFGS(net.parameters()),
        lambda net: torch.optim.SGD([*net.parameters(), nn.Parameter(torch.ones(1))], lr=0.1),
        lambda net: None,
    ],
    ids=["scheduler", "LBFGS", "foreign parameter", "no optimizer"],
)
@pytest.mark.filterwarnings("ignore:`LightningModule.configure_optimizers` returned `None`")
def test_what_cannot_take_a_group_is_refused_before_training(tmp_path, make):
    model = Configured(make)
    with pytest.raises(UnsupportedRunError):
        fit(tmp_path, model, prelu_at(3))
    assert model.losses == []
    fit(tmp_path / "parameterless", Configured(make), ActivationSwap({"activation:relu": "gelu"}, at_step=3))


# --- Several optimizers ----------------------------------------------------------------------------------------------


class Two(SmallNet):
    """Manual optimization: an optimizer for each half."""

    def __init__(self, shared=False):
        super().__init__(dropout=0)
        self.automatic_optimization = False
        self.shared = shared

    def training_step(self, batch, batch_idx):
        optimizers = self.optimizers()
        loss = super().training_step(batch, batch_idx)
        for optimizer in optimizers:
            optimizer.zero_grad()
        self.manual_backward(loss)
        for optimizer in optimizers:
            optimizer.step()

    def configure_optimizers(self):
        first = [*self.net[0].parameters(), *(self.net[4].parameters() if self.shared else ())]
        second = [*self.net[2].parameters(), *self.net[4].parameters(), *self.net[6].parameters()]
        return torch.optim.SGD(first, lr=0.1), torch.optim.SGD(second, lr=0.2)


def test_each_optimizer_gets_the_parameters_beside_its_weights(tmp_path):
    model = Two()
    trainer = fit(tmp_path, model, prelu_at(4), SaveEachEpoch(tmp_path), max_epochs=3)
    first, second = trainer.optimizers
    assert holdings(first)[-1] is model.net[1].weight
    assert holdings(second)[-1] is model.net[5].weight
    assert (first.param_groups[1]["lr"], second.param_groups[1]["lr"]) == (0.1, 0.2)
    resumed = Two()
    quiet_trainer(tmp_path / "b", prelu_at(4), max_epochs=3).fit(resumed, loader(), ckpt_path=tmp_path / "epoch1.ckpt")
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), resumed.parameters(), strict=True))


def test_weights_in_two_optimizers_leave_it_open_which_one(tmp_path):
    model = Two(shared=True)
    with pytest.raises(UnsupportedRunError, match="of net"):
        fit(tmp_path, model, prelu_at(4, "net.5"))
    assert model.losses == []  # known at the start, and said there
    fit(tmp_path, model, prelu_at(4, "net.1"))


class Distilled(SmallNet):
    """Has frozen weights: a teacher before or behind its net, or the first layers of the net itself."""

    def __init__(self, frozen):
        super().__init__(dropout=0)
        net = self.net
        del self.net
        teacher = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3)).requires_grad_(False)
        for name, part in [("teacher", teacher), ("net", net)][:: -1 if frozen == "behind" else 1]:
            self.add_module(name, part)
        if frozen == "layers":
            self.net[:4].requires_grad_(False)

    def forward(self, x):
        return self.net(x) - self.teacher(x)


@pytest.mark.parametrize("held", ["net", "trained", "all"])
@pytest.mark.parametrize("frozen", ["before", "behind", "layers"])
def test_parameters_in_a_frozen_part_stay_as_they_are(tmp_path, frozen, held):
    model = Distilled(frozen)
    weights = {"net": model.net.parameters, "all": model.parameters}.get(held)
    weights = list(weights()) if weights else [p for p in model.parameters() if p.requires_grad]
    model.configure_optimizers = lambda: torch.optim.AdamW(weights, lr=0.05)
    with collected_warnings("is not trained") as messages:
        trainer = fit(tmp_path, model, prelu_at(2))
    assert any("teacher.1.weight" in message for message in messages)
    slopes = {name: model.get_parameter(f"{name}.weight") for name in ("teacher.1", "net.1", "net.5")}
    trained = {name for name, slope in slopes.items() if slope.item() != 0.25}
    assert trained == ({"net.5"} if frozen == "layers" else {"net.1", "net.5"})
    assert {name for name, slope in slopes.items() if slope.requires_grad} == trained
    kept = {id(p) for p in holdings(trainer.optimizers[0])}
    assert (id(slopes["teacher.1"]) in kept) == (held == "all")  # for whoever unfreezes the teacher


def test_no_new_group_beside_a_callback_that_keeps_the_groups(tmp_path):
    model = TwoParts()
    with pytest.raises(UnsupportedRunError):
        fit(tmp_path, model, prelu_at(2), BackboneFinetuning(1))
    assert model.losses == []


def test_other_optimizers_than_the_checkpoints_are_refused(tmp_path):
    fit(tmp_path, Configured(sgd), prelu_at(3), SaveEachEpoch(tmp_path))

    def fewer(net):
        return torch.optim.SGD(net.net[0].parameters(), lr=BASE)

    with pytest.raises(CheckpointError):
        fit(tmp_path / "b", Configured(fewer), prelu_at(3), ckpt_path=tmp_path / "epoch1.ckpt")


class TwoParts(SmallNet):
    """Trains its head, and from epoch 1 on its backbone too."""

    def __init__(self):
        super().__init__(dropout=0)
        self.backbone, self.head = self.net[:2], self.net[2:]
        del self.net

    def forward(self, x):
        return self.head(self.backbone(x))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.head.parameters(), lr=1e-2)

    def on_train_epoch_start(self):
        if self.current_epoch == 1:
            self.optimizers().add_param_group({"params": list(self.backbone.parameters()), "lr": 1e-3})


def test_groups_that_the_module_adds_later_are_saved_and_resumed(tmp_path):
    def run(folder, ckpt_path=None):
        model, swap = TwoParts(), ActivationSwap({"head.*": "prelu"}, at_epoch=0)
        trainer = fit(folder, model, swap, SaveEachEpoch(folder), max_epochs=3, ckpt_path=ckpt_path)
        return model, [(len(group["params"]), group["lr"]) for group in trainer.optimizers[0].param_groups]

    reference, groups = run(tmp_path / "a")
    resumed, groups_again = run(tmp_path / "b", tmp_path / "a" / "epoch1.ckpt")
    assert groups == groups_again == [(6, 1e-2), (1, 1e-2), (2, 1e-3)]  # of the head, PReLU, the backbone
    for (name, expected), value in zip(reference.state_dict().items(), resumed.state_dict().values(), strict=True):
        assert torch.equal(expected, value), name
