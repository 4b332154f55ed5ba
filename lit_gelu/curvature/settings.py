"""What a user chose to measure of the loss, checked when it is made."""

from dataclasses import dataclass, field

from lit_gelu.arguments import check_count, check_one_of, is_number
from lit_gelu.curvature.probe.loss_probe import Mode
from lit_gelu.errors import ArgumentError

EIGENVALUES = ("top_eigenvalue", "smallest_eigenvalue")

OF_MATRIX = (*EIGENVALUES, "trace", "spectral_density")
"""Quantities of the matrix of second derivatives, from its products with vectors."""

OF_OPTIMIZER = ("preconditioned_sharpness", "batch_sharpness")
"""Quantities with a limit that the optimizer sets: beyond it, its steps diverge on a quadratic loss."""

QUANTITIES = (*OF_MATRIX, *OF_OPTIMIZER, "directional")
"""The last one is measured along the update that the optimizer took, by a product with the Hessian."""


@dataclass(frozen=True, kw_only=True)
class ProductBudget:
    """How many products with the loss's matrix an event takes.

    Args:
        lanczos_steps: For the eigenvalues at the first event.
        warm_steps: For the eigenvalues at later events, at most; 2 to 5 are usual on a fresh probe.
        accuracy: At which relative error of the eigenvalues, as estimated by a Gauss-Radau rule, later events take no
            more products. ``None``: they take ``warm_steps``.
        trace_probes: Random vectors for the trace, a product each.
        trace_accuracy: More are taken until the trace's standard error is at most this share of it. ``None``: exactly
            ``trace_probes`` are.
        max_trace_probes: The most; if they do not suffice there is a warning, the first time.
        density_steps: For the spectral density.
        keep_graphs: Between products, keep the graphs of all batches. ``False`` records a batch's graph anew in each
            product: the memory of one batch, in up to twice the time.

    Raises:
        ArgumentError: If a number is out of range.

    Example:
        >>> ProductBudget(trace_probes=20, trace_accuracy=None).lanczos_steps
        16
    """

    lanczos_steps: int = 16
    warm_steps: int = 12
    accuracy: float | None = 0.02
    trace_probes: int = 6
    trace_accuracy: float | None = 0.1
    max_trace_probes: int = 32
    density_steps: int = 40
    keep_graphs: bool = True

    def __post_init__(self) -> None:
        for name in ("accuracy", "trace_accuracy"):
            error = getattr(self, name)
            if error is not None and not (is_number(error) and 0 < error < 1):
                raise ArgumentError(
                    f"{name}={error!r} is not accepted. Give a relative error between 0 and 1, or None."
                )
        for name in ("lanczos_steps", "warm_steps", "trace_probes", "max_trace_probes", "density_steps"):
            check_count(name, getattr(self, name), 2 if name.endswith("probes") else 1)


@dataclass(frozen=True, kw_only=True)
class LossSettings:
    """What is measured of the loss."""

    quantities: tuple[str, ...] = ("top_eigenvalue",)  # some of `QUANTITIES`
    mode: Mode = "train"  # how the model's parts are switched in a probe
    seed: int = 0  # of all random vectors
    budget: ProductBudget = field(default_factory=ProductBudget)

    def __post_init__(self) -> None:
        unknown = [name for name in self.quantities if name not in QUANTITIES]
        if unknown or not self.quantities:
            raise ArgumentError(
                f"quantities={list(self.quantities)} is not accepted. Give some of {', '.join(QUANTITIES)}."
            )
        check_one_of(("train", "eval"), mode=self.mode)
        check_count("seed", self.seed, 0)
