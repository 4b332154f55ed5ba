"""Checkpoints as plain data: read without running anything, and looked through for what loading them would import."""

import enum
import os
import pickle
import re
import sys
import threading
import types
import typing
import zipfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path, PurePath
from typing import Any, Literal, Union

import torch
import yaml
from lightning.fabric.utilities.cloud_io import _load as load_from_anywhere
from lightning.pytorch import LightningModule
from lightning.pytorch.core.saving import CHECKPOINT_PAST_HPARAMS_KEYS
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.nn.parameter import is_lazy

from lit_gelu.activations import StoredSpecError, building_from_file, registry
from lit_gelu.callbacks.swap.run import Checkpoint
from lit_gelu.errors import CheckpointError, LitGeluError, shown
from lit_gelu.files import require_no_pipe

_SCALARS = (str, bytes, int, float, complex, bool, type(None))
_CONTAINERS = (Union, types.UnionType, list, tuple, set, dict, Sequence, Mapping, Iterable, Collection)
_DEPTH, _SIZE = 32, 100_000


_INSTANTIATORS = ("lightning.pytorch.cli.instantiate_module", "pytorch_lightning.cli.instantiate_module")
_OF_LIGHTNING = frozenset({"map_location", "hparams_file", "strict", "weights_only"})
HYPER_PARAMETERS = LightningModule.CHECKPOINT_HYPER_PARAMS_KEY


