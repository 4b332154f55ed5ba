"""`ActivationSpec`: an activation's name and keyword arguments as one value that prints and parses back to itself."""

import ast
import functools
import inspect
import keyword
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from lit_gelu.display import HtmlTable
from lit_gelu.errors import ArgumentError, SpecError, shown

PlainValue = None | bool | int | float | str | tuple["PlainValue", ...]

ACCEPTED = (
    "a text such as \"gelu(approximate='tanh')\", a mapping {'name': ...} or {'class_path': ..., 'init_args': ...}, "
    "an ActivationSpec, a torch.nn.Module class, a function from tensor to tensor, or a torch.nn.Module"
)
_GRAMMAR = "NAME or NAME(KEYWORD=VALUE, ...), such as \"gelu(approximate='tanh')\""
_TEXT = re.compile(r"\s*(opaque:)?([^\s()]+)\s*(?:\((.*)\))?\s*", re.DOTALL)
_NAME = re.compile(r"[a-z_][a-z0-9_]*")
_KEYWORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_INTEGER_BITS, _DEPTH = 1000, 16  # bits that a float's range can hold; nesting that every parser can read
_RESERVED = frozenset({"name", "class_path", "init_args"})
NOT_IN_SPECS = frozenset({"device", "dtype", "generator"})  # where and how parameters are made, not what is computed
NOT_OF_THE_FUNCTION = frozenset({"inplace", "memory"})  # they change how a module computes, not what


