"""Quantities along the update where the optimizer or the precision is unusual."""

import pytest
import torch
from callback_helpers import collected_warnings, quiet_trainer
from lightning.pytorch import Callback
from loss_monitor_nets import History, Net, OnceDifferentiable, Witness, data, fit
from probe_nets import CLASSES, FEATURES, full_hessian
from torch import nn
from torch.nn import functional as F

from lit_gelu.callbacks import ActivationSwap, LossCurvatureMonitor
from lit_gelu.curvature.settings import OF_UPDATE

SETTINGS = {"every_n_steps": 1, "fraction": None}


class Slopes(Callback):
    """Keeps g'u of each step of gradient descent: the learning rate times -g'g."""

    def __init__(self):
        self.seen = []

    def on_before_optimizer_step(self, trainer, pl_module, optimizer):
        gradients = [p.grad for group in optimizer.param_groups for p in group["params"]]
        self.seen.append(-0.5 * sum(gradient.square().sum().item() for gradient in gradients))


@pytest.mark.parametrize("monitor_first", [True, False])
@pytest.mark.parametrize(
    ("before", "after", "steps"),
    [(nn.ReLU, "prelu", 0), (nn.PReLU, "swish(learnable=True)", 0), (nn.PReLU, "gelu", 0), (nn.PReLU, "gelu", 2)],
)
def test_a_swap_of_parameters_is_no_update(tmp_path, before, after, steps, monitor_first):
    """Figures along the update are those of the optimizer's step alone, or left out, which is said."""
    swap = ActivationSwap({"*": after}, at_step=2, anneal_steps=steps)
    monitor, slopes = LossCurvatureMonitor(OF_UPDATE, **SETTINGS), Slopes()
    history = History(monitor)
    callbacks = [monitor, history, swap] if monitor_first else [swap, monitor, history]
    with collected_warnings("left out at steps amid which a swap brings or takes parameters") as said:
        trainer = quiet_trainer(tmp_path, *callbacks, slopes, max_epochs=1, precision="64-true")
        trainer.fit(Net(before), data(48))
    measured = {step for step, row in history.figures.items() if "directional_slope" in row}
    assert len(history.figures) == 6
    assert measured >= {0, 1, 4, 5}
    assert len(said) == (len(measured) < 6)
    for step in measured - ({2, 3} if steps else set()):  # a blend goes on between the step and the event
        assert history.figures[step]["directional_slope"] == pytest.approx(slopes.seen[step], rel=1e-6), step


class Groups(Net):
    """A gradient step of 0.1 for the second layer, and none for the first; the optimizer may hide its rate."""

    def __init__(self, first, second):
        super().__init__()
        self.rates = first, second

    def configure_optimizers(self):
        groups = [{"params": self.net[0].parameters(), "lr": 0.0}, {"params": self.net[2].parameters(), "lr": 0.1}]
        optimizer = torch.optim.SGD(groups)
        optimizer.register_step_pre_hook(lambda *_: self.show(optimizer, (0.0, 0.1)))
        optimizer.register_step_post_hook(lambda *_: self.show(optimizer, self.rates))
        self.show(optimizer, self.rates)
        return optimizer

    def show(self, optimizer, rates):
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate


class Bisects(Callback):
    """Tells where along each update, in units of it, the loss is back where it was before: in float64."""

    def __init__(self):
        self.back = {}

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        self.before = [parameter.detach().clone() for parameter in pl_module.parameters()]

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        after = [parameter.detach().clone() for parameter in pl_module.parameters()]
        low, high = 1e-3, 1e4
        while high - low > 1e-6 * high:
            middle = (low + high) / 2
            low, high = (
                (low, middle) if self.loss(pl_module, after, middle, batch) > outputs["loss"] else (middle, high)
            )
        self.back[batch_idx] = low
        self.loss(pl_module, after, 1.0, batch)

    def loss(self, pl_module, after, share, batch):
        with torch.no_grad():
            for parameter, old, new in zip(pl_module.parameters(), self.before, after, strict=True):
                parameter.copy_(new if share == 1 else old + share * (new - old))
            return F.cross_entropy(pl_module(batch[0]), batch[1])


def curvature_along(witness, number):
    update = witness.updates[number]
    return (update @ witness.befores[number] @ update / (update @ update)).item()


@pytest.mark.parametrize("rates", [(0.0, 0.1), (None, 0.1), (None, None)])
def test_the_first_positive_learning_rate_counts_and_only_one_quantity_needs_it(tmp_path, rates):
    witness, bisects = Witness(), Bisects()
    with collected_warnings("critical_sharpness is left out") as messages:
        figures = fit(tmp_path, LossCurvatureMonitor(OF_UPDATE, **SETTINGS), witness, bisects, model=Groups(*rates))
    assert list(figures) == [0, 1, 2, 3]
    for number, row in figures.items():
        update, gradient = witness.updates[number], witness.gradients[number]
        assert row["directional_curvature"] == pytest.approx(curvature_along(witness, number), rel=1e-6)
        assert row["directional_slope"] == pytest.approx((gradient @ update).item(), rel=1e-8)
        critical = None if rates[1] is None else pytest.approx(rates[1] * bisects.back[number], rel=1 / 16)
        assert row.get("critical_learning_rate") == critical
    assert len(messages) == (rates[1] is None)


