"""Samples that stay in memory: the data set, its loader and order, and the data module that the small sets share."""

import math
import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.utilities.data import AttributeDict
from lightning.fabric.utilities.warnings import PossibleUserWarning
from lightning.pytorch import LightningDataModule
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from lit_gelu.arguments import check_count
from lit_gelu.data.resumable_loader import ResumableDataLoader
from lit_gelu.errors import ArgumentError, DataError, message_of

RESIDENT_SHARE = 0.25  # of a GPU's free memory: the net, its gradients and its activations need the rest
Batch = tuple[Tensor, Tensor]
Loader = DataLoader[tuple[Tensor, ...]]


class InMemorySamples(TensorDataset):
    """Inputs and labels as two tensors; a `DataLoader` with ``collate_fn=whole_batch`` takes a batch at once.

    Args:
        inputs: Shape ``[samples, ...]``, ``torch.float32``.
        labels: Shape ``[samples]``, ``torch.int64``.

    Example:
        >>> data = InMemorySamples(torch.arange(3.0), torch.tensor([5, 6, 7]))
        >>> data.__getitems__([2, 0])
        (tensor([2., 0.]), tensor([7, 5]))
    """

    def __init__(self, inputs: Tensor, labels: Tensor) -> None:
        super().__init__(inputs, labels)

    @property
    def inputs(self) -> Tensor:
        """All inputs, ``[samples, ...]``, ``torch.float32``."""
        return self.tensors[0]

    @property
    def labels(self) -> Tensor:
        """All labels, ``[samples]``, ``torch.int64``."""
        return self.tensors[1]

    def __getitems__(self, indices: list[int]) -> Batch:
        """Return the inputs and labels at ``indices``, stacked."""
        rows = torch.as_tensor(indices, dtype=torch.int64, device=self.inputs.device)
        return self.inputs[rows], self.labels[rows]

    @property
    def nbytes(self) -> int:
        """Size of all tensors, bytes."""
        return sum(tensor.nbytes for tensor in self.tensors)

    def move_to(self, device: torch.device) -> None:
        """Move all tensors, so that batches are taken out of them there."""
        self.tensors = tuple(tensor.to(device) for tensor in self.tensors)


def whole_batch(batch: Any) -> Any:
    """Return ``batch`` as it is: `InMemorySamples` has stacked it already, and `DataLoader` wants a function."""
    return batch


