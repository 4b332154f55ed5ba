"""What the paper's figures 2, 4, 5, 6 and 7 show, as a table."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Panel:
    """One panel of a figure.

    Args:
        title: What stands above it.
        setting: The settings of the runs that it shows.
        learning_rate: Their learning rate; ``None``: the one that is reported for each arm.
    """

    title: str = ""
    setting: Mapping[str, float] = field(default_factory=dict)
    learning_rate: float | None = None


@dataclass(frozen=True)
class CurveFigure:
    """One of the paper's figures of curves over epochs.

    Args:
        number: Its number in the paper.
        experiment: The experiment's name.
        title: What it shows.
        unit: What the vertical axis shows.
        dark: The curve in dark, such as ``"train_loss"``.
        light: The curve in light.
        legends: What the two are.
        panels: The panels, from left to right.
        note: What the caption ends with.
    """

    number: int
    experiment: str
    title: str
    unit: str
    dark: str
    light: str
    legends: tuple[str, str]
    panels: tuple[Panel, ...] = (Panel(),)
    note: str = ""

    @property
    def scale(self) -> float:
        """What values are multiplied by: 100 for errors, which are drawn in per cent."""
        return 100.0 if self.dark.endswith("error") else 1.0


_LOG_LOSS = "log loss (nats)"
CURVE_FIGURES = (
    CurveFigure(
        2,
        "mnist",
        "MNIST classification",
        _LOG_LOSS,
        "train_loss",
        "val_loss",
        ("training, dropout off", "validation"),
        (Panel("no dropout", {"keep": 1.0}), Panel("dropout, keep 0.5", {"keep": 0.5})),
    ),
    CurveFigure(
        4,
        "autoencoder",
        "MNIST autoencoder",
        "reconstruction error (mean squared)",
        "train_loss",
        "test_loss",
        ("training", "test"),
        (
            Panel("learning rate 0.001", learning_rate=1e-3),
            Panel("learning rate 0.0001", learning_rate=1e-4),
        ),
    ),
    CurveFigure(
        5,
        "timit",
        "TIMIT frame classification",
        _LOG_LOSS,
        "train_loss",
        "val_loss",
        ("training, dropout off", "validation"),
    ),
    CurveFigure(
        6,
        "cifar10",
        "CIFAR-10",
        "error (%)",
        "train_error",
        "test_error",
        ("training, noise and dropout on", "test"),
    ),
    CurveFigure(
        7,
        "cifar100",
        "CIFAR-100, wide residual net",
        _LOG_LOSS,
        "train_loss",
        "test_loss",
        ("training, dropout on", "test, dropout off"),
        note="Training loss with the penalty on the weights.",
    ),
)
