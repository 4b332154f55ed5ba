"""What a swap reports: which sites were given another activation, and which were left, and why."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from lit_gelu.activations import ActivationSpec
from lit_gelu.display import Displayed, HtmlTable, count_of
from lit_gelu.errors import SwapError

LEFT = "left as it is, because it is that already"  # the mechanism of such a site


@dataclass(frozen=True, repr=False)
class SwappedSite(Displayed):
    """One site that was selected, and given another activation unless it had that already.

    Args:
        name: Its fully qualified name; of a call that was swapped before, the name that the call had.
        old: The spec of what stood there.
        new: The spec of what stands there now.
        aliases: The site's other names.
        mechanism: How: a module was replaced, an attribute made one, a call rewritten, or it was left as it is.
        place: Fully qualified name of the new module; for a call, that of a new child of the calling module.
        calls: How often ``input_sample`` called what stood there; ``None`` if no sample was run.
    """

    name: str
    old: ActivationSpec
    new: ActivationSpec
    aliases: tuple[str, ...] = ()
    mechanism: str = "module"
    place: str = ""
    calls: int | None = None

    def __str__(self) -> str:
        if self.mechanism == LEFT:
            return f"{self.name}: {self.old} {LEFT}"
        also = f" (also {', '.join(self.aliases)})" if self.aliases else ""
        how = f", {self.mechanism}: {self.place}" if self.place not in {"", self.name} else ""
        unused = ", which input_sample never called" if self.calls == 0 else ""
        return f"{self.name}{also}: {self.old} -> {self.new}{how}{unused}"

    _summary = __str__


@dataclass(repr=False)
class SwapReport(Displayed):
    """What `lit_gelu.surgery.swap` did.

    ``print(report)`` gives one line a site, ``len(report)`` counts the swapped ones.

    Args:
        rows: The sites that were swapped.
        skipped: The sites that were selected and left as they were.
        notes: What could not be found out, in sentences.
    """

    rows: tuple[SwappedSite, ...]
    skipped: tuple[SwappedSite, ...] = ()
    notes: tuple[str, ...] = ()
    _restore: Callable[[], None] | None = field(default=None, repr=False, compare=False)

    def undo(self) -> None:
        """Put back the very modules, functions and classes that were there before, with hooks and in their order.

        Raises:
            SwapError: If it was undone already, or a site has been given something else since.

        Example:
            >>> from torch import nn
            >>> from lit_gelu import surgery
            >>> model = nn.Sequential(nn.ReLU())
            >>> relu = model[0]
            >>> surgery.swap(model, {"0": "gelu"}).undo()
            >>> model[0] is relu
            True
        """
        if self._restore is None:
            raise SwapError("This swap has been undone already.")
        self._restore()
        self._restore = None

    def __str__(self) -> str:
        return "\n".join(map(str, (*self.rows, *self.skipped, *self.notes)))

    def __len__(self) -> int:
        return len(self.rows)

    def _summary(self) -> str:
        return f"{in_one_line(self.rows, self.skipped)}{'' if self._restore else ', undone'}"

    def _html_table(self) -> HtmlTable:
        return table_of_sites("swapped", self.rows, self.skipped, self.notes)


def in_one_line(rows: Sequence[SwappedSite], skipped: Sequence[SwappedSite]) -> str:
    """Return how many sites are given what, and how many are left."""
    changes = Counter(f"{row.old} -> {row.new}" for row in rows)
    what = "; ".join(f"{count_of(count, 'site')} {change}" for change, count in changes.items())
    return (what or "no site") + (f", {len(skipped)} left as they are" if skipped else "")


def table_of_sites(
    title: str, rows: Sequence[SwappedSite], skipped: Sequence[SwappedSite], notes: Sequence[str]
) -> HtmlTable:
    """Return the sites for a notebook."""
    cells = [(row.name, row.old, row.new, row.mechanism, row.calls) for row in (*rows, *skipped)]
    return HtmlTable(("site", "old", "new", "how", "calls"), cells, f"{count_of(len(rows), 'site')} {title}", notes)
