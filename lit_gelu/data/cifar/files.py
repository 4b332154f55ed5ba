"""Reading the files of CIFAR-10 and CIFAR-100 as torchvision knows them: Python batches, with their checksums."""

from pathlib import Path
from typing import Any, Literal
from urllib.error import URLError

import torch
from torch import Tensor
from torchvision.datasets import CIFAR10, CIFAR100
from torchvision.datasets.utils import check_integrity

from lit_gelu.data.errors import CorruptDataError, DataNotFoundError
from lit_gelu.data.image_arrays import ImageArrays
from lit_gelu.files import is_file

CIFARName = Literal["cifar10", "cifar100"]
CLASSES: dict[CIFARName, int] = {"cifar10": 10, "cifar100": 100}
_READERS: dict[CIFARName, Any] = {"cifar10": CIFAR10, "cifar100": CIFAR100}


def cifar_folder(root: Path, name: CIFARName) -> Path:
    """Return the folder of a set's files: ``root/cifar-10-batches-py`` or ``root/cifar-100-python``."""
    return root / str(_READERS[name].base_folder)


def missing_cifar_files(root: Path, name: CIFARName) -> list[str]:
    """Return the names of the files that a set lacks."""
    folder = cifar_folder(root, name)
    return [file for file, _ in _checksums(name) if not is_file(folder / file)]


def read_cifar(root: Path, name: CIFARName) -> ImageArrays:
    """Read CIFAR-10, or CIFAR-100 with its fine labels (Krizhevsky 2009), out of torchvision's files."""
    # The files are pickles, which could run any program when they are read. So their MD5 sums, which torchvision has
    # lists of, are compared first: of files with a wrong one, nothing is unpickled.
    folder = cifar_folder(root, name)
    missing = missing_cifar_files(root, name)
    if missing:
        raise DataNotFoundError(
            f"{str(folder)!r} lacks {', '.join(missing)}. Put the files there, or download them with download=True."
        )
    spoilt = [file for file, checksum in _checksums(name) if not check_integrity(folder / file, checksum)]
    if spoilt:
        raise CorruptDataError(
            f"Wrong checksum of {', '.join(spoilt)} in {str(folder)!r}: truncated, damaged or not the published "
            "files, so they were not unpickled. Delete the folder and download it again (download=True), or put good "
            "copies in their place; images of your own go in an arrays file (arrays=)."
        )
    return ImageArrays(*_read_part(root, name, train=True), *_read_part(root, name, train=False))


def download_cifar(root: Path, name: CIFARName) -> None:
    """Download a set with torchvision, which shows progress, and unpack it; files that are right stay as they are."""
    try:
        _READERS[name](root, download=True)
    except (RuntimeError, URLError, OSError, EOFError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise DataNotFoundError(
            f"{name} could not be downloaded to {str(cifar_folder(root, name))!r}: {reason}. Check the network and "
            "that the folder may be written to, or put the files there."
        ) from error


def _checksums(name: CIFARName) -> list[tuple[str, str]]:
    """Return each file's name and MD5 sum."""
    reader = _READERS[name]
    batches = [(file, checksum) for file, checksum in reader.train_list + reader.test_list]
    return [*batches, (reader.meta["filename"], reader.meta["md5"])]


def _read_part(root: Path, name: CIFARName, *, train: bool) -> tuple[Tensor, Tensor]:
    part = _READERS[name](root, train=train)  # it compares the checksums once more before it unpickles
    images = torch.from_numpy(part.data).permute(0, 3, 1, 2).contiguous()
    return images, torch.tensor(part.targets, dtype=torch.int64)
