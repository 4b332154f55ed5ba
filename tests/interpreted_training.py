"""Training runs whose activations are kernels, in Triton's interpreter; see `interpreted_harness`.

python interpreted_training.py OUT
"""

import csv
import math
import tempfile
import warnings
from pathlib import Path

import torch
from callback_helpers import SmallNet, loader, quiet_trainer
from interpreted_harness import main, started
from lightning.pytorch import Callback
from torch import nn

from lit_gelu.callbacks import ActivationCurvatureMonitor, ActivationSwap, FusedActivations, LossCurvatureMonitor

CLOSE = 1e-3  # a kernel's power of two, in float32, has a relative error of 5e-5


class GeluNet(SmallNet):
    def __init__(self) -> None:
        super().__init__(nn.GELU)


def _run(*callbacks: Callback) -> tuple[GeluNet, dict[str, float]]:
    """Return the model and the last value of every figure that was logged."""
    model = GeluNet()
    with tempfile.TemporaryDirectory() as folder:
        torch.manual_seed(2)
        quiet_trainer(Path(folder), *callbacks).fit(model, loader())
        with (Path(folder) / "logs" / "0" / "metrics.csv").open() as file:
            rows = list(csv.DictReader(file))
    return model, {name: float(value) for row in rows for name, value in row.items() if value}


def a_run_with_a_swap():
    plain, _ = _run(ActivationSwap({"net.5": "silu"}, at_step=4))
    assert started == []
    fused, _ = _run(FusedActivations(), ActivationSwap({"net.5": "silu"}, at_step=4))
    assert started == (["unary_forward"] * 2 + ["unary_backward"] * 2) * 8
    assert fused.losses != plain.losses
    torch.testing.assert_close(torch.tensor(fused.losses), torch.tensor(plain.losses), rtol=CLOSE, atol=0)
    started.clear()
    fused(torch.zeros(2, 6))
    assert started == []


def monitors_beside_kernels():
    """Of the activations' inputs, and of the loss, whose second derivatives are torch's own."""
    figures = []
    for callbacks in ([], [FusedActivations()]):
        monitors = ActivationCurvatureMonitor(every_n_steps=4), LossCurvatureMonitor(every_n_steps=4, fraction=None)
        figures.append(_run(*callbacks, *monitors)[1])
    assert "unary_backward" in started
    plain, fused = figures
    assert plain.keys() == fused.keys()
    names = [name for name in plain if not name.endswith(("/seconds", "/cost_in_training_batches"))]
    assert {"curvature/net.1/mean_gate", "curvature/loss/top_eigenvalue"} <= set(names)
    far = {name: (plain[name], fused[name]) for name in names if not _near(plain[name], fused[name])}
    assert not far, far


def _near(a: float, b: float) -> bool:
    return math.isnan(a) == math.isnan(b) and not abs(a - b) > 30 * CLOSE * abs(a) + CLOSE


CHECKS = (a_run_with_a_swap, monitors_beside_kernels)

if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(CHECKS)
