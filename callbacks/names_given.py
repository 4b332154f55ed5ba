"""Names and patterns that a callback is given: one, or several in a list."""

from collections.abc import Iterable

from lit_gelu.errors import ArgumentError, shown


def names_given(option: str, value: object) -> tuple[str, ...]:
    """Return one name or several as a tuple; refuse all else."""
    names = (value,) if isinstance(value, str) else tuple(value) if isinstance(value, Iterable) else (None,)
    texts = tuple(name for name in names if isinstance(name, str))
    if len(texts) < len(names):
        raise ArgumentError(f"{option}={shown(value)} is not accepted. Give a text, or a list of texts.")
    return texts


def name_given(option: str, value: object) -> str:
    """Return a name; refuse what is no text."""
    if not isinstance(value, str):
        raise ArgumentError(f"{option}={shown(value)} is not accepted. Give a text.")
    return value
