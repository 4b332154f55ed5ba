"""Files that are written so that nothing that existed is lost, JSON that may come from anybody, and what is printed."""

import errno
import io
import json
import logging
import math
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout, suppress
from pathlib import Path
from typing import Any

from lit_gelu.errors import LitGeluError

_FULL = {errno.ENOSPC, errno.EFBIG, errno.EDQUOT}  # the disk, the largest file allowed, the user's share
_stdout_lock = threading.RLock()


class UnwritablePathError(LitGeluError, OSError):
    """The file cannot be written where the caller asked."""


def is_file(path: str | os.PathLike[str]) -> bool:
    """Tell whether there is a file, without an error for what can be no file: a name that is too long or holds NUL."""
    return os.path.isfile(path)  # noqa: PTH113 - Path.is_file raises for names that are too long


def is_folder(path: str | os.PathLike[str]) -> bool:
    """Tell whether there is a folder; see `is_file`."""
    return os.path.isdir(path)  # noqa: PTH112 - Path.is_dir raises for names that are too long


def is_special(path: str | os.PathLike[str]) -> bool:
    """Tell whether there is something that is neither file nor folder: a device, a pipe, a socket."""
    return os.path.exists(path) and not is_file(path) and not is_folder(path)  # noqa: PTH110 - see `is_file`


def require_no_pipe(path: str | os.PathLike[str]) -> None:
    """Refuse a device or a pipe, for whose content a reader would wait."""
    if is_special(path):
        raise OSError(errno.EINVAL, "a device or a pipe, and no file", os.fspath(path))


@contextmanager
def write_atomically(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path in the folder of ``path``; on success it takes the place of ``path`` in one rename."""
    # Missing folders are made. If the body raises, the temporary file is removed and what was at the path stays as it
    # was. What was written is on the disk before it takes that place, so that a power cut leaves one of the two. The
    # temporary name keeps the path's suffix, because writers such as matplotlib choose a format by it.
    # A link stays, and the file that it names is replaced.
    target = _linked(path)
    temporary = _reserve(target)
    try:
        yield temporary
        synchronise(temporary)
        temporary.replace(target)
        synchronise(target.parent)
    except OSError as error:
        if error.errno not in _FULL or isinstance(error, UnwritablePathError):
            raise
        raise UnwritablePathError(
            f"Cannot write {str(target)!r}: {error.strerror}. Make room on that disk, or raise the limit on the "
            "size of files, or give a path on another disk. What was there before is unchanged."
        ) from error
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def temporary_folder(target: Path) -> Iterator[Path]:
    """Yield a new folder beside ``target``, which goes at the end if it was not moved away."""
    folder = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.stem[:80]}-", suffix=target.suffix))
    folder.chmod(0o777 & ~_umask())
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def require_writable(path: str | os.PathLike[str]) -> None:
    """Find out early whether `write_atomically` could begin: before the work whose result is to be written."""
    _reserve(_linked(path)).unlink()


def synchronise(path: Path) -> None:
    """Have a file's content, or a folder's entries, written to the disk."""
    if path.is_dir() and not hasattr(os, "O_DIRECTORY"):
        return
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def parse_json(text: str | bytes) -> Any:
    """Read JSON of any origin: whatever is wrong with it is a ``ValueError``."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error


def without_nonfinite(value: Any, *, as_text: bool) -> Any:
    """Return plain data for JSON, which has no word for NaN and infinities: text takes their place, or ``None``."""
    if isinstance(value, Mapping):
        return {key: without_nonfinite(entry, as_text=as_text) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [without_nonfinite(entry, as_text=as_text) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value) if as_text else None
    return value


def _umask() -> int:
    """Return the process's umask (readable only by setting it)."""
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _linked(path: str | os.PathLike[str]) -> Path:
    return Path(os.path.realpath(path)) if os.path.islink(path) else Path(path)  # noqa: PTH114 - see `is_file`


def _reserve(target: Path) -> Path:
    if is_folder(target) or is_special(target):
        kind = "it is a folder" if is_folder(target) else "it is a device or a pipe"
        raise UnwritablePathError(f"Cannot write {str(target)!r}: {kind}. Give a path that ends in a file name.")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):
            target.lstat()  # a name that is too long: the temporary one is shorter, and the rename comes after the work
        descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.stem[:80]}-", suffix=target.suffix)
        if hasattr(os, "fchmod"):
            os.fchmod(descriptor, 0o666 & ~_umask())
        os.close(descriptor)
        return Path(name)
    except (OSError, ValueError) as error:  # ValueError: a path with NUL
        reason = getattr(error, "strerror", None) or error
        raise UnwritablePathError(
            f"Cannot write {str(target)!r}: {reason}. Give a path in a folder that you may write to."
        ) from error


@contextmanager
def captured_stdout() -> Iterator[io.StringIO]:
    """Collect what libraries print; one thread at a time, for ``sys.stdout`` is the process's."""
    # Two threads that overlap would each put back what they found, and the second one would leave the first one's.
    with _stdout_lock, redirect_stdout(io.StringIO()) as printed:
        yield printed


@contextmanager
def quiet(logger: str = "") -> Iterator[None]:
    """Keep a logger, by default the root one, from what is less than an error."""
    one = logging.getLogger(logger)
    level = one.level
    one.setLevel(logging.ERROR)
    try:
        yield
    finally:
        one.setLevel(level)
