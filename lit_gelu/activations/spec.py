"""`ActivationSpec`: an activation's name and keyword arguments as one value that prints and parses back to itself."""

import ast
import keyword
import math
import re
from dataclasses import dataclass
from typing import Any, Self

from lit_gelu.activations.errors import ActivationSpecError, OpaqueActivationError
from lit_gelu.errors import shown

PlainValue = None | bool | int | float | str | tuple["PlainValue", ...]

_GRAMMAR = "NAME or NAME(KEYWORD=VALUE, ...), such as \"gelu(approximate='tanh')\""
_TEXT = re.compile(r"\s*(opaque:)?([^\s()]+)\s*(?:\((.*)\))?\s*", re.DOTALL)
_NAME = re.compile(r"[a-z_][a-z0-9_]*")
_KEYWORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_INTEGER_BITS, _DEPTH = 1000, 16  # an integer that a float can hold; tuples that no reader of the text gives up on
_RESERVED = frozenset({"name", "class_path", "init_args"})


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
        ActivationSpecError: If the name, a keyword or a value is not of that form.

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
        object.__setattr__(self, "name", self._checked_name())
        checked = {_checked_keyword(key, self.name): plain_value(value, key, self.name) for key, value in self.kwargs}
        object.__setattr__(self, "kwargs", tuple(sorted(checked.items())))

    def _checked_name(self) -> str:
        if not isinstance(self.name, str):
            raise ActivationSpecError(
                f"An activation's name is a string, not {type(self.name).__name__} ({shown(self.name)})."
            )
        if self.opaque:
            if not re.fullmatch(r"[^\s()]+", self.name):
                raise ActivationSpecError(
                    f"{shown(self.name)} is no name: spaces and parentheses are not allowed in it."
                )
            return self.name
        name = self.name.strip().lower()
        if not _NAME.fullmatch(name):
            raise ActivationSpecError(
                f"{shown(self.name)} is no activation name. A name is made of letters, digits and underscores; write "
                f"{_GRAMMAR}."
            )
        return name

    @classmethod
    def of(cls, name: str, /, **kwargs: Any) -> Self:
        """Build a spec from a name and keyword arguments.

        Args:
            name: A registered name.
            **kwargs: Its arguments.

        Returns:
            The spec.

        Example:
            >>> str(ActivationSpec.of("swish", beta=1.5))
            'swish(beta=1.5)'
        """
        return cls(name, tuple(kwargs.items()))

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a spec from its text.

        Args:
            text: ``name``, ``name()`` or ``name(keyword=value, ...)``; values are Python literals, and ``inf``.

        Returns:
            The spec; its name is in lower case.

        Raises:
            ActivationSpecError: If the text does not follow the grammar.

        Example:
            >>> ActivationSpec.parse("ELU( alpha = .5 )")
            ActivationSpec(name='elu', kwargs=(('alpha', 0.5),), opaque=False)
        """
        opaque, name, arguments = parse_text(text)
        return cls(name, tuple(arguments.items()), opaque=opaque)

    def __str__(self) -> str:
        arguments = ", ".join(f"{key}={_literal(value)}" for key, value in self.kwargs)
        return f"{'opaque:' if self.opaque else ''}{self.name}{f'({arguments})' if arguments else ''}"

    @property
    def arguments(self) -> dict[str, Any]:
        """The keyword arguments as a new ``dict``."""
        return dict(self.kwargs)

    def to_dict(self) -> dict[str, Any]:
        """Return the mapping form, plain data for YAML and JSON.

        Returns:
            ``{"name": ..., keyword: value, ...}``.

        Raises:
            OpaqueActivationError: If the spec is opaque.

        Example:
            >>> ActivationSpec.parse("swish(beta=1.5, learnable=True)").to_dict()
            {'name': 'swish', 'beta': 1.5, 'learnable': True}
        """
        self.for_checkpoint()
        return {"name": self.name, **self.arguments}

    def for_checkpoint(self) -> str:
        """Return the text to store in a checkpoint.

        Returns:
            ``str(self)``.

        Raises:
            OpaqueActivationError: If the spec is opaque: the text could not be turned back into the same activation.

        Example:
            >>> ActivationSpec("gelu").for_checkpoint()
            'gelu'
        """
        if self.opaque:
            short = self.name.rpartition(".")[2][:100]
            raise OpaqueActivationError(
                f"{shown(self.name)} was never registered, or it is not known what its constructor was given, so a "
                "checkpoint cannot say how to build it again. Register it before it is built: "
                f"lit_gelu.activations.register('my_activation')({short}), use that name, and give its constructor "
                "numbers, strings, booleans or tuples of these."
            )
        return str(self)


def parse_text(text: str) -> tuple[bool, str, dict[str, PlainValue]]:
    """Split the text of a spec into its parts.

    Args:
        text: ``name``, ``name(...)`` or ``opaque:path(...)``.

    Returns:
        Whether it is opaque, the name as written, and the arguments.

    Raises:
        ActivationSpecError: If the text does not follow the grammar.

    Example:
        >>> parse_text("torch.nn.ELU(alpha=0.5)")
        (False, 'torch.nn.ELU', {'alpha': 0.5})
    """
    match = _TEXT.fullmatch(text)
    if match is None:
        raise ActivationSpecError(f"Cannot read {shown(text)} as an activation. Write {_GRAMMAR}.")
    opaque, name, arguments = match.groups()
    return bool(opaque), name, parse_arguments(arguments or "", text)


def parse_arguments(arguments: str, text: str) -> dict[str, PlainValue]:
    """Read ``keyword=value, ...``.

    Args:
        arguments: What stands between the parentheses.
        text: The whole text, for the error message.

    Returns:
        The values by keyword, in the order written.

    Raises:
        ActivationSpecError: If it is no list of keyword arguments with literal values.

    Example:
        >>> parse_arguments("mu=0, sigma=1.5", "gaussian_gelu(mu=0, sigma=1.5)")
        {'mu': 0, 'sigma': 1.5}
    """
    try:
        call = ast.parse(f"f({arguments})", mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ActivationSpecError(f"Cannot read the arguments of {shown(text)}. Write {_GRAMMAR}.") from error
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
        raise ActivationSpecError(f"Cannot read {shown(text)} as one activation. Write {_GRAMMAR}.")
    if call.args or any(argument.arg is None for argument in call.keywords):
        raise ActivationSpecError(f"{shown(text)} has an argument without a keyword. Write {_GRAMMAR}.")
    given = [str(argument.arg) for argument in call.keywords]
    if len(set(given)) < len(given):
        raise ActivationSpecError(f"{shown(text)} gives an argument twice. Give it once.")
    return {str(argument.arg): _evaluate(argument.value, text) for argument in call.keywords}


def _evaluate(node: ast.expr, text: str, depth: int = 0) -> PlainValue:
    """Turn a literal's syntax tree into its value; nothing is executed."""
    match node:
        case ast.Constant(value=None | bool() | int() | float() | str() as value):
            return value
        case ast.Name(id="inf"):
            return math.inf
        case ast.UnaryOp(op=ast.USub() | ast.UAdd() as sign, operand=operand) if depth < _DEPTH:
            number = _evaluate(operand, text, depth + 1)
            if isinstance(number, (int, float)) and not isinstance(number, bool):
                return -number if isinstance(sign, ast.USub) else number
        case ast.Tuple(elts=elements) | ast.List(elts=elements) if depth < _DEPTH:
            return tuple(_evaluate(element, text, depth + 1) for element in elements)
    raise ActivationSpecError(
        f"{shown(text)} has a value that is no literal. Accepted: numbers, inf, quoted strings, True, False, None and "
        f"tuples of these, at most {_DEPTH} deep."
    )


