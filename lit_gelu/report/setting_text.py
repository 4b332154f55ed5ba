"""Settings of any kind as text by name: what a page shows of hyper-parameters and configuration files."""

from collections.abc import Iterator, Mapping
from typing import Any

from lit_gelu.errors import shown

_DEEPEST = 6
_MOST = 500  # values of one group
_LONGEST = 400  # characters of one value


def flat(values: Any, prefix: str = "") -> dict[str, str]:
    """Return nested settings as text by dotted name, as `lit-gelu fit` takes them; what is too much is left out.

    Args:
        values: Mappings, lists and plain values, from anywhere.
        prefix: What names begin with.

    Returns:
        At most 500 texts of at most some hundred characters.

    Example:
        >>> flat({"model": {"activation": "gelu", "widths": [8, 8]}, "lr": 0.1})
        {'model.activation': 'gelu', 'model.widths': '[8, 8]', 'lr': '0.1'}
    """
    found: dict[str, str] = {}
    for count, (name, text) in enumerate(_walk(values, prefix, _DEEPEST)):
        if count >= _MOST:
            found["…"] = f"more than {_MOST} values: the rest is left out"
            break
        found[name] = text
    return found


def _walk(value: Any, name: str, depth: int) -> Iterator[tuple[str, str]]:
    """Yield names and texts."""
    if isinstance(value, Mapping) and value and depth:
        for key, entry in value.items():
            part = str(key)[:_LONGEST]
            yield from _walk(entry, f"{name}.{part}" if name else part, depth - 1)
    else:
        yield name, (value if isinstance(value, str) else shown(value))[:_LONGEST]
