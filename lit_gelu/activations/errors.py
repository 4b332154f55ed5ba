"""What can go wrong when an activation is named, registered or written down."""

from lit_gelu.errors import ArgumentError, LitGeluError, SpecError, UnknownActivationError

__all__ = ["ActivationArgumentError", "ActivationSpecError", "UnknownActivationError"]

ActivationSpecError = SpecError


class StoredSpecError(ActivationSpecError):
    """A spec out of a file that is no registered name: files are looked up, and can neither import nor call."""


class ActivationArgumentError(ArgumentError):
    """A keyword or value that the named activation does not take."""


class DifferentChannelsError(ActivationArgumentError):
    """An activation with a function of its own for every channel, where it is to be one function of one number."""


class DuplicateActivationError(LitGeluError, ValueError):
    """A name that is taken already."""


class OpaqueActivationError(LitGeluError, ValueError):
    """Something never registered, asked for where only a registered name can be written down and built again."""


class UnknownArgumentsError(LitGeluError, ValueError):
    """A module of which it is not known with which arguments it could be built again, or computes now."""


class NoGaussianMomentsError(ActivationArgumentError):
    """An activation whose expectations over normal pre-activations, or the gains made of them, do not exist."""


class UnknownLibraryError(LitGeluError, ValueError):
    """A library that there is no integration with."""


class MissingLibraryError(LitGeluError, ImportError):
    """A library that is not installed."""


class AlreadyInstalledError(LitGeluError, RuntimeError):
    """Other names are in the library's tables already."""
