"""`MNISTData`: the 70,000 handwritten digits of LeCun, Cortes and Burges, split as in the GELU paper's code."""

import gzip
import hashlib
import math
import os
import zlib
from pathlib import Path

import torch
from torch import Tensor, nn
from torchvision.datasets import MNIST

from lit_gelu.arguments import check_count, check_flags
from lit_gelu.data.in_memory import InMemoryDataModule, InMemoryImages, data_root, download
from lit_gelu.errors import ArgumentError, DataError
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
        raise DataError(f"No file {str(path)!r}, and none with .gz added.")
    header = bytes([0, 0, _UNSIGNED_BYTE, len(shape)]) + b"".join(size.to_bytes(4, "big") for size in shape)
    expected = len(header) + math.prod(shape)
    remedy = f"Delete {file.name} and download it again (download=True), or put a good copy in its place."
    try:
        with gzip.open(file) if file.suffix == ".gz" else file.open("rb") as stream:
            content = stream.read(expected + 1)  # a small packed file may hold gigabytes
    except (EOFError, OSError, zlib.error) as error:
        raise DataError(f"{str(file)!r} cannot be read ({error}). {remedy}") from error
    if not content.startswith(header) or len(content) != expected:
        raise DataError(f"{str(file)!r} is damaged, or no idx file of unsigned bytes of shape {shape}. {remedy}")
    if sha256 is not None and hashlib.sha256(content).hexdigest() != sha256:
        raise DataError(
            f"{str(file)!r} has the right form, but not the right content: its SHA-256 digest is not {sha256}. "
            f"{remedy} If it is another data set of this form, give checksum=False."
        )
    # A bytearray is writable, which torch asks of a buffer that it shares.
    return torch.frombuffer(bytearray(content[len(header) :]), dtype=torch.uint8).reshape(shape)


VALIDATION_SAMPLES = 5_000
_SAMPLES = {"train": 60_000, "t10k": 10_000}
# Of what is in the packed files whose published MD5 digests torchvision checks.
_SHA256 = {
    "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}


class MNISTData(InMemoryDataModule):
    """MNIST in memory: by default 55,000 training, 5,000 validation and 10,000 test images.

    A batch is ``(images, labels)``: images ``[batch, 1, 28, 28]``, ``torch.float32``, pixel / 255, so in [0, 1] and not
    normalised further; labels ``[batch]``, ``torch.int64``, 0 to 9. The first 5,000 of the original training order are
    validation (Hendrycks and Gimpel's code, TensorFlow's loader). With batches of 128 an epoch has 429 steps. Their
    autoencoder takes all 60,000 for training and validates on none: ``validation=0``, 937 steps with batches of 64.

    The files are torchvision's: ``ROOT/MNIST/raw/train-images-idx3-ubyte`` and so on. Where only the packed ``.gz`` are
    there, they are read as they are; nothing is written, so the folder may be read-only. What is read is compared with
    the published files' checksums (0.1 s); a set of the same form, such as Fashion-MNIST, needs ``checksum=False``.

    Args:
        root: Folder that holds ``MNIST/raw``. ``None`` means the environment variable ``LIT_GELU_DATA``, or ``data``.
        batch_size: Samples in a batch.
        download: Whether to download what is missing (12 MB, checked by checksum) when the Trainer prepares the data.
        validation: How many of the first training images are held out for validation; 0 holds out none.
        checksum: Whether the files must be MNIST's, byte for byte.

    Raises:
        ArgumentError: If an argument is not accepted.

    Example:
        >>> MNISTData(root="data", batch_size=128).folder.as_posix()
        'data/MNIST/raw'
    """

    def __init__(
        self,
        root: str | os.PathLike[str] | None = None,
        batch_size: int = 128,
        download: bool = False,
        validation: int = VALIDATION_SAMPLES,
        checksum: bool = True,
    ) -> None:
        super().__init__(batch_size)
        check_count("validation", validation, 0)
        if validation >= _SAMPLES["train"]:
            raise ArgumentError(f"validation={validation} of 60,000 training images would leave none to train on.")
        check_flags(download=download, checksum=checksum)
        self.validation = validation
        self.save_hyperparameters({"validation": validation})
        self.root = data_root(root)
        self.download = download
        self.checksum = checksum

    @property
    def folder(self) -> Path:
        """The folder with the four files."""
        return self.root / "MNIST" / "raw"

    def prepare_data(self) -> None:
        """Download missing files, if asked to; else make sure that they are there."""
        paths = [self._path(part, content) for part in _SAMPLES for content in ("images", "labels")]
        missing = [path.name for path in paths if find_idx(path) is None]
        if not missing:
            return
        if not self.download:
            raise DataError(
                f"MNIST is not in {str(self.folder)!r} (missing: {', '.join(missing)}, packed or not). Give root=, or "
                "set the environment variable LIT_GELU_DATA, to the folder that holds MNIST/raw; or download it with "
                "download=True (--data.download true)."
            )
        download(MNIST, self.root)

    def load_train_and_val(self) -> tuple[InMemoryImages, InMemoryImages]:
        """Read the 60,000 training images and take the first of them for validation."""
        images, labels = self._read("train")
        return (
            InMemoryImages(images[self.validation :], labels[self.validation :]),
            InMemoryImages(images[: self.validation], labels[: self.validation]),
        )

    def load_test(self) -> InMemoryImages:
        """Read the 10,000 test images."""
        return InMemoryImages(*self._read("t10k"))

    def preprocessing(self) -> nn.Module:
        """Return the module from pixels, ``torch.uint8``, to what the model takes; it reads no data."""
        return UnitPixels()

    def raw_train_inputs(self) -> Tensor:
        """Read all training images before the preprocessing, ``[60000, 1, 28, 28]``, ``torch.uint8``."""
        return self._array("train", "images", 28, 28).unsqueeze(1)

    def raw_test_inputs(self) -> Tensor:
        """Read the test images before the preprocessing, ``[10000, 1, 28, 28]``, ``torch.uint8``."""
        return self._array("t10k", "images", 28, 28).unsqueeze(1)

    def _read(self, part: str) -> tuple[Tensor, Tensor]:
        pixels, labels = self._array(part, "images", 28, 28).unsqueeze(1), self._array(part, "labels")
        if int(labels.max()) > 9:
            raise DataError(f"{str(self._path(part, 'labels'))!r} holds labels above 9. Put a good copy in its place.")
        return self.preprocessing()(pixels), labels.long()

    def _array(self, part: str, content: str, *size: int) -> Tensor:
        self.prepare_data()  # files may be missing on a node where Lightning has not called it
        path = self._path(part, content)
        return read_idx(path, (_SAMPLES[part], *size), _SHA256[path.name] if self.checksum else None)

    def _path(self, part: str, content: str) -> Path:
        return self.folder / f"{part}-{content}-idx{3 if content == 'images' else 1}-ubyte"


class UnitPixels(nn.Module):
    """``pixel / 255``: bytes to [0, 1], float32."""

    def forward(self, pixels: Tensor) -> Tensor:
        """Return the scaled pixels."""
        return pixels.to(torch.float32) / 255
