"""What a user chose to measure, of activations and of the loss, checked when it is made."""

from dataclasses import dataclass
from typing import Any

from lit_gelu.arguments import is_count, is_number
from lit_gelu.curvature.activation.input_layout import SampleRows
from lit_gelu.curvature.probe.loss_probe import Mode
from lit_gelu.errors import ArgumentError

EIGENVALUES = ("top_eigenvalue", "smallest_eigenvalue")

OF_MATRIX = (*EIGENVALUES, "trace", "spectral_density")
"""Quantities of the matrix of second derivatives, from its products with vectors."""

QUANTITIES = (*OF_MATRIX, "directional")
"""The last one is measured along the update that the optimizer took, by a product with the Hessian."""

OPERATORS = ("hessian", "gauss_newton")


@dataclass(frozen=True, kw_only=True)
class ActivationSettings:
    """What is measured of activations."""

    # Patterns for the names of the sites; a gate is watched only if it is named in full.
    include: tuple[str, ...] = ("*",)
    # How many rows of each input; "auto" for 8,192 elements, "sparse" for 4,096, ``None`` for all.
    sample_rows: SampleRows = "auto"
    seed: int = 0  # which rows are drawn
    # Measurements in a row after which a channel counts as dead; ``None`` to count none.
    dead_unit_window: int | None = 100
    gaussian: bool = True  # whether to say what a normal input would give

    def __post_init__(self) -> None:
        if isinstance(self.sample_rows, str) and self.sample_rows not in {"auto", "sparse"}:
            raise ArgumentError(
                f"sample_rows={self.sample_rows!r} is not accepted. Give a number, 'auto', 'sparse', or None for all."
            )
        for option in ("sample_rows", "dead_unit_window"):
            number = getattr(self, option)
            if not (number is None or isinstance(number, str) or is_count(number, 1)):
                raise ArgumentError(f"{option}={number!r} is not accepted. Give a positive integer, or None.")
        if not is_count(self.seed):
            raise ArgumentError(f"seed={self.seed!r} is not accepted. Give an integer from 0.")


@dataclass(frozen=True, kw_only=True)
class LossSettings:
    """What is measured of the loss."""

    quantities: tuple[str, ...] = ("top_eigenvalue",)  # some of `QUANTITIES`
    operator: str = "hessian"  # one of `OPERATORS`: the matrix that the quantities of `OF_MATRIX` are of
    lanczos_steps: int = 16  # products for the eigenvalues, from a random vector
    warm_steps: int = 12  # products for the eigenvalues, from the vectors of the event before
    # At which estimated relative error of warm eigenvalues to take no more; ``None``: take all.
    accuracy: float | None = 0.02
    trace_probes: int = 6  # random vectors for the trace, at least
    # At which share of the trace its standard error asks for no more vectors; ``None``: take no more.
    trace_accuracy: float | None = 0.1
    max_trace_probes: int = 32  # random vectors for the trace, at most
    density_steps: int = 40  # products a run for the spectral density
    density_runs: int = 1  # its runs
    mode: Mode = "train"  # "train" or "eval": how the model's parts are switched in a probe
    seed: int = 0  # of all random vectors

    def __post_init__(self) -> None:
        unknown = [name for name in self.quantities if name not in QUANTITIES]
        if unknown or not self.quantities:
            raise ArgumentError(
                f"quantities={list(self.quantities)} is not accepted. Give some of {', '.join(QUANTITIES)}."
            )
        self._require_word("operator", OPERATORS)
        self._require_word("mode", ("train", "eval"))
        for name in ("accuracy", "trace_accuracy"):
            error = getattr(self, name)
            if error is not None and not (is_number(error) and 0 < error < 1):
                raise ArgumentError(
                    f"{name}={error!r} is not accepted. Give a relative error between 0 and 1, or None."
                )
        eigenvalues = max(1, sum(name in self.quantities for name in EIGENVALUES))  # a step finds one
        least = dict.fromkeys(("lanczos_steps", "warm_steps"), eigenvalues)
        least |= {"trace_probes": 2, "max_trace_probes": 2, "density_steps": 1, "density_runs": 1, "seed": 0}
        for name, smallest in least.items():
            number = getattr(self, name)
            if not is_count(number, smallest):
                raise ArgumentError(f"{name}={number!r} is not accepted. Give an integer from {smallest}.")

    def _require_word(self, name: str, accepted: tuple[str, ...]) -> None:
        """Refuse a word that is not among those accepted."""
        word: Any = getattr(self, name)
        if word not in accepted:
            raise ArgumentError(f"{name}={word!r} is not accepted. Give one of {accepted}.")

    @property
    def of_matrix(self) -> tuple[str, ...]:
        """The quantities that need products with the matrix."""
        return tuple(name for name in OF_MATRIX if name in self.quantities)
