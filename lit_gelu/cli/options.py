"""The commands' parsers: options that several take, old spellings, and errors in the words of the command line."""

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jsonargparse

from lit_gelu.cli import own_modules
from lit_gelu.cli.commands import COMMANDS, summary, table
from lit_gelu.cli.mistakes import CommandParser
from lit_gelu.deprecation import REMOVED_IN

_BOOLEANS = {"true": True, "yes": True, "false": False, "no": False}
_JSON_FILE = "FILE.json"  # the metavar of a --json that stands beside names
_COMMANDS_OF_FUNCTIONS = {"lit_gelu.export.export_onnx": "lit-gelu export"}
_CALL = re.compile(r"(\w\([^()]*\))")  # gelu(approximate='tanh') is a spec, and no option
_QUOTED = r"'([^']*)'"
_VALUE = r"""('[^']*'|"[^"]*"|\['[^\]]*\]|\([^()]*\)|-?\w[\w*-]*(?:\.\w+)*)?"""  # a list is several words
_NEGATIVE_NUMBER = re.compile(r"-(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?$")  # argparse takes -1e-3 for an option


class ExamplesHelpFormatter(jsonargparse.DefaultHelpFormatter):
    """Keeps the line breaks of texts that have them, so that examples stay one a line."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if "\n" in text.strip():
            return "".join(indent + line for line in text.splitlines(keepends=True))
        return super()._fill_text(text, width, indent)


def command_parser(name: str, examples: str, description: str = "") -> jsonargparse.ArgumentParser:
    """Return the parser of a command, without arguments so far."""
    description = description or summary(name)
    if any(command.startswith(f"{name} ") for command in COMMANDS):
        description += f"\n\nsub-commands (lit-gelu {name} SUB-COMMAND --help):\n{table(name)}\n"
    parser = CommandParser(
        prog=f"lit-gelu {name}", description=description, epilog=examples, formatter_class=ExamplesHelpFormatter
    )
    parser._negative_number_matcher = _NEGATIVE_NUMBER
    return parser


def add_flag(parser: jsonargparse.ArgumentParser, option: str, help: str, *, default: bool = False) -> None:  # noqa: A002
    """Add an option without a value; one that is on by default is turned off by ``--no-OPTION``."""
    if default:
        parser.add_argument(option, action=jsonargparse.ActionYesNo(no_prefix="no-"), default=True, help=help)
    else:
        parser.add_argument(option, action="store_true", help=help)


def add_json(parser: jsonargparse.ArgumentParser, *, beside_names: bool = False) -> None:
    """Add ``--json [FILE]``; beside names, a word behind it is a file only if it ends in .json."""
    parser.add_argument(
        "--json",
        nargs="?",
        const="-",
        default=None,
        metavar=_JSON_FILE if beside_names else "FILE",
        help="print JSON, and nothing else on standard output; or write it into a file",
    )


def add_import(parser: jsonargparse.ArgumentParser) -> None:
    """Add ``--import``."""
    parser.add_argument(
        own_modules.OPTION, action="append", default=[], metavar="MODULE", help=f"{own_modules.HELP}; may be repeated"
    )


def add_model(parser: jsonargparse.ArgumentParser) -> None:
    """Add ``--model`` and ``--import``."""
    parser.add_argument(
        "--model",
        type=str | None,
        default=None,
        metavar="CLASS",
        help="the model's class, if the checkpoint does not record it: my_module.MyNet, also from the current folder",
    )
    add_import(parser)


def add_data(
    parser: jsonargparse.ArgumentParser, use: str, *, root_of: str = "the data module", required: bool = False
) -> None:
    """Add ``--data``, a data module, and ``--data-root``, its folder."""
    kind = str if required else str | None
    parser.add_argument(
        "--data", type=kind, required=required, default=None, metavar="CLASS", help=f"a data module, {use}"
    )
    parser.add_argument(
        "--data-root", type=str | None, default=None, metavar="FOLDER", help=f"the folder with the files of {root_of}"
    )


def add_input_shape(parser: jsonargparse.ArgumentParser) -> None:
    """Add ``--input-shape``."""
    parser.add_argument(
        "--input-shape",
        type=str,
        nargs="+",
        default=[],
        metavar="[NAME=]SIZES[:DTYPE]",
        help="for a model without example_input_array: the sizes of one row of each input, without the batch; "
        "1,28,28, or by name input_ids=16:int64 mask=16:int64",
    )


def add_providers(parser: jsonargparse.ArgumentParser) -> None:
    """Add ``--providers``."""
    parser.add_argument(
        "--providers",
        type=str,
        nargs="+",
        default=None,
        help="onnxruntime's execution providers; default: CUDA, or the CPU",
    )


def current_spelling(
    parser: jsonargparse.ArgumentParser, arguments: Sequence[str], renamed: Mapping[str, str]
) -> list[str]:
    """Return arguments as the parser takes them: dashes or underscores, and what an option was called before."""
    return list(_respelled(parser, list(arguments), renamed))


def _respelled(parser: jsonargparse.ArgumentParser, arguments: list[str], renamed: Mapping[str, str]) -> Iterator[str]:
    known = parser._option_string_actions  # of argparse, which offers no other way to ask
    while arguments:
        word = arguments.pop(0)
        if word == "--":
            yield from [word, *arguments]
            return
        option, equals, value = word.partition("=")
        if option in renamed:
            _say_old(parser, option, renamed[option])
            option = renamed[option]
        if option.startswith("--") and option not in known:
            spellings = (option.replace("_", "-"), "--" + option[2:].replace("-", "_"))
            option = next((name for name in spellings if name in known), option)
        action = known.get(option)
        boolean = action is not None and (action.nargs == 0 or isinstance(action, jsonargparse.ActionYesNo))
        if boolean or option == "--json":
            old = value if equals else arguments[0] if arguments else ""
            if old.lower() in _BOOLEANS:
                del arguments[: not equals]
                wanted = _flag(known, option, on=_BOOLEANS[old.lower()])
                _say_old(parser, f"{option} {old}", wanted or f"nothing, as without {option}")
                yield from [wanted] if wanted else []
                continue
            if action is not None and action.metavar == _JSON_FILE and not equals and not old.endswith(".json"):
                option, equals, value = "--json", "=", "-"  # as in `show --json gelu`: what follows is a name
        yield f"{option}={value}" if equals else option


def _flag(known: Mapping[str, Any], option: str, *, on: bool) -> str:
    """Return the flag that sets an option; empty where there is none to turn it off, because it is off by default."""
    negated = f"--no-{option[2:]}"
    return option if on else negated if negated in known else ""


def _say_old(parser: jsonargparse.ArgumentParser, old: str, new: str) -> None:
    sys.stderr.write(f"{parser.prog}: {old} is deprecated and goes with lit-gelu {REMOVED_IN}: write {new}\n")


def in_own_words(message: str, parser: jsonargparse.ArgumentParser, arguments: Mapping[str, str]) -> str:
    """Return an error with options where it names arguments of Python: --overwrite for overwrite=True."""
    # `arguments` has options by what Python calls their arguments, where that is another name.
    known = parser._option_string_actions
    options = {action.dest: name for name, action in reversed(known.items()) if name.startswith("--")} | dict(arguments)
    pattern = re.compile(rf"(?<![\w.'\"-])({'|'.join(map(re.escape, options))})={_VALUE}")

    def option(found: re.Match[str]) -> str:
        name, value = options[found[1]], found[2]
        if value in {"True", "False"}:
            return _flag(known, name, on=value == "True") or f"no {name}"
        if value is not None and value.startswith("["):
            return f"{name} {' '.join(re.findall(_QUOTED, value))}"
        if value is not None and value.startswith("("):
            return f"{name} {value[1:-1].replace(',', '')}"
        return name if value is None else f"{name} {value.strip(chr(39) + chr(34))}"

    for function, command in _COMMANDS_OF_FUNCTIONS.items():
        message = message.replace(function, command)
    parts = _CALL.split(message)
    return "".join(part if _CALL.fullmatch(part) else pattern.sub(option, part) for part in parts)
