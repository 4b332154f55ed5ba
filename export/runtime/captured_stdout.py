"""What libraries print, kept from the caller's terminal."""

import contextlib
import io
import threading
from collections.abc import Iterator

_lock = threading.RLock()


@contextlib.contextmanager
def captured_stdout() -> Iterator[io.StringIO]:
    """Collect what is printed; one thread at a time, for ``sys.stdout`` is the process's."""
    # Two threads that overlap would each put back what they found, and the second one would leave the first one's.
    with _lock, contextlib.redirect_stdout(io.StringIO()) as said:
        yield said
