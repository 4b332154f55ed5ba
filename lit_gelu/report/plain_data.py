"""`ReportedRun` as JSON within a page, and back: `read_report`."""

import json
import os
import types
import typing
from collections.abc import Mapping
from dataclasses import asdict, fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar

from lit_gelu.errors import message_of, shown
from lit_gelu.files import parse_json, without_nonfinite
from lit_gelu.report.content import ReportedRun
from lit_gelu.report.errors import ReportFileError

SCHEMA = "lit_gelu.run_report"
SCHEMA_VERSION = 1
BLOCK_ID = "lit-gelu-report"
OPENING = f'<script type="application/json" id="{BLOCK_ID}">'
_CLOSING = "</script>"
_LARGEST_PAGE = 512 * 2**20  # characters
_NONFINITE = {"nan": float("nan"), "inf": float("inf"), "-inf": float("-inf")}
_FOR_HTML = {ord("<"): "\\u003c", ord(">"): "\\u003e", ord("&"): "\\u0026"}

T = TypeVar("T")


def to_json(run: ReportedRun) -> str:
    """Return a run as JSON that can stand in HTML: numbers that are not finite as text, no ``<``, ``>`` or ``&``."""
    content = {"schema": SCHEMA, "schema_version": SCHEMA_VERSION, **asdict(run)}
    plain = without_nonfinite(content, as_text=True)
    return json.dumps(plain, allow_nan=False, separators=(",", ":")).translate(_FOR_HTML)


def from_json(text: str | bytes, called: str = "The text") -> ReportedRun:
    """Return what `to_json` wrote.

    Args:
        text: JSON of any origin.
        called: What to call it in an error.

    Returns:
        The run.

    Raises:
        ReportFileError: If it is no JSON, is of another schema, or an entry is missing or of another kind.
    """
    try:
        found = parse_json(text)
    except ValueError as error:
        raise ReportFileError(f"{called} holds no readable JSON of a run ({message_of(error)}). {_REMEDY}") from error
    if not isinstance(found, dict) or found.get("schema") != SCHEMA:
        raise ReportFileError(f"{called} does not hold {SCHEMA!r}. {_REMEDY}")
    if found.get("schema_version") != SCHEMA_VERSION:
        raise ReportFileError(
            f"{called} has version {shown(found.get('schema_version'))} of {SCHEMA}, and this release reads "
            f"{SCHEMA_VERSION}. Make the page again with this release: lit-gelu report LOGDIR."
        )
    content = {name: value for name, value in found.items() if name not in {"schema", "schema_version"}}
    try:
        run = _built(ReportedRun, content, "")
    except (_UnfitError, RecursionError) as error:
        raise ReportFileError(f"{called} is damaged: {error}. {_REMEDY}") from error
    uneven = [curve.name for curve in run.curves if len(curve.steps) != len(curve.values)]
    if uneven:
        raise ReportFileError(f"{called} is damaged: {shown(uneven[0])} has not one value a step. {_REMEDY}")
    return run


def read_report(path: str | os.PathLike[str]) -> ReportedRun:
    """Read what a page of a run says.

    Nothing of the page is run, and text in it is text. Numbers and names are of the kinds that `ReportedRun` states.

    Args:
        path: A page that `lit_gelu.callbacks.RunReport` or ``lit-gelu report`` wrote.

    Returns:
        The run.

    Raises:
        ReportFileError: If there is no such file, it is no page of a run, or its data are damaged.

    Example:
        >>> import tempfile
        >>> from lit_gelu.report import ReportedRun, page
        >>> file = Path(tempfile.mkdtemp()) / "report.html"
        >>> _ = file.write_text(page(ReportedRun(title="</script>", source="RunReport", made="2026-01-01")))
        >>> read_report(file).title
        '</script>'
    """
    called = repr(str(path)[:1000])
    try:
        with Path(path).open(encoding="utf-8", errors="replace") as file:
            text = file.read(_LARGEST_PAGE + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ReportFileError(f"{called} cannot be read: {reason}. {_REMEDY}") from error
    if len(text) > _LARGEST_PAGE:
        raise ReportFileError(f"{called} has more than {_LARGEST_PAGE:,} characters: it is no page of a run.")
    start = text.find(OPENING)
    end = text.find(_CLOSING, start)
    if start < 0 or end < 0:
        raise ReportFileError(f"{called} is no page of a run, or is cut off. {_REMEDY}")
    return from_json(text[start + len(OPENING) : end], called)


_REMEDY = "Give a page that RunReport or `lit-gelu report` wrote"


class _UnfitError(ValueError):
    """A value of another kind than its place asks for."""


def _decoded(kind: Any, value: Any, where: str) -> Any:
    """Return a value of JSON as a value of an annotated kind."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in {typing.Union, types.UnionType}:
        if value is None and type(None) in arguments:
            return None
        (only,) = (argument for argument in arguments if argument is not type(None))
        return _decoded(only, value, where)
    if origin is typing.Literal and isinstance(value, str) and value in arguments:
        return value
    if origin is tuple and isinstance(value, list):
        return tuple(_decoded(arguments[0], entry, f"{where}[{i}]") for i, entry in enumerate(value))
    if origin is Mapping and isinstance(value, dict):
        return {name: _decoded(arguments[1], entry, f"{where}[{name[:40]!r}]") for name, entry in value.items()}
    if is_dataclass(kind) and isinstance(value, dict):
        return _built(kind, value, where)  # type: ignore[arg-type]  # a class, not an instance
    if kind is float:
        return _number(value, where)
    if kind in {str, bool, int} and type(value) is kind:
        return value
    raise _UnfitError(f"{where} is {shown(value)}")


def _number(value: Any, where: str) -> float:
    """Return a number; what is not finite stands as text."""
    if isinstance(value, str) and value in _NONFINITE:
        return _NONFINITE[value]
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            pass
    raise _UnfitError(f"{where} is {shown(value)}, and no number")


def _built(kind: type[T], value: Mapping[str, Any], where: str) -> T:
    """Return a record; entries with a default may be missing, and none may be there that it does not know."""
    known = {each.name for each in fields(kind)}  # type: ignore[arg-type]  # a dataclass
    unknown = value.keys() - known
    if unknown:
        raise _UnfitError(f"it has an unknown entry {shown(min(unknown))}")
    hints = typing.get_type_hints(kind)
    prefix = f"{where}." if where else ""
    given = {name: _decoded(hints[name], entry, prefix + name) for name, entry in value.items()}
    try:
        return kind(**given)
    except TypeError as error:
        raise _UnfitError(f"an entry of {where or 'the run'} is missing ({error})") from error
