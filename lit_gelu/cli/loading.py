"""Models and data that ``lit-gelu export`` and ``lit-gelu parity`` are given by name or by checkpoint."""

import importlib
import inspect
import pickle
import warnings
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningDataModule, LightningModule
from torch import nn

from lit_gelu.errors import LitGeluError

DEFAULT_MODEL = "lit_gelu.tasks.MNISTClassifier"


class LoadingError(LitGeluError, ValueError):
    """A model, checkpoint or data set that cannot be loaded."""


def load_model(source: str, model: str | None = None) -> LightningModule:
    """Load a model from a checkpoint, or build it untrained from its class.

    The class of a checkpoint is ``model`` if that is given; else the one that ``lit-gelu fit`` recorded in it; else
    `lit_gelu.tasks.MNISTClassifier`.

    Args:
        source: Path of a Lightning checkpoint, or the dotted path of a LightningModule class.
        model: Dotted path of the class; a bare name is looked up in `lit_gelu.tasks`.

    Returns:
        The model, on the CPU.

    Raises:
        LoadingError: If there is no such file or class, or the checkpoint does not fit the class.
    """
    path = Path(source)
    if not path.is_file():
        if all(part.isidentifier() for part in source.split(".")) and not source.endswith(".ckpt"):
            return _untrained(source)
        raise LoadingError(f"There is no checkpoint {source!r}. Give the path of a file that lit-gelu fit wrote.")
    cls = import_class(model or _recorded_class(path), LightningModule, "lit_gelu.tasks")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of Lightning, about the checkpoint's version: loading works or raises
            loaded: LightningModule = cls.load_from_checkpoint(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise LoadingError(
            f"{source!r} does not fit {cls.__name__}: {error}. Name the class it was trained with: --model "
            "package.module.Class."
        ) from error
    return loaded


def _untrained(path: str) -> LightningModule:
    """Build a model with its class's defaults."""
    cls = import_class(path, LightningModule, "lit_gelu.tasks")
    try:
        model: LightningModule = cls()
    except TypeError as error:
        raise LoadingError(f"{path} cannot be built without arguments: {error}. Give a checkpoint of it.") from error
    return model


def _recorded_class(path: Path) -> str:
    """Return the class that LightningCLI recorded in a checkpoint, or the default."""
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except (RuntimeError, EOFError, OSError, ValueError, pickle.UnpicklingError) as error:
        raise LoadingError(
            f"{str(path)!r} is no checkpoint, is damaged, or holds objects that are not plain data: {error}"
        ) from error
    if not isinstance(checkpoint, dict) or "state_dict" not in checkpoint:
        raise LoadingError(f"{str(path)!r} is no Lightning checkpoint: it has no 'state_dict'.")
    recorded = checkpoint.get("hyper_parameters", {}).get("_class_path", DEFAULT_MODEL)
    return str(recorded)


def load_data(name: str, root: str | None = None) -> LightningDataModule:
    """Build a data module with its class's defaults.

    Args:
        name: Dotted path of a LightningDataModule class; a bare name is looked up in `lit_gelu.data`.
        root: Folder of the data, for classes that take one.

    Returns:
        The data module.

    Raises:
        LoadingError: If there is no such class, or it does not take these arguments.
    """
    cls = import_class(name, LightningDataModule, "lit_gelu.data")
    try:
        data: LightningDataModule = cls() if root is None else cls(root=root)
    except TypeError as error:
        raise LoadingError(f"{name} cannot be built: {error}.") from error
    return data


def load_preprocessing(name: str | None, root: str | None = None) -> nn.Module | None:
    """Return the preprocessing of a data module, with what it learns of its training data.

    Args:
        name: As `load_data` takes it; ``None`` for none.
        root: As `load_data` takes it.

    Returns:
        A module from raw pixels to what a model takes; ``None`` for none.

    Raises:
        LoadingError: If the data module has no preprocessing.
    """
    if name is None:
        if root is not None:
            raise LoadingError(f"--data_root {root!r} is the folder of --preprocessing's data; give that too.")
        return None
    data: Any = load_data(name, root)
    if not callable(getattr(data, "preprocessing", None)):
        package = vars(importlib.import_module("lit_gelu.data")).items()
        having = sorted(n for n, value in package if hasattr(value, "preprocessing") and not inspect.isabstract(value))
        raise LoadingError(
            f"{name} has no method preprocessing() that makes inputs of raw pixels. Those of lit_gelu.data that have "
            f"one: {', '.join(having)}."
        )
    preprocessing: nn.Module = data.preprocessing()
    return preprocessing


def import_class(path: str, base: type, package: str) -> Any:
    """Import a class by its dotted path.

    Args:
        path: ``package.module.Class``, or the name of a class in ``package``.
        base: Which class it must be derived from.
        package: Where a bare name is looked up.

    Returns:
        The class.

    Raises:
        LoadingError: If there is no such class, or it is not derived from ``base``.

    Example:
        >>> import_class("DigitsData", LightningDataModule, "lit_gelu.data").__name__
        'DigitsData'
    """
    module_name, _, name = path.rpartition(".")
    try:
        found = getattr(importlib.import_module(module_name or package), name)
    except (ImportError, AttributeError, ValueError) as error:
        members = vars(importlib.import_module(package)).items()
        classes = (n for n, value in members if _is_class(value, base) and not inspect.isabstract(value))
        raise LoadingError(
            f"There is no class {path!r} ({error}). Give package.module.Class, or one of {package}: "
            f"{', '.join(sorted(classes))}."
        ) from error
    if not _is_class(found, base):
        raise LoadingError(f"{path} is no {base.__name__} class.")
    return found


def _is_class(value: object, base: type) -> bool:
    """Return whether a value is a class derived from ``base``."""
    return isinstance(value, type) and issubclass(value, base)
