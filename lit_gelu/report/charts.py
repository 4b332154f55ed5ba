"""Charts as inline SVG: curves over steps, and heat maps of activations; colours come from the page's style."""

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from lit_gelu.report.content import LoggedCurve
from lit_gelu.report.safe_text import attribute, text

WIDTH, HEIGHT = 460, 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 12, 14, 34
MOST_SERIES = 6
_FAR = 20.0  # between the ends of a heat map, from which its colours are logarithmic
_DECADES = 2.0  # of positive values, from which an axis is logarithmic
_MARKED = 40  # points of a curve up to which each has a mark
_MOST_COLUMNS, MOST_ROWS = 60, 48
_LABELS, _ROW = 142, 15  # of a heat map
_VIRIDIS = ((68, 1, 84), (72, 40, 120), (62, 74, 137), (49, 104, 142), (38, 130, 142), (31, 158, 137), (53, 183, 121),
            (110, 206, 88), (181, 222, 43), (253, 231, 37))  # fmt: skip


@dataclass(frozen=True)
class Axis:
    """One axis: from values to places."""

    low: float
    high: float
    start: float  # place of `low`
    end: float  # place of `high`
    logarithmic: bool = False

    def place(self, value: float) -> float:
        """Return where a value is drawn."""
        low, high, at = (math.log10(v) if self.logarithmic else v / 2 for v in (self.low, self.high, value))
        share = (at - low) / (high - low) if high > low else 0.5
        return self.start + share * (self.end - self.start)

    def ticks(self, most: int = 5) -> list[float]:
        """Return round values along the axis."""
        if self.logarithmic:
            low, high = math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9)
            every = max(1, -(-(high - low + 1) // most))
            return [10.0**power for power in range(low, high + 1, every)]
        step = nice_step((self.high - self.low) / most)
        first = math.ceil(self.low / step - 1e-9)
        return [k * step for k in range(first, math.floor(self.high / step + 1e-9) + 1)]


def nice_step(span: float) -> float:
    """Return the smallest of 1, 2 and 5 times a power of ten that is no less than a span.

    Example:
        >>> nice_step(0.3), nice_step(7)
        (0.5, 10.0)
    """
    if not span > 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(span))
    return next(factor * power for factor in (1.0, 2.0, 5.0, 10.0) if factor * power >= span * (1 - 1e-9))


def value_axis(values: Sequence[float], start: float, end: float) -> Axis:
    """Return an axis for values, logarithmic if all are positive and span two decades."""
    finite = [value for value in values if math.isfinite(value)]
    low, high = (min(finite), max(finite)) if finite else (0.0, 1.0)
    if low > 0 and high / low >= 10**_DECADES:
        return Axis(low, high, start, end, logarithmic=True)
    span = high - low
    if not span > abs(high) * 1e-12:
        span = abs(high) or 1.0
    if not math.isfinite(span):
        low, high, span = low / 4, high / 4, high / 4 - low / 4
    return Axis(low - 0.04 * span, high + 0.04 * span, start, end)


def number(value: float) -> str:
    """Return a number for a person: four digits.

    Example:
        >>> number(0.000012345), number(1500.0), number(float("nan"))
        ('1.234e-05', '1500', 'NaN')
    """
    return "NaN" if math.isnan(value) else f"{value:.4g}"


def line_chart(
    curves: Sequence[LoggedCurve], label: str, swaps: Iterable[int] = (), limits: Sequence[LoggedCurve] = ()
) -> str:
    """Return curves over steps as SVG.

    Args:
        curves: At most `MOST_SERIES`; the others are left out.
        label: What a screen reader says.
        swaps: Steps at which a vertical line stands.
        limits: Curves that are drawn as dotted lines, which the others are compared with.

    Returns:
        The element.
    """
    shown = [*curves[:MOST_SERIES], *limits]
    steps = [step for curve in shown for step in curve.steps]
    if not steps:
        return ""
    across = Axis(min(steps), max(max(steps), min(steps) + 1), _LEFT, WIDTH - _RIGHT)
    values = [value for curve in shown for value in curve.values]
    down = value_axis(values, HEIGHT - _BOTTOM, _TOP)
    parts = [*_grid(across, down)]
    for step in swaps:
        if across.low <= step <= across.high:
            x = f"{across.place(step):.1f}"
            parts.append(
                f'<line class="swap" x1="{x}" x2="{x}" y1="{_TOP}" y2="{HEIGHT - _BOTTOM}"><title>swap at step {step}'
                "</title></line>"
            )
    for i, curve in enumerate(curves[:MOST_SERIES]):
        parts += _line(curve, across, down, f"s{i}")
    for curve in limits:
        parts += _line(curve, across, down, "limit")
    return _svg(parts, label, HEIGHT)


def _grid(across: Axis, down: Axis) -> list[str]:
    """Return lines and labels of both axes."""
    parts = []
    for tick in down.ticks():
        y = down.place(tick)
        parts += [
            f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>',
            f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{number(tick)}</text>',
        ]
    for tick in across.ticks():
        x = across.place(tick)
        parts.append(f'<text x="{x:.1f}" y="{HEIGHT - _BOTTOM + 16}" text-anchor="middle">{tick:g}</text>')
    middle = (_LEFT + WIDTH - _RIGHT) / 2
    parts.append(f'<text x="{middle:.0f}" y="{HEIGHT - 3}" text-anchor="middle">step</text>')
    return parts


def _line(curve: LoggedCurve, across: Axis, down: Axis, kind: str) -> list[str]:
    """Return one curve, broken where a value is not finite or has no place on the axis."""
    runs: list[list[str]] = [[]]
    for step, value in zip(curve.steps, curve.values, strict=True):
        if math.isfinite(value) and (value > 0 or not down.logarithmic):
            runs[-1].append(f"{across.place(step):.1f},{down.place(value):.1f}")
        elif runs[-1]:
            runs.append([])
    name = f"<title>{text(curve.name)}</title>"
    parts = [
        f'<polyline class="line {kind}" points="{" ".join(run)}">{name}</polyline>' for run in runs if len(run) > 1
    ]
    few = len(curve.steps) <= _MARKED and kind != "limit"
    for run in runs:
        for place in run if few or len(run) == 1 else []:
            x, y = place.split(",")
            parts.append(f'<circle class="mark {kind}" cx="{x}" cy="{y}" r="2.5">{name}</circle>')
    return parts


def heat_map(rows: Sequence[LoggedCurve], label: str, swaps: Iterable[int] = ()) -> str:
    """Return curves as rows of colours, a row a site, from left to right the steps; names are those of the curves.

    A column is an interval of steps, up to the one that ends it, and a cell shows the latest value in it: rows may be
    of other steps than their neighbours.

    Args:
        rows: At most `MOST_ROWS`; the others are left out.
        label: What a screen reader says.
        swaps: Steps at which a vertical line stands.

    Returns:
        The element, empty if no value is finite.
    """
    rows = rows[:MOST_ROWS]
    steps = sorted({step for row in rows for step in row.steps})
    finite = [value for row in rows for value in row.values if math.isfinite(value)]
    if not finite:
        return ""
    count = min(len(steps), _MOST_COLUMNS)
    places = [i * (len(steps) - 1) / max(1, count - 1) for i in range(count)]  # the first and the last among them
    columns = [steps[round(place)] for place in places]
    colours = Axis(min(finite), max(finite), 0.0, 1.0, logarithmic=min(finite) > 0 and max(finite) / min(finite) > _FAR)
    bottom = _TOP + _ROW * len(rows)
    parts = [part for i, row in enumerate(rows) for part in _row(row, _TOP + _ROW * i, columns, colours)]
    for step in swaps:
        if columns[0] < step <= columns[-1]:
            before = sum(column < step for column in columns)
            x = f"{_LABELS + before * _cell(columns):.1f}"
            parts.append(f'<line class="swap" x1="{x}" x2="{x}" y1="{_TOP - 4}" y2="{bottom + 3}"/>')
    parts += [
        f'<text x="{_LABELS}" y="{bottom + 14}">step {columns[0]}</text>',
        f'<text x="{WIDTH - _RIGHT}" y="{bottom + 14}" text-anchor="end">{columns[-1]}</text>',
        *_scale(colours, bottom + 24),
    ]
    return _svg(parts, label, bottom + _BOTTOM + 22)


def _cell(columns: Sequence[int]) -> float:
    """Return how wide one cell of a heat map is."""
    return (WIDTH - _LABELS - _RIGHT) / len(columns)


def _row(row: LoggedCurve, y: float, columns: Sequence[int], colours: Axis) -> list[str]:
    """Return one row of a heat map: its name, and a cell a column that has a value."""
    width = _cell(columns)
    points = zip(row.steps, row.values, strict=True)
    latest = {bisect_left(columns, step): (step, value) for step, value in points}  # a later step takes the place
    name = row.name or "(the model)"
    parts = [
        f'<text x="{_LABELS - 6}" y="{y + 11}" text-anchor="end">{text(_short(name))}<title>{text(name)}</title></text>'
    ]
    for i, (step, value) in latest.items():
        if math.isfinite(value):
            said, colour = f"{text(name)}, step {step}: {number(value)}", _colour(colours.place(value))
            parts.append(
                f'<rect x="{_LABELS + i * width:.1f}" y="{y}" width="{width + 0.3:.1f}" height="{_ROW - 1}" '
                f'fill="{colour}"><title>{said}</title></rect>'
            )
    return parts


def _scale(colours: Axis, y: float) -> list[str]:
    """Return the colours with the values at their ends."""
    kind = "<title>logarithmic colours</title>" if colours.logarithmic else ""
    width = (WIDTH - _LABELS - _RIGHT - 120) / len(_VIRIDIS)
    x0 = _LABELS + 60
    cells = [
        f'<rect x="{x0 + i * width:.1f}" y="{y}" width="{width + 0.3:.1f}" height="10" fill="rgb{colour}">{kind}</rect>'
        for i, colour in enumerate(_VIRIDIS)
    ]
    end = x0 + len(_VIRIDIS) * width
    return [
        *cells,
        f'<text x="{x0 - 5}" y="{y + 9}" text-anchor="end">{number(colours.low)}</text>',
        f'<text x="{end + 5:.1f}" y="{y + 9}">{number(colours.high)}</text>',
    ]


def _colour(share: float) -> str:
    """Return the colour of a value, between dark for the lowest (0) and bright for the highest (1)."""
    place = min(max(share, 0.0), 1.0) * (len(_VIRIDIS) - 1)
    i = min(int(place), len(_VIRIDIS) - 2)
    mixed = [round(a + (place - i) * (b - a)) for a, b in zip(_VIRIDIS[i], _VIRIDIS[i + 1], strict=True)]
    return "#{:02x}{:02x}{:02x}".format(*mixed)


def _short(name: str) -> str:
    """Return a name that fits beside a row: its end, which tells sites apart."""
    return name if len(name) <= 21 else f"…{name[-20:]}"


def _svg(parts: Sequence[str], label: str, height: float) -> str:
    """Return the element around its parts."""
    return (
        f'<svg role="img" aria-label="{attribute(label)}" viewBox="0 0 {WIDTH} {height:.0f}" '
        f'preserveAspectRatio="xMidYMid meet">{"".join(parts)}</svg>'
    )
