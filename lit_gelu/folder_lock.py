"""One process at a time in a folder: two would make the same runs, and write to the same files."""

from pathlib import Path

from filelock import FileLock, Timeout

from lit_gelu.files import UnwritablePathError

LOCK_FILE = ".lock"


def lock_folder(folder: Path, in_use: Exception) -> FileLock:
    """Return the lock of a folder, which is made if it is not there; ``in_use`` is raised if another process has it.

    The lock goes with its process, however that ends.

    Args:
        folder: What is to be kept for this process.
        in_use: The error for a folder that is taken.

    Returns:
        The lock, acquired; ``release()`` gives the folder free.

    Raises:
        Exception: ``in_use``, if another process has the lock.
        UnwritablePathError: If the folder cannot be written to.
    """
    lock = FileLock(folder / LOCK_FILE)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=0)
    except Timeout:
        raise in_use from None
    except (OSError, ValueError) as error:  # ValueError: a path with NUL
        reason = getattr(error, "strerror", None) or error
        raise UnwritablePathError(
            f"Cannot write to {str(folder)!r}: {reason}. Give a folder that you may write to."
        ) from error
    return lock
