"""Reading idx files, the format of MNIST: a header (magic number, sizes), then the values."""

import gzip
import hashlib
import math
import zlib
from pathlib import Path

import torch
from torch import Tensor

from lit_gelu.data.errors import CorruptDataError, DataNotFoundError
from lit_gelu.files import is_file

_UNSIGNED_BYTE = 0x08


def find_idx(path: Path) -> Path | None:
    """Return the file that holds an idx array: ``path`` itself, or ``path`` with ``.gz`` added."""
    packed = path.with_name(f"{path.name}.gz")
    return next((file for file in (path, packed) if is_file(file)), None)


def read_idx(path: Path, shape: tuple[int, ...], sha256: str | None = None) -> Tensor:
    """Read an idx file of unsigned bytes; a packed file is read without writing anything."""
    # The header is ``0, 0, 8, number of dimensions`` as bytes, then each size as a big-endian unsigned 32-bit integer
    # (http://yann.lecun.com/exdb/mnist/, "File formats").
    file = find_idx(path)
    if file is None:
        raise DataNotFoundError(f"No file {str(path)!r}, and none with .gz added.")
    header = bytes([0, 0, _UNSIGNED_BYTE, len(shape)]) + b"".join(size.to_bytes(4, "big") for size in shape)
    expected = len(header) + math.prod(shape)
    content = _content(file, expected + 1)
    if content[: len(header)] != header:
        raise CorruptDataError(
            f"{str(file)!r} does not begin as an idx file of unsigned bytes of shape {shape}: its first bytes are "
            f"{content[: len(header)].hex(' ') or 'none'}, expected {header.hex(' ')}. {_remedy(file)}"
        )
    if len(content) != expected:
        size = f"truncated: it holds {len(content)}" if len(content) < expected else "too long: it holds more"
        raise CorruptDataError(
            f"{str(file)!r} is {size} bytes{' unpacked' if file.suffix == '.gz' else ''}, expected {expected}. "
            f"{_remedy(file)}"
        )
    digest = None if sha256 is None else hashlib.sha256(content).hexdigest()
    if digest != sha256:
        raise CorruptDataError(
            f"{str(file)!r} has the right form, but not the right content: its SHA-256 digest is {digest}, expected "
            f"{sha256}. {_remedy(file)} If it is another data set of this form, give checksum=False."
        )
    # A bytearray is writable, which torch asks of a buffer that it shares.
    return torch.frombuffer(bytearray(content[len(header) :]), dtype=torch.uint8).reshape(shape)


def _content(file: Path, most: int) -> bytes:
    """Return the unpacked content of ``file``, or its beginning: a small packed file may hold gigabytes."""
    try:
        with gzip.open(file) if file.suffix == ".gz" else file.open("rb") as stream:
            return stream.read(most)
    except (EOFError, OSError, zlib.error) as error:
        verb = "unpacked" if file.suffix == ".gz" else "read"
        raise CorruptDataError(f"{str(file)!r} cannot be {verb} ({error}). {_remedy(file)}") from error


def _remedy(file: Path) -> str:
    return f"Delete {file.name} and download it again (download=True), or put a good copy in its place."
