"""What can go wrong between a module, its ONNX file and a runtime. Each message names the remedy."""

from lit_gelu.errors import LitGeluError


class ExportError(LitGeluError, RuntimeError):
    """The module cannot be written as an ONNX graph; the exporter's own error is chained as the cause."""


class ExportOptionError(LitGeluError, ValueError):
    """An export option has a value that does not exist, or one that does not fit this module."""


class ModelInputError(LitGeluError, ValueError):
    """An input does not fit the module or the file: its name, shape or dtype."""


class ModelFileError(LitGeluError, ValueError):
    """A file is missing, is no ONNX model, is damaged, or was not written by lit-gelu where that is needed."""


class ProviderError(LitGeluError, RuntimeError):
    """An execution provider does not exist in this installation or did not take the model."""
