"""Which activation is it? What a function, a file or a model really computes, and what a mismatch costs."""

from lit_gelu.audit.audit import audit
from lit_gelu.audit.cost import Cost
from lit_gelu.audit.identify import Candidate, Identification, identify
from lit_gelu.audit.number_format import QuantizedDtype
from lit_gelu.audit.report import AuditReport, AuditRow
from lit_gelu.audit.score import Score, score_vectors
from lit_gelu.audit.vectors import Vectors, read_vectors, write_vectors
from lit_gelu.errors import AuditError

__all__ = [
    "AuditError", "AuditReport", "AuditRow", "Candidate", "Cost", "Identification", "QuantizedDtype", "Score",
    "Vectors", "audit", "identify", "read_vectors", "score_vectors", "write_vectors",
]  # fmt: skip
