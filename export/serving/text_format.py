"""Protobuf's text format, in which Triton reads a model's configuration."""

from collections.abc import Iterator, Mapping
from typing import Any

from google.protobuf import text_encoding  # type: ignore[import-untyped]


class Word(str):
    """The name of an enumeration's value, which stands without quotation marks."""

    __slots__ = ()


def to_text(message: Mapping[str, Any]) -> str:
    r"""Write a message in protobuf's text format.

    Args:
        message: Values by field name: texts, numbers, `Word`, mappings for messages, and lists of them for repeated
            fields.

    Returns:
        One line a value, messages indented by two spaces.

    Example:
        >>> print(to_text({"name": "net", "input": [{"data_type": Word("TYPE_FP32"), "dims": [1, -1]}]}))
        name: "net"
        input {
          data_type: TYPE_FP32
          dims: [ 1, -1 ]
        }
        <BLANKLINE>
    """
    return "".join(f"{line}\n" for line in _lines(message))


def _lines(message: Mapping[str, Any]) -> Iterator[str]:
    """Yield a message's lines."""
    for name, value in message.items():
        if isinstance(value, (list, tuple)) and not any(isinstance(item, Mapping) for item in value):
            yield f"{name}: [ {', '.join(map(_scalar, value))} ]" if value else f"{name}: [ ]"
            continue
        for item in value if isinstance(value, (list, tuple)) else [value]:
            if isinstance(item, Mapping):
                yield f"{name} {{"
                yield from (f"  {line}" for line in _lines(item))
                yield "}"
            else:
                yield f"{name}: {_scalar(item)}"


def _scalar(value: bool | int | str) -> str:
    """Return a value that is no message."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, Word)):
        return str(value)
    return f'"{text_encoding.CEscape(value, as_utf8=True)}"'
