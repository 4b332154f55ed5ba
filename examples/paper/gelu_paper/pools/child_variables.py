"""Environment variables that new processes are born with: libraries read them once, when they are loaded."""

import contextlib
import os
from collections.abc import Iterator, Mapping

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@contextlib.contextmanager
def variables_set(values: Mapping[str, str]) -> Iterator[None]:
    """Start processes that have these variables; afterwards this process has those it had."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def threads_limited(threads: int) -> dict[str, str]:
    """Return the variables with which linear algebra uses so many threads."""
    return dict.fromkeys(THREAD_VARIABLES, str(threads))
