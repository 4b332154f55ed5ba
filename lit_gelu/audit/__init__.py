"""Which activation is it? What a function, a file or a model really computes."""

from lit_gelu.audit.identify import Candidate, Identification, identify
from lit_gelu.audit.score import Score, score_vectors
from lit_gelu.audit.vectors import Vectors, read_vectors, write_vectors

__all__ = [
    "Candidate",
    "Identification",
    "Score",
    "Vectors",
    "identify",
    "read_vectors",
    "score_vectors",
    "write_vectors",
]