@dataclass(frozen=True)
class ActivationSpec:
    """An activation written down: ``name(keyword=value, ...)``.

    Two specs are equal when name, arguments and ``opaque`` are. ``str(spec)`` is the text that a checkpoint, a YAML
    file or a log line holds, and ``ActivationSpec.parse(str(spec)) == spec``. Whether the name exists is not checked
    here: `ActivationRegistry.resolve` does that, fills in presets and drops arguments that equal their defaults.

    Args:
        name: A registered name in lower case, or, for what was never registered, the dotted path of its class.
        kwargs: Keyword arguments as (keyword, value) pairs; kept sorted by keyword. Values are ``None``, ``bool``,
            ``int``, ``float`` (not NaN), ``str`` and tuples of these; lists become tuples.
        opaque: Whether it stands for something never registered. It can be used, but not rebuilt from its text.

    Raises:
        SpecError: If the name, a keyword or a value is not of that form.

    Example:
        >>> spec = ActivationSpec.parse("leaky_relu(negative_slope=0.2)")
        >>> spec.name, spec.kwargs
        ('leaky_relu', (('negative_slope', 0.2),))
        >>> str(ActivationSpec.of("gelu", approximate="tanh"))
        "gelu(approximate='tanh')"
    """

    name: str
    kwargs: tuple[tuple[str, PlainValue], ...] = ()
    opaque: bool = False

    def __post_init__(self) -> None:
        if self.opaque or not isinstance(self.name, str) or not _NAME.fullmatch(self.name):
            object.__setattr__(self, "name", self._checked_name())
        if self.kwargs != ():
            plain = {}
            for key, value in self.kwargs:
                identifier = isinstance(key, str) and _KEYWORD.fullmatch(key) and not keyword.iskeyword(key)
                if not identifier or key in _RESERVED:
                    raise SpecError(
                        f"{shown(key)} cannot be an argument of {shown(self.name)}: a keyword is a Python identifier "
                        f"in ASCII, and not one of {sorted(_RESERVED)}."
                    )
                plain[key] = plain_value(value, key, self.name)
            object.__setattr__(self, "kwargs", tuple(sorted(plain.items())))

    def _checked_name(self) -> str:
        if not isinstance(self.name, str):
            raise SpecError(f"An activation's name is a string, not {type(self.name).__name__} ({shown(self.name)}).")
        if self.opaque:
            if not re.fullmatch(r"[^\s()]+", self.name):
                raise SpecError(f"{shown(self.name)} is no name: spaces and parentheses are not allowed in it.")
            return self.name
        name = self.name.strip().lower()
        if not _NAME.fullmatch(name):
            raise SpecError(
                f"{shown(self.name)} is no activation name. A name is made of letters, digits and underscores; write "
                f"{_GRAMMAR}."
            )
        return name

    @classmethod
    def of(cls, name: str, /, **kwargs: Any) -> Self:
        """Return the spec of a name and keyword arguments.

        Example:
            >>> str(ActivationSpec.of("swish", beta=1.5))
            'swish(beta=1.5)'
        """
        return cls(name, tuple(kwargs.items()))

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the spec that a text stands for.

        Args:
            text: ``name``, ``name()`` or ``name(keyword=value, ...)``; values are Python literals, and ``inf``.

        Raises:
            SpecError: If the text does not follow the grammar.

        Example:
            >>> ActivationSpec.parse("ELU( alpha = .5 )")
            ActivationSpec(name='elu', kwargs=(('alpha', 0.5),), opaque=False)
        """
        return cls(*_parts(text))

    def __str__(self) -> str:
        name = f"opaque:{self.name}" if self.opaque else self.name
        return f"{name}({', '.join([f'{key}={v!r}' for key, v in self.kwargs])})" if self.kwargs else name

    def _repr_html_(self) -> str:
        return HtmlTable(("activation", *self.arguments), [(str(self), *map(repr, self.arguments.values()))]).render()

    @property
    def arguments(self) -> dict[str, Any]:
        """The keyword arguments as a new ``dict``."""
        return dict(self.kwargs)

    def for_checkpoint(self) -> str:
        """Return the text to store in a checkpoint.

        Raises:
            SpecError: If the spec is opaque: the text could not be turned back into the same activation.

        Example:
            >>> ActivationSpec("gelu").for_checkpoint()
            'gelu'
        """
        if self.opaque:
            short = self.name.rpartition(".")[2][:100]
            raise SpecError(
                f"{shown(self.name)} was never registered, or it is not known what its constructor was given, so a "
                "checkpoint cannot say how to build it again. Register it before it is built: "
                f"lit_gelu.activations.register('my_activation')({short}), use that name, and give its constructor "
                "numbers, strings, booleans or tuples of these."
            )
        return str(self)


@dataclass(frozen=True)
class DottedPath:
    """What a spec names by the place where it is defined instead of by a registered name, with its arguments."""

    path: object
    arguments: tuple[tuple[str, Any], ...] = ()


def read_spec(spec: str | Mapping[Any, Any]) -> ActivationSpec | DottedPath:
    """Read the text form or the mapping form of a spec; nothing is looked up and nothing is imported."""
    return _read_text(spec) if isinstance(spec, str) else _read_mapping(spec)


@functools.lru_cache(maxsize=1024)  # a model names the same few activations again and again
def _read_text(text: str) -> ActivationSpec | DottedPath:
    name, arguments, opaque = _parts(text)
    return DottedPath(name, arguments) if "." in name and not opaque else ActivationSpec(name, arguments, opaque)


def _read_mapping(mapping: Mapping[Any, Any]) -> ActivationSpec | DottedPath:
    rest = {key: value for key, value in mapping.items() if key not in _RESERVED}
    init_args = mapping.get("init_args") or {}
    if not isinstance(init_args, Mapping) or ("name" in mapping) == ("class_path" in mapping):
        raise SpecError(
            f"{shown(dict(mapping))} does not name an activation. Write {{'name': 'gelu', 'approximate': 'tanh'}} or "
            "{'class_path': 'torch.nn.GELU', 'init_args': {'approximate': 'tanh'}}."
        )
    if "name" in mapping:
        return ActivationSpec(mapping["name"], tuple(merged(mapping["name"], rest, init_args).items()))
    if rest:
        raise SpecError(f"{', '.join(map(shown, rest))} stands beside 'class_path'. Put it into 'init_args'.")
    return DottedPath(mapping["class_path"], tuple(init_args.items()))


def merged(name: object, first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Join two sets of arguments of ``name``; a keyword that is in both raises `ArgumentError`."""
    if first and second and not first.keys().isdisjoint(second):
        twice = sorted(map(str, first.keys() & second.keys()))
        raise ArgumentError(f"{shown(name)}: {', '.join(twice)} is given twice. Give it once.")
    return {**first, **second}


def opaque(path: str, kwargs: Mapping[str, Any]) -> ActivationSpec:
    """Return the spec of something never registered; arguments that are no plain data are left out of the text."""
    try:
        return ActivationSpec(path, tuple(kwargs.items()), opaque=True)
    except SpecError:
        return ActivationSpec(path, opaque=True)


