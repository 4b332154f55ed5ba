"""Mistakes on the command line in one plain sentence, with the remedy: parsers speak to programmers."""

import difflib
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

import jsonargparse

from lit_gelu.cli.commands import COMMANDS

_TYPES = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "str": "a text",
    "NoneType": "null",
    "collections.abc.Mapping": "a mapping, such as '{relu: gelu}'",
    "dict": "a mapping, such as '{relu: gelu}'",
    "list": "a list, such as '[1, 2]'",
    "collections.abc.Iterable": "a list, such as '[1, 2]'",
}
_IN_PYTHON = {"folder": "output"}  # arguments of Python that are called otherwise on the command line
_FAILS = (  # what lit_gelu.surgery and lit_gelu.export say, the former perhaps behind the checkpoint that does not fit
    r"^(?:.+? does not fit \w+: )?(\w+\.forward) fails on (?:input_sample|the input sample) "
    r"(\(.*?)(?: Give a tensor, a tuple of forward's arguments .*)?$"
)
_CLOSE, _CLOSE_CLASS = 0.6, 0.8  # how alike two names must be, as difflib counts, to be offered; classes end alike


class PlainErrors:
    """Lets a parser of jsonargparse say a mistake in one sentence, and no usage of sixty lines before it."""

    given: Sequence[str] = ()

    def parse_args(self, args: Any = None, *others: Any, **options: Any) -> Any:
        """Parse, and keep what was given for a message."""
        self.given = [str(word) for word in (sys.argv[1:] if args is None else args)]
        try:
            return super().parse_args(args, *others, **options)  # type: ignore[misc]  # a mixin of parsers
        except UnicodeDecodeError as error:
            self.error(f"Problems parsing config: {error}")

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Write the sentence and exit with 2; a parser within another raises instead, as it does without this class."""
        if not self.exit_on_error:  # type: ignore[attr-defined]
            super().error(message, ex)  # type: ignore[misc]
        parser: Any = getattr(ex, "subcommand_parser", None) or self
        program = parser.prog.replace(" [options]", "")
        if program == "lit-gelu" and self.given and self.given[0] in COMMANDS:
            program = f"lit-gelu {self.given[0]}"
        sys.stderr.write(f"{program}: {in_plain_words(message, self.given, parser)} See {program} --help.\n")
        sys.exit(2)


class CommandParser(PlainErrors, jsonargparse.ArgumentParser):
    """The parser of a command that is none of Lightning's."""


def in_plain_words(message: str, given: Sequence[str], parser: Any) -> str:
    r"""Return a parser's message as a sentence or two.

    Args:
        message: What jsonargparse said.
        given: The words of the command line.
        parser: The parser, whose options are offered where a name is nearly one of them.

    Returns:
        The sentence, with the remedy; a message of an unknown kind as it is.

    Example:
        >>> from lit_gelu.cli.mistakes import CommandParser
        >>> parser = CommandParser(prog="lit-gelu demo")
        >>> _ = parser.add_argument("--epochs", type=int)
        >>> in_plain_words('Parser key "epochs":\n  Expected a <class \'int\'>. Got value: ten', [], parser)
        "--epochs takes a whole number, not 'ten'."
    """
    for pattern, say in _KINDS:
        found = re.search(pattern, message, re.DOTALL)
        if found is not None:
            sentence = say(found, given, parser)
            if sentence:
                return sentence
    return f"{message.rstrip('.')}."


def _not_accepted(found: re.Match[str], given: Sequence[str], parser: Any) -> str:
    """An argument that no class takes."""
    name = found[1]
    option = _option(name, given, parser)
    if not option.startswith("--"):
        if near := _nearest(name, [dest for dest in _dests(parser) if "." in name and "." in dest]):
            return f"{option} is no option of what the configuration configures. Did you mean {near}?"
        name = name.partition(".")[0]  # of a mapping, the option itself
        option = _option(name, given, parser)
    near = _nearest(name.rpartition(".")[2], [*_arguments_of_classes(given), *_dests(parser)])
    prefix = option.rpartition(".")[0]
    hint = f" Did you mean {f'{prefix}.{near}' if prefix else near}?" if near else ""
    where = "" if option.startswith("--") else " of what the configuration configures"
    return f"{option} is no option{where}.{hint}"