def _checked_keyword(key: object, name: str) -> str:
    """Return a keyword that the text form can hold."""
    if not isinstance(key, str) or not _KEYWORD.fullmatch(key) or keyword.iskeyword(key) or key in _RESERVED:
        raise ActivationSpecError(
            f"{shown(key)} cannot be an argument of {shown(name)}: a keyword is a Python identifier in ASCII, and not "
            f"one of {sorted(_RESERVED)}."
        )
    return key


def plain_value(value: object, key: object, name: str, depth: int = 0) -> PlainValue:
    """Return a value as plain data of Python's own types.

    Args:
        value: Any object.
        key: What it is called, for the error message.
        name: What it belongs to, for the error message.
        depth: How many tuples it stands in.

    Returns:
        The value; ``numpy.float64`` becomes ``float``, a list a tuple.

    Raises:
        ActivationSpecError: If it is something else than ``None``, ``bool``, ``int``, ``float`` (not NaN), ``str`` or
            a tuple or list of these.

    Example:
        >>> plain_value([1, 2.5], "sizes", "pooling")
        (1, 2.5)
    """
    match value:
        case None | bool():
            return value
        case int() if value.bit_length() <= _INTEGER_BITS:
            return int(value)
        case float() if not math.isnan(value):
            return float(value)
        case str():
            return str.__str__(value)
        case tuple() | list() if depth < _DEPTH:
            return tuple(plain_value(element, key, name, depth + 1) for element in value)
    raise ActivationSpecError(
        f"{key}={shown(value)} cannot be an argument of {shown(name)} in a spec. Accepted: None, bool, int and float "
        f"(not NaN, below 2**{_INTEGER_BITS}), str and tuples of these, at most {_DEPTH} deep. Build the module "
        "yourself if it needs another kind of value."
    )


def _literal(value: PlainValue) -> str:
    """Print a value so that `parse` reads the same value."""
    if isinstance(value, tuple):
        return f"({', '.join(map(_literal, value))}{',' if len(value) == 1 else ''})"
    return repr(value)
