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

from lit_gelu.display import printable_lines
from lit_gelu.errors import ArgumentError
from lit_gelu.files import is_file, is_special

COMMANDS = {
    "fit": "train a task: lit-gelu fit --model.activation gelu",
    "validate": "measure a checkpoint on the validation set",
    "test": "measure a checkpoint on the test set",
    "predict": "run a checkpoint on the prediction set",
    "choose": "which activation for a model: lit-gelu choose --activations gelu silu relu",
    "export": "write a checkpoint's model to an ONNX file, checked against PyTorch",
    "parity": "prove that an ONNX file computes what the PyTorch model computes",
    "inspect": "say what an ONNX file is: opset, sizes, activations, how it was made and proved",
    "bench": "time an ONNX file beside PyTorch eager and torch.compile, in one run",
    "doctor": "say what is wrong with this installation, and how to mend it",
    "curvature": "measure the activations' and the loss's curvature of a checkpoint, and draw it",
    "report": "make one page of a run from its log folder",
    "activations": "list the registered activations, describe, compare or plot them",
    "activations compare": "how far two activations lie apart in f, f' and f'', and where",
    "activations plot": "draw f, f' and f'' of some activations side by side",
    "new": "write a small project that trains, swaps, exports and is tested",
    "demo": "train, swap, measure curvature, export and check parity in one go",
}
LIGHTNING_COMMANDS = {"fit", "validate", "test", "predict", "choose"}  # of LightningCLI, which parses for itself
IMPORT = "--import"
IMPORT_HELP = "a module to import first, from the current folder or installed: it may register activations or a model"
_OUTPUTS = ("output", "json", "csv", "markdown", "html", "figure", "plot")  # options for files that are written


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
        sys.stderr.write(f"{program}: {printable_lines(message.strip().rstrip('.'))}. See {program} --help.\n")
        sys.exit(2)


def function_of(name: str) -> Callable[..., Any]:
    """Return the function of a command: ``activations plot`` is ``plot`` in the module ``activations``."""
    words = name.split()
    function: Callable[..., Any] = getattr(importlib.import_module(f"lit_gelu.cli.{words[0]}"), words[-1])
    return function


def parser_of(name: str) -> jsonargparse.ArgumentParser:
    """Return the parser of a command."""
    return parser_of_function(function_of(name), f"lit-gelu {name}", table(name))


def parser_of_function(function: Callable[..., Any], program: str, sub_commands: str = "") -> CommandParser:
    """Return a parser whose arguments are those of a function."""
    docstring = parse_docstring(inspect.getdoc(function) or "")
    about = {parameter.arg_name.lstrip("*"): parameter.description or "" for parameter in docstring.params}
    description = docstring.short_description or ""
    if sub_commands:
        description += f"\n\nsub-commands ({program} SUB-COMMAND --help):\n{sub_commands}\n"
    parser = CommandParser(
        prog=program,
        description=description,
        epilog=docstring.long_description,
        formatter_class=ExamplesHelpFormatter,
    )
    for name, parameter in inspect.signature(function, eval_str=True).parameters.items():
        _add(parser, name, parameter, about.get(name, ""))
    parser.add_argument(IMPORT, action="append", metavar="MODULE", help=f"{IMPORT_HELP}; may be repeated")
    return parser


def _add(parser: CommandParser, name: str, parameter: inspect.Parameter, text: str) -> None:
    """Add what stands for a parameter."""
    kind, default = parameter.annotation, parameter.default
    is_required = default is parameter.empty
    if parameter.kind is parameter.VAR_POSITIONAL:
        parser.add_argument(name, nargs="*", type=kind, help=text)
        return
    if parameter.kind is not parameter.KEYWORD_ONLY and is_required:
        parser.add_argument(name, type=kind, help=text)
        return
    options = [f"--{name.replace('_', '-')}", *(["-o"] if name == "output" else [])]
    if kind is bool and default:
        parser.add_argument(*options, action=jsonargparse.ActionYesNo(no_prefix="no-"), default=True, help=text)
    elif kind is bool:
        parser.add_argument(*options, action="store_true", help=text)
    elif typing.get_origin(kind) is collections.abc.Sequence:
        several = {"nargs": "+", "type": typing.get_args(kind)[0], "default": [] if is_required else list(default)}
        parser.add_argument(*options, required=is_required, help=text, **several)
    elif name == "json":
        parser.add_argument(*options, nargs="?", const="-", default=None, metavar="FILE", help=text)
    else:
        parser.add_argument(
            *options, type=kind, required=is_required, default=None if is_required else default, help=text
        )


def run_command(name: str, words: Sequence[str]) -> int:
    """Parse the words of a command and call its function; return its exit code."""
    parser = parser_of(name)
    options = parser._option_string_actions  # of argparse, which offers no other way to ask
    spelled = []
    for word in words:
        option, equals, value = word.partition("=")
        dashed = option.replace("_", "-")
        spelled.append(f"{dashed}{equals}{value}" if option.startswith("--") and dashed in options else word)
    arguments = parser.parse_args(spelled)
    import_modules(arguments.get("import") or [])
    check_outputs(vars(arguments))
    function = function_of(name)
    parameters = inspect.signature(function).parameters
    named = {key: arguments[key] for key, p in parameters.items() if p.kind is p.KEYWORD_ONLY}
    ordered: list[Any] = []
    for key, parameter in parameters.items():
        if parameter.kind is parameter.VAR_POSITIONAL:
            ordered += arguments[key]
        elif parameter.kind is not parameter.KEYWORD_ONLY:
            ordered.append(arguments[key])
    return int(function(*ordered, **named))


def check_outputs(arguments: typing.Mapping[str, Any]) -> None:
    """Refuse outputs that would replace each other, or a file that another argument names."""
    files: list[tuple[str, Path]] = []
    for name, value in arguments.items():
        for text in value if isinstance(value, list) else [value]:
            is_written = name in _OUTPUTS and text != "-"
            if isinstance(text, str) and (is_written or is_file(text)) and not is_special(text):
                files.append((name, Path(text)))
    for name, path in files:
        for other, place in files:
            same = path == place or (is_file(path) and is_file(place) and path.samefile(place))
            if name in _OUTPUTS and other != name and same:
                use = f"--{other} writes" if other in _OUTPUTS else "this command reads"
                raise ArgumentError(
                    f"--{name} {str(path)!r} is the file that {use}, and would replace it. Give another."
                )


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
        if not all(part.isidentifier() for part in name.split(".")) or name.endswith(".py"):
            raise ArgumentError(f"{IMPORT} {name!r} is no module's name. Give one such as my_package.my_module.")
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{name}.".startswith(f"{error.name}."):
                raise  # something that the module needs
            raise ArgumentError(
                f"{IMPORT} {name}: there is no module {error.name!r} in {str(Path.cwd())!r}, nor among those installed."
            ) from error
