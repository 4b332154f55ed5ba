"""Names of today for what is in `lit_gelu.errors`."""

from lightning.pytorch import Callback

from lit_gelu.errors import ArgumentError, UnsupportedRunError

CallbackArgumentError = ArgumentError
ExplainedOnce = Callback
__all__ = ["CallbackArgumentError", "ExplainedOnce", "UnsupportedRunError"]
