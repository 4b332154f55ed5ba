"""Models and data that a command is given by name or by checkpoint; nothing that a file names is imported."""

import difflib
import functools
import importlib
import inspect
import warnings
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningDataModule, LightningModule
from torch import Tensor, nn

from lit_gelu import tasks
from lit_gelu.activations import StoredSpecError, UnknownActivationError, registry
from lit_gelu.callbacks import load_from_checkpoint
from lit_gelu.callbacks.checkpoint_file import (
    hyper_parameters,
    loading,
    read_checkpoint,
    require_no_imports,
)
from lit_gelu.callbacks.swap.checkpoint import ACTIVATIONS_KEY
from lit_gelu.cli.input_sample import InputSampleError
from lit_gelu.errors import LitGeluError, message_of, shown
from lit_gelu.files import is_file
from lit_gelu.tasks.activation_task import ActivationTask


class LoadingError(LitGeluError, ValueError):
    """A model, checkpoint or data set that cannot be loaded."""


def load_model(
    source: str, model: str | None = None, sample_for: Callable[[LightningModule], Any] | None = None
) -> LightningModule:
    """Load a model from a checkpoint, or build it untrained from its class; a sample finds calls that were swapped."""
    # The class of a checkpoint is ``model`` if that is given; else the one of `lit_gelu.tasks` that ``lit-gelu fit``
    # recorded in it; else `lit_gelu.tasks.MNISTClassifier`. A class that only the checkpoint names is not imported, and
    # nothing else in it is either.
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
            swapped = functools.partial(load_from_checkpoint, cls, input_sample=sample_for)
            load = swapped if ACTIVATIONS_KEY in checkpoint else cls.load_from_checkpoint
            loaded: LightningModule = load(path, map_location="cpu", weights_only=True)
    except (InputSampleError, StoredSpecError):
        raise
    except Exception as error:
        if isinstance(error, UnknownActivationError):
            raise unregistered(error, called) from error
        remedy = " Name the class it was trained with: --model package.module.Class." if model is None else ""
        if model is None and "_class_path" not in found and isinstance(error, RuntimeError):  # other parameters
            said = f"{source!r} does not say of which class it is, and does not fit {cls.__name__}, the usual one."
            raise LoadingError(said + remedy) from error
        raise LoadingError(f"{source!r} does not fit {cls.__name__}: {message_of(error)}.{remedy}") from error
    return loaded


def unregistered(error: UnknownActivationError, called: str) -> LoadingError:
    """Return what to say of a checkpoint with an activation that is not registered: a module of one's own does that."""
    return LoadingError(
        f"{called} was trained with the activation {shown(error.name)}, which is not registered. If a module of "
        "your own registers it, name that module: --import MODULE, from the current folder or installed."
    )


def own_class(recorded: object, called: str) -> type[LightningModule]:
    """Return the class of `lit_gelu.tasks` that a checkpoint records as its own."""
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


def checked_arguments(path: str, configured: str, given: Collection[object]) -> dict[str, Any]:
    """Return a checkpoint's arguments of the model in the form that LightningCLI gives to its parser."""
    # The parser imports class paths. So a class path is handed to it if it is one of `lit_gelu.tasks`, or if the
    # caller's own configuration holds it too (``--model my_package.MyModule``); and activations by registered names.
    called = repr(str(path))
    checkpoint = read_checkpoint(path)
    found = hyper_parameters(checkpoint, called)
    found.pop("_instantiator", None)
    if not found:
        return {}
    if "_class_path" not in found:
        _require_arguments_of(configured, found, called)
    recorded = found.pop("_class_path", configured)
    named = recorded == configured or recorded in given
    cls = import_class(recorded, LightningModule, "lit_gelu.tasks") if named else own_class(recorded, called)
    if issubclass(cls, ActivationTask) and "activation" in found:
        try:
            found["activation"] = str(registry.stored.resolve(found["activation"]))
        except UnknownActivationError as error:
            raise unregistered(error, called) from error
    require_no_imports(found, cls, given, called)
    return {"class_path": recorded, "dict_kwargs": found}


