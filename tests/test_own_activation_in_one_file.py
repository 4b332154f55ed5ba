"""What our activations have, one of a user has by one ``register``: module, f', f'', joint form, moments, operators."""

import math

import pytest
import torch
from callback_helpers import FEATURES, SmallNet, activations_of, loader, quiet_trainer
from monitor_helpers import logged_rows
from torch import nn

from lit_gelu import activations
from lit_gelu.activations.gaussian import GaussianMoments, gaussian_moments
from lit_gelu.activations.onnx_recipes import OnnxRecipes
from lit_gelu.callbacks import ActivationCurvatureMonitor, ActivationSwap
from lit_gelu.export import check_parity, export_onnx

W = 1.5  # of the nets below
asked = {"joint": 0}


class Sine(nn.Module):
    """``sin(w x)``."""

    def __init__(self, w: float = 1.0) -> None:
        super().__init__()
        self.w = w

    def forward(self, x):
        return torch.sin(self.w * x)


def sine_derivative(x, order, w=1.0):
    return w * torch.cos(w * x) if order == 1 else -w * w * torch.sin(w * x)


def sine_joint(x, w=1.0):
    asked["joint"] += 1
    sine, cosine = torch.sin(w * x), torch.cos(w * x)
    return sine, w * cosine, -w * w * sine, torch.where(x == 0, w, sine / x)


def sine_moments(mean, std, w=1.0):
    """E exp(i w x) = exp(i w m - w^2 s^2 / 2), and ``|sin u| = 2/pi - 4/pi sum cos(2 k u) / (4 k^2 - 1)``."""
    m, s = w * mean, w * std
    double = torch.exp(-2 * s * s) * torch.cos(2 * m)
    k = torch.arange(1.0, 200.0, dtype=torch.float64)
    terms = torch.exp(-2 * (k * s[..., None]) ** 2) * torch.cos(2 * k * m[..., None]) / (4 * k * k - 1)
    size = 2 / math.pi - 4 / math.pi * terms.sum(-1)
    value = torch.exp(-s * s / 2) * torch.sin(m)
    return GaussianMoments(
        value=value,
        value_squared=(1 - double) / 2,
        variance=torch.where(std > 0.1, (1 - double) / 2 - value**2, torch.nan),  # below, the series needs more terms
        derivative=w * torch.exp(-s * s / 2) * torch.cos(m),
        derivative_squared=w * w * (1 + double) / 2,
        abs_second_derivative=w * w * size,
        kink=torch.zeros_like(m + s),
    )


@pytest.fixture
def registered():
    with activations.registry.scope():
        activations.register(
            "own_sine",
            aliases=("siren",),
            derivative=sine_derivative,
            joint=sine_joint,
            facts=activations.ActivationFacts(
                "sin(w x)", "Sitzmann et al. 2020 (arXiv 2006.09661)", smoothness=math.inf
            ),
            onnx=OnnxRecipes(native="Sin(Mul(x, w))", accurate="Cos(Sub(Mul(x, w), HALF_PI))"),
        )(Sine)
        yield
        asked.update(joint=0)


def test_listed_with_its_moments(registered):
    assert "own_sine" in activations.list_activations()
    assert activations.create("siren(w=1.5)").w == W
    assert activations.info("own_sine").formula == "sin(w x)"
    mean, std = torch.tensor(0.3, dtype=torch.float64), torch.tensor([0.5, 2.0], dtype=torch.float64)
    closed, computed = sine_moments(mean, std, W), gaussian_moments("own_sine(w=1.5)", mean, std)
    for name, value in vars(closed).items():
        torch.testing.assert_close(getattr(computed, name), value, rtol=1e-9, atol=1e-12)


def test_trained_watched_and_swapped(tmp_path, registered):
    monitor = ActivationCurvatureMonitor(every_n_steps=1, sample_rows=None, gaussian=True)
    swap = ActivationSwap({"activation:relu": "own_sine(w=1.5)"}, at_step=2)
    quiet_trainer(tmp_path, swap, monitor, max_epochs=2).fit(model := SmallNet(), loader())
    assert activations_of(model) == ["Sine", "Sine"]
    assert asked["joint"] > 0
    row = [row for row in logged_rows(tmp_path) if row["curvature/net.1/mean"]][-1]
    figures = [float(row[f"curvature/net.1/{name}"]) for name in ("mean", "standard_deviation")]
    mean, std = (torch.tensor(figure, dtype=torch.float64) for figure in figures)
    expected = sine_moments(mean, std, W)
    for name, figure in (("mean_squared_derivative", expected.derivative_squared), ("mean_output", expected.value)):
        assert float(row[f"curvature/net.1/gaussian/{name}"]) == pytest.approx(figure.item(), rel=1e-6)


@pytest.mark.parametrize(
    ("dtype", "operators"), [("fp32", ("Mul", "Sin")), ("fp16", ("Cast", "Mul", "Sub", "Cos", "Cast"))]
)
def test_exported_by_policy_and_proved(tmp_path, registered, dtype, operators):
    model = nn.Sequential(nn.Linear(FEATURES, 8), activations.create("own_sine(w=1.5)"), nn.Linear(8, 2))
    path = tmp_path / "sine.onnx"
    report = export_onnx(model, path, torch.zeros(1, FEATURES), dtype=dtype)
    assert (report.sites[0].spec, report.sites[0].operators) == ("own_sine(w=1.5)", operators)
    assert check_parity(model, path).passed