def read_checkpoint(source: Any) -> Checkpoint:
    """Read a checkpoint by path or address, or an open file, which is rewound; nothing in it can run."""
    called = repr(str(source)) if isinstance(source, str | os.PathLike) else "The file"
    try:
        if hasattr(source, "read"):
            checkpoint = torch.load(source, map_location="cpu", weights_only=True)
            source.seek(0)
        else:
            require_no_pipe(source)
            if Path(source).exists():
                # Mapped, the weights of a file are read when they are used; only files of torch >= 1.6 can be.
                checkpoint = torch.load(source, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(source))
            else:  # an address
                checkpoint = load_from_anywhere(source, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise CheckpointError(not_plain(called, error)) from error
    except Exception as error:  # a damaged file may raise anything in zipfile, pickle and torch
        reason = f" ({error.strerror})" if isinstance(error, OSError) and error.strerror else ""
        raise CheckpointError(
            f"{called} is no checkpoint of Lightning, or is damaged{reason}. Give one that lit-gelu fit or "
            "Trainer.save_checkpoint wrote."
        ) from error
    if not isinstance(checkpoint, dict) or not isinstance(checkpoint.get("state_dict"), Mapping):
        raise CheckpointError(
            f"{called} is no checkpoint of Lightning: it has no 'state_dict'. Give one that lit-gelu fit or "
            "Trainer.save_checkpoint wrote."
        )
    return checkpoint


def not_plain(called: object, error: pickle.UnpicklingError) -> str:
    """Return the message for a file whose reading stopped at an object; torch's own advises to trust its source."""
    asked = re.search(r"GLOBAL (\S+)", str(error))
    wants = f" It asks for {shown(asked[1])}." if asked else ""
    return (
        f"{called} is no checkpoint of Lightning, is damaged, or holds objects that are not plain data, which could "
        f"run any program; nothing of it was loaded.{wants} Give a checkpoint of tensors, numbers, texts, lists and "
        "mappings, as lit-gelu fit and Trainer.save_checkpoint write it."
    )


def hyper_parameters(checkpoint: Checkpoint, called: object) -> dict[str, Any]:
    """Return the arguments of the constructor that a checkpoint holds, with the names that Lightning adds."""
    parameters: dict[str, Any] = {}
    for key in (*CHECKPOINT_PAST_HPARAMS_KEYS, HYPER_PARAMETERS):  # Lightning takes all of them, the last first
        part = checkpoint.get(key, {})
        if not isinstance(part, Mapping) or not all(isinstance(name, str) for name in part):
            raise CheckpointError(
                f"{called} is damaged: its {key!r} are {shown(part)}, and not values by name. Give another checkpoint, "
                "or build the model in code and load its 'state_dict'."
            )
        parameters |= part
    return parameters


@contextmanager
def loading(module_class: type[LightningModule], source: Any, arguments: Mapping[str, Any]) -> Iterator[None]:
    """Let Lightning build a module from a checkpoint's arguments, which can then neither import nor call."""
    # The arguments of ``load_from_checkpoint`` for the constructor, and a hparams_file, are the caller's own and may be
    # anything; with weights_only=False the file may run programs anyway.
    if arguments.get("hparams_file") is not None:
        yield
        return
    constructor_arguments = {name: value for name, value in arguments.items() if name not in _OF_LIGHTNING}
    stack = ExitStack()
    if arguments.get("weights_only") is not False:
        called = repr(str(source)) if isinstance(source, str | os.PathLike) else "The file"
        checkpoint = read_checkpoint(source)
        parameters = hyper_parameters(checkpoint, called)
        if "_instantiator" in parameters:  # then Lightning has jsonargparse read them, which imports class paths
            _require_known(parameters, module_class, called)
            named = {"_instantiator", "_class_path", *constructor_arguments}
            rest = {name: value for name, value in parameters.items() if name not in named}
            require_no_imports(rest, module_class, (), called)
        stack.enter_context(no_larger_than(checkpoint, module_class.__module__, called))
    with stack, building_from_file(texts_and_mappings(constructor_arguments)):
        yield


@contextmanager
def no_larger_than(checkpoint: Checkpoint, class_path: str, called: object) -> Iterator[None]:
    """Refuse to build a module of far more parameters than a checkpoint holds: its arguments may claim any number."""
    # Others' modules may keep most of their weights out of checkpoints: theirs are bounded in number alone.
    tensors = [value for value in checkpoint["state_dict"].values() if isinstance(value, torch.Tensor)]
    most, largest = 10 * len(tensors) + 10_000, 2 * sum(tensor.numel() for tensor in tensors) + 10_000_000
    count, values, thread = 0, 0, threading.get_ident()

    def add(module: torch.nn.Module, name: str, parameter: Any) -> None:  # noqa: ARG001 - torch's signature
        nonlocal count, values
        if threading.get_ident() == thread and parameter is not None and not is_lazy(parameter):
            count, values = count + 1, values + parameter.numel()
        if count > most or (values > largest and class_path.startswith("lit_gelu.tasks.")):
            raise CheckpointError(
                f"{called} holds {len(tensors)} tensors, and its hyper-parameters are those of a model of many times "
                "its size. Give another checkpoint, or build the model in code and load its 'state_dict'."
            )

    hook = register_module_parameter_registration_hook(add)  # before a tensor is filled, which takes its memory
    try:
        yield
    finally:
        hook.remove()


def _require_known(parameters: Mapping[str, Any], module_class: type[LightningModule], called: str) -> None:
    """Refuse an instantiator that is not LightningCLI's, and a class that is not imported: Lightning 2.6.0 does not."""
    if parameters["_instantiator"] not in _INSTANTIATORS:
        raise StoredSpecError(
            f"{called} asks for {shown(parameters['_instantiator'])} to build its module. What a file names is not "
            "imported: build the module in code and load its 'state_dict'."
        )
    path = parameters.get("_class_path", "")
    module_name, _, name = path.rpartition(".") if isinstance(path, str) else ("", "", "")
    cls = vars(sys.modules[module_name]).get(name) if module_name in sys.modules else None
    if path and not (isinstance(cls, type) and issubclass(cls, module_class)):
        raise StoredSpecError(
            f"{called} says that it is a checkpoint of {shown(path)}, which is no class derived from "
            f"{module_class.__name__} that is imported. What a file names is not imported: if you trust that class, "
            "import it and call its load_from_checkpoint."
        )


def texts_and_mappings(value: object) -> list[object]:
    """Return every text and every mapping within a value of code or of a configuration, itself included."""
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    itself = [value] if isinstance(value, str | Mapping) else []
    return [*itself, *(part for each in inner for part in texts_and_mappings(each))]


def require_no_imports(
    parameters: Mapping[str, Any], module_class: type, trusted: Collection[object], called: str
) -> None:
    """Refuse hyper-parameters of a file that jsonargparse would import something for, unlike for our specs."""
    # Where the class asks for a text, a text is nothing else. What the caller's own configuration names too
    # (``trusted``) may be imported.
    try:
        hints = typing.get_type_hints(module_class.__init__)  # type: ignore[misc]  # of a class, to read only
    except (NameError, TypeError, AttributeError):
        hints = {}
    for argument, value in parameters.items():
        if _takes_no_object(hints.get(argument, object)) or _is_registered(value):
            continue
        for name in names_within({argument: value}):
            if name not in trusted:
                raise StoredSpecError(
                    f"{called} has {shown(name)} in its hyper-parameter {shown(argument)}. What a file names is not "
                    f"imported: give {argument} yourself, in code, on the command line (--model.{argument}) or in "
                    "YAML, if you trust it."
                )


def names_within(value: object) -> Iterator[object]:
    """Yield what jsonargparse might take for the name of something to import, or for a file to read."""
    # Class paths, dotted paths, names of files, and what is nested too deep or too large to be looked through.
    waiting, looked_at = [(value, 0)], 0
    while waiting:
        one, depth = waiting.pop()
        looked_at += 1
        if depth > _DEPTH or looked_at > _SIZE:  # also what holds itself, and what YAML's aliases make of a few lines
            yield one
            return
        match one:
            case str():
                names, inside = _read_text(one)
                yield from names
                waiting.append((inside, depth + 1))
            case Mapping():
                named = {
                    key: inner for key, inner in one.items() if str(key).rpartition(".")[2].strip("_") == "class_path"
                }
                yield from named.values()
                waiting += [(inner, depth + 1) for key, inner in one.items() if key not in named]
            case list() | tuple() | set() | frozenset():
                waiting += [(inner, depth + 1) for inner in one]


def _read_text(text: str) -> tuple[list[object], object]:
    """Return the names that a text is, and what it holds where it is YAML."""
    if "." in text and all(part.isidentifier() for part in text.split(".")):
        return [text], None
    try:
        if Path(text).exists():
            return [text], None
        parsed = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, OSError, RecursionError):
        return [], None
    return [], parsed if isinstance(parsed, list | dict) else None


def _is_registered(value: object) -> bool:
    """Say whether a value is the spec of a registered activation."""
    try:
        return bool(registry.resolve(value, trusted=False))
    except LitGeluError:
        return False


def _takes_no_object(hint: Any) -> bool:
    """Say whether a type holds only numbers and texts, so that a text is never a name."""
    origin = typing.get_origin(hint)
    if origin is Literal:
        return True
    if origin in _CONTAINERS:
        return all(inner is Ellipsis or _takes_no_object(inner) for inner in typing.get_args(hint))
    return hint in _SCALARS or (isinstance(hint, type) and issubclass(hint, PurePath | enum.Enum))
