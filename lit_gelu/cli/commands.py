"""The commands beside LightningCLI: plain functions, whose signatures and docstrings are options, defaults and help.

A parameter without a default is a word on the command line, ``*names`` are several, what stands behind ``*`` is an
option: a list takes several words, ``False`` is a flag, ``True`` one that ``--no-NAME`` turns off, ``json`` a file or,
without one, standard output. Underscores in options are dashes, and are accepted too.
"""

import collections.abc
import importlib
import inspect
import sys
import typing
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import jsonargparse
from docstring_parser import parse as parse_docstring

from lit_gelu.errors import ArgumentError

COMMANDS = {
    "fit": "train a task: lit-gelu fit --model.activation gelu",
    "validate": "measure a checkpoint on the validation set",
    "test": "measure a checkpoint on the test set",
    "predict": "run a checkpoint on the prediction set",
    "choose": "which activation for a model: lit-gelu choose --activations gelu silu relu",
    "compare": "whether runs that are there differ: lit-gelu compare runs.csv --metric test_error",
    "export": "write a checkpoint's model to an ONNX file, checked against PyTorch",
    "parity": "prove that an ONNX file computes what the PyTorch model computes",
    "optimize": "apply onnxruntime's offline fusions to a file, and prove the result",
    "inspect": "say what an ONNX file is: opset, sizes, activations, how it was made and proved",
    "audit": "whether two artefacts compute the same activations, and what a mismatch costs",
    "bench": "time an ONNX file beside PyTorch eager and torch.compile, in one run",
    "doctor": "say what is wrong with this installation, and how to mend it",
    "curvature": "measure the activations' and the loss's curvature of a checkpoint, and draw it",
    "report": "make one page of a run from its log folder",
    "activations": "list the registered activations, describe, compare or plot them",
    "activations compare": "how far two activations lie apart in f, f' and f'', and where",
    "activations plot": "draw f, f' and f'' of some activations side by side",
    "vectors": "correctly rounded values of activations: write them, score a function by them",
    "vectors write": "write f, f' and f'' at all 16-bit inputs, or 200,000 of float32",
    "vectors score": "count how far a function or an ONNX file is from them, in ulp",
    "new": "write a small project that trains, swaps, exports and is tested",
    "demo": "train, swap, measure curvature, export and check parity in one go",
}
LIGHTNING_COMMANDS = {"fit", "validate", "test", "predict", "choose"}  # of LightningCLI, which parses for itself
IMPORT = "--import"
IMPORT_HELP = "a module to import first, from the current folder or installed: it may register activations or a model"


def table(group: str = "") -> str:
    """Return a line for each command, or for each sub-command of one."""
    names = {name: name.removeprefix(group).strip() for name in COMMANDS if name.rpartition(" ")[0] == group}
    return "\n".join(f"  {short:<12} {COMMANDS[name]}" for name, short in names.items())


class ExamplesHelpFormatter(jsonargparse.DefaultHelpFormatter):
    """Keeps the line breaks of texts that have them, so that examples stay one a line."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if "\n" in text.strip():
            return "".join(indent + line for line in text.splitlines(keepends=True))
        return super()._fill_text(text, width, indent)


class CommandParser(jsonargparse.ArgumentParser):
    """A parser that says a mistake in jsonargparse's words behind the command's name, without lines of usage."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Write it and exit with 2; a parser within another raises instead."""
        if not self.exit_on_error:
            super().error(message, ex)
        parser = getattr(ex, "subcommand_parser", None) or self
        program = parser.prog.replace(" [options]", "")
        sys.stderr.write(f"{program}: {message.strip().rstrip('.')}. See {program} --help.\n")
        sys.exit(2)


def function_of(name: str) -> Callable[..., Any]:
    """Return the function of a command: ``activations plot`` is ``plot`` in the module ``activations``."""
    words = name.split()
    function: Callable[..., Any] = getattr(importlib.import_module(f"lit_gelu.cli.{words[0]}"), words[-1])
    return function


