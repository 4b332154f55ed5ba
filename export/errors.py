"""The errors of the export under the names that its own modules had for them."""

from lit_gelu.errors import ArgumentError, ExportError, ModelFileError, ModelInputError, ParityError, ProviderError

__all__ = ["ExportError", "ExportOptionError", "ModelFileError", "ModelInputError", "ParityError", "ProviderError"]

ExportOptionError = ArgumentError
