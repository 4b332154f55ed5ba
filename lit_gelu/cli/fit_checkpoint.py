"""What ``--ckpt_path`` adds to the configuration: the model's arguments in a checkpoint, as far as they are plain."""

import inspect
from collections.abc import Collection, Mapping
from typing import Any

from lightning.pytorch import LightningModule

from lit_gelu.activations import registry
from lit_gelu.callbacks.checkpoint_file import hyper_parameters, read_checkpoint, require_no_imports
from lit_gelu.cli.loading import LoadingError, import_class, own_class
from lit_gelu.tasks.activation_task import ActivationTask


def checked_arguments(path: str, configured: str, given: Collection[object]) -> dict[str, Any]:
    """Return a checkpoint's arguments of the model in the form that LightningCLI gives to its parser.

    The parser imports class paths. So a class path is handed to it if it is one of `lit_gelu.tasks`, or if the caller's
    own configuration holds it too (``--model my_package.MyModule``); and activations by their registered names.

    Args:
        path: The checkpoint.
        configured: The model's class in the caller's configuration; it holds where the checkpoint names none.
        given: The texts of that configuration.

    Returns:
        ``class_path`` and ``dict_kwargs``; empty if the checkpoint has no arguments.

    Raises:
        CheckpointFileError: If it is no checkpoint of plain data.
        LoadingError: If it names a class that the caller's configuration does not name, or none and does not fit that.
        StoredSpecError: If an argument names something to import.
    """
    called = repr(str(path))
    found = hyper_parameters(read_checkpoint(path), called)
    found.pop("_instantiator", None)
    if not found:
        return {}
    if "_class_path" not in found:
        _require_arguments_of(configured, found, called)
    recorded = found.pop("_class_path", configured)
    named = recorded == configured or recorded in given
    cls = import_class(recorded, LightningModule, "lit_gelu.tasks") if named else own_class(recorded, called)
    if issubclass(cls, ActivationTask) and "activation" in found:
        found["activation"] = str(registry.stored.resolve(found["activation"]))
    require_no_imports(found, cls, given, called)
    return {"class_path": recorded, "dict_kwargs": found}


def _require_arguments_of(configured: str, found: Mapping[str, Any], called: str) -> None:
    """Refuse arguments that the configured class does not take: a checkpoint of a plain Trainer does not say its class.

    Raises:
        LoadingError: If there is one.
    """
    parameters = inspect.signature(import_class(configured, LightningModule, "lit_gelu.tasks")).parameters
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    unknown = [] if takes_any else sorted(found.keys() - parameters.keys())
    if unknown:
        raise LoadingError(
            f"{called} was trained with {', '.join(unknown)}, which {configured} does not take. Name the class of that "
            "checkpoint, which does not say it: --model package.module.Class."
        )
