"""ReLU, ELU and GELU side by side, both curvature monitors watching: ``python examples/curvature_side_by_side.py``.

Trains the paper's MNIST net once with each activation, on MNIST if the environment variable LIT_GELU_DATA names the
folder that holds it, else on the digits that come with the package. Each run is an ordinary ``Trainer.fit`` with a
CSVLogger; the figure is drawn from their ``metrics.csv``. Another number of steps: the first argument.
"""

import csv
import os
import sys
from collections import defaultdict
from pathlib import Path

from lightning.pytorch import LightningDataModule, Trainer, seed_everything
from lightning.pytorch.loggers import CSVLogger
from matplotlib.figure import Figure

from lit_gelu.callbacks import ActivationCurvatureMonitor, LossCurvatureMonitor
from lit_gelu.data import DigitsData, MNISTData
from lit_gelu.files import write_atomically
from lit_gelu.tasks import MNISTClassifier

Log = dict[str, tuple[list[int], list[float]]]
"""Steps and values, by logged name."""

ACTIVATIONS = {"relu": "tab:red", "elu": "tab:green", "gelu": "tab:blue"}
FOLDER = Path("runs/curvature_side_by_side")
LAYERS = [f"hidden.{number}.activation" for number in range(8)]

LOSS_PANELS = {
    "train_loss": "training loss, nats",
    "curvature/loss/top_eigenvalue": "largest eigenvalue of the Hessian of the loss\n(nats per squared unit of weight)",
    "curvature/loss/trace": "trace of the Hessian, with standard error\n(nats per squared unit of weight)",
}
ACTIVATION_PANELS = {
    "curvature": "E|f''| where the inputs are, kinks included\n(per unit of input; mean of the 8 layers)",
    "mean_squared_derivative": "backward gain E f'²\n(dimensionless; mean of the 8 layers)",
    "share_saturated": "share of inputs with |f'| < 0.01\n(no gradient passes; mean of the 8 layers)",
}


def train(activation: str, data: LightningDataModule, steps: int) -> Log:
    """Train with both monitors.

    Args:
        activation: Its name.
        data: The data.
        steps: How many optimizer steps.

    Returns:
        What was logged.
    """
    seed_everything(0)
    every = max(1, steps // 40)
    monitors = [
        ActivationCurvatureMonitor(every_n_steps=every),
        LossCurvatureMonitor(["top_eigenvalue", "trace"], every_n_steps=every, fraction=None),
    ]
    logger = CSVLogger(FOLDER, name=activation)
    trainer = Trainer(
        max_steps=steps,
        devices=1,
        accelerator="cpu",
        logger=logger,
        log_every_n_steps=every,
        callbacks=monitors,
        limit_val_batches=0,
    )
    trainer.fit(MNISTClassifier(activation), datamodule=data)
    log: Log = defaultdict(lambda: ([], []))
    with (Path(logger.log_dir) / "metrics.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            for name, value in row.items():
                if value:
                    log[name][0].append(int(row["step"]))
                    log[name][1].append(float(value))
    return log


def mean_over_layers(log: Log, statistic: str) -> tuple[list[int], list[float]]:
    """Return a statistic's mean over the layers, step by step.

    Args:
        log: What was logged.
        statistic: Its name, or "curvature" for |f''| with the kink mass, which ReLU consists of.

    Returns:
        Steps and means.
    """
    names = ("mean_abs_second_derivative", "kink_mass") if statistic == "curvature" else (statistic,)
    columns = [log[f"curvature/{layer}/{name}"] for layer in LAYERS for name in names]
    sums = [sum(values) for values in zip(*(values for _, values in columns), strict=True)]
    return columns[0][0], [total / len(LAYERS) for total in sums]


def draw(logs: dict[str, Log], title: str) -> Figure:
    """Draw the loss's curvature above, the activations' below.

    Args:
        logs: By activation.
        title: What was trained on what.

    Returns:
        The figure.
    """
    figure = Figure(figsize=(15, 7.5), layout="constrained")
    panels = list(figure.subplots(2, 3).flat)
    for activation, log in logs.items():
        style = {"color": ACTIVATIONS[activation], "label": activation, "linewidth": 1.4}
        for axes, name in zip(panels[:3], LOSS_PANELS, strict=True):
            axes.plot(*log[name], **style)
        steps, traces = log["curvature/loss/trace"]
        errors = log["curvature/loss/trace_standard_error"][1]
        low, high = ([t + sign * e for t, e in zip(traces, errors, strict=True)] for sign in (-1, 1))
        panels[2].fill_between(steps, low, high, color=ACTIVATIONS[activation], alpha=0.2, linewidth=0)
        for axes, name in zip(panels[3:], ACTIVATION_PANELS, strict=True):
            axes.plot(*mean_over_layers(log, name), **style)
    for axes, text in zip(panels, (*LOSS_PANELS.values(), *ACTIVATION_PANELS.values()), strict=True):
        axes.set_title(text, fontsize=10)
        axes.set_xlabel("optimizer step")
        axes.legend(frameon=False)
        axes.grid(alpha=0.3)
    panels[0].set_yscale("log")
    panels[1].set_yscale("symlog", linthresh=1)
    panels[2].set_yscale("symlog", linthresh=1)
    for axes in panels[3:]:
        axes.set_ylim(bottom=0)
    figure.suptitle(title)
    return figure


def main(steps: int = 2000) -> None:
    """Train three times, then draw.

    Args:
        steps: How many optimizer steps each.
    """
    real = bool(os.environ.get("LIT_GELU_DATA"))
    data: LightningDataModule = MNISTData() if real else DigitsData(batch_size=128)
    name = "MNIST" if real else "the bundled digits"
    logs = {activation: train(activation, data, steps) for activation in ACTIVATIONS}
    path = FOLDER / "curvature.png"
    with write_atomically(path) as temporary:
        draw(logs, f"The paper's MNIST net on {name}, batches of 128: curvature of loss and activations").savefig(
            temporary, dpi=110
        )
    print(f"on {name}, at step {steps - 1} or just before:")
    for activation, log in logs.items():
        eigenvalue = log["curvature/loss/top_eigenvalue"][1][-1]
        bend = mean_over_layers(log, "curvature")[1][-1]
        print(f"{activation:>5}: top eigenvalue {eigenvalue:8.3f}, E|f''| of the activations {bend:.3f}")
    print(path)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))
