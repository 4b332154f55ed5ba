"""What arguments are: numbers of some kind, names and patterns, one of some words."""

import math
from collections.abc import Iterable, Sequence
from numbers import Integral, Real

from lit_gelu.errors import ArgumentError, shown


def is_number(value: object) -> bool:
    """Return whether an argument is a finite number; no bool is meant as one."""
    return not isinstance(value, bool) and isinstance(value, Real) and math.isfinite(value)


MOST_SEED = 2**32 - 1
"""The largest seed that NumPy's generator takes, and so `seed_everything`."""


def is_count(value: object, least: int = 0) -> bool:
    """Return whether an argument is an integer that is large enough; no bool is meant as one."""
    return not isinstance(value, bool) and isinstance(value, Integral) and int(value) >= least


def names_of(option: str, value: object) -> tuple[str, ...]:
    """Return one name or several as a tuple; refuse all else."""
    names = (value,) if isinstance(value, str) else tuple(value) if isinstance(value, Iterable) else (None,)
    texts = tuple(name for name in names if isinstance(name, str))
    if len(texts) < len(names):
        raise ArgumentError(f"{option}={shown(value)} is not accepted. Give a text, or a list of texts.")
    return texts


def name_of(option: str, value: object) -> str:
    """Return a name; refuse what is no text."""
    if not isinstance(value, str):
        raise ArgumentError(f"{option}={shown(value)} is not accepted. Give a text.")
    return value


def check_one_of(accepted: Sequence[str], **arguments: str) -> None:
    """Refuse a word that is not one of the accepted ones."""
    for name, value in arguments.items():
        if value not in accepted:
            raise ArgumentError(f"{name}={shown(value)} is not accepted. Give one of {', '.join(map(repr, accepted))}.")


def check_count(name: str, value: int, least: int) -> None:
    """Refuse anything but an integer that is large enough."""
    if not is_count(value, least):
        raise ArgumentError(f"{name}={shown(value)} is not accepted. Give an integer of at least {least}.")


def check_flags(**arguments: bool) -> None:
    """Refuse what is neither True nor False: the text "no" would count as True."""
    for name, value in arguments.items():
        if not isinstance(value, bool):
            raise ArgumentError(f"{name}={shown(value)} is not accepted. Give True or False.")
