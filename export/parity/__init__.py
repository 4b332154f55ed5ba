"""The proof beside a file: what it computes against what the module computes."""

from lit_gelu.export.parity.check import check_parity
from lit_gelu.export.parity.report import SCHEMA_VERSION, ParityReport, ParityRow

__all__ = ["SCHEMA_VERSION", "ParityReport", "ParityRow", "check_parity"]
