"""Runs on scikit-learn's digits that take a second each."""

from dataclasses import replace

from gelu_paper.cells import Cell, expand
from gelu_paper.experiments import EXPERIMENTS, Arm

DIGITS = replace(
    EXPERIMENTS["mnist"],
    data="lit_gelu.data.DigitsData",
    arms={"gelu": Arm("gelu(approximate='tanh')"), "relu": Arm("relu")},
    learning_rates=(1e-3,),
    seeds=1,
    epochs=1,
    settings={"keep": (1.0,)},
    task_args={"hidden_layers": 2, "keep": 1.0, "momentum": 0.9},
    robustness_levels=(0.0, 1.0),
)


def cell_of(arm: str) -> Cell:
    """Return the run of an arm."""
    (cell,) = expand(DIGITS, "quick", arms=[arm])
    return cell
