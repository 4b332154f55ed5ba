"""Temporary files and folders whose process was killed: known by their names, removed by the next write."""

import contextlib
import hashlib
import os
import re
import shutil
import socket
import tempfile
from pathlib import Path

_LONGEST = 80  # characters of the target's name within the temporary one's, which must not become too long itself
_writing: set[str] = set()  # the names of this process's own


def make_temporary(target: Path) -> Path:
    """Make an empty temporary file beside a target, after removing those that killed processes left there for it."""
    # Its name, ``.STEM-HOST-PROCESS-RANDOM.SUFFIX``, says whose it is: one whose process on this machine has ended is
    # nobody's.
    _remove(target)
    descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=_own_beginning(target), suffix=target.suffix)
    _writing.add(name)
    if hasattr(os, "fchmod"):
        os.fchmod(descriptor, 0o666 & ~_umask())
    os.close(descriptor)
    return Path(name)


def make_temporary_folder(target: Path) -> Path:
    """Make an empty temporary folder; all else is as for `make_temporary`."""
    _remove(target)
    name = tempfile.mkdtemp(dir=target.parent, prefix=_own_beginning(target), suffix=target.suffix)
    _writing.add(name)
    Path(name).chmod(0o777 & ~_umask())
    return Path(name)


def forget(temporary: Path) -> None:
    """Remove a temporary file or folder, if it is still there."""
    _delete(temporary)
    _writing.discard(str(temporary))


def _beginning(target: Path) -> str:
    """Return what the names of this machine's temporary files for a target begin with."""
    host = hashlib.sha256(socket.gethostname().encode()).hexdigest()[:8]
    return f".{target.stem[:_LONGEST]}-{host}-"


def _own_beginning(target: Path) -> str:
    """Return what the names of this process's temporary files for a target begin with."""
    return f"{_beginning(target)}{os.getpid()}-"


def _delete(path: Path) -> None:
    """Remove a file, or a folder with all that is in it."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _remove(target: Path) -> None:
    """Remove what killed processes of this machine left of writing a target."""
    if os.name != "posix":
        return  # os.kill(process, 0), which asks whether a process is there, ends it on Windows
    name = re.compile(rf"{re.escape(_beginning(target))}(\d+)-\w+{re.escape(target.suffix)}")
    with contextlib.suppress(OSError), os.scandir(target.parent) as entries:
        found = [(entry.path, match) for entry in entries if (match := name.fullmatch(entry.name))]
        for path, match in found:
            if path not in _writing and not _is_alive(int(match[1])):
                _delete(Path(path))


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
