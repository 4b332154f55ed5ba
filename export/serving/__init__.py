"""An exported file in the layout that a server reads: a model repository of Triton Inference Server."""

from lit_gelu.export.serving.layout import TritonRepositoryError
from lit_gelu.export.serving.repository import TritonModel, write_triton_repository

__all__ = ["TritonModel", "TritonRepositoryError", "write_triton_repository"]
