"""Arguments that a data module refuses, each with the remedy."""

from collections.abc import Sequence

from lit_gelu.data.errors import DataArgumentError


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