def _unrecognized(found: re.Match[str], given: Sequence[str], parser: Any) -> str:
    """A word that is no option, or where none is expected."""
    word = found[1].split()[0].partition("=")[0]
    if not word.startswith("-"):
        near = sub_command(parser.prog.removeprefix("lit-gelu "), word)
        return f"{word!r} is not expected here: options begin with --.{f' Did you mean {near}?' if near else ''}"
    options = [option for option in parser._option_string_actions if option.startswith("--")]
    inside = {f"--{place}.{name}": name for place in _places(parser) for name in _arguments_of_classes(given)}
    last = word.lstrip("-").rpartition(".")[2]
    meant = f"--{_IN_PYTHON.get(last, '')}"
    exact = [meant] if meant in options else [option for option, name in inside.items() if name == last]
    near = exact[0] if exact else _nearest(word, [*options, *inside])
    return f"{word} is no option.{f' Did you mean {near}?' if near else ''}"


def sub_command(name: str, word: str) -> str:
    """Return the sub-command of a command that a word is nearly the name of; empty if there is none.

    Example:
        >>> sub_command("activations", "shwo")
        'lit-gelu activations show'
    """
    known = [command.removeprefix(f"{name} ") for command in COMMANDS if command.startswith(f"{name} ")]
    near = _nearest(word, known)
    return f"lit-gelu {name} {near}" if near else ""


def as_options(message: str, given: Sequence[str]) -> str:
    """Return an error about an argument of a class as one about the option that gave it.

    Example:
        >>> as_options("keep=2.0 is not accepted.", ["fit", "--model.keep", "2"])
        '--model.keep 2.0 is not accepted.'
    """
    found = re.match(r"(\w+)=", message)
    options = [word.partition("=")[0] for word in given if word.startswith("--")]
    written = [option for option in options if found and option.lstrip("-").rstrip("+").rpartition(".")[2] == found[1]]
    return f"{written[-1]} {message[found.end() :]}" if found and written else message


def of_sample(message: str, shapes: Sequence[str], data: str | None) -> str:
    """Return an error of a model that fails on its input sample as one about the option that gave the sample.

    Example:
        >>> of_sample("Net.forward fails on the input sample (x (2, 5)): no.", ["5"], None)
        'Net.forward fails on --input-shape 5 (x (2, 5)): no. Give the sizes of one row, without the batch.'
    """
    found = re.search(_FAILS, message, re.DOTALL)
    if found is None:
        return message
    if shapes:
        cause, remedy = f"--input-shape {' '.join(shapes)}", "Give the sizes of one row, without the batch."
    elif data is not None:
        cause = f"its example_input_array, or without one on the first batch of --data {data}"
        remedy = "Mend that, or give --input-shape."
    else:
        cause, remedy = "its example_input_array", "Mend it in the module, or give --input-shape."
    return f"{found[1]} fails on {cause} {found[2].rstrip('.')}. {remedy}"


def _wrong_type(found: re.Match[str], given: Sequence[str], parser: Any) -> str:
    """A value of another type."""
    return f"{_option(found[1], given, parser)} takes {_kind(found[2])}, not {found[3].strip()!r}."


def _none_of_types(found: re.Match[str], given: Sequence[str], parser: Any) -> str:
    """A value that is of none of several types; where these are classes, it names none."""
    option, types, value = _option(found[1], given, parser), found[2], found[3].strip()
    if "dot import path" in found[0] or "class_path" in found[0]:
        return _no_class(found[0], option, value, given, parser)
    kinds = [
        _kind(kind)
        for kind in re.findall(r"<class '([^']+)'>|(?<=[\[ ])(\w+)(?=[\],\[])", types)
        for kind in kind
        if kind
    ]
    kinds += [word for words in re.findall(r"Literal\[([^\]]+)\]", types) for word in re.findall(r"'([^']*)'", words)]
    accepted = list(dict.fromkeys(kind for kind in kinds if kind != "null"))
    if not accepted:
        return ""
    *first, last = accepted
    text = f"{', '.join(first)} or {last}" if first else last
    return f"{option} takes {text}, not {value!r}."