def dotted_path(target: Any) -> str:
    """Return where an object was defined, as ``module.qualified_name``; one without a name is called after its type."""
    owner = target if hasattr(target, "__qualname__") else type(target)
    module = getattr(owner, "__module__", None) or "builtins"
    return f"{module}.{owner.__qualname__}".translate(str.maketrans(" ()", "___"))  # what the grammar has no place for


def keywords_of(target: Callable[..., Any], first: int = 0) -> dict[str, inspect.Parameter]:
    """Return the keywords that a spec may give, with their defaults: of what is called, from a parameter on."""
    try:
        signature = inspect.signature(target, eval_str=True)
    except ValueError:  # a function written in C that does not tell
        return {}
    except (NameError, AttributeError, TypeError, SyntaxError):  # an annotation that only a type checker can read
        signature = inspect.signature(target)
    keyword_kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {
        each.name: each.replace(default=tuple(each.default)) if isinstance(each.default, list) else each
        for each in list(signature.parameters.values())[first:]
        if each.kind in keyword_kinds and each.name not in NOT_IN_SPECS
    }


class _Infinity(ast.NodeTransformer):
    """Puts the number for the name ``inf``, as which Python prints it."""

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Constant(math.inf) if node.id == "inf" else node


def _parts(text: str) -> tuple[str, tuple[tuple[str, PlainValue], ...], bool]:
    """Split the text of a spec into the name as written, the arguments, and whether it is opaque."""
    if (match := _TEXT.fullmatch(text)) is None:
        raise SpecError(f"Cannot read {shown(text)} as an activation. Write {_GRAMMAR}.")
    opaque, name, arguments = match.groups()
    try:
        call = ast.parse(f"f({arguments or ''})", mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise SpecError(f"Cannot read the arguments of {shown(text)}. Write {_GRAMMAR}.") from error
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
        raise SpecError(f"Cannot read {shown(text)} as one activation. Write {_GRAMMAR}.")
    if call.args or any(argument.arg is None for argument in call.keywords):
        raise SpecError(f"{shown(text)} has an argument without a keyword. Write {_GRAMMAR}.")
    if len({argument.arg for argument in call.keywords}) < len(call.keywords):
        raise SpecError(f"{shown(text)} gives an argument twice. Give it once.")
    values: dict[str, PlainValue] = {}
    for argument in call.keywords:
        try:
            value = ast.literal_eval(_Infinity().visit(argument.value))  # nothing is run
        except (ValueError, TypeError, RecursionError, MemoryError) as error:
            raise SpecError(
                f"{shown(text)} has a value that is no literal. Accepted: numbers, inf, quoted strings, True, False, "
                f"None and tuples of these, at most {_DEPTH} deep."
            ) from error
        values[str(argument.arg)] = plain_value(value, argument.arg, name)
    return name, tuple(values.items()), bool(opaque)


def plain_value(value: object, key: object, name: str, depth: int = 0) -> PlainValue:
    """Return a value as plain data of Python's own types: ``numpy.float64`` becomes ``float``, a list a tuple."""
    match value:
        case None | bool():
            return value
        case int() if value.bit_length() <= _INTEGER_BITS:
            return int(value)
        case float() if not math.isnan(value):
            return float(value)
        case str():
            return str.__str__(value)  # not str(value): a subclass, such as an Enum, may print something else
        case tuple() | list() if depth < _DEPTH:
            return tuple(plain_value(element, key, name, depth + 1) for element in value)
    raise SpecError(
        f"{key}={shown(value)} cannot be an argument of {shown(name)} in a spec. Accepted: None, bool, int (below "
        f"2**{_INTEGER_BITS}), float (not NaN), str and tuples of these, at most {_DEPTH} deep. Build the module "
        "yourself if it needs another kind of value."
    )


def function_spec(spec: ActivationSpec) -> ActivationSpec:
    """Return the spec of what an activation computes, without how it does."""
    kept = tuple((key, value) for key, value in spec.kwargs if key not in NOT_OF_THE_FUNCTION)
    return spec if spec.opaque or len(kept) == len(spec.kwargs) else ActivationSpec(spec.name, kept)
