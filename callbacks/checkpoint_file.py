"""Checkpoints as plain data: read without running anything, and looked through for what loading them would import."""

import os
import pickle
import re
import sys
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.utilities.cloud_io import _load as load_from_anywhere
from lightning.pytorch import LightningModule
from lightning.pytorch.core.saving import CHECKPOINT_PAST_HPARAMS_KEYS

from lit_gelu.activations import StoredSpecError, building_from_file
from lit_gelu.callbacks.hyper_parameters import require_no_imports
from lit_gelu.callbacks.swap.checkpoint import Checkpoint
from lit_gelu.errors import LitGeluError, shown

_INSTANTIATORS = ("lightning.pytorch.cli.instantiate_module", "pytorch_lightning.cli.instantiate_module")
_OF_LIGHTNING = frozenset({"map_location", "hparams_file", "strict", "weights_only"})
HYPER_PARAMETERS = LightningModule.CHECKPOINT_HYPER_PARAMS_KEY


class CheckpointFileError(LitGeluError, ValueError):
    """A file that is no checkpoint, is damaged, or asks for more than plain data."""


def read_checkpoint(source: Any) -> Checkpoint:
    """Read a checkpoint of Lightning; nothing in it can run.

    Args:
        source: The file; also an open one, which is rewound, or an address that Lightning takes.

    Returns:
        Its content: tensors on the CPU, numbers, texts, lists and mappings.

    Raises:
        CheckpointFileError: If it is missing, no checkpoint, damaged, or holds objects that are not plain data.
    """
    called = repr(str(source)) if isinstance(source, str | os.PathLike) else "The file"
    try:
        checkpoint = _plain_content(source)
    except pickle.UnpicklingError as error:
        raise CheckpointFileError(not_plain(called, error)) from error
    except Exception as error:  # a damaged file may raise anything in zipfile, pickle and torch
        reason = f" ({error.strerror})" if isinstance(error, OSError) and error.strerror else ""
        raise CheckpointFileError(
            f"{called} is no checkpoint of Lightning, or is damaged{reason}. Give one that lit-gelu fit or "
            "Trainer.save_checkpoint wrote."
        ) from error
    if not isinstance(checkpoint, dict) or not isinstance(checkpoint.get("state_dict"), Mapping):
        raise CheckpointFileError(
            f"{called} is no checkpoint of Lightning: it has no 'state_dict'. Give one that lit-gelu fit or "
            "Trainer.save_checkpoint wrote."
        )
    return checkpoint


def not_plain(called: object, error: pickle.UnpicklingError) -> str:
    """Return the message for a file whose reading stopped at an object; torch's own advises to trust its source.

    Args:
        called: How to call the file.
        error: What was raised.

    Returns:
        The message.
    """
    asked = re.search(r"GLOBAL (\S+)", str(error))
    wants = f" It asks for {shown(asked[1])}." if asked else ""
    return (
        f"{called} is no checkpoint of Lightning, is damaged, or holds objects that are not plain data, which could "
        f"run any program; nothing of it was loaded.{wants} Give a checkpoint of tensors, numbers, texts, lists and "
        "mappings, as lit-gelu fit and Trainer.save_checkpoint write it."
    )


def hyper_parameters(checkpoint: Checkpoint, called: object) -> dict[str, Any]:
    """Return the arguments of the constructor that a checkpoint holds.

    Args:
        checkpoint: As `read_checkpoint` returned it.
        called: How to call the file in an error.

    Returns:
        Value by name, with the names that Lightning adds; a new dictionary.

    Raises:
        CheckpointFileError: If they are no mapping from names.
    """
    found: dict[str, Any] = {}
    for key in (*CHECKPOINT_PAST_HPARAMS_KEYS, HYPER_PARAMETERS):  # Lightning takes all of them, the last first
        part = checkpoint.get(key, {})
        if not isinstance(part, Mapping) or not all(isinstance(name, str) for name in part):
            raise CheckpointFileError(
                f"{called} is damaged: its {key!r} are {shown(part)}, and not values by name. Give another checkpoint, "
                "or build the model in code and load its 'state_dict'."
            )
        found |= part
    return found


@contextmanager
def loading(module_class: type[LightningModule], source: Any, arguments: Mapping[str, Any]) -> Iterator[None]:
    """Let Lightning build a module from a checkpoint's arguments, which can then neither import nor call.

    Args:
        module_class: The class that ``load_from_checkpoint`` is called of.
        source: The file.
        arguments: The keyword arguments of that call. Those of the constructor, and a ``hparams_file``, are the
            caller's own and may be anything; with ``weights_only=False`` the file may run programs anyway.

    Yields:
        Nothing.

    Raises:
        CheckpointFileError: If the file is no checkpoint of plain data.
        StoredSpecError: If it names something that would have to be imported.
    """
    if arguments.get("hparams_file") is not None:
        yield
        return
    given = {name: value for name, value in arguments.items() if name not in _OF_LIGHTNING}
    if arguments.get("weights_only") is not False:
        called = repr(str(source)) if isinstance(source, str | os.PathLike) else "The file"
        found = hyper_parameters(read_checkpoint(source), called)
        if "_instantiator" in found:  # then Lightning has jsonargparse read them, which imports class paths
            _require_known(found, module_class, called)
            named = {"_instantiator", "_class_path", *given}
            rest = {name: value for name, value in found.items() if name not in named}
            require_no_imports(rest, module_class, (), called)
    with building_from_file(texts_and_mappings(given)):
        yield


def _require_known(found: Mapping[str, Any], module_class: type[LightningModule], called: str) -> None:
    """Refuse an instantiator that is not LightningCLI's, and a class that is not imported: Lightning 2.6.0 does not.

    Raises:
        StoredSpecError: If one of them is something else.
    """
    if found["_instantiator"] not in _INSTANTIATORS:
        raise StoredSpecError(
            f"{called} asks for {shown(found['_instantiator'])} to build its module. What a file names is not "
            "imported: build the module in code and load its 'state_dict'."
        )
    path = found.get("_class_path", "")
    module_name, _, name = path.rpartition(".") if isinstance(path, str) else ("", "", "")
    cls = vars(sys.modules[module_name]).get(name) if module_name in sys.modules else None
    if path and not (isinstance(cls, type) and issubclass(cls, module_class)):
        raise StoredSpecError(
            f"{called} says that it is a checkpoint of {shown(path)}, which is no class derived from "
            f"{module_class.__name__} that is imported. What a file names is not imported: if you trust that class, "
            "import it and call its load_from_checkpoint."
        )


def texts_and_mappings(value: object) -> list[object]:
    """Return every text and every mapping within a value of code or of a configuration, itself included.

    Args:
        value: Mappings and sequences, at any depth.

    Returns:
        Those that may be a spec.

    Example:
        >>> texts_and_mappings({"activation": "gelu", "keep": [0.5]})
        [{'activation': 'gelu', 'keep': [0.5]}, 'gelu']
    """
    match value:
        case str():
            return [value]
        case Mapping():
            return [value, *_all_within(value.values())]
        case list() | tuple():
            return _all_within(value)
    return []


def _all_within(values: Iterable[object]) -> list[object]:
    return [found for value in values for found in texts_and_mappings(value)]


def _plain_content(source: Any) -> Any:
    if hasattr(source, "read"):
        content = torch.load(source, map_location="cpu", weights_only=True)
        source.seek(0)
        return content
    if not Path(source).exists():  # an address
        return load_from_anywhere(source, map_location="cpu", weights_only=True)
    # Mapped, the weights of a file are read when they are used; only files of torch >= 1.6 can be.
    return torch.load(source, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(source))
