"""What a figure is asked to show, and what came of it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure

from lit_gelu.paper.figure_style import name_of

PAPER_ARMS = ("gelu", "relu", "elu")


@dataclass(frozen=True)
class FigureOptions:
    """What the figures show.

    Args:
        arms: Names of the arms; the paper's three by default.
        published: Whether to mark the points that were read from the paper's own figures.
        band: Whether to shade the range from the lowest to the highest run.
    """

    arms: tuple[str, ...] = PAPER_ARMS
    published: bool = False
    band: bool = False


@dataclass(frozen=True)
class Drawing:
    """One of the paper's figures, as far as it could be drawn.

    Args:
        number: Its number in the paper.
        figure: The figure; ``None`` if there is no run of it.
        missing: Which curves are not in it for want of runs.
    """

    number: int
    figure: Figure | None
    missing: tuple[str, ...] = ()


def runs_in_words(counts: Iterable[int]) -> str:
    """Say how many runs the medians of a figure are of.

    Args:
        counts: The number of runs of each curve.

    Returns:
        A sentence.

    Example:
        >>> runs_in_words([5, 5]), runs_in_words([3, 5]), runs_in_words([1])
        ('Medians of 5 runs.', 'Medians of 3 to 5 runs.', 'Single runs.')
    """
    numbers = sorted(set(counts))
    if numbers == [1]:
        return "Single runs."
    return f"Medians of {numbers[0]}{f' to {numbers[-1]}' if len(numbers) > 1 else ''} runs."


def rates_in_words(panels: Sequence[tuple[str, Sequence[tuple[str, float]]]], chosen: bool) -> str:
    """Say at which learning rates a figure's runs were made.

    Args:
        panels: For each panel its title, and for each line of it arm and learning rate.
        chosen: Whether the validation set chose them among several.

    Returns:
        A sentence.

    Example:
        >>> rates_in_words([("", [("gelu", 1e-3), ("relu", 1e-3)])], chosen=False)
        'Learning rate 0.001.'
        >>> rates_in_words([("", [("gelu", 1e-3), ("relu", 1e-4)])], chosen=True)
        'Learning rate, chosen on the validation set: GELU 0.001, ReLU 0.0001.'
    """
    values = {rate for _, lines in panels for _, rate in lines}
    how = ", chosen on the validation set" if chosen else ""
    if len(values) == 1:
        return f"Learning rate {values.pop():g}{how}."
    texts = [
        f"{title + ': ' if title else ''}{', '.join(f'{name_of(arm)} {rate:g}' for arm, rate in lines)}"
        for title, lines in panels
        if lines
    ]
    return f"Learning rate{how}: {'; '.join(texts)}."