def _no_class(message: str, option: str, value: str, given: Sequence[str], parser: Any) -> str:
    """A class that is not there, or that cannot be made of what was given."""
    problem = re.search(r"class_path '([\w.]+)':\s+(.*?)(?:\n\s+- |\n\s+Given)", message, re.DOTALL)
    if problem is not None:
        cause = " ".join(problem[2].split())
        missing = re.fullmatch(r"the following arguments are required: (.+)", cause)
        if missing is not None:
            return _class_needs(problem[1].rpartition(".")[2], option, missing[1].split(", "))
        if cause.startswith("No module named"):
            return (
                f"{option}: {problem[1]} cannot be imported ({cause}). Modules are looked for in the current folder "
                "and among those installed."
            )
        lacking = re.fullmatch(r"module '([\w.]+)' has no attribute '(\w+)'", cause)
        if lacking is not None:
            return f"{option}: there is no {lacking[2]} in {lacking[1]}.{_class_like(lacking[2], lacking[1])}"
        return in_plain_words(problem[2].strip(), [*given, f"{option}={problem[1]}"], parser)
    if re.fullmatch(r"[A-Za-z_]\w*", value) is None:
        return ""
    types = message.partition("Subtypes:")[2].partition("\n")[0]
    classes = _subclasses_of(types)
    own = sorted(cls.__name__ for cls in classes if _is_offered(cls))
    near = _nearest_class(value, [cls.__name__ for cls in classes])
    hint = f" Did you mean {near}?" if near else f" There are {', '.join(own)}." if own else ""
    return f"{option}: there is no class {value}.{hint} Your own class is named with its module: my_module.{value}."


def _is_offered(cls: type) -> bool:
    """Say whether this package exports a class for a command to make."""
    packages = [sys.modules.get(f"lit_gelu.{name}") for name in ("tasks", "data", "callbacks")]
    public = {name for package in packages for name in getattr(package, "__all__", ())}
    return cls.__name__ in public and not inspect.isabstract(cls)


def _class_like(name: str, module: str) -> str:
    """Offer the class of a module whose name is nearly that; empty if there is none."""
    classes = [other for other, value in vars(sys.modules.get(module, object)).items() if isinstance(value, type)]
    near = _nearest_class(name, classes)
    return f" Did you mean {module}.{near}?" if near else ""


def _class_needs(name: str, option: str, missing: Sequence[str]) -> str:
    more = " ".join(f"{option.rstrip('+')}.{argument} VALUE" for argument in missing)
    return f"{name} needs {' and '.join(missing)}. Give it behind the class: {option} {name} {more}."


def _required(found: re.Match[str], given: Sequence[str], parser: Any) -> str:
    """Arguments that are missing: of the command, or of a class that was named."""
    names = found[1].split(", ")
    actions = {action.dest: action for action in parser._actions}
    if not all(name in actions for name in names):
        for option, value in _options_of_classes(given):
            for cls in _subclasses_of(""):
                if cls.__name__ == value.rpartition(".")[2] and set(names) <= set(_parameters(cls)):
                    return _class_needs(cls.__name__, option, names)
        return ""
    shown = [actions[name].option_strings[-1] if actions[name].option_strings else name.upper() for name in names]
    return f"{' and '.join(shown)} {'is' if len(shown) == 1 else 'are'} required."


def _no_value(found: re.Match[str], given: Sequence[str], parser: Any) -> str:  # noqa: ARG001 - one signature for all
    """An option at the end, or before another one, that takes a value."""
    following = [*given[1:], "--"]
    words = [
        word
        for word, after in zip(given, following, strict=False)
        if "=" not in word and word.startswith(found[1]) and after.startswith("--")
    ]
    return f"{words[0] if words else found[1]} needs a value."


def _no_choice(found: re.Match[str], given: Sequence[str], parser: Any) -> str:  # noqa: ARG001
    """A word that is none of those an option takes."""
    *first, last = [choice.strip(" '\"") for choice in found[3].split(",")]
    near = _nearest(found[2], [*first, last])
    hint = f" Did you mean {near}?" if near else ""
    return f"{found[1]}: invalid choice: {found[2]!r}. Give {', '.join(first)} or {last}.{hint}"


def _no_file(found: re.Match[str], given: Sequence[str], parser: Any) -> str:
    """A file that is not there."""
    path = Path(found[2])
    shown = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    return f"{_option(found[1], given, parser)}: there is no file {str(shown)!r}."


def _no_yaml(found: re.Match[str], given: Sequence[str], parser: Any) -> str:  # noqa: ARG001
    """A configuration that is no YAML."""
    said = " ".join(found[1].split()).replace(' in "<unicode string>",', " at")
    return f"The {_configuration(given)} is no YAML that can be read: {said}."


def _no_content(found: re.Match[str], given: Sequence[str], parser: Any) -> str:  # noqa: ARG001
    """A configuration without options: an empty file, or one that is no mapping."""
    return f"The {_configuration(given)} holds no options. Give a YAML file such as --print_config writes."


def _configuration(given: Sequence[str]) -> str:
    files = [after for word, after in zip(given, [*given[1:], ""], strict=False) if word in {"-c", "--config"}]
    files += [word.partition("=")[2] for word in given if word.startswith("--config=")]
    return f"configuration {files[0]!r}" if len(files) == 1 else "configuration"


