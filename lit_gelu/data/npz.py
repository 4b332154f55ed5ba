"""``.npz`` files: read safely, whoever wrote them (only numbers, no more than a file holds), and results kept there."""

import contextlib
import math
import os
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from lightning.pytorch.utilities import rank_zero_info

from lit_gelu.errors import DataError, message_of
from lit_gelu.files import UnwritablePathError, is_file, require_no_pipe, write_atomically

Arrays = Mapping[str, npt.NDArray[np.generic]]
# Bytes for each byte in the file: deflate packs at most 258 bytes in 2 bits (RFC 1951). numpy writes no other kind.
_EXPANSION = {zipfile.ZIP_STORED: 1, zipfile.ZIP_DEFLATED: 1032}
# What zipfile and numpy raise for files that are cut short, changed, encrypted or of another kind.
_UNREADABLE = (
    EOFError,
    LookupError,
    MemoryError,
    OSError,
    OverflowError,
    RuntimeError,
    TypeError,
    ValueError,
    struct.error,
    tokenize.TokenError,
    zipfile.BadZipFile,
    zlib.error,
)


def load_arrays(path: Path, names: Collection[str] | None = None) -> Arrays:
    """Return the arrays of numbers of an ``.npz`` file, all or those of ``names`` that it has; nothing is unpickled."""
    try:
        require_no_pipe(path)
        with path.open("rb") as stream, zipfile.ZipFile(stream) as archive:
            members = archive.infolist()
            # Sizes that the file cannot hold: what reads it asks for so much memory beforehand.
            for member in members:
                most = _EXPANSION.get(member.compress_type, 0) * member.compress_size
                if member.file_size > most:
                    raise ValueError(f"{member.filename!r} claims {member.file_size} bytes and can hold {most}")
            if sum(member.compress_size for member in members) > path.stat().st_size:
                raise ValueError("its members claim more than the whole file")
            return {
                name: _read(archive, member)
                for member in members
                if (name := member.filename.removesuffix(".npy")) != member.filename
                and (names is None or name in names)
            }
    except _UNREADABLE as error:
        raise DataError(
            f"{str(path)!r} cannot be read as an .npz file of numbers ({message_of(error)}): it is truncated, damaged, "
            "of another kind, or holds Python objects. Put a good copy in its place."
        ) from error


def _read(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> npt.NDArray[np.generic]:
    with archive.open(member) as stream:
        version = np.lib.format.read_magic(stream)
        read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read_header(stream)
        content_size = member.file_size - stream.tell()
    # Beforehand, because numpy allocates whatever a header claims.
    if dtype.kind not in "biufc" or min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize != content_size:
        raise ValueError(f"{member.filename!r} says shape {shape} of {dtype} and holds {content_size} bytes")
    with archive.open(member) as stream:
        array: npt.NDArray[np.generic] = np.lib.format.read_array(stream, allow_pickle=False)
    return array


def kept_arrays(name: str, folder: Path | None, parts: Sequence[str], compute: Callable[[], Arrays]) -> Arrays:
    """Return the arrays of the file NAME.npz if they have the names of all parts, or compute and write them."""
    # The name has to change with whatever the arrays depend on. The default folder is not that of the data, which is
    # often shared and read-only; where it cannot be written to, the arrays are computed in each run.
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()) / "lit_gelu"
    path = (cache if folder is None else folder) / f"{name}.npz"
    if is_file(path):
        with contextlib.suppress(DataError):
            cached = load_arrays(path)
            if set(cached) == set(parts):
                return cached
        rank_zero_info(f"{str(path)!r} is damaged; what it held is computed anew.")
    arrays = compute()
    try:
        with write_atomically(path) as temporary:
            np.savez(temporary, **arrays)  # type: ignore[arg-type] # numpy's stub takes a name for its own option
    except UnwritablePathError as error:
        if folder is not None:
            raise
        rank_zero_info(f"{path.name} is not kept for the next run: {error} (cache=)")
    return arrays
