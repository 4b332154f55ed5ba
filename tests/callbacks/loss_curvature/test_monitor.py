"""The monitor's figures in a Trainer, against the full Hessian."""

import pytest
import torch
from callback_helpers import collected_warnings, logged_rows, quiet_trainer
from loss_monitor_nets import EXACT, Net, Witness, data, fit, loss_monitor
from probe_nets import FEATURES, batch_of, full_hessian
from torch import nn
from torch.nn import functional as F


def test_figures_equal_those_of_the_full_hessian(tmp_path):
    monitor = loss_monitor(
        ["top_eigenvalue", "smallest_eigenvalue", "trace", "spectral_density"],
        trace_probes=200,
        density_steps=43,
        **EXACT,
    )
    witness = Witness()
    figures = fit(tmp_path, monitor, witness)
    assert list(figures) == [1, 3]
    for step, row in figures.items():
        matrix = witness.hessians[step]
        values = torch.linalg.eigvalsh(matrix)
        assert row["top_eigenvalue"] == pytest.approx(values[-1].item(), rel=1e-9)
        assert row["smallest_eigenvalue"] == pytest.approx(values[0].item(), rel=1e-9)
        assert row["top_eigenvalue_converged"] == row["smallest_eigenvalue_converged"] == 1
        assert row["top_eigenvalue_residual"] < 1e-8
        assert abs(row["trace"] - matrix.trace().item()) < 4 * row["trace_standard_error"]
        # The variance of |Hv|^2 is at most 2 |H^2|^2: four standard errors of its mean over 200 vectors.
        four = 4 * (2 / 200) ** 0.5 * (matrix @ matrix).norm().item()
        assert abs(row["frobenius_norm"] ** 2 - matrix.norm().item() ** 2) < four
        layers = [name for name in row if name.startswith("trace_by_layer/")]
        assert layers == ["trace_by_layer/net.0", "trace_by_layer/net.2"]
        assert sum(row[name] for name in layers) == pytest.approx(row["trace"])
        for name, part in zip(layers, (slice(0, 25), slice(25, 43)), strict=True):
            error = row[name.replace("trace_by", "trace_standard_error_by")]
            assert abs(row[name] - matrix[part, part].trace().item()) < 4 * error
        assert row["spectrum_largest_node"] == pytest.approx(values[-1].item(), rel=1e-6)
        assert row["spectrum_smallest_node"] == pytest.approx(values[0].item(), rel=1e-6)
        # The share of a random direction in k of 43 dimensions: Beta(k / 2, (43 - k) / 2), and four errors.
        share = (values < -0.01 * values.abs().max()).double().mean().item()
        error = (share * (1 - share) / (43 / 2 + 1)) ** 0.5
        assert row["spectrum_share_negative"] == pytest.approx(share, abs=4 * error)
        assert row["interval"] == 2
        assert row["examples"] == 8
        assert row["seconds"] > 0
        assert row["cost_in_training_batches"] > 0
    logged = {int(row["step"]): row for row in logged_rows(tmp_path) if row["curvature/loss/seconds"]}
    for step, row in figures.items():
        assert {name: float(logged[step][f"curvature/loss/{name}"]) for name in row} == pytest.approx(row)


def test_along_the_update_that_the_optimizer_took(tmp_path):
    class Regression(Net):
        """Quadratic, so that all expansions are exact."""

        def __init__(self):
            super().__init__()
            self.net = nn.Linear(FEATURES, 2)

        def training_step(self, batch, batch_idx):
            return self(batch[0]).sub(1).square().mean()

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=0.05)

    class OfSquares(Witness):
        def hessian(self, pl_module, batch):
            return full_hessian(pl_module, lambda outputs: outputs.sub(1).square().mean(), batch[0])

    witness = OfSquares()
    monitor = loss_monitor("directional", fraction=None, every_n_steps=1)
    figures = fit(tmp_path, monitor, witness, model=Regression())
    assert len(figures) == 4
    for step, row in figures.items():
        u, g, matrix = witness.updates[step], witness.gradients[step], witness.befores[step]
        bend, slope = (u @ matrix @ u).item(), (g @ u).item()
        assert row["directional_curvature"] == pytest.approx(bend / (u @ u).item(), rel=1e-6)
        assert row["directional_slope"] == pytest.approx(slope, rel=1e-8)
        assert row["directional_stability"] == pytest.approx(bend / (-2 * slope), rel=1e-6)


def test_later_events_start_from_the_last_vectors(tmp_path):
    monitor = loss_monitor(probe="fixed", fraction=None, every_n_steps=1, lanczos_steps=20, warm_steps=3)
    witness = Witness(batch_of(32, dtype=torch.float64)[0][:8].clone())
    witness.batches = (tuple(t[:8] for t in batch_of(32, dtype=torch.float64)),)
    figures = fit(tmp_path, monitor, witness, max_epochs=5)
    first, *later = [row["products"] for row in figures.values()]
    assert first == 20
    assert len(later) == 19
    assert set(later) <= {1, 2, 3}
    for step, row in figures.items():
        exact = torch.linalg.eigvalsh(witness.hessians[step])[-1].item()
        assert row["top_eigenvalue"] == pytest.approx(exact, rel=0.05)


