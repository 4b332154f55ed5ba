"""Writing files so that nothing that existed is lost."""

import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lit_gelu.errors import LitGeluError

_FULL = {errno.ENOSPC, errno.EFBIG, errno.EDQUOT}  # the disk, the largest file allowed, the user's share


class UnwritablePathError(LitGeluError, OSError):
    """The file cannot be written where the caller asked."""


@contextmanager
def write_atomically(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path in the folder of ``path``; on success it takes the place of ``path`` in one rename.

    Missing folders are made. If the body raises, the temporary file is removed and what was at ``path`` stays as it
    was. The temporary name keeps the suffix of ``path``, because writers such as matplotlib choose a format by it.

    Args:
        path: The file to write.

    Yields:
        The temporary path to write to.

    Raises:
        UnwritablePathError: If ``path`` is a folder, its folder cannot be made or written to, or there is no space.
        OSError: What else the body raises.

    Example:
        >>> import tempfile, pathlib
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> with write_atomically(folder / "notes.txt") as temporary:
        ...     _ = temporary.write_text("GELU(1) = 0.8413")
        >>> (folder / "notes.txt").read_text()
        'GELU(1) = 0.8413'
    """
    target = Path(path)
    temporary = _reserve(target)
    try:
        yield temporary
        temporary.replace(target)
    except OSError as error:
        if error.errno not in _FULL or isinstance(error, UnwritablePathError):
            raise
        raise UnwritablePathError(
            f"Cannot write {str(target)!r}: {error.strerror}. Make room on that disk, or raise the limit on the "
            "size of files, or give a path on another disk. What was there before is unchanged."
        ) from error
    finally:
        temporary.unlink(missing_ok=True)


def require_writable(path: str | os.PathLike[str]) -> None:
    """Find out early whether `write_atomically` could begin: before the work whose result is to be written.

    Args:
        path: The file; what is there stays. Missing folders are made.

    Raises:
        UnwritablePathError: If ``path`` is a folder, or its folder cannot be made or written to.
    """
    _reserve(Path(path)).unlink()


def _reserve(target: Path) -> Path:
    """Make an empty temporary file beside ``target``, or say why that cannot be done."""
    if target.is_dir():
        raise UnwritablePathError(
            f"Cannot write {str(target)!r}: it is a folder. Give a path that ends in a file name."
        )
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.stem}-", suffix=target.suffix)
        os.fchmod(descriptor, 0o666 & ~_umask()) if hasattr(os, "fchmod") else None
        os.close(descriptor)
    except OSError as error:
        raise UnwritablePathError(
            f"Cannot write {str(target)!r}: {error.strerror or error}. Give a path in a folder that you may write to."
        ) from error
    return Path(name)


def _umask() -> int:
    """Return the process's umask (readable only by setting it)."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
