"""What can go wrong between a module, its ONNX file and a runtime. Each message names the remedy."""

from lit_gelu.errors import ArgumentError, ExportError, ModelFileError, ModelInputError, ParityError, ProviderError

__all__ = ["ExportError", "ExportOptionError", "ModelFileError", "ModelInputError", "ParityError", "ProviderError"]

ExportOptionError = ArgumentError
