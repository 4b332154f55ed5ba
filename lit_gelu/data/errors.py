"""What can go wrong when a data set is read."""

from lit_gelu.errors import ArgumentError, DataError

__all__ = ["CorruptDataError", "DataArgumentError", "DataError", "DataNotFoundError"]


class DataNotFoundError(DataError, FileNotFoundError):
    """Files that are not where the caller said."""


class CorruptDataError(DataError):
    """A file that is truncated, damaged or of another kind than its name says."""


class DataArgumentError(DataError, ArgumentError):
    """An argument of a data module with a value that it does not take."""
