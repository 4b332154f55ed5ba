"""What a proof that failed raises."""

from lit_gelu.errors import LitGeluError
from lit_gelu.export.parity.report import ParityReport


class ParityError(LitGeluError, AssertionError):
    """The file does not compute what the module computes.

    Args:
        message: Which comparisons failed, by how much, and what to look at.
        report: All comparisons, those that passed too.
    """

    def __init__(self, message: str, report: ParityReport) -> None:
        super().__init__(message)
        self.report = report
