"""What goes wrong when a data set is read, and arguments that a data module refuses."""

from collections.abc import Sequence

from lit_gelu.errors import ArgumentError, DataError

__all__ = ["CorruptDataError", "DataArgumentError", "DataError", "DataNotFoundError"]


class DataNotFoundError(DataError, FileNotFoundError):
    """Files that are not where the caller said."""


class CorruptDataError(DataError):
    """A file that is truncated, damaged or of another kind than its name says."""


class DataArgumentError(DataError, ArgumentError):
    """An argument of a data module with a value that it does not take."""


def check_count(name: str, value: int, lowest: int) -> None:
    """Refuse what is no count."""
    if isinstance(value, bool) or not isinstance(value, int) or value < lowest:
        raise DataArgumentError(f"{name}={value!r} is not accepted. Give an integer of at least {lowest}.")


def check_flags(**given: bool) -> None:
    """Refuse what is neither True nor False: the text "no" would count as True."""
    for name, value in given.items():
        if not isinstance(value, bool):
            raise DataArgumentError(f"{name}={value!r} is not accepted. Give True or False.")


def check_one_of(accepted: Sequence[str], **given: str) -> None:
    """Refuse words that are not among those that are known."""
    for name, value in given.items():
        if value not in accepted:
            raise DataArgumentError(f"{name}={value!r} is not accepted. Give one of {', '.join(map(repr, accepted))}.")
