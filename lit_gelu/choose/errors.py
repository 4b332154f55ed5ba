"""What can go wrong when activations are compared for a model."""

from lit_gelu.errors import LitGeluError


class ChoiceError(LitGeluError):
    """Every error of this package is one."""


class ChoiceArgumentError(ChoiceError, ValueError):
    """A value that `lit_gelu.choose.choose` does not take."""


class AllRunsFailedError(ChoiceError, RuntimeError):
    """A comparison of which no run came to its end."""


class FolderInUseError(ChoiceError, RuntimeError):
    """A folder in which another comparison is at work."""


class NoFileError(ChoiceError, RuntimeError):
    """A module that no file can be made of, because it does not run on anything that is known."""
