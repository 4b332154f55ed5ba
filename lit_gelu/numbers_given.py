"""Whether an argument is a number of some kind, for those who refuse it where it is not."""

import math
from numbers import Integral, Real


def is_number(value: object) -> bool:
    """Return whether an argument is a finite number; no bool is meant as one."""
    return not isinstance(value, bool) and isinstance(value, Real) and math.isfinite(value)


MOST_SEED = 2**32 - 1
"""The largest seed that NumPy's generator takes, and so `seed_everything`."""


def is_count(value: object, least: int = 0) -> bool:
    """Return whether an argument is an integer that is large enough; no bool is meant as one."""
    return not isinstance(value, bool) and isinstance(value, Integral) and int(value) >= least
