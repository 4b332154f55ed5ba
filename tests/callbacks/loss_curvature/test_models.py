"""The monitor on models that need care: compiled, checkpointed, with attention, without second derivatives."""

import copy
import math

import pytest
import torch
from lightning.pytorch import Callback
from loss_monitor_nets import EXACT, Net, OnceDifferentiable, Witness, fit
from probe_nets import CLASSES, FEATURES, HiddenSlope, OnceDifferentiableTanh, full_hessian
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from lit_gelu.activations import ActivationRegistry
from lit_gelu.callbacks import ActivationSwap, LossCurvatureMonitor


@pytest.mark.parametrize("how", ["compiled", "checkpointed", "attention"])
def test_models_that_need_care_are_measured_exactly(tmp_path, how):
    class Careful(Net):
        def __init__(self):
            super().__init__()
            if how == "attention":
                layer = nn.TransformerEncoderLayer(FEATURES, 2, 4, dropout=0.0, batch_first=True, activation="gelu")
                self.net = nn.Sequential(layer, nn.Linear(FEATURES, CLASSES))

        def forward(self, x):
            if how == "checkpointed":
                return self.net[1:](checkpoint(self.net[0], x, use_reentrant=False))
            return self.net(x.unsqueeze(1))[:, 0] if how == "attention" else self.net(x)

    model = Careful()
    if how == "compiled":
        model.compile(backend="aot_eager")
        model.net.compile(backend="aot_eager")
    witness = Witness()
    monitor = LossCurvatureMonitor(fraction=None, at_steps=[1], lanczos_steps=150)
    figures = fit(tmp_path, monitor, OnlyAt(witness, 1), model=model, limit_train_batches=2)
    exact = torch.linalg.eigvalsh(witness.hessians[0])[-1].item()
    assert figures[1]["top_eigenvalue"] == pytest.approx(exact, rel=1e-8)


class OnlyAt(Callback):
    """Lets a witness look at one step."""

    def __init__(self, witness, step):
        self.witness, self.step = witness, step

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if batch_idx == self.step:
            plain = Net()
            plain.__class__ = type(pl_module)
            plain.net = copy.deepcopy(pl_module.net)
            for part in plain.modules():
                part._compiled_call_impl = None
            self.witness.hessians.append(self.witness.hessian(plain, batch))


@pytest.mark.parametrize(
    ("method", "name", "error"),
    [
        ("forward_over_reverse", "top_eigenvalue", 1e-9),
        ("finite_differences", "top_eigenvalue_finite_differences", 1e-6),
        ("one_sided_differences", "top_eigenvalue_finite_differences", 1e-5),
    ],
)
def test_the_method_that_is_asked_for_is_taken(tmp_path, caplog, method, name, error):
    witness = Witness()
    figures = fit(tmp_path, LossCurvatureMonitor(method=method, **EXACT), witness)
    assert list(figures) == [1, 3]
    for step, row in figures.items():
        assert row[name] == pytest.approx(torch.linalg.eigvalsh(witness.hessians[step])[-1].item(), rel=error)
    assert f"with the hessian matrix by {method} " in caplog.text


def test_names_say_finite_differences(tmp_path, caplog):
    monitor = LossCurvatureMonitor(["top_eigenvalue", "trace"], **EXACT)
    witness = Witness()
    witness.hessian = lambda pl_module, batch: full_hessian(
        nn.Sequential(pl_module.net[0], nn.Tanh(), pl_module.net[2]),
        lambda outputs: F.cross_entropy(outputs, batch[1]),
        batch[0],
    )
    figures = fit(tmp_path, monitor, witness, model=Net(OnceDifferentiable))
    for step, row in figures.items():
        exact = torch.linalg.eigvalsh(witness.hessians[step])[-1].item()
        assert row.get("top_eigenvalue_finite_differences") == pytest.approx(exact, rel=1e-6)
        assert "trace_finite_differences" in row
        assert "trace_by_layer_finite_differences/net.0" in row
        assert "top_eigenvalue" not in row
        assert math.isfinite(row["seconds"])
    said = [record.message for record in caplog.records if "by finite_differences" in record.message]
    assert len(said) == 1
    assert "reverse_over_reverse failed" in said[0]
    hyperparameters = (tmp_path / "logs" / "0" / "hparams.yaml").read_text()
    assert "curvature/loss/method: finite_differences" in hyperparameters


@pytest.mark.parametrize("function", [OnceDifferentiableTanh, HiddenSlope])
def test_after_a_swap_products_are_tried_anew(tmp_path, caplog, function):
    """The way that was right with the old activations may be wrong with the new ones, and not say so."""

    class Once(nn.Module):
        def forward(self, x):
            return function.apply(x)

    registry = ActivationRegistry()
    registry.register("once")(Once)
    witness = Witness()
    witness.hessian = lambda pl_module, batch: full_hessian(
        nn.Sequential(pl_module.net[0], nn.Tanh(), pl_module.net[2]),
        lambda outputs: F.cross_entropy(outputs, batch[1]),
        batch[0],
    )
    swap = ActivationSwap({"net.1": "once"}, at_step=2, registry=registry)
    monitor = LossCurvatureMonitor(fraction=None, every_n_steps=2, lanczos_steps=60, warm_steps=60, accuracy=None)
    figures = fit(tmp_path, monitor, swap, witness, model=Net(nn.Tanh))
    assert figures[1]["top_eigenvalue"] == pytest.approx(
        torch.linalg.eigvalsh(witness.hessians[1])[-1].item(), rel=1e-6
    )
    assert "top_eigenvalue" not in figures[3]
    assert figures[3]["top_eigenvalue_finite_differences"] == pytest.approx(
        torch.linalg.eigvalsh(witness.hessians[3])[-1].item(), rel=1e-4
    )
    assert "by reverse_over_reverse" in caplog.text
    assert "by finite_differences" in caplog.text
