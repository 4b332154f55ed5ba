"""The measurement of the loss without a Trainer."""

import pytest
import torch
from lightning.pytorch import LightningModule
from loss_monitor_nets import Net
from probe_nets import batch_of, full_hessian
from torch.nn import functional as F

from lit_gelu.curvature.loss_measurement import Step, WarmStart, first_learning_rate, measure_loss
from lit_gelu.curvature.probe.loss_probe import LossProbe
from lit_gelu.curvature.settings import LossSettings

SETTINGS = LossSettings(quantities=("top_eigenvalue", "critical_sharpness"), lanczos_steps=43, accuracy=None)


def measured(model, batch, **options):
    with LossProbe(model, [batch]) as probe:
        return measure_loss(probe, SETTINGS, **options)


def test_without_a_step_the_sharpness_is_that_of_gradient_descent():
    x, y = batch_of(16, dtype=torch.float64)
    model = Net().double()
    found = measured(model, (x, y))
    hessian = full_hessian(model, lambda outputs: F.cross_entropy(outputs, y), x)
    assert found.figures["top_eigenvalue",] == pytest.approx(torch.linalg.eigvalsh(hessian)[-1].item(), rel=1e-9)
    assert found.parameters == len(hessian)
    gradients = torch.autograd.grad(F.cross_entropy(model(x), y), list(model.parameters()))
    values = [parameter.detach().clone() for parameter in model.parameters()]

    def loss_after(rate):
        with torch.no_grad():
            for parameter, value, gradient in zip(model.parameters(), values, gradients, strict=True):
                parameter.copy_(value - rate * gradient)
            return F.cross_entropy(model(x), y).item()

    low, high = found.critical.bracket
    assert loss_after(low) <= found.figures["probe_loss",] < loss_after(high)
    assert found.figures["critical_sharpness",] == pytest.approx(2 / found.critical.learning_rate)
    assert found.left_out == []


def test_a_step_is_measured_as_the_update_that_it_was():
    x, y = batch_of(16, dtype=torch.float64)
    model = Net().double()
    before = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    gradients = torch.autograd.grad(F.cross_entropy(model(x), y), list(model.parameters()))
    along_gradient = measured(model, (x, y)).critical
    with torch.no_grad():
        for parameter, gradient in zip(model.parameters(), gradients, strict=True):
            parameter -= 0.1 * gradient
    along_step = measured(model, (x, y), step=Step(before, 0.1)).critical
    assert along_step.sharpness == pytest.approx(along_gradient.sharpness, rel=0.13)  # both within a sixteenth


def test_where_the_gradient_is_zero_there_is_no_direction():
    class Flat(Net):
        def training_step(self, batch, batch_idx):
            return 0 * super().training_step(batch, batch_idx)

    found = measured(Flat().double(), batch_of(8, dtype=torch.float64))
    assert found.critical is None
    assert found.left_out == ["The gradient is 0: there is no direction to find the critical sharpness along."]


def test_what_one_event_hands_to_the_next_is_plain_data():
    warm = WarmStart()
    model, batch = Net().double(), batch_of(16, dtype=torch.float64)
    first, second = (measured(model, batch, warm=warm, event=event) for event in range(2))
    assert second.figures["products",] < first.figures["products",] == 43
    assert set(warm.state_dict(100)["vectors"]) == {"top_eigenvalue"}
    assert warm.state_dict(10)["vectors"] == {}
    assert WarmStart(**warm.state_dict(100)).method == first.method


@pytest.mark.parametrize(("rates", "found"), [((0.0, 0.1), 0.1), ((0.0,), None), ((None, 0.2), 0.2)])
def test_the_first_positive_learning_rate_counts(rates, found):
    optimizer = torch.optim.SGD([{"params": [torch.zeros(1)]} for _ in rates], lr=1.0)
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
    assert first_learning_rate([optimizer]) == found


class Along(LightningModule):
    """A loss of one number, so that its shape along an update is known."""

    def __init__(self, loss):
        super().__init__()
        self.place = torch.nn.Parameter(torch.zeros(1))
        self.loss = loss

    def training_step(self, batch):
        return self.loss(self.place.sum())


def along(loss, warm, to, learning_rate=0.1):
    """The measurement after an update from 0."""
    model = Along(loss)
    model.place.data.fill_(to)
    settings = LossSettings(quantities=("critical_sharpness",))
    with LossProbe(model, [torch.zeros(4)]) as probe:
        return measure_loss(probe, settings, warm, step=Step(torch.zeros(1), learning_rate)).figures


@pytest.mark.parametrize("slope", [1e-2, 1e-4, 1e-5])
def test_an_update_that_does_not_descend_has_no_critical_sharpness(slope):
    warm = WarmStart()
    figures = along(lambda w: 1 + slope * w + slope * w**2, warm, to=0.1)
    assert figures == {("critical_sharpness_converged",): 0.0}
    assert warm.learning_rate is None


def test_an_event_without_critical_sharpness_does_not_spoil_the_next():
    def quadratic(w):  # of sharpness 10, with its minimum at 1
        return 5 * (w - 1) ** 2

    warm = WarmStart()
    first = along(quadratic, warm, to=1e-3)
    start = warm.learning_rate
    assert along(lambda w: 1 - w, warm, to=1e-3) == {("critical_sharpness_converged",): 0.0}  # falls for ever
    assert warm.learning_rate == start
    again = along(quadratic, warm, to=1e-3)
    for figures in (first, again):
        # The loss is back where it was at w = 2: 2,000 times the update, of a learning rate of 0.1.
        assert figures["critical_learning_rate",] == pytest.approx(200, rel=1 / 16)
        assert figures["critical_sharpness_converged",] == 1
