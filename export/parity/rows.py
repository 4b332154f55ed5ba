"""`ParityRow`: one comparison, of one output, on one family of inputs."""

from dataclasses import dataclass

from lit_gelu.display import Displayed
from lit_gelu.export.parity.criterion import in_limits

VS_PYTORCH = "file vs PyTorch"  # in the file's dtype, which follows: "file vs PyTorch float32"
VS_FLOAT64 = "file vs PyTorch float64"
VS_TRAINED = "approximation gap: file vs module as trained"
TF32_VS_FLOAT64 = "file with TF32 vs PyTorch float64"
ELEMENTWISE = "operator alone vs PyTorch float64"


@dataclass(frozen=True, repr=False)
class ParityRow(Displayed):
    """One comparison of one output on one family of inputs.

    ``error``, ``own`` and ``limit`` are in units of the row's ``scale``; the other errors are absolute.

    Args:
        comparison: What is compared with what.
        inputs: The family of inputs, or the activation for an operator alone.
        output: The file's output; empty for an operator alone.
        count: Rows of input, or values for an operator alone.
        max_abs_error: Largest absolute difference.
        mean_abs_error: Mean absolute difference.
        scale: Largest magnitude of the reference's finite outputs; for extremes at least that on gaussian inputs.
        error: ``max_abs_error / scale``; for an operator alone, the largest ``|y - y64| / max(1, |y64|)``; of whole
            numbers and truth values, the share of entries that differ.
        own: The same of PyTorch in the file's dtype: what that dtype costs anyway; ``None`` if it is not known.
        limit: What ``error`` may be; ``None`` for a row that is reported only.
        spread: PyTorch's largest absolute difference from float64.
        nonfinite: Outputs that are NaN, or infinite where the reference is not, and that PyTorch does not share.
        top1_agreement: Share of rows with the same largest logit, for outputs of shape [batch, classes].
        top1_changes: Rows whose largest logit is another one.
        top1_flips: Those of them where the margin between the reference's two best exceeds twice the error that the
            limit allows: what rounding does not explain.
        extreme: Whether the inputs are far outside the range of data.
        index: The index of the output whose error is largest in units of its limit, such as ``[:, 2]``; empty where
            indices are not judged, which is on extremes.
        index_error: Its largest absolute error; of whole numbers and truth values, the rows in which it differs.
        index_limit: What that may be.
        index_scale: Its largest magnitude in float64, on all inputs that are no extremes; of whole numbers and truth
            values, the number of rows.
        detail: Anything else worth knowing.
        whole_numbers: Whether the output holds whole numbers or truth values.
    """

    comparison: str
    inputs: str
    output: str
    count: int
    max_abs_error: float
    mean_abs_error: float
    scale: float
    error: float
    own: float | None
    limit: float | None
    spread: float | None = None
    nonfinite: int = 0
    top1_agreement: float | None = None
    top1_changes: int | None = None
    top1_flips: int | None = None
    extreme: bool = False
    index: str = ""
    index_error: float = 0.0
    index_limit: float = 0.0
    index_scale: float = 0.0
    detail: str = ""
    whole_numbers: bool = False

    @property
    def gating(self) -> bool:
        """Whether this row decides; reported rows never do."""
        return self.limit is not None

    @property
    def passed(self) -> bool | None:
        """Whether the row is within its limit; ``None`` for a reported row."""
        if self.limit is None:
            return None
        return self.excess <= 1

    @property
    def excess(self) -> float:
        """The error in units of the limit, of the worst index if that is more; 0 for a reported row."""
        if self.limit is None:
            return 0.0
        return float("inf") if self.nonfinite else max(in_limits(self.error, self.limit), self.index_excess)

    @property
    def unit(self) -> str:
        """What `error` is a share of, in words."""
        return "of the entries" if self.whole_numbers else "of the largest output"

    @property
    def index_excess(self) -> float:
        """The error of the worst index in units of its limit."""
        return in_limits(self.index_error, self.index_limit)

    def __str__(self) -> str:
        """Return the comparison in one line."""
        limit = "reported" if self.limit is None else f"limit {self.limit:.3g}"
        where = f"{self.inputs}, {self.output}" if self.output else self.inputs
        parts = [f"{self.comparison}, {where}: error {self.error:.3g} {self.unit} ({limit})"]
        if self.index_excess > 1:
            parts.append(self.index_text())
        if self.nonfinite:
            parts.append(f"{self.nonfinite} values not finite")
        if self.top1_changes:
            parts.append(f"{self.top1_changes} rows changed their largest logit")
        if self.error == float("inf") and self.detail:
            parts.append(self.detail)
        return ", ".join(parts)

    def index_text(self) -> str:
        """Return the worst index with its error and limit, empty where none is judged."""
        if not self.index:
            return ""
        error, limit = self.index_error, self.index_limit
        if self.whole_numbers:
            return f"{self.index} differs in {error:.0f} of {self.index_scale:.0f} rows (limit {limit:.3g})"
        if self.index_scale == 0:
            return f"{self.index} is off by {error:.3g} (limit {limit:.3g})"
        error, limit = error / self.index_scale, limit / self.index_scale
        return f"{self.index} is off by {error:.3g} of its scale {self.index_scale:.3g} (limit {limit:.3g})"

    def _summary(self) -> str:
        return str(self)
