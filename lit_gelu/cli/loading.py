"""Models and data that ``lit-gelu export`` and ``lit-gelu parity`` are given by name or by checkpoint."""

import functools
import importlib
import inspect
import warnings
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningDataModule, LightningModule
from torch import nn

from lit_gelu import tasks
from lit_gelu.activations import StoredSpecError
from lit_gelu.callbacks import load_from_checkpoint
from lit_gelu.callbacks.checkpoint_file import hyper_parameters, loading, read_checkpoint
from lit_gelu.callbacks.swap.checkpoint import ACTIVATIONS_KEY
from lit_gelu.errors import LitGeluError, shown
from lit_gelu.files import is_file


class LoadingError(LitGeluError, ValueError):
    """A model, checkpoint or data set that cannot be loaded."""


def load_model(source: str, model: str | None = None) -> LightningModule:
    """Load a model from a checkpoint, or build it untrained from its class.

    The class of a checkpoint is ``model`` if that is given; else the one of `lit_gelu.tasks` that ``lit-gelu fit``
    recorded in it; else `lit_gelu.tasks.MNISTClassifier`. A class that only the checkpoint names is not imported, and
    nothing else in it is either.

    Args:
        source: Path of a Lightning checkpoint, or the dotted path of a LightningModule class.
        model: Dotted path of the class; a bare name is looked up in `lit_gelu.tasks`.

    Returns:
        The model, on the CPU.

    Raises:
        LoadingError: If there is no such file or class, or the checkpoint does not fit the class.
        CheckpointFileError: If the checkpoint is damaged, or holds more than plain data.
        StoredSpecError: If it names what would have to be imported.
    """
    path = Path(source)
    if not is_file(path):
        if all(part.isidentifier() for part in source.split(".")) and not source.endswith(".ckpt"):
            return _untrained(source)
        raise LoadingError(f"There is no checkpoint {shown(source)}. Give the path of a file that lit-gelu fit wrote.")
    called = repr(source)
    checkpoint = read_checkpoint(path)
    found = hyper_parameters(checkpoint, called)
    cls = own_class(found.get("_class_path"), called) if model is None else _module_class(model)
    try:
        with warnings.catch_warnings(), loading(cls, path, {}):
            warnings.simplefilter("ignore")  # of Lightning, about the checkpoint's version: loading works or raises
            swapped = functools.partial(load_from_checkpoint, cls)
            load = swapped if ACTIVATIONS_KEY in checkpoint else cls.load_from_checkpoint
            loaded: LightningModule = load(path, map_location="cpu", weights_only=True)
    except StoredSpecError:
        raise
    except Exception as error:
        raise LoadingError(
            f"{source!r} does not fit {cls.__name__}: {str(error).rstrip('.')}. Name the class it was trained with: "
            "--model package.module.Class."
        ) from error
    return loaded


def own_class(recorded: object, called: str) -> type[LightningModule]:
    """Return the class of `lit_gelu.tasks` that a checkpoint records as its own.

    Args:
        recorded: The dotted path in the checkpoint; ``None`` means `lit_gelu.tasks.MNISTClassifier`.
        called: How to call the file in an error.

    Returns:
        The class; it is looked up among those of this package, and nothing is imported for it.

    Raises:
        LoadingError: If it is none of them.

    Example:
        >>> own_class("lit_gelu.tasks.TweetTagger", "last.ckpt").__name__
        'TweetTagger'
    """
    own = {name: value for name, value in vars(tasks).items() if _is_class(value, LightningModule)}
    paths = {f"{tasks.__name__}.{name}": cls for name, cls in own.items()}
    paths |= {f"{cls.__module__}.{cls.__qualname__}": cls for cls in own.values()}
    found = tasks.MNISTClassifier if recorded is None else paths.get(recorded) if isinstance(recorded, str) else None
    if found is None:
        raise LoadingError(
            f"{called} says that it is a checkpoint of {shown(recorded)}, which is none of lit_gelu.tasks. What a file "
            "names is not imported: if you trust that class, name it, --model package.module.Class."
        )
    return found


def _module_class(path: str) -> type[LightningModule]:
    """Import the class that the caller names."""
    cls: type[LightningModule] = import_class(path, LightningModule, "lit_gelu.tasks")
    return cls


def _untrained(path: str) -> LightningModule:
    """Build a model with its class's defaults."""
    cls = _module_class(path)
    try:
        return cls()
    except TypeError as error:
        raise LoadingError(f"{path} cannot be built without arguments: {error}. Give a checkpoint of it.") from error


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
        path: ``package.module.Class``, or the name of a class in ``package``, or of one that is imported already.
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
        owner = importlib.import_module(module_name or package)
        found = getattr(owner, name, None) or (None if module_name else _imported(name, base)) or getattr(owner, name)
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


def _imported(name: str, base: type) -> type | None:
    """Return the one class of that name outside lit_gelu that is imported, as LightningCLI finds a bare name."""
    seen: set[type] = set()
    waiting = [base]
    while waiting:
        derived: list[type] = waiting.pop().__subclasses__()
        new = [cls for cls in derived if cls not in seen]
        seen.update(new)
        waiting += new
    found = [cls for cls in seen if cls.__name__ == name and not cls.__module__.startswith(("lit_gelu.", "lightning."))]
    return found[0] if len(found) == 1 else None


def _is_class(value: object, base: type) -> bool:
    """Return whether a value is a class derived from ``base``."""
    return isinstance(value, type) and issubclass(value, base)
