"""Temporary files whose process was killed while it wrote them: known by their names, removed by the next write."""

import contextlib
import hashlib
import os
import re
import socket
import tempfile
from pathlib import Path

_LONGEST = 80  # characters of the target's name within the temporary one's, which must not become too long itself
_writing: set[str] = set()  # the names of this process's own


def make_temporary(target: Path) -> Path:
    """Make an empty temporary file beside a target, after removing those that killed processes left there for it.

    Its name, ``.STEM-HOST-PROCESS-RANDOM.SUFFIX``, says whose it is: one whose process on this machine has ended is
    nobody's.

    Args:
        target: What will be written.

    Returns:
        The file, with the permissions that ``open`` would give; `forget` it when it is gone.

    Raises:
        OSError: If it cannot be made.
        ValueError: If the path holds NUL.
    """
    _remove(target)
    descriptor, name = tempfile.mkstemp(
        dir=target.parent, prefix=f"{_beginning(target)}{os.getpid()}-", suffix=target.suffix
    )
    _writing.add(name)
    if hasattr(os, "fchmod"):
        os.fchmod(descriptor, 0o666 & ~_umask())
    os.close(descriptor)
    return Path(name)


def forget(temporary: Path) -> None:
    """Remove a temporary file, if it is still there.

    Args:
        temporary: What `make_temporary` gave.
    """
    temporary.unlink(missing_ok=True)
    _writing.discard(str(temporary))


def _beginning(target: Path) -> str:
    """Return what the names of this machine's temporary files for a target begin with."""
    host = hashlib.sha256(socket.gethostname().encode()).hexdigest()[:8]
    return f".{target.stem[:_LONGEST]}-{host}-"


def _remove(target: Path) -> None:
    """Remove what killed processes of this machine left of writing a target."""
    if os.name != "posix":
        return  # os.kill(process, 0), which asks whether a process is there, ends it on Windows
    name = re.compile(rf"{re.escape(_beginning(target))}(\d+)-\w+{re.escape(target.suffix)}")
    with contextlib.suppress(OSError), os.scandir(target.parent) as entries:
        found = [(entry.path, match) for entry in entries if (match := name.fullmatch(entry.name))]
        for path, match in found:
            if path not in _writing and not _is_alive(int(match[1])):
                Path(path).unlink(missing_ok=True)


def _is_alive(process: int) -> bool:
    """Return whether another process is there; this one knows its own files."""
    if process == os.getpid():
        return False
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def _umask() -> int:
    """Return the process's umask (readable only by setting it)."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