class InMemoryDataModule(LightningDataModule, ABC):
    """A data module whose samples fit in memory; a subclass says how its sets are read.

    Training batches are shuffled anew every epoch, and the last, smaller one is dropped; evaluation goes through every
    sample in order. `predict_dataloader` goes through the test set. On a CUDA device, a set that takes no more than a
    quarter of its free memory is moved there whole, once; a larger one stays in pinned host memory.

    Args:
        batch_size: Samples in a batch; where ``evaluation_batch_size`` is set, in a training batch.

    Raises:
        ArgumentError: If ``batch_size`` is no positive integer.
    """

    def __init__(self, batch_size: int) -> None:
        super().__init__()
        check_count("batch_size", batch_size, 1)
        # Where files lie on one machine is no property of a training run: only the batch size is recorded.
        self.save_hyperparameters({"batch_size": batch_size})
        self.batch_size = batch_size
        self.evaluation_batch_size: int | None = None  # as batch_size; a subclass may set another
        self.train_set: InMemorySamples | None = None
        self.val_set: InMemorySamples | None = None
        self.test_set: InMemorySamples | None = None

    @abstractmethod
    def load_train_and_val(self) -> tuple[InMemorySamples, InMemorySamples]:
        """Read the training set and the validation set."""

    @abstractmethod
    def load_test(self) -> InMemorySamples:
        """Read the test set."""

    def remarks(self) -> dict[str, str]:
        """Return what is logged beside the hyper-parameters: what no argument takes, in words."""
        return {}

    @property
    def hparams_initial(self) -> AttributeDict:
        """What loggers are given: hyper-parameters and remarks. Checkpoints have the former, which are arguments."""
        return AttributeDict({**super().hparams_initial, **self.remarks()})

    def setup(self, stage: str | None = None) -> None:
        """Read the sets that ``stage`` needs, once."""
        if stage in {"fit", "validate", None} and self.train_set is None:
            self.train_set, self.val_set = self.load_train_and_val()
        if stage in {"test", "predict", None} and self.test_set is None:
            self.test_set = self.load_test()
        ranks = 1 if self.trainer is None else self.trainer.world_size
        samples = math.ceil(len(self.train_set or ()) / ranks)  # as Lightning shares them out
        if stage == "fit" and self.batch_size > samples:
            raise ArgumentError(
                f"batch_size={self.batch_size} is larger than a rank's training set ({samples} samples), and the last, "
                "smaller batch is dropped in training: no step would be made. Give a smaller batch_size."
            )
        if stage == "validate" and self.val_set is not None and not len(self.val_set):
            raise ArgumentError(f"This {type(self).__name__} has no validation set. Give validation=, or test instead.")

    def train_dataloader(self) -> Loader:
        """Return the loader of training batches: shuffled, the last smaller batch dropped."""
        return self._loader(self.train_set, "fit", training=True)

    def val_dataloader(self) -> Loader | list[Loader]:
        """Return the loader of validation batches, in order, or no loader where there is no validation set."""
        if self.val_set is not None and not len(self.val_set):
            # Lightning trains without validation then, and asks whether that was meant: validation=0 was.
            warnings.filterwarnings("ignore", message="Total length of `list` across ranks is zero")
            return []
        return self._loader(self.val_set, "validate")

    def test_dataloader(self) -> Loader:
        """Return the loader of test batches, in order."""
        return self._loader(self.test_set, "test")

    def predict_dataloader(self) -> Loader:
        """Return the loader of test batches, in order."""
        return self._loader(self.test_set, "predict")

    def _loader(self, samples: InMemorySamples | None, stage: str, *, training: bool = False) -> Loader:
        if samples is None:
            raise DataError(f"{type(self).__name__} has not read its data yet: call setup({stage!r}) first.")
        device = torch.device("cpu") if self.trainer is None else self.trainer.strategy.root_device
        resident = samples.inputs.device == device or fits(samples.nbytes, device)
        samples.move_to(device if resident else torch.device("cpu"))
        # Lightning advises more workers for every loader without them. Here a batch is one indexing operation on a
        # tensor in memory (MNIST: 0.05 s an epoch), and sending it from another process would take longer.
        warnings.filterwarnings(
            "ignore", message=r"The '\w+_dataloader' does not have many workers", category=PossibleUserWarning
        )
        # A plain DataLoader with PyTorch's own samplers: Lightning can put its distributed sampler in their place.
        options: dict[str, Any] = {"collate_fn": whole_batch, "pin_memory": device.type == "cuda" and not resident}
        if not training:
            return DataLoader(samples, batch_size=self.evaluation_batch_size or self.batch_size, **options)
        limit = 1.0 if self.trainer is None else self.trainer.limit_train_batches
        return ResumableDataLoader(
            samples, batch_size=self.batch_size, shuffle=True, drop_last=True, limit=limit, **options
        )


def fits(nbytes: int, device: torch.device) -> bool:
    """Tell whether a set may live on a device for a whole run: on CUDA if it fits a quarter of the free memory."""
    if device.type == "cuda":
        return nbytes <= RESIDENT_SHARE * torch.cuda.mem_get_info(device)[0]
    return device.type == "cpu"


def data_root(root: str | os.PathLike[str] | None) -> Path:
    """Return the folder of the data: what was given, else the environment variable ``LIT_GELU_DATA``, or ``data``."""
    return Path((os.environ.get("LIT_GELU_DATA") or "data") if root is None else root)


def recorded_path(path: str | os.PathLike[str]) -> str:
    """Return a path as hyper-parameters have it: as it was given, but of an absolute one the last part."""
    return Path(path).name if Path(path).is_absolute() else Path(path).as_posix()


def download(data_set: Callable[..., Any], root: Path) -> None:
    """Download a set with torchvision, which shows progress, and unpack it; files that are right stay as they are."""
    try:
        data_set(root, download=True)
    except (RuntimeError, OSError, EOFError, ValueError) as error:
        raise DataError(
            f"The data could not be downloaded to {str(root)!r}: {message_of(error)}. Check the network and that the "
            "folder may be written to, or put the files there."
        ) from error
