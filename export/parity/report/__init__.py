"""What `check_parity` found, as data, and as tables, a page and lines for a terminal."""

from lit_gelu.export.parity.report.parity_report import SCHEMA_VERSION, ParityReport

__all__ = ["SCHEMA_VERSION", "ParityReport"]