def _require_arguments_of(configured: str, found: Mapping[str, Any], called: str) -> None:
    """Refuse arguments that the configured class does not take: a plain Trainer's checkpoint names no class."""
    parameters = inspect.signature(import_class(configured, LightningModule, "lit_gelu.tasks")).parameters
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    unknown = [] if takes_any else sorted(found.keys() - parameters.keys())
    if unknown:
        raise LoadingError(
            f"{called} was trained with {', '.join(unknown)}, which {configured} does not take. Name the class of that "
            "checkpoint, which does not say it: --model package.module.Class."
        )


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
        raise LoadingError(
            f"{path} cannot be built without arguments: {message_of(error)}. Give a checkpoint of it."
        ) from error


def draws_weights(source: str, model: LightningModule) -> bool:
    """Return whether a model was built from its class, and has other weights each time that it is built."""
    # A class that loads weights of its own, such as pretrained ones, has the same each time.
    if is_file(Path(source)):
        return False
    once, again = model.state_dict(), _untrained(source).state_dict()
    tensors = [(value, again.get(name)) for name, value in once.items() if isinstance(value, Tensor)]
    return not all(isinstance(other, Tensor) and torch.equal(value, other) for value, other in tensors)


def require_same_weights(source: str, model: LightningModule, file: str) -> None:
    """Refuse a class in the place of the checkpoint of a file, if its weights are random."""
    if draws_weights(source, model):
        raise LoadingError(
            f"--ckpt {source} is a class, whose weights are random: {file!r} has other ones. Give the checkpoint that "
            f"the file was exported from. For an untrained model, lit-gelu export {source} writes and compares a file."
        )


def load_data(name: str, root: str | None = None) -> LightningDataModule:
    """Build a data module with its class's defaults."""
    cls = import_class(name, LightningDataModule, "lit_gelu.data")
    try:
        data: LightningDataModule = cls() if root is None else cls(root=root)
    except TypeError as error:
        raise LoadingError(f"{name} cannot be built: {message_of(error)}.") from error
    return data


def load_preprocessing(name: str | None, root: str | None = None) -> nn.Module | None:
    """Return the preprocessing of a data module, with what it learns of its training data."""
    if name is None:
        if root is not None:
            raise LoadingError(f"--data-root {root!r} is the folder of --preprocessing's data; give that too.")
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
    """Import a class by its dotted path."""
    module_name, _, name = path.rpartition(".")
    try:
        owner = importlib.import_module(module_name or package)
        found = getattr(owner, name, None) or (None if module_name else _imported(name, base)) or getattr(owner, name)
    except (ImportError, AttributeError, ValueError) as error:
        members = vars(importlib.import_module(package)).items()
        classes = (n for n, value in members if _is_class(value, base) and not inspect.isabstract(value))
        near = _own_classes_like(name, base)
        hint = f" Did you mean {near}?" if near else ""
        raise LoadingError(
            f"There is no class {path!r} ({error}).{hint} Give package.module.Class, or one of {package}: "
            f"{', '.join(sorted(classes))}."
        ) from error
    if not _is_class(found, base):
        raise LoadingError(f"{path} is no {base.__name__} class.")
    return found


def _imported(name: str, base: type) -> type | None:
    """Return the one class of that name outside lit_gelu that is imported, as LightningCLI finds a bare name."""
    found = [cls for cls in _own_classes(base) if cls.__name__ == name]
    return found[0] if len(found) == 1 else None


def _own_classes_like(name: str, base: type) -> str:
    """Return the full names of imported classes that have nearly that name; empty if there are none."""
    own = _own_classes(base)
    near = difflib.get_close_matches(name, [cls.__name__ for cls in own], n=1)
    return " or ".join(sorted({f"{cls.__module__}.{cls.__qualname__}" for cls in own if cls.__name__ in near}))


def _own_classes(base: type) -> list[type]:
    """Return the classes derived from ``base`` that are imported, without those of lit_gelu and lightning."""
    seen: set[type] = set()
    waiting = [base]
    while waiting:
        derived: list[type] = waiting.pop().__subclasses__()
        new = [cls for cls in derived if cls not in seen]
        seen.update(new)
        waiting += new
    return [cls for cls in seen if not cls.__module__.startswith(("lit_gelu.", "lightning."))]


def _is_class(value: object, base: type) -> bool:
    """Return whether a value is a class derived from ``base``."""
    return isinstance(value, type) and issubclass(value, base)
