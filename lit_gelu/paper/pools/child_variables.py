"""What new processes are born with: environment variables, which libraries read when they are loaded, and signals."""

import contextlib
import os
import signal
import threading
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


@contextlib.contextmanager
def interrupts_ignored() -> Iterator[None]:
    """Start processes that ignore Ctrl-C from their first moment: what is ignored stays so in a new process."""
    if threading.current_thread() is not threading.main_thread():  # only it may set handlers
        yield
        return
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
