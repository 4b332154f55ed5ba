"""What `tune` tried and chose, and how far outputs are from what they should be."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lit_gelu.export.runtime.ports import Array
from lit_gelu.export.runtime.settings import Settings
from lit_gelu.export.runtime.tuning_file import TuningChoice
from lit_gelu.surgery.recognition import faithful_copy


@dataclass(frozen=True)
class TuningTrial:
    """One choice of settings that was tried.

    Args:
        settings: Value by name.
        error: Largest error of an output, as a share of the largest output; ``None`` if it did not run.
        ratio: Time beside the best settings of that moment; ``None`` if it was not timed.
        verdict: ``faster``, ``not faster``, or why it was rejected.
    """

    settings: Settings
    error: float | None
    ratio: float | None
    verdict: str


@dataclass(frozen=True)
class TuningReport:
    """What `tune` did.

    Args:
        choice: What it chose.
        trials: All that it tried.
        path: Where the choice is kept; ``None`` if it is not.
    """

    choice: TuningChoice
    trials: tuple[TuningTrial, ...]
    path: Path | None

    def __str__(self) -> str:
        """Return the choice and one line for each trial."""
        lines = [str(self.choice)]
        for trial in self.trials:
            settings = ", ".join(f"{name}={value}" for name, value in trial.settings.items())
            time = "" if trial.ratio is None else f" {trial.ratio:.2f} of the time,"
            error = "" if trial.error is None else f" error {trial.error:.1e},"
            lines.append(f"  {settings}:{time}{error} {trial.verdict}")
        return "\n".join(lines)


def relative_error(outputs: Sequence[np.ndarray], reference: Sequence[np.ndarray]) -> float:
    """Return the largest error, each output's as a share of its largest reference value.

    Args:
        outputs: Outputs.
        reference: What they should be, float64.

    Returns:
        The error; infinite if a value is not finite, or NaN, where its reference is not so too.

    Example:
        >>> relative_error([np.array([1.0, 2.5])], [np.array([1.0, 2.0])])
        0.25
    """
    largest = 0.0
    for y, exact in zip(outputs, reference, strict=True):
        if y.shape != exact.shape:
            return float("inf")
        finite = np.isfinite(exact)
        if not np.array_equal(y[~finite], exact[~finite], equal_nan=True) or not np.isfinite(y[finite]).all():
            return float("inf")
        if finite.any():
            scale = float(np.abs(exact[finite]).max()) or 1.0
            largest = max(largest, float(np.abs(y[finite] - exact[finite]).max()) / scale)
    return largest


def arguments_of(inputs: Any) -> tuple[Sequence[Array], Mapping[str, Array]]:
    """Return inputs in order and by name.

    Args:
        inputs: An array or tensor, several in order, or a mapping by name.

    Returns:
        Inputs in order, and by name.
    """
    if isinstance(inputs, Mapping):
        return (), inputs
    return (inputs if isinstance(inputs, (list, tuple)) else [inputs]), {}


def as_tensor(value: Array) -> Tensor:
    """Return an array or tensor as a tensor.

    Args:
        value: Either.

    Returns:
        A tensor without history.
    """
    return value.detach() if isinstance(value, Tensor) else torch.from_numpy(np.array(value))


@torch.no_grad()
def reference_outputs(reference: Any, inputs: Mapping[str, Tensor]) -> list[np.ndarray]:
    """Return the reference's outputs in float64.

    Args:
        reference: A module, run on the inputs on the CPU; or its outputs.
        inputs: Tensors by name, in the module's order.

    Returns:
        The outputs.
    """
    if isinstance(reference, nn.Module):
        twin = faithful_copy(reference).cpu().double().eval()
        values = [value.cpu().double() if value.is_floating_point() else value.cpu() for value in inputs.values()]
        reference = twin(*values)
    several = reference.values() if isinstance(reference, Mapping) else reference
    outputs = list(several) if isinstance(reference, (Mapping, list, tuple)) else [reference]
    return [np.asarray(as_tensor(output).double().cpu().numpy()) for output in outputs]