def parser_of(name: str) -> CommandParser:
    """Return the parser of a command, whose arguments are those of its function."""
    function, program, sub_commands = function_of(name), f"lit-gelu {name}", table(name)
    docstring = parse_docstring(inspect.getdoc(function) or "")
    about = {parameter.arg_name.lstrip("*"): parameter.description or "" for parameter in docstring.params}
    description = docstring.short_description or ""
    if sub_commands:
        description += f"\n\nsub-commands ({program} SUB-COMMAND --help):\n{sub_commands}\n"
    parser = CommandParser(
        prog=program, description=description, epilog=docstring.long_description, formatter_class=ExamplesHelpFormatter
    )
    for argument, parameter in inspect.signature(function, eval_str=True).parameters.items():
        _add(parser, argument, parameter, about.get(argument, ""))
    parser.add_argument(IMPORT, action="append", metavar="MODULE", help=f"{IMPORT_HELP}; may be repeated")
    return parser


def _add(parser: CommandParser, name: str, parameter: inspect.Parameter, text: str) -> None:
    kind, default = parameter.annotation, parameter.default
    is_required = default is parameter.empty
    if parameter.kind is not parameter.KEYWORD_ONLY:
        several: dict[str, Any] = {"nargs": "*"} if parameter.kind is parameter.VAR_POSITIONAL else {}
        parser.add_argument(name, type=kind, help=text, **several)
        return
    options = [f"--{name.replace('_', '-')}", *(["-o"] if name == "output" else [])]
    settings: dict[str, Any] = {"type": kind, "required": is_required, "default": None if is_required else default}
    if kind is bool and default:
        settings = {"action": jsonargparse.ActionYesNo(no_prefix="no-"), "default": True}
    elif kind is bool:
        settings = {"action": "store_true"}
    elif typing.get_origin(kind) is collections.abc.Sequence:
        default = [] if is_required else list(default)
        settings |= {"nargs": "+", "type": typing.get_args(kind)[0], "default": default}
    elif name == "json":
        settings = {"nargs": "?", "const": "-", "default": None, "metavar": "FILE"}
    parser.add_argument(*options, help=text, **settings)


def run_command(name: str, words: Sequence[str]) -> int:
    """Parse the words of a command and call its function; return its exit code."""
    spelled = []
    for word in words:
        option, equals, value = word.partition("=")
        spelled.append(f"{option.replace('_', '-')}{equals}{value}" if option.startswith("--") else word)
    arguments = parser_of(name).parse_args(spelled)
    import_modules(arguments.get("import") or [])
    function = function_of(name)
    ordered: list[Any] = []
    named: dict[str, Any] = {}
    for key, parameter in inspect.signature(function).parameters.items():
        if parameter.kind is parameter.KEYWORD_ONLY:
            named[key] = arguments[key]
        else:
            ordered += arguments[key] if parameter.kind is parameter.VAR_POSITIONAL else [arguments[key]]
    return int(function(*ordered, **named))


@contextmanager
def current_folder_on_path() -> collections.abc.Iterator[None]:
    """Let modules in the current folder be imported, as ``python -m`` does; installed ones come first."""
    # ``python -P`` and ``PYTHONSAFEPATH`` turn it off, as they do everywhere.
    folder = str(Path.cwd())
    if sys.flags.safe_path or folder in sys.path:
        yield
        return
    sys.path.append(folder)
    try:
        yield
    finally:
        if folder in sys.path:
            sys.path.remove(folder)


def import_modules(names: Sequence[str]) -> None:
    """Import modules for what they register and define."""
    for name in names:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{name}.".startswith(f"{error.name}."):
                raise  # something that the module needs
            raise ArgumentError(
                f"{IMPORT} {name}: there is no module {error.name!r} in {str(Path.cwd())!r}, nor installed. "
                "Give a name such as my_package.my_module."
            ) from error