_Say = Callable[[re.Match[str], Sequence[str], Any], str]
_KINDS: tuple[tuple[str, _Say], ...] = (
    (r"^Option '([^']+)' is not accepted", _not_accepted),
    (r"^(?:Key|Parser key) '?\"?([\w.]+)'?\"? is not expected", _not_accepted),
    (r"^Subcommand '\w+' does not accept option '([^']+)'", _not_accepted),
    (r"^[Uu]nrecognized arguments: (.+)", _unrecognized),
    (r'^Parser key "([^"]+)":.*?File does not exist: \'?([^\'\n]+)\'?', _no_file),
    (r'^Parser key "([^"]+)"(?: element \d+)?:\s+Expected a <class \'([^\']+)\'>\. Got value: (.*)', _wrong_type),
    (r'^Parser key "([^"]+)":.*?Subtypes: (\[.*?\])\n.*Given value: (.*)', _none_of_types),
    (r"^the following arguments are required: (.+)", _required),
    (r"^argument ([^:]+): expected (?:one|at least one|\d+) argument", _no_value),
    (r"^argument ([^:]+): invalid choice: '([^']*)' \(choose from (.+)\)", _no_choice),
    (r"^Problems parsing config: (.+)", _no_yaml),
    (r"^Unexpected config: *\.?$", _no_content),
)


def _option(key: str, given: Sequence[str], parser: Any) -> str:
    """Return the option of a key as it was written; the key itself where a file says it."""
    written = [word.partition("=")[0] for word in given if word.startswith("--")]
    ends = [word for word in written if word.lstrip("-").rstrip("+") == key]
    ends += [word for word in written if word.rstrip("+").endswith(f".{key}")]
    if ends:
        return ends[-1]
    action = next((action for action in parser._actions if action.dest == key), None)
    if action is not None and action.option_strings:
        return str(action.option_strings[-1])
    return repr(key)


def _kind(name: str) -> str:
    return _TYPES.get(name, name.rpartition(".")[2])


def _nearest(name: str, names: Sequence[str], cutoff: float = _CLOSE) -> str:
    """Return the name that is most like another, empty where none is."""
    by_small = {other.lower(): other for other in reversed(names)}
    near = difflib.get_close_matches(name.lower(), list(by_small), n=1, cutoff=cutoff)
    return by_small[near[0]] if near else ""


def _nearest_class(name: str, classes: Sequence[str]) -> str:
    """Return the class whose name is most like another, or of which one begins with the other; empty without one."""
    begin_alike = [one for one in classes if one.lower().startswith(name.lower()) or name.startswith(one)]
    return _nearest(name, classes, _CLOSE_CLASS) or (_nearest(name, begin_alike, 0.0) if len(name) > 2 else "")


def _dests(parser: Any) -> list[str]:
    return [action.dest for action in parser._actions]


def _places(parser: Any) -> list[str]:
    """Return the options that take a class whose arguments follow behind a dot."""
    return [place for place in ("model", "data") if f"--{place}" in parser._option_string_actions]


def _options_of_classes(given: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the options on the command line with their values, the last first."""
    pairs = list(zip(given, [*given[1:], ""], strict=False))
    for word, after in reversed(pairs):
        option, equals, value = word.partition("=")
        if option.startswith("--"):
            yield option, value if equals else after


def _arguments_of_classes(given: Sequence[str]) -> list[str]:
    """Return the names of the arguments of all classes that the command line names."""
    named = {value.rpartition(".")[2] for _, value in _options_of_classes(given)}
    return [name for cls in _subclasses_of("") if cls.__name__ in named for name in _parameters(cls)]


def _parameters(cls: type) -> list[str]:
    return [name for name in inspect.signature(cls).parameters if name not in {"args", "kwargs", "self"}]


def _subclasses_of(types: str) -> list[type]:
    """Return the public classes that are imported and are of the types that a message names; of all without a name."""
    lightning = sys.modules.get("lightning.pytorch")
    if lightning is None:
        return []
    bases = [lightning.LightningModule, lightning.LightningDataModule, lightning.Callback]
    bases.append(sys.modules["lightning.pytorch.loggers"].Logger)
    wanted = [base for base in bases if not types or base.__name__ in types]
    found: dict[type, None] = {}
    while wanted:
        cls = wanted.pop()
        wanted += [other for other in cls.__subclasses__() if other not in found]
        found[cls] = None
    return [cls for cls in found if cls not in bases and not cls.__name__.startswith("_")]
