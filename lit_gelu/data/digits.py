"""`DigitsData`: scikit-learn's bundled handwritten digits, the data that needs no download."""

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from lit_gelu.data.in_memory import InMemoryDataModule, InMemorySamples
from lit_gelu.extras import need

TEST_SAMPLES = 360
VALIDATION_SAMPLES = 180


class DigitsData(InMemoryDataModule):
    """1,797 real handwritten digits: 1,257 training, 180 validation and 360 test images.

    A batch is ``(images, labels)``: images ``[batch, 1, 28, 28]``, ``torch.float32``, in [0, 1]; labels ``[batch]``,
    ``torch.int64``, 0 to 9. The originals (Alpaydin and Kaynak 1998, UCI "Optical recognition of handwritten digits",
    the test part) are 8x8 with grey levels 0 to 16, here enlarged bilinearly, so that a net for MNIST takes them.

    The split is stratified by class and always the same. It does not separate the 13 writers (the file does not name
    them), so an error on it says little about new writers.

    Args:
        batch_size: Samples in a batch.

    Example:
        >>> data = DigitsData(batch_size=32)
        >>> data.setup()
        >>> len(data.train_set), len(data.val_set), len(data.test_set)
        (1257, 180, 360)
    """

    def __init__(self, batch_size: int = 32) -> None:
        super().__init__(batch_size)

    def load_train_and_val(self) -> tuple[InMemorySamples, InMemorySamples]:
        """Return the training set (1,257) and the validation set (180)."""
        return self._part(0), self._part(1)

    def load_test(self) -> InMemorySamples:
        """Return the test set (360)."""
        return self._part(2)

    def preprocessing(self) -> nn.Module:
        """Return the module from grey levels, ``[batch, 1, 8, 8]``, to images, ``[batch, 1, 28, 28]``, float32."""
        return EnlargedDigits()

    def raw_train_inputs(self) -> Tensor:
        """Return the training images before the preprocessing: grey levels, ``[1257, 1, 8, 8]``, ``torch.uint8``."""
        return _digits(0)[0]

    def raw_test_inputs(self) -> Tensor:
        """Return the test images before the preprocessing: grey levels, ``[360, 1, 8, 8]``, ``torch.uint8``."""
        return _digits(2)[0]

    def _part(self, part: int) -> InMemorySamples:
        levels, labels = _digits(part)
        return InMemorySamples(self.preprocessing()(levels), labels)


class EnlargedDigits(nn.Module):
    """Grey levels 0 to 16 as bytes, 8x8, to 28x28 pixels in [0, 1]: bilinearly, corners not aligned."""

    def __init__(self) -> None:
        super().__init__()
        self.example_input_array = torch.arange(128, dtype=torch.uint8).reshape(2, 1, 8, 8) % 17

    def forward(self, levels: Tensor) -> Tensor:
        """Return the images."""
        pixels = levels.to(torch.float32) / 16
        return functional.interpolate(pixels, size=(28, 28), mode="bilinear", align_corners=False)


def _digits(part: int) -> tuple[Tensor, Tensor]:
    """Return grey levels ``[samples, 1, 8, 8]`` and labels of training (0), validation (1) or test (2)."""
    # sklearn takes a second to import, and the other data sets do without it.
    need("sklearn", extra="digits", what="DigitsData", remark="MNISTData(download=True) needs no further library.")
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    digits = load_digits()
    rows = np.arange(len(digits.target))
    rest, test = train_test_split(rows, test_size=TEST_SAMPLES, stratify=digits.target, random_state=0)
    train, val = train_test_split(rest, test_size=VALIDATION_SAMPLES, stratify=digits.target[rest], random_state=0)
    chosen = (train, val, test)[part]
    levels = torch.from_numpy(digits.images[chosen].astype(np.uint8))  # whole numbers in the file, as float64
    return levels.unsqueeze(1), torch.from_numpy(digits.target[chosen].astype(np.int64))
