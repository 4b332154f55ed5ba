"""Samples that stay in memory: the data set, its loader and order, and the data module that the small sets share."""

import hashlib
import math
import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import torch
from lightning.fabric.utilities.data import AttributeDict
from lightning.fabric.utilities.warnings import PossibleUserWarning
from lightning.pytorch import LightningDataModule
from torch import Tensor
from torch.utils.data import DataLoader, Sampler, SequentialSampler, TensorDataset
from typing_extensions import override

from lit_gelu.data.checks import CorruptDataError, DataArgumentError, DataError, check_count, check_one_of
from lit_gelu.data.resumable_loader import ResumableDataLoader
from lit_gelu.errors import shown

ORDERS = ("global", "seed")  # what the order of training samples comes from
T_co = TypeVar("T_co", covariant=True)


def order_of_epoch(samples: int, seed: int, epoch: int) -> Tensor:
    """Return the numbers of all samples in the order of an epoch, ``[samples]``."""
    digest = hashlib.blake2b(f"order {seed % 2**64} {epoch}".encode(), digest_size=8).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)
    return torch.randperm(samples, generator=generator)


class SeededSampler(Sampler[int]):
    """The numbers of so many samples in the order of `order_of_epoch`, each pass in that of the next epoch."""

    def __init__(self, samples: int) -> None:
        self.samples = samples
        self.seed: int | None = None
        self.epoch = -1
        self.first = 0  # samples that the next pass leaves out at its start

    def __len__(self) -> int:
        """Return how many there are."""
        return self.samples

    def set_epoch(self, epoch: int) -> None:
        """Let the next pass be that of an epoch; a Trainer calls it."""
        self.epoch = epoch - 1

    def __iter__(self) -> Iterator[int]:
        """Yield the numbers of the next epoch."""
        first, self.first, self.epoch = self.first, 0, self.epoch + 1
        self.seed = torch.initial_seed() if self.seed is None else self.seed
        order: list[int] = order_of_epoch(self.samples, self.seed, self.epoch).tolist()
        yield from order[first:]


class SeededDataLoader(ResumableDataLoader[T_co]):
    """A `ResumableDataLoader` of a `SeededSampler`, which draws nothing from the global generators.

    The seed is that of torch's global generator (``seed_everything``) when the first pass begins. A pass that is gone
    on with begins at its batch: the ones before are not taken again.
    """

    @override
    def state_dict(self) -> dict[str, Any]:
        """Return where the present pass is, as plain data."""
        if self._is_in_order():
            return super().state_dict()
        sampler = self._seeded()
        return {"taken": self._taken, "seed": sampler.seed, "epoch": sampler.epoch}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Let the next pass go on where a saved one was; one that was at its end is followed by a new one."""
        if self._is_in_order():
            super().load_state_dict(state_dict)
            return
        given = state_dict if isinstance(state_dict, dict) else {}
        taken, seed, epoch = given.get("taken"), given.get("seed"), given.get("epoch")
        if not isinstance(taken, int) or (taken and not (isinstance(seed, int) and isinstance(epoch, int))):
            raise CorruptDataError(
                f"The state of the training data in the checkpoint is {shown(state_dict)}: damaged, or that of another "
                "order. Resume with the order= of the run that saved it, or from another checkpoint."
            )
        self._resume = state_dict if self._is_unfinished(taken) else None
        if seed is not None:
            self._seeded().seed = seed

    @override
    def _batches(self) -> Iterator[T_co]:
        if self._is_in_order():
            yield from super()._batches()
            return
        resume = self._resume
        self.start_anew()
        sampler, self._taken = self._seeded(), 0
        if resume is not None:
            self._taken = resume["taken"]
            sampler.first = self._taken * (self.batch_size or 1)
            sampler.set_epoch(resume["epoch"])
        for batch in DataLoader.__iter__(self):
            self._taken += 1
            yield batch

    def _is_in_order(self) -> bool:
        """Return whether a Trainer has turned shuffling off, as ``overfit_batches`` does."""
        return isinstance(self.sampler, SequentialSampler)

    def _seeded(self) -> SeededSampler:
        sampler: Any = self.sampler
        if not isinstance(sampler, SeededSampler):
            raise DataArgumentError(
                f'order="seed" is of one process alone; the sampler is {type(sampler).__name__}. Give order="global".'
            )
        return sampler


RESIDENT_SHARE = 0.25  # of a GPU's free memory: the net, its gradients and its activations need the rest
Batch = tuple[Tensor, Tensor]
Loader = DataLoader[tuple[Tensor, ...]]


class InMemorySamples(TensorDataset):
    """Inputs and labels as two tensors, out of which a whole batch is taken at once.

    `torch.utils.data.DataLoader` calls ``__getitems__`` with a batch's indices where a data set has it: one indexing
    operation a batch instead of one a sample and a concatenation. Pass ``collate_fn=whole_batch`` with it.

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


