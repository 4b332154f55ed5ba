"""How a function's values compare with golden vectors, counted in numbers of the dtype."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from lit_gelu.audit.black_box import BlackBox
from lit_gelu.audit.number_format import FloatFormat
from lit_gelu.audit.vectors import FORMATS, Vectors, read_vectors
from lit_gelu.display import Displayed
from lit_gelu.errors import ArgumentError, shown
from lit_gelu.extras import new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_BINS = {"exact": 0, "1": 1, "2": 2, "3-10": 10, "11-100": 100, "101-1000": 1000, "more": 2**33, "NaN": np.inf}
_NAMES = ("f", "f1", "f2")


@dataclass(frozen=True, repr=False)
class Score(Displayed):
    """How far a function's values are from correctly rounded ones.

    Args:
        title: The activation, the dtype and which values.
        limit: How many ulp pass.
        x: The inputs, all in float64.
        values: What the function gives there.
        expected: The correctly rounded values.
        ulp: How far off the values are, infinite where one of the two is NaN.
        subnormal: Inputs that are subnormal or whose correct values are; in many kernels 0 takes their place.
    """

    title: str
    limit: float
    x: np.ndarray
    values: np.ndarray
    expected: np.ndarray
    ulp: np.ndarray
    subnormal: np.ndarray

    @property
    def passed(self) -> bool:
        """Whether all values are within the limit."""
        return bool((self.ulp <= self.limit).all())

    def to_dict(self) -> dict[str, Any]:
        """Return the counts, and where the error is largest, NaN apart, and where it first passes the limit."""
        wrong, finite = self.ulp > self.limit, np.where(np.isfinite(self.ulp), self.ulp, 0)
        bins = np.searchsorted(list(_BINS.values()), self.ulp)
        return {
            "schema": "lit-gelu-score",
            "schema_version": 1,
            "title": self.title,
            "limit": self.limit,
            "inputs": len(self.x),
            "wrong": int(wrong.sum()),
            "wrong_and_subnormal": int((wrong & self.subnormal).sum()),
            "histogram": dict(zip(_BINS, np.bincount(bins, minlength=len(_BINS)).tolist(), strict=True)),
            "worst": self._nearest((finite == finite.max()) & (finite > 0)),
            "first_wrong": self._nearest(wrong),
        }

    def _nearest(self, chosen: np.ndarray) -> dict[str, float] | None:
        """Return what is at the chosen input nearest to 0."""
        if not chosen.any():
            return None
        at = np.flatnonzero(chosen)[np.nan_to_num(abs(self.x[chosen]), nan=np.inf).argmin()]
        return {name: float(getattr(self, name)[at]) for name in ("x", "values", "expected", "ulp")}

    def __str__(self) -> str:
        score = self.to_dict()
        lines = [self._summary(), *(f"  {n:>8} ulp {count:>8,}" for n, count in score["histogram"].items() if count)]
        for name in ("worst", "first_wrong"):
            if at := score[name]:
                numbers = "{x:.9g}: {values:.9g} instead of {expected:.9g}, {ulp:,.0f} ulp".format(**at)
                lines.append(f"  {name.replace('_', ' ')}: x = {numbers}")
        return "\n".join(lines)

    def _summary(self) -> str:
        score = self.to_dict()
        tiny = f" ({score['wrong_and_subnormal']:,} of them subnormal)" if score["wrong_and_subnormal"] else ""
        return f"{self.title}: {score['wrong']:,} of {len(self.x):,} values off by more than {self.limit:g} ulp{tiny}"

    def plot(self) -> "Figure":
        """Return a figure with the errors over the inputs."""
        figure = new_figure("a plot of errors", figsize=(8, 3.6), layout="constrained")
        axes = figure.subplots()
        off = np.isfinite(self.x) & np.isfinite(self.ulp) & (self.ulp > 0)
        axes.plot(self.x[off], self.ulp[off], ".", markersize=2, rasterized=True)
        axes.axhline(self.limit, color="tab:red", linewidth=0.8)
        axes.set_xscale("symlog", linthresh=2.0**-10)
        axes.set_yscale("symlog", linthresh=1.0)
        axes.set(xlabel="x", ylabel="error in ulp", title=self.title)
        return figure


def score_vectors(
    function: Callable[[Any], Any], vectors: Vectors | str | os.PathLike[str], *, order: int = 0, limit: float = 1
) -> Score:
    """Compare a function's values with correctly rounded ones.

    An error is counted in numbers of the dtype from one value to the other (ulp): 0 and minus 0 are one number, and
    infinity follows the largest. A correctly rounded function has none, a faithfully rounded one at most 1.

    Args:
        function: From tensor to tensor, or from NumPy array to NumPy array, of any size.
        vectors: What `write_vectors` returned, or its ``.npz`` file.
        order: Which derivative of the activation the function is: 0, 1 or 2.
        limit: How many ulp pass.

    Returns:
        The errors.

    Raises:
        ArgumentError: If there is no such order.
        AuditError: If the function cannot be called, changes the shape, is random, or is not elementwise.
        DataError: If there is no such file, or it holds something else.

    Example:
        >>> import tempfile
        >>> from lit_gelu.audit import write_vectors
        >>> vectors = write_vectors("relu6", "bf16", tempfile.mkdtemp())
        >>> print(score_vectors(lambda x: x.clamp(0, 6.125), vectors))
        f of relu6 in bfloat16: 16,063 of 65,536 values off by more than 1 ulp
             exact ulp   49,472
                 1 ulp        1
                 2 ulp        1
              3-10 ulp   16,062
          worst: x = 6.125: 6.125 instead of 6, 4 ulp
          first wrong: x = 6.0625: 6.0625 instead of 6, 2 ulp
    """
    if order not in range(len(_NAMES)):
        raise ArgumentError(f"order={shown(order)} is not accepted. Give 0, 1 or 2.")
    if not isinstance(vectors, Vectors):
        vectors = read_vectors(vectors)
    form = FORMATS[vectors.dtype]
    x, expected = vectors.numbers("x"), vectors.numbers(_NAMES[order])
    format = FloatFormat(form.dtype)  # noqa: A001 - what it is
    values = format.rounded(BlackBox(function, format)(x.double())).to(form.dtype)

    def place(numbers: Tensor) -> Tensor:
        patterns = numbers.view(form.integers).long()
        return torch.where(patterns < 0, -(patterns & (form.sign - 1)), patterns)

    ulp = (place(values) - place(expected)).abs().double()
    ulp[expected.isnan()] = 0
    ulp[values.isnan() != expected.isnan()] = torch.inf
    sizes = torch.stack([x, expected]).abs()
    tiny = ((sizes > 0) & (sizes < torch.finfo(form.dtype).smallest_normal)).any(0)
    title = f"{_NAMES[order]} of {vectors.spec} in {vectors.dtype}"
    numbers = {"x": x, "values": values, "expected": expected, "ulp": ulp}
    arrays = {name: array.double().numpy() for name, array in numbers.items()}
    return Score(title, limit, subnormal=tiny.numpy(), **arrays)
