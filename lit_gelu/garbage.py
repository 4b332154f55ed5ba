"""Imports without searches for garbage."""

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def collection_paused() -> Iterator[None]:
    """Search for no garbage in this block."""
    # Torch and Lightning make half a million objects when they are imported, and these stay: looking through them again
    # and again takes a fifth of the time.
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
