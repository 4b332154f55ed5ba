"""Models and data that a command is given by name or by checkpoint; nothing that a file names is imported."""

import importlib
import inspect
import operator
import warnings
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningDataModule, LightningModule
from torch import nn

from lit_gelu import tasks
from lit_gelu.activations import StoredSpecError, registry
from lit_gelu.callbacks import load_from_checkpoint
from lit_gelu.callbacks.checkpoint_file import hyper_parameters, loading, read_checkpoint, require_no_imports
from lit_gelu.callbacks.swap.run import ACTIVATIONS_KEY
from lit_gelu.errors import ArgumentError, CheckpointError, ModelInputError, message_of, shown
from lit_gelu.files import is_file
from lit_gelu.tasks.activation_task import ActivationTask

_REMEDY = (
    "Name the class that it was trained with, --model package.module.Class, and with --import the module that "
    "registers its activation, if that is one of your own."
)


def load_model(
    source: str, model: str | None = None, sample_for: Callable[[LightningModule], Any] | None = None
) -> LightningModule:
    """Load a model from a checkpoint, or build it untrained from its class."""
    if is_file(source) or source.endswith(".ckpt") or not all(part.isidentifier() for part in source.split(".")):
        return load_checkpoint(source, model, sample_for)
    untrained: LightningModule = _built(source, LightningModule, "lit_gelu.tasks")
    return untrained


def load_checkpoint(
    source: str, model: str | None = None, sample_for: Callable[[LightningModule], Any] | None = None
) -> LightningModule:
    """Load a model from a checkpoint; a sample finds calls that were swapped."""
    # The class is ``model`` if that is given; else the one of `lit_gelu.tasks` that ``lit-gelu fit`` recorded in the
    # checkpoint; else `lit_gelu.tasks.MNISTClassifier`. A class that only the checkpoint names is not imported, and
    # nothing else in it is either.
    if not is_file(source):
        raise ArgumentError(f"There is no checkpoint {shown(source)}. Give the path of a file that lit-gelu fit wrote.")
    path, called = Path(source), repr(source)
    checkpoint = read_checkpoint(path)
    recorded = hyper_parameters(checkpoint, called).get("_class_path")
    cls = task_class(recorded, called) if model is None else import_class(model, LightningModule, "lit_gelu.tasks")
    loaded: LightningModule
    try:
        with warnings.catch_warnings(), loading(cls, path, {}):
            warnings.simplefilter("ignore")  # of Lightning, about the checkpoint's version: loading works or raises
            if ACTIVATIONS_KEY in checkpoint:
                loaded = load_from_checkpoint(cls, path, "cpu", input_sample=sample_for)
            else:
                loaded = cls.load_from_checkpoint(path, map_location="cpu", weights_only=True)
    except (ModelInputError, StoredSpecError):
        raise
    except Exception as error:
        raise CheckpointError(f"{called} does not fit {cls.__name__}: {message_of(error)}. {_REMEDY}") from error
    return loaded


def task_class(recorded: object, called: str) -> type[LightningModule]:
    """Return the class of `lit_gelu.tasks` that a checkpoint records as its own."""
    if recorded is None:
        return tasks.MNISTClassifier
    for name, cls in vars(tasks).items():
        names = (f"{tasks.__name__}.{name}", f"{getattr(cls, '__module__', '')}.{name}")
        if _is_class(cls, LightningModule) and recorded in names:
            task: type[LightningModule] = cls
            return task
    raise CheckpointError(
        f"{called} says that it is a checkpoint of {shown(recorded)}, which is none of lit_gelu.tasks. What a file "
        "names is not imported: if you trust that class, name it, --model package.module.Class."
    )


def checked_arguments(path: str, configured: str, trusted_values: Collection[object]) -> dict[str, Any]:
    """Return a checkpoint's arguments of the model in the form that LightningCLI gives to its parser."""
    # The parser imports class paths. So a class path is handed to it if it is one of `lit_gelu.tasks`, or if the
    # caller's own configuration holds it too (``--model my_package.MyModule``); and activations by registered names.
    called = repr(str(path))
    arguments = hyper_parameters(read_checkpoint(path), called)
    arguments.pop("_instantiator", None)
    if not arguments:
        return {}
    recorded = arguments.pop("_class_path", configured)
    is_trusted = recorded == configured or recorded in trusted_values
    cls = import_class(recorded, LightningModule, "lit_gelu.tasks") if is_trusted else task_class(recorded, called)
    try:
        inspect.signature(cls).bind_partial(**arguments)
    except TypeError as error:
        raise CheckpointError(f"{called} does not fit {recorded}: {error}. {_REMEDY}") from error
    if issubclass(cls, ActivationTask) and "activation" in arguments:
        arguments["activation"] = str(registry.resolve(arguments["activation"], trusted=False))
    require_no_imports(arguments, cls, trusted_values, called)
    return {"class_path": recorded, "dict_kwargs": arguments}


def load_data(name: str, root: str | None = None) -> LightningDataModule:
    """Build a data module with its class's defaults."""
    data: LightningDataModule = _built(name, LightningDataModule, "lit_gelu.data", **({"root": root} if root else {}))
    return data


def _built(path: str, base: type, package: str, **arguments: Any) -> Any:
    try:
        return import_class(path, base, package)(**arguments)
    except TypeError as error:
        raise ArgumentError(f"{path} cannot be built: {message_of(error)}. Give a subclass with defaults.") from error


def load_optional_data(name: str | None, root: str | None) -> LightningDataModule | None:
    """Build the data module of ``--data`` and ``--data-root``, if there is one."""
    if name is None and root is not None:
        raise ArgumentError(f"--data-root {root!r} is the folder of --data's files; give --data too.")
    return None if name is None else load_data(name, root)


def import_class(path: str, base: type, package: str) -> Any:
    """Import a class by its dotted path, or by its name out of a package."""
    module_name, _, name = path.rpartition(".")
    cls = None
    try:
        cls = getattr(importlib.import_module(module_name or package), name, None)
    except (ImportError, ValueError) as error:
        reason = f" ({error})"
    else:
        reason = ""
    if not _is_class(cls, base):
        members = vars(importlib.import_module(package)).items()
        names = sorted(n for n, value in members if _is_class(value, base) and not inspect.isabstract(value))
        what = f"There is no class {path!r}{reason}" if cls is None else f"{path} is no {base.__name__} class"
        raise ArgumentError(f"{what}. Give package.module.Class, or one of {package}: {', '.join(names)}.")
    return cls


def named_object(word: str) -> Any:
    """Return what ``package.module:name`` names; a class of modules is built with its defaults."""
    module_name, _, name = word.partition(":")
    try:
        value = operator.attrgetter(name)(importlib.import_module(module_name))
    except (ImportError, ValueError, AttributeError) as error:
        raise ArgumentError(
            f"There is no {word!r} ({message_of(error)}). Give package.module:name, of a module in the current folder "
            "or installed."
        ) from error
    try:
        return value() if _is_class(value, nn.Module) else value
    except TypeError as error:
        raise ArgumentError(f"{word!r} cannot be built: {message_of(error)}. Give a class with defaults.") from error


def _is_class(value: object, base: type) -> bool:
    return isinstance(value, type) and issubclass(value, base)
