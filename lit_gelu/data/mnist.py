"""`MNISTData`: the 70,000 handwritten digits of LeCun, Cortes and Burges, split as in the GELU paper's code."""

import hashlib
import os
from pathlib import Path

import torch
from torch import Tensor, nn
from torchvision.datasets import MNIST

from lit_gelu.arguments import check_count, check_flags
from lit_gelu.data.in_memory import InMemoryDataModule, InMemorySamples, data_root, download
from lit_gelu.errors import ArgumentError, DataError, message_of
from lit_gelu.files import is_file

TRAINING_SAMPLES, VALIDATION_SAMPLES, TEST_SAMPLES = 60_000, 5_000, 10_000
_FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
_SHA256 = {  # of the pixels and the labels behind them, as bytes: training (True) and test
    True: "edc0d1098aa497be14ace79ddd5171e5a3dcf9c4d196c015389203eb3ba1f59b",
    False: "c3f9adf9c66efb572b1f9326c3a511b45910c7173b97be66ceceeeeaef6b802b",
}


class MNISTData(InMemoryDataModule):
    """MNIST in memory: by default 55,000 training, 5,000 validation and 10,000 test images.

    A batch is ``(images, labels)``: images ``[batch, 1, 28, 28]``, ``torch.float32``, pixel / 255; labels ``[batch]``,
    ``torch.int64``, 0 to 9. The first 5,000 of the training images are validation (Hendrycks and Gimpel's code); with
    batches of 128 an epoch has 429 steps. Their autoencoder trains on all 60,000: ``validation=0``, 937 steps with
    batches of 64.

    The files are torchvision's, ``ROOT/MNIST/raw/train-images-idx3-ubyte`` and so on. What is read is compared with the
    published data's checksum; a set of the same form, such as Fashion-MNIST, needs ``checksum=False``.

    Args:
        root: Folder that holds ``MNIST/raw``. ``None`` means the environment variable ``LIT_GELU_DATA``, or ``data``.
        batch_size: Samples in a batch.
        download: Whether to download what is missing (12 MB, checked by checksum), and to unpack ``.gz`` files.
        validation: How many of the first training images are held out for validation; 0 holds out none.
        checksum: Whether the data must be MNIST's, byte for byte.

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
        if validation >= TRAINING_SAMPLES:
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
        missing = [name for name in _FILES if not is_file(self.folder / name)]
        if missing and not self.download:
            raise DataError(
                f"MNIST is not in {str(self.folder)!r} (missing: {', '.join(missing)}). Give root=, or set the "
                "environment variable LIT_GELU_DATA, to the folder that holds MNIST/raw; or download it with "
                "download=True (--data.download true), which unpacks files with .gz added, too."
            )
        if missing:
            download(MNIST, self.root)

    def load_train_and_val(self) -> tuple[InMemorySamples, InMemorySamples]:
        """Read the 60,000 training images and take the first of them for validation."""
        pixels, labels = self._read(train=True)
        images = self.preprocessing()(pixels)
        return (
            InMemorySamples(images[self.validation :], labels[self.validation :]),
            InMemorySamples(images[: self.validation], labels[: self.validation]),
        )

    def load_test(self) -> InMemorySamples:
        """Read the 10,000 test images."""
        pixels, labels = self._read(train=False)
        return InMemorySamples(self.preprocessing()(pixels), labels)

    def preprocessing(self) -> nn.Module:
        """Return the module from pixels, ``torch.uint8``, to what the model takes; it reads no data."""
        return UnitPixels()

    def raw_train_inputs(self) -> Tensor:
        """Read all training images before the preprocessing, ``[60000, 1, 28, 28]``, ``torch.uint8``."""
        return self._read(train=True)[0]

    def raw_test_inputs(self) -> Tensor:
        """Read the test images before the preprocessing, ``[10000, 1, 28, 28]``, ``torch.uint8``."""
        return self._read(train=False)[0]

    def _read(self, *, train: bool) -> tuple[Tensor, Tensor]:
        self.prepare_data()  # files may be missing on a node where Lightning has not called it
        remedy = f"Delete the files in {str(self.folder)!r} and download them again (download=True)."
        try:
            files = MNIST(self.root, train=train)
        except (AssertionError, EOFError, OSError, RuntimeError, TypeError, ValueError) as error:
            raise DataError(f"MNIST's files cannot be read ({message_of(error)}). {remedy}") from error
        pixels, labels = files.data, files.targets
        samples = TRAINING_SAMPLES if train else TEST_SAMPLES
        if pixels.shape != (samples, 28, 28) or labels.shape != (samples,) or int(labels.max()) > 9:
            raise DataError(f"MNIST's files do not hold {samples} images of 28x28 pixels with labels to 9. {remedy}")
        digest = hashlib.sha256(pixels.numpy().tobytes() + labels.byte().numpy().tobytes())
        if self.checksum and digest.hexdigest() != _SHA256[train]:
            raise DataError(
                f"The files have MNIST's form, but hold something else: the SHA-256 digest is not {_SHA256[train]}. "
                f"{remedy} If it is another data set of this form, give checksum=False."
            )
        return pixels.unsqueeze(1), labels


class UnitPixels(nn.Module):
    """``pixel / 255``: bytes to [0, 1], float32."""

    def forward(self, pixels: Tensor) -> Tensor:
        """Return the scaled pixels."""
        return pixels.to(torch.float32) / 255
