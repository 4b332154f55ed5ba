"""TIMIT: frames of read speech and their phones."""

from lit_gelu.data.timit.data_module import TIMITData

__all__ = ["TIMITData"]
