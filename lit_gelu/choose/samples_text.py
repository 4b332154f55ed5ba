"""What data consist of, as text: all samples where they are in memory, else some of them and how many there are."""

from typing import Any

import torch
from lightning.pytorch import LightningDataModule
from lightning.pytorch.utilities.combined_loader import CombinedLoader
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from lit_gelu.choose.one_by_one import said
from lit_gelu.choose.plain_text import is_plain, named, told
from lit_gelu.data import InMemoryDataModule
from lit_gelu.data.in_memory import InMemorySamples
from lit_gelu.errors import ArgumentError
from lit_gelu.random_states import seeded
from lit_gelu.replicas import check_data_hooks

_SPREAD = 32  # samples of a set that are read one by one, from its first to its last
_SETS = {"fit": ("train", "val"), "test": ("test",)}
_OF_LIGHTNING = frozenset(vars(LightningDataModule()))


def is_told_whole(data: LightningDataModule) -> bool:
    """Return whether samples, batch sizes and order are all that decides which batches a run takes."""
    kind: Any = type(data)
    ordinary = all(
        getattr(kind, name) is getattr(InMemoryDataModule, name, None)
        for name in ("train_dataloader", "val_dataloader", "test_dataloader")
    )
    if not isinstance(data, InMemoryDataModule) or not ordinary or kind._loader is not InMemoryDataModule._loader:
        return False
    try:
        check_data_hooks(data)
    except ArgumentError:
        return False
    sets = [one for one in (data.train_set, data.val_set, data.test_set) if one is not None]
    return all(getattr(type(one), "__getitems__", None) is InMemorySamples.__getitems__ for one in sets)


def samples_told(data: LightningDataModule, stage: str, untold: list[str]) -> dict[str, str]:
    """Return what data consist of, by name.

    Random numbers that reading takes are those of seed 0, and the global generators are as they were afterwards.
    Samples are taken out of a data set by their numbers where it has such, so that no loader's own generator is used.

    Args:
        data: They are set up for the stage.
        stage: ``"fit"``, of training and validation, or ``"test"``.
        untold: Is given what cannot be told.
    """
    with seeded(0):
        try:
            data.prepare_data()
            data.setup(stage)
            whole = is_told_whole(data)
            tell = _set_told if whole else _loaders_told
            found = {name: tell(data, name, untold) for name in _SETS[stage]}
        except Exception as error:  # noqa: BLE001 - of a user's data, which a Trainer may read all the same
            untold.append(f"the samples of {type(data).__name__} ({said(error).rstrip('.')})")
            whole, found = False, {}
    if whole:
        return found
    own = {
        f"data.{name}": told(value, untold)
        for name, value in sorted(vars(data).items())
        if name not in _OF_LIGHTNING and not name.startswith("_") and is_plain(value)
    }
    return found | own


def _set_told(data: Any, name: str, untold: list[str]) -> str:
    """Tell a set that is in memory, with what batches of it are made by."""
    samples: InMemorySamples = getattr(data, f"{name}_set")
    by = [data.batch_size, data.order] if name == "train" else [data.evaluation_batch_size or data.batch_size]
    return told([samples.tensors, *by], untold)


def _loaders_told(data: LightningDataModule, name: str, untold: list[str]) -> str:
    """Tell what the loaders of a stage load."""
    hook = f"{name}_dataloader"
    if not is_overridden(hook, data, LightningDataModule):
        return ""
    return ", ".join(_loader_told(loader, untold) for loader in CombinedLoader(getattr(data, hook)()).flattened)


def _loader_told(loader: Any, untold: list[str]) -> str:
    dataset: Any = getattr(loader, "dataset", None)
    count = None if isinstance(dataset, IterableDataset) else _length(dataset)
    if not isinstance(loader, DataLoader) or count is None:
        return f"{named(type(loader))}({_length(loader)} batches, {told(_first_batch(loader), untold)})"
    last = max(count - 1, 0)
    places = sorted({place * last // (_SPREAD - 1) for place in range(_SPREAD)}) if count else []
    every = dataset.tensors if isinstance(dataset, TensorDataset) else []
    content = told([every, [dataset[place] for place in places]], untold)
    by = [loader.batch_size, *map(_drawing_told, (loader.sampler, loader.batch_sampler))]
    return f"{named(type(dataset))}({count} samples, {content}, {_length(loader)} batches {by})"


def _first_batch(loader: Any) -> Any:
    """Return the first batch; the loader's own generator is as it was afterwards."""
    generator = getattr(loader, "generator", None)
    if not isinstance(generator, torch.Generator):
        return next(iter(loader), None)
    before = generator.get_state()
    try:
        return next(iter(loader), None)
    finally:
        generator.set_state(before)


def _drawing_told(sampler: Any) -> str:
    """Tell a sampler, with the weights or numbers that it draws by; how far it has come is no part of it."""
    held = getattr(sampler, "__dict__", {}).items()
    lists = {
        name: value
        for name, value in held
        if isinstance(value, torch.Tensor) or (isinstance(value, list | tuple) and is_plain(value))
    }
    return f"{named(type(sampler))} {told(lists, [])}"


def _length(of: Any) -> int | None:
    try:
        return len(of)
    except TypeError:  # it is not known before it ends
        return None
