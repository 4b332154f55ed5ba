"""What a `LossCurvatureMonitor` measures and how, checked when it is made; and runs that it cannot work in."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_warn

from lit_gelu.callbacks.errors import CallbackArgumentError, UnsupportedRunError
from lit_gelu.callbacks.trainer_facts import shards_parameters
from lit_gelu.curvature.loss import ParameterLayout
from lit_gelu.curvature.loss.gauss_newton import GAUSS_NEWTON_METHODS
from lit_gelu.curvature.loss.hessian import METHODS as HESSIAN_METHODS
from lit_gelu.curvature.loss.hessian import ONE_SIDED
from lit_gelu.curvature.probe.loss_probe import Mode
from lit_gelu.curvature.probe.training_loss import check_module

EIGENVALUES = ("top_eigenvalue", "smallest_eigenvalue")

OF_MATRIX = (*EIGENVALUES, "trace", "spectral_density")
"""Quantities of the matrix of second derivatives, from its products with vectors."""

OF_UPDATE = ("directional", "critical_sharpness")
"""Quantities along the update that the optimizer took, from a product with the Hessian, and from passes forward."""

QUANTITIES = (*OF_MATRIX, *OF_UPDATE)

METHODS: dict[str, tuple[str, ...]] = {
    "hessian": (*HESSIAN_METHODS, ONE_SIDED),
    "gauss_newton": GAUSS_NEWTON_METHODS,
}
"""By the matrix: how products with it can be computed."""

INEXACT = ("finite_differences", ONE_SIDED)
"""Methods that are not exact: names of figures that rest on them end with the first."""

OPERATORS = tuple(METHODS)

_OVERFLOWS = "in which second derivatives overflow and steps of finite differences vanish"
_ROUNDS = (
    "with 8 significant bits: products with the matrix and slopes are off by about 1 %, differences of losses and of "
    "gradients are noise, and steps below 1/512 of a parameter do not move it. critical_sharpness is left out"
)


@dataclass(frozen=True)
class LossSettings:
    """What is measured.

    Attributes:
        quantities: Some of `QUANTITIES`.
        operator: One of `OPERATORS`: the matrix that the quantities of `OF_MATRIX` are of.
        lanczos_steps: Products for the eigenvalues, from a random vector.
        warm_steps: Products for the eigenvalues, from the vectors of the event before.
        trace_probes: Random vectors for the trace, at least.
        density_steps: Products a run for the spectral density.
        density_runs: Its runs.
        seed: Of all random vectors.
        mode: "train" or "eval": how the model's parts are switched in a probe.
        accuracy: At which estimated relative error of the eigenvalues to take no more products; ``None``: take all.
        method: How products with the matrix are computed; "auto": by the first way that works.
        trace_accuracy: At which share of the trace its standard error asks for no more vectors; ``None``: take no more.
        max_trace_probes: Random vectors for the trace, at most.
    """

    quantities: tuple[str, ...]
    operator: str
    lanczos_steps: int
    warm_steps: int
    trace_probes: int
    density_steps: int
    density_runs: int
    seed: int
    mode: Mode = "train"
    accuracy: float | None = None
    method: str = "auto"
    trace_accuracy: float | None = None
    max_trace_probes: int = 2

    def __post_init__(self) -> None:
        unknown = [name for name in self.quantities if name not in QUANTITIES]
        if unknown or not self.quantities:
            raise CallbackArgumentError(
                f"quantities={list(self.quantities)} is not accepted. Give some of {', '.join(QUANTITIES)}."
            )
        if self.operator not in OPERATORS:
            raise CallbackArgumentError(f"operator={self.operator!r} is not accepted. Give one of {OPERATORS}.")
        if self.mode not in {"train", "eval"}:
            raise CallbackArgumentError(f"mode={self.mode!r} is not accepted. Give 'train' or 'eval'.")
        methods = ("auto", *METHODS[self.operator])
        if self.method not in methods:
            raise CallbackArgumentError(
                f"method={self.method!r} is not accepted with operator={self.operator!r}. Give one of {methods}."
            )
        for name in ("accuracy", "trace_accuracy"):
            error = getattr(self, name)
            if error is not None and not 0 < error < 1:
                raise CallbackArgumentError(
                    f"{name}={error!r} is not accepted. Give a relative error between 0 and 1, or None."
                )
        eigenvalues = max(1, sum(name in self.quantities for name in EIGENVALUES))  # a step finds one
        least = {
            "lanczos_steps": eigenvalues,
            "warm_steps": eigenvalues,
            "trace_probes": 2,
            "max_trace_probes": 2,
            "density_steps": 1,
            "density_runs": 1,
        }
        for name, smallest in least.items():
            number = getattr(self, name)
            if isinstance(number, bool) or not isinstance(number, int) or number < smallest:
                raise CallbackArgumentError(f"{name}={number!r} is not accepted. Give an integer from {smallest}.")

    @property
    def of_matrix(self) -> tuple[str, ...]:
        """The quantities that need products with the matrix."""
        return tuple(name for name in OF_MATRIX if name in self.quantities)

    @property
    def of_update(self) -> tuple[str, ...]:
        """The quantities that need the update."""
        return tuple(name for name in OF_UPDATE if name in self.quantities)


def as_names(quantities: str | Sequence[str]) -> tuple[str, ...]:
    """Return one or several names as a tuple.

    Args:
        quantities: A name, or names.

    Returns:
        Names.

    Example:
        >>> as_names("trace")
        ('trace',)
    """
    return (quantities,) if isinstance(quantities, str) else tuple(quantities)


def refuse_run(trainer: Trainer, pl_module: LightningModule, settings: LossSettings) -> None:
    """Refuse a run in which the loss cannot be measured on the side, before it starts.

    Args:
        trainer: The Trainer.
        pl_module: Its module.
        settings: What is to be measured.

    Raises:
        UnsupportedRunError: If the strategy splits parameters over devices.
        LossCurvatureError: If the module's loss cannot be computed on the side, or it has nothing to train.
    """
    strategy = trainer.strategy
    if shards_parameters(trainer) or strategy.restore_checkpoint_after_setup:
        raise UnsupportedRunError(
            f"LossCurvatureMonitor({', '.join(settings.quantities)}) does not work with {type(strategy).__name__}: no "
            "rank has whole parameters, and a pass through a part of the model does not gather them. Use DDP or one "
            "device, or measure a checkpoint of this run afterwards on one device."
        )
    check_module(pl_module)
    ParameterLayout(dict(pl_module.named_parameters()))


def warn_of_half_precision(pl_module: LightningModule) -> None:
    """Warn of float16 and bfloat16 parameters, and say what is inexact.

    Args:
        pl_module: The module, in the precision in which it is trained.
    """
    for dtype, mixed, trouble in ((torch.float16, "16-mixed", _OVERFLOWS), (torch.bfloat16, "bf16-mixed", _ROUNDS)):
        half = [name for name, parameter in pl_module.named_parameters() if parameter.dtype == dtype]
        if half:
            rank_zero_warn(
                f"LossCurvatureMonitor: {len(half)} parameters are {str(dtype)[6:]} ({half[0]}, ...), {trouble}. Keep "
                f"the parameters in float32, e.g. with Trainer(precision={mixed!r})."
            )
