"""Several texts of a kind on standard error, the first ten of them: several folders may hold hundreds."""

import sys
from collections.abc import Sequence

_SHOWN = 10


def say_listed(texts: Sequence[str], what: str) -> None:
    """Say how many there are and what they are, and show the first; nothing if there is none."""
    if texts:
        more = [f"and {len(texts) - _SHOWN} more"] if len(texts) > _SHOWN else []
        sys.stderr.write("\n  ".join([f"{len(texts)} {what}:", *texts[:_SHOWN], *more]) + "\n")