def test_the_step_is_an_optimizer_step_and_not_a_batch(tmp_path):
    monitor = loss_monitor(**EXACT)
    witness = Witness()
    figures = fit(tmp_path, monitor, witness, loader=data(36, 4), accumulate_grad_batches=2)
    assert list(figures) == [1, 3]  # steps 0..4 of batches 0..8
    for step, row in figures.items():
        exact = torch.linalg.eigvalsh(witness.hessians[2 * step + 1])[-1].item()
        assert row["top_eigenvalue"] == pytest.approx(exact, rel=1e-9)


@pytest.mark.parametrize(
    ("batch", "options", "examples"),
    [(320, {}, 40), (128, {}, 32), (32, {}, 32), (32, {"fraction": 1 / 8}, 4), (128, {"fraction": 1 / 4}, 32)],
)
def test_an_eighth_of_the_batch_and_32_examples_at_least_are_the_default(tmp_path, batch, options, examples):
    monitor = loss_monitor(every_n_steps=1, lanczos_steps=43, **options)
    with collected_warnings("fewer than 32") as messages:
        figures = fit(tmp_path, monitor, loader=data(batch, batch))
    assert not messages
    assert figures[0]["examples"] == examples
    x, y = (t[:examples] for t in batch_of(batch, dtype=torch.float64))
    model = Net().double()
    quiet_trainer(tmp_path, max_epochs=1, precision="64-true", logger=False).fit(model, data(batch, batch))
    exact = torch.linalg.eigvalsh(full_hessian(model, lambda outputs: F.cross_entropy(outputs, y), x))[-1]
    assert figures[0]["top_eigenvalue"] == pytest.approx(exact.item(), rel=1e-9)


def test_the_trace_takes_as_many_vectors_as_its_accuracy_asks_for(tmp_path):
    options = {"fraction": None, "every_n_steps": 1, "trace_probes": 2, "max_trace_probes": 2000}
    with collected_warnings("random vectors") as messages:
        coarse = fit(tmp_path / "a", loss_monitor("trace", trace_accuracy=0.5, **options))
        witness = Witness()
        fine = fit(tmp_path / "b", loss_monitor("trace", trace_accuracy=0.05, **options), witness)
    assert not messages
    assert sum(row["products"] for row in fine.values()) > 10 * sum(row["products"] for row in coarse.values())
    for step, row in fine.items():
        assert row["trace_standard_error"] <= 0.05 * abs(row["trace"])
        assert row["trace"] == pytest.approx(witness.hessians[step].trace().item(), rel=0.25)  # five standard errors


class WithAdam(Net):
    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.01, weight_decay=0.1)


class Scales(Witness):
    """Keeps what AdamW divides gradients by, too."""

    def __init__(self):
        super().__init__()
        self.scales = []

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        super().on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)
        (optimizer,) = trainer.optimizers
        states = [optimizer.state[parameter] for parameter in pl_module.parameters()]
        corrected = [(s["exp_avg_sq"] / (1 - 0.999 ** float(s["step"]))).sqrt() + 1e-8 for s in states]
        corrections = [1 - 0.9 ** float(s["step"]) for s in states]
        self.scales.append(torch.cat([(d * c).flatten() for d, c in zip(corrected, corrections, strict=True)]))


def test_sharpness_as_the_optimizer_sees_it(tmp_path):
    monitor = loss_monitor(["preconditioned_sharpness", "batch_sharpness"], **EXACT)
    witness = Scales()
    figures = fit(tmp_path, monitor, witness, model=WithAdam())
    assert list(figures) == [1, 3]
    for step, row in figures.items():
        root = witness.scales[step].rsqrt()
        expected = torch.linalg.eigvalsh(root[:, None] * witness.hessians[step] * root)[-1].item()
        assert row["preconditioned_sharpness"] == pytest.approx(expected, rel=1e-6)
        assert row["preconditioned_sharpness_limit"] == pytest.approx(38 / 0.01 * (1 - 0.01 * 0.1 / 2))
        assert row["preconditioned_sharpness_converged"] == 1
        assert "batch_sharpness_limit" not in row


def test_batch_sharpness_beside_the_limit_of_gradient_descent(tmp_path):
    monitor, witness = loss_monitor("batch_sharpness", **EXACT), Witness()
    for step, row in fit(tmp_path, monitor, witness).items():
        assert row["batch_sharpness_limit"] == 4.0  # 2 / 0.5
        values = torch.linalg.eigvalsh(witness.hessians[step])
        assert values[0] <= row["batch_sharpness"] <= values[-1]


def test_an_optimizer_without_a_known_limit_is_warned_of(tmp_path):
    class WithAdagrad(Net):
        def configure_optimizers(self):
            return torch.optim.Adagrad(self.parameters(), lr=0.01)

    monitor = loss_monitor("preconditioned_sharpness", fraction=None, every_n_steps=1)
    with collected_warnings("Adagrad") as messages:
        rows = fit(tmp_path, monitor, model=WithAdagrad())
    assert len(messages) == 1
    assert not any("sharpness" in name for row in rows.values() for name in row)


def test_a_warm_event_takes_no_more_products_than_that_of_the_top_eigenvalue(tmp_path):
    rows = {}
    for quantity in ("top_eigenvalue", "preconditioned_sharpness"):
        monitor = loss_monitor(quantity, fraction=None, every_n_steps=1)
        rows[quantity] = fit(tmp_path / quantity, monitor, model=WithAdam(), max_epochs=4)
    products = {name: sum(row["products"] for row in list(each.values())[1:]) for name, each in rows.items()}
    assert products["preconditioned_sharpness"] <= 1.2 * products["top_eigenvalue"]
