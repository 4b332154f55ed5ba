"""One comparison at a time in a folder: two would make the same runs, and write to the same files."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from lit_gelu.files import UnwritablePathError
from lit_gelu.replicas.choice.errors import FolderInUseError

LOCK_FILE = ".lock"


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other comparisons out of a folder, which is made if it is not there.

    The lock goes with its process, however that ends.

    Args:
        folder: Where runs are kept.

    Yields:
        Nothing.

    Raises:
        FolderInUseError: If another comparison is at work in it.
        UnwritablePathError: If it cannot be written to.
    """
    lock = FileLock(folder / LOCK_FILE)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=0)
    except Timeout:
        raise FolderInUseError(
            f"Another comparison is at work in {str(folder.parent)!r}. Wait for it, or give another folder (folder=, "
            "--output)."
        ) from None
    except (OSError, ValueError) as error:  # ValueError: a path with NUL
        reason = getattr(error, "strerror", None) or error
        raise UnwritablePathError(
            f"Cannot write to {str(folder)!r}: {reason}. Give a folder that you may write to."
        ) from error
    try:
        yield
    finally:
        lock.release()