class Bent(Net):
    """Kinks, batch statistics, and steps so long that the loss is far from quadratic along them."""

    def __init__(self):
        super().__init__()
        width = 16
        layers = [nn.Linear(FEATURES, width), nn.ReLU(), nn.BatchNorm1d(width), nn.Linear(width, width), nn.ReLU()]
        self.net = nn.Sequential(*layers, nn.Linear(width, CLASSES))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


@pytest.mark.full
def test_the_curvature_is_that_of_the_hessian_where_the_loss_is_far_from_quadratic(tmp_path):
    class InTraining(Witness):
        def hessian(self, pl_module, batch):
            buffers = {name: buffer.clone() for name, buffer in pl_module.named_buffers()}
            matrix = super().hessian(pl_module, batch)
            pl_module.load_state_dict(buffers, strict=False)
            return matrix

    witness = InTraining()
    figures = fit(tmp_path, LossCurvatureMonitor("directional", **SETTINGS), witness, model=Bent())
    assert list(figures) == [0, 1, 2, 3]
    for number, row in figures.items():
        curvature, slope = curvature_along(witness, number), witness.gradients[number] @ witness.updates[number]
        length = witness.updates[number].square().sum()
        assert row["directional_curvature"] == pytest.approx(curvature, rel=1e-6)
        assert row["directional_slope"] == pytest.approx(slope.item(), rel=1e-8)
        assert row["directional_stability"] == pytest.approx((curvature * length / -2 / slope).item(), rel=1e-6)


@pytest.mark.parametrize("options", [{"model": Net(OnceDifferentiable)}, {"method": "one_sided_differences"}])
def test_a_curvature_by_finite_differences_says_so(tmp_path, options):
    model = options.pop("model", None) or Net()
    witness = Witness()
    monitor = LossCurvatureMonitor("directional", **SETTINGS, **options)
    figures = fit(tmp_path, monitor, witness, model=model)
    assert list(figures) == [0, 1, 2, 3]
    for number, row in figures.items():
        assert {name for name in row if "directional" in name} == {
            "directional_curvature_finite_differences",
            "directional_slope",
            "directional_stability_finite_differences",
        }
        if not options:
            continue
        expected = curvature_along(witness, number)
        assert row["directional_curvature_finite_differences"] == pytest.approx(expected, rel=1e-4, abs=1e-6)


def test_transformers_adafactor_has_no_learning_rate(tmp_path):
    optimization = pytest.importorskip("transformers.optimization")

    class Own(Net):
        def configure_optimizers(self):
            return optimization.Adafactor(self.parameters(), lr=None, relative_step=True, scale_parameter=True)

    witness = Witness()
    figures = fit(tmp_path, LossCurvatureMonitor("directional", **SETTINGS), witness, model=Own())
    assert list(figures) == [0, 1, 2, 3]
    assert figures[3]["directional_curvature"] == pytest.approx(curvature_along(witness, 3), rel=1e-6)


class InFloat64(Callback):
    """The curvature along the update, of the same 16-bit parameters, in float64."""

    def __init__(self):
        self.expected = {}

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        self.before = {name: value.detach().double() for name, value in pl_module.named_parameters()}

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        change = [value.detach().double() - self.before[name] for name, value in pl_module.named_parameters()]
        update = torch.cat([piece.flatten() for piece in change])
        double = Net().double()
        double.load_state_dict(self.before)
        x, y = batch
        hessian = full_hessian(double, lambda outputs: F.cross_entropy(outputs, y), x.double())
        loss = F.cross_entropy(double(x.double()), y)
        gradient = torch.cat([piece.flatten() for piece in torch.autograd.grad(loss, list(double.parameters()))])
        form, slope = update @ hessian @ update, gradient @ update
        self.expected[batch_idx] = [(form / (update @ update)).item(), slope.item(), (form / -2 / slope).item()]


@pytest.mark.parametrize("rate", [0.5, 0.02])
def test_in_bfloat16_the_curvature_along_the_update_is_a_product(tmp_path, rate):
    class Slow(Net):
        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=rate)

    oracle = InFloat64()
    monitor = LossCurvatureMonitor(["top_eigenvalue", *OF_UPDATE], **SETTINGS)
    with collected_warnings("LossCurvatureMonitor") as messages:
        figures = fit(tmp_path, monitor, oracle, model=Slow(), precision="bf16-true")
    assert list(figures) == [0, 1, 2, 3]
    for number, row in figures.items():
        curvature, slope, stability = oracle.expected[number]
        assert row["directional_curvature"] == pytest.approx(curvature, rel=0.1)
        assert row["directional_slope"] == pytest.approx(slope, rel=0.05)
        assert row["directional_stability"] == pytest.approx(stability, rel=0.1)
        assert not [name for name in row if name.startswith("critical")]
    assert sum("4 parameters are bfloat16 (net.0.weight, ...)" in message for message in messages) == 1
    assert sum("critical_sharpness is left out: it compares losses" in message for message in messages) == 1


def test_in_bfloat16_without_an_exact_product_nothing_is_said_along_the_update(tmp_path):
    with collected_warnings("directional is left out") as messages:
        monitor = LossCurvatureMonitor("directional", **SETTINGS)
        figures = fit(tmp_path, monitor, model=Net(OnceDifferentiable), precision="bf16-true")
    assert list(figures) == [0, 1, 2, 3]
    assert not [name for row in figures.values() for name in row if name.startswith("directional")]
    assert len(messages) == 1
