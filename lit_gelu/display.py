"""How results show themselves: a ``repr`` of one short line, and in notebooks a table of safe HTML."""

import dataclasses
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

LONGEST_REPR = 300  # characters: what is longer hides the other lines of a notebook or a traceback
MOST_ROWS = 200  # of a table in a notebook; how many are left out is said below it
_LONGEST_VALUE = 70  # of one value within a repr
_LONGEST_CELL = 300

# Neither text nor ground has a colour of its own, so that it reads in light and in dark notebooks. Styles stand in the
# elements, because notebooks take out style sheets that they do not trust.
_CELL = "padding:.2em .7em;border-bottom:1px solid rgba(128,128,128,.35);vertical-align:top;text-align:"


@dataclasses.dataclass(frozen=True)
class HtmlTable:
    """A table for a notebook: no script, no style sheet, and all text escaped; numbers stand on the right."""

    head: tuple[str, ...]
    rows: Sequence[Sequence[Any]]
    title: str = ""
    notes: Sequence[str] = ()

    def render(self) -> str:
        """Return the HTML."""
        title = (
            f'<caption style="text-align:left;font-weight:bold">{escape(self.title)}</caption>' if self.title else ""
        )
        columns = list(zip(*self.rows, strict=True)) or [()] * len(self.head)
        sides = ["right" if column and all(map(_is_number, column)) else "left" for column in columns]

        def line(element: str, row: Sequence[Any], scope: str = "") -> str:
            cells = (
                f'<{element}{scope} style="{_CELL}{side}">{escape(readable(value))}</{element}>'
                for value, side in zip(row, sides, strict=True)
            )
            return f"<tr>{''.join(cells)}</tr>"

        body = "".join(line("td", row) for row in self.rows[:MOST_ROWS])
        left_out = len(self.rows) - MOST_ROWS
        notes = [*self.notes, *([f"{left_out} more rows are not shown."] if left_out > 0 else [])]
        below = "".join(f"<p>{escape(note)}</p>" for note in notes)
        head = line("th", self.head, ' scope="col"')
        table = f'<table style="border-collapse:collapse">{title}<thead>{head}</thead><tbody>{body}</tbody></table>'
        return f'<div style="overflow-x:auto">{table}{below}</div>'


def page(title: str, body: str) -> str:
    """Return HTML as a page of its own, which needs nothing from elsewhere; the title is escaped."""
    style = "body { font: 14px/1.5 system-ui; margin: 2rem }"
    head = f'<meta charset="utf-8"><title>{escape(title)}</title><style>{style}</style>'
    heading = f"<h1>{escape(title)}</h1>"
    return f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head>\n<body>{heading}\n{body}\n</body></html>\n'


class Displayed:
    """Gives a dataclass, which is made with ``repr=False``, a short ``repr`` and a table in notebooks.

    Both show the fields; a class with something better to say overrides `_summary` and `_html_table`.
    """

    def _summary(self) -> str:
        """Return what the ``repr`` says in its brackets: the fields that are not at their defaults."""
        plain = (str, int, float, tuple, list, dict, type(None))  # arrays compare element by element
        return ", ".join(
            f"{name}={_brief(value)}"
            for name, value, default in _fields(self)
            if not (type(value) is type(default) and isinstance(value, plain) and bool(value == default))
        )

    def _html_table(self) -> HtmlTable:
        rows = [(name.replace("_", " "), readable(value)) for name, value, _ in _fields(self)]
        return HtmlTable(("", "value"), rows, type(self).__name__)

    def __repr__(self) -> str:
        return short(f"{type(self).__name__}({self._summary()})")

    def _repr_html_(self) -> str:
        return self._html_table().render()


class ShownFigures(dict[str, Any]):
    """Figures by name, or by site and statistic: a dict that notebooks show as a table."""

    def __repr__(self) -> str:
        return short(super().__repr__())

    def __reduce__(self) -> tuple[Any, ...]:
        """Be plain data in a file, which ``torch.load`` reads with ``weights_only=True``."""
        return OrderedDict, (), None, None, iter(self.items())

    def _repr_html_(self) -> str:
        """Return the table that Jupyter shows: a row a name, or a row a site and a column a statistic."""
        columns = list(dict.fromkeys(key for row in self.values() if isinstance(row, Mapping) for key in row))
        if not columns:
            return HtmlTable(("", "value"), list(self.items())).render()
        rows = [(site or "(the model)", *(row.get(key) for key in columns)) for site, row in self.items()]
        return HtmlTable(("site", *(key.replace("_", " ") for key in columns)), rows).render()


def printable(text: str) -> str:
    """Return text of any origin as one line that a terminal shows: what it would obey is written as in ``repr``."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def printable_lines(text: str) -> str:
    """Return a text of several lines, each as `printable` has it."""
    return "\n".join(map(printable, text.expandtabs(4).split("\n")))


def short(text: str, longest: int = LONGEST_REPR) -> str:
    """Return a text in one line, cut off where it is longer; a bracket that stood at its end still does.

    Example:
        >>> short("Report(one two three four)", 16)
        'Report(one ...)'
    """
    line = printable(" ".join(text.split()))
    if len(line) <= longest:
        return line
    end = line[-1] if line[-1] in ")}]>" else ""
    return f"{line[: longest - 4 - len(end)].rstrip(' ,')} ...{end}"


def readable(value: Any) -> str:
    """Return a value for a cell of a table: a dash for none, ``yes`` or ``no``, numbers in six digits."""
    if value is None or value == ():
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, Mapping):
        return short(", ".join(f"{key}: {readable(entry)}" for key, entry in value.items()) or "-", _LONGEST_CELL)
    if isinstance(value, list | tuple):
        parts = (f"({readable(entry)})" if isinstance(entry, list | tuple) else readable(entry) for entry in value)
        return short(", ".join(parts) or "-", _LONGEST_CELL)
    return short(str(value), _LONGEST_CELL)


def count_of(number: int, what: str) -> str:
    """Return a number with its noun: ``1 site``, ``2 sites``."""
    return f"{number} {what}{'s' * (number != 1)}"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | None) and not isinstance(value, bool)


def _fields(record: Any) -> Iterable[tuple[str, Any, Any]]:
    for field in dataclasses.fields(record):
        if field.repr and not field.name.startswith("_"):
            factory = field.default_factory
            default = field.default if factory is dataclasses.MISSING else factory()
            yield field.name, getattr(record, field.name), default


def _brief(value: Any) -> str:
    is_collection = isinstance(value, list | tuple | Mapping)
    text = f"<{len(value)} entries>" if is_collection and len(value) > _LONGEST_VALUE else repr(value)
    if len(text) <= _LONGEST_VALUE and "\n" not in text:
        return text
    if isinstance(value, Displayed | str):
        return short(text, _LONGEST_VALUE)
    return f"<{len(value)} entries>" if is_collection else f"<{type(value).__name__}>"