class InMemoryImages(InMemorySamples):
    """`InMemorySamples` whose inputs are images.

    Args:
        images: Shape ``[samples, channels, height, width]``, ``torch.float32``.
        labels: Shape ``[samples]``, ``torch.int64``.

    Example:
        >>> InMemoryImages(torch.zeros(3, 1, 28, 28), torch.tensor([5, 6, 7])).images.shape
        torch.Size([3, 1, 28, 28])
    """

    def __init__(self, images: Tensor, labels: Tensor) -> None:
        super().__init__(images, labels)

    @property
    def images(self) -> Tensor:
        """All images, ``[samples, channels, height, width]``, ``torch.float32``."""
        return self.inputs


def whole_batch(batch: Any) -> Any:
    """Return ``batch`` as it is: `InMemorySamples` has stacked it already, and `DataLoader` wants a function."""
    return batch


class RecordedPath(NamedTuple):
    """A path as it was given, of which hyper-parameters have all but where an absolute one begins."""

    argument: str
    is_absolute: bool
    read: Path  # what is read there


class InMemoryDataModule(LightningDataModule, ABC):
    """A data module whose samples fit in memory; a subclass says how its sets are read.

    Training batches are shuffled anew every epoch, and the last, smaller one is dropped; evaluation goes through every
    sample in order. `predict_dataloader` goes through the test set.

    Trained on a CUDA device, a set that takes no more than a quarter of its free memory is moved there whole, once, and
    batches are cut out of it there; a larger set stays in pinned host memory, from where batches are copied while the
    device computes.

    Args:
        batch_size: Samples in a batch, for every loader; where ``evaluation_batch_size`` is set to another number, for
            the training loader.
        order: What the order of training samples comes from: ``"global"``, torch's default generator, or ``"seed"``,
            its seed and the number of the epoch alone.

    Raises:
        DataArgumentError: If ``batch_size`` is no positive integer, or ``order`` is neither.
    """

    # Of the class: a module that was pickled before there were these has none.
    _recorded_path: RecordedPath | None = None
    _remarks_before: Mapping[str, str] = MappingProxyType({})  # of the module whose checkpoint was loaded

    def __init__(self, batch_size: int, order: str = "global") -> None:
        super().__init__()
        check_count("batch_size", batch_size, 1)
        check_one_of(ORDERS, order=order)
        # Where files lie on one machine is no property of a training run: only the batch size is recorded.
        self.save_hyperparameters({"batch_size": batch_size} | ({} if order == "global" else {"order": order}))
        self.batch_size, self.order = batch_size, order
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

    def description(self) -> dict[str, Any]:
        """Return what a record says of the data: the logged hyper-parameters, unless a subclass says it elsewise."""
        return dict(self.hparams)

    def remarks(self) -> dict[str, str]:
        """Return what is logged beside the hyper-parameters: what no argument takes, in words."""
        return {}

    @property
    def hparams_initial(self) -> AttributeDict:
        """What loggers are given: hyper-parameters and remarks. Checkpoints have the former, which are arguments."""
        return AttributeDict({**super().hparams_initial, **self.remarks()})

    def state_dict(self) -> dict[str, Any]:
        """Return what tells whether a module from the checkpoint reads the same data."""
        remarks = {"remarks": found} if (found := self.remarks()) else {}
        path = self._recorded_path
        return remarks | ({"absolute_path": path.argument} if path is not None and path.is_absolute else {})

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Say if the checkpoint does not tell where its data were; `setup` says if these are others."""
        self._remarks_before = state_dict.get("remarks", {})
        path = self._recorded_path
        if path is not None and state_dict.get("absolute_path") == path.argument and not path.is_absolute:
            warnings.warn(
                f"{path.argument}= was an absolute path when this checkpoint was saved, of which it has the last part "
                f"only. {str(path.read)!r} is read now, which may be something else. Give {path.argument}= that "
                "absolute path, also to load_from_checkpoint.",
                stacklevel=2,
            )

    def setup(self, stage: str | None = None) -> None:
        """Read the sets that ``stage`` needs, once."""
        if stage in {"fit", "validate", None} and self.train_set is None:
            self.train_set, self.val_set = self.load_train_and_val()
        if stage in {"test", "predict", None} and self.test_set is None:
            self.test_set = self.load_test()
        self._compare_remarks()
        ranks = 1 if self.trainer is None else self.trainer.world_size
        samples = math.ceil(len(self.train_set or ()) / ranks)  # as Lightning shares them out
        if stage == "fit" and self.train_set is not None and self.batch_size > samples:
            each = "" if ranks == 1 else f" on each of {ranks} ranks"
            raise DataArgumentError(
                f"batch_size={self.batch_size} is larger than the training set ({samples} samples{each}), and the "
                "last, smaller batch is dropped in training: no step would be made. Give a smaller batch_size."
            )
        if stage == "validate" and self.val_set is not None and not len(self.val_set):
            raise DataArgumentError(
                f"This {type(self).__name__} has no validation set. Use the test set (Trainer.test, lit-gelu test), or "
                "give validation= a number of samples."
            )

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

    def _record_path(self, argument: str, given: str | os.PathLike[str], read: Path) -> None:
        """Have a path among the hyper-parameters: as given, but of an absolute one the last part."""
        path = Path(given)
        self.save_hyperparameters({argument: path.name if path.is_absolute() else path.as_posix()})
        self._recorded_path = RecordedPath(argument, path.is_absolute(), read)

    def _compare_remarks(self) -> None:
        """Say what of the data is not as a checkpoint says, once."""
        before, self._remarks_before = self._remarks_before, {}
        now = self.remarks()
        for name, said in before.items():
            if now.get(name) != said:
                warnings.warn(
                    f"These data are not those of the checkpoint: {name} is {now.get(name)!r} now and was {said!r}. "
                    "Give the place of those data if they are meant.",
                    stacklevel=3,
                )

    def _loader(self, samples: InMemorySamples | None, stage: str, *, training: bool = False) -> Loader:
        if samples is None:
            raise DataError(f"{type(self).__name__} has not read its data yet: call setup({stage!r}) first.")
        device = self._device()
        resident = fits(samples.nbytes, device)
        samples.move_to(device if resident else torch.device("cpu"))
        # Lightning advises more workers for every loader without them. Here a batch is one indexing operation on a
        # tensor in memory (MNIST: 0.05 s an epoch), and sending it from another process would take longer.
        warnings.filterwarnings(
            "ignore", message=r"The '\w+_dataloader' does not have many workers", category=PossibleUserWarning
        )
        # A plain DataLoader with PyTorch's own samplers: Lightning can put its distributed sampler in their place.
        kind: type[DataLoader[Any]] = ResumableDataLoader if training else DataLoader
        shuffling: dict[str, Any] = {"shuffle": training}
        if training and self.order == "seed":
            # With a generator of its own, of which nothing depends, a loader leaves the global one as it is.
            kind, shuffling = SeededDataLoader, {"sampler": SeededSampler(len(samples)), "generator": torch.Generator()}
        if training and self.trainer is not None:
            shuffling["limit"] = self.trainer.limit_train_batches
        return kind(
            samples,
            **shuffling,
            batch_size=self.batch_size if training else self.evaluation_batch_size or self.batch_size,
            drop_last=training,
            collate_fn=whole_batch,
            pin_memory=device.type == "cuda" and not resident,
        )

    def _device(self) -> torch.device:
        """Return the device of the Trainer that asks for a loader; the CPU where there is none."""
        return torch.device("cpu") if self.trainer is None else self.trainer.strategy.root_device


def fits(nbytes: int, device: torch.device) -> bool:
    """Tell whether a set may live on a device for a whole run: on CUDA if it fits a quarter of the free memory."""
    if device.type == "cuda":
        return nbytes <= RESIDENT_SHARE * torch.cuda.mem_get_info(device)[0]
    return device.type == "cpu"


def description_of(module: LightningDataModule) -> Mapping[str, Any]:
    """Return what a data module says of its data: one of another package says its hyper-parameters."""
    return module.description() if isinstance(module, InMemoryDataModule) else module.hparams


def data_root(root: str | os.PathLike[str] | None) -> Path:
    """Return the folder of the data: what was given, else the environment variable ``LIT_GELU_DATA``, or ``data``."""
    return Path(os.environ.get("LIT_GELU_DATA", "data") if root is None else root)
