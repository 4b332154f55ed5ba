"""What can go wrong when a data set is read."""

from lit_gelu.errors import LitGeluError


class DataError(LitGeluError):
    """A data set, or an argument about it, that cannot be used as it stands."""


class DataNotFoundError(DataError, FileNotFoundError):
    """Files that are not where the caller said."""


class CorruptDataError(DataError, ValueError):
    """A file that is truncated, damaged or of another kind than its name says."""


class DataArgumentError(DataError, ValueError):
    """An argument of a data module with a value that it does not take."""
