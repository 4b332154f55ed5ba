"""Arguments of the model beside ``--ckpt_path``: those of the checkpoint count, and a difference is said."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch.utilities import rank_zero_warn

from lit_gelu.activations import registry
from lit_gelu.errors import LitGeluError, shown
from lit_gelu.files import is_special

CLASS = "class_path"
_PARTS = ("init_args.", "dict_kwargs.")  # --model.init_args.keep is --model.keep


class GivenArgumentsError(LitGeluError, ValueError):
    """Options of the model that differ from what its checkpoint was trained with."""


def arguments_of(model: Any) -> dict[str, Any]:
    """Return the class and the arguments of a model's part of a configuration, as one mapping."""
    plain = model.as_dict()
    return {CLASS: plain.get(CLASS), **(plain.get("init_args") or {}), **(plain.get("dict_kwargs") or {})}


def readable_twice(words: Sequence[str]) -> list[str]:
    """Return the words of a command line with the text of each configuration that comes from a pipe in its place."""
    return [_readable_twice(before, word) for before, word in zip(["", *words], words, strict=False)]


def _readable_twice(before: str, word: str) -> str:
    option, equals, value = word.partition("=") if word.startswith("--config=") else ("", "", word)
    is_configuration = bool(equals) or before in {"-c", "--config"}
    return f"{option}{equals}{Path(value).read_text()}" if is_configuration and is_special(value) else word


def written_options(words: Sequence[str]) -> dict[str, str]:
    """Return the options of the model on the command line, by the argument that each gives.

    Example:
        >>> written_options(["--model=MyNet", "--model.keep", "0.5", "--model.init_args.fused=true", "--data", "D"])
        {'class_path': '--model', 'keep': '--model.keep', 'fused': '--model.init_args.fused'}
    """
    options = [word.partition("=")[0].rstrip("+") for word in words]
    found = {CLASS: "--model"} if "--model" in options else {}
    for option in options:
        if option.startswith("--model."):
            name = option.removeprefix("--model.")
            for part in _PARTS:
                name = name.removeprefix(part)
            found[name.partition(".")[0]] = option
    return found


def require_those_of_checkpoint(
    given: Mapping[str, Any], stored: Mapping[str, Any], written: Mapping[str, str], path: str
) -> None:
    """Refuse options that differ from a checkpoint's arguments; warn of a configuration that does.

    Args:
        given: What the command line and configuration files say, no defaults but inside these; see `arguments_of`.
        stored: What the model is built with, out of the checkpoint.
        written: The options on the command line, by argument.
        path: The checkpoint.

    Raises:
        GivenArgumentsError: If an option says something else than the checkpoint.
    """
    # An option is written for this very command, which could not follow it: weights belong to the arguments that they
    # were trained with, and the optimizer's state brings its learning rate along. A configuration may serve several
    # runs, each with options of its own, so that it may differ.
    differing = {
        name: (value, stored[name])
        for name, value in given.items()
        if name in stored and not _same(value, stored[name])
    }
    options = [_words(written[name], name, *differing[name]) for name in differing if name in written]
    if options:
        raise GivenArgumentsError(
            f"The model of {path!r} is built as it was trained, and these options differ: {'; '.join(options)}. Leave "
            "them out. To train its weights on with other arguments, load them in Python, "
            f"{stored[CLASS].rpartition('.')[2]}.load_from_checkpoint({path!r}, learning_rate=1e-5) for instance, and "
            "call Trainer.fit without ckpt_path; another activation comes with the callback ActivationSwap."
        )
    if differing:
        rows = [_words(f"model.{name}", name, *values) for name, values in differing.items()]
        rank_zero_warn(
            f"The model of {path!r} is built as it was trained, and not as the configuration says: {'; '.join(rows)}."
        )


def _words(called: str, name: str, given: Any, stored: Any) -> str:
    """Return one difference in words."""
    called = "model" if called == f"model.{CLASS}" else called
    return f"{called} {_value(name, given)}, but the checkpoint has {_value(name, stored)}"


def _value(name: str, value: Any) -> str:
    return str(value) if name == CLASS else shown(value)


def _same(given: Any, stored: Any) -> bool:
    """Say whether two values are one, also where they are two spellings of one activation."""
    if repr(given) == repr(stored):
        return True
    resolve = registry.stored.resolve  # what a file holds is not imported, and what is given need not be for this
    try:
        return bool(given == stored) or str(resolve(given)) == str(resolve(stored))
    except (LitGeluError, RuntimeError, ValueError, TypeError):
        return False  # neither is an activation, or a comparison of tensors has several answers
