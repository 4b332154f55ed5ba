"""Which activation is it? What a function, a file or a model really computes."""

from lit_gelu.audit.identify import Candidate, Identification, identify
from lit_gelu.audit.number_format import QuantizedDtype

__all__ = ["Candidate", "Identification", "QuantizedDtype", "identify"]
