"""What `audit` says: a row for each site, and what a mismatch costs."""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from lit_gelu.audit.cost import Cost
from lit_gelu.display import Displayed, HtmlTable, count_of, page, printable
from lit_gelu.files import without_nonfinite

_VERDICTS = {True: "same", False: "DIFFERS", None: "cannot tell"}
_HEAD = ("site", "calls", "reference", "declared", "implemented", "computed", "verdict")


@dataclass(frozen=True)
class AuditRow:
    """One site of the reference, beside what stands for it in the candidate.

    Args:
        site: Its name in the reference, or in the candidate where that has none.
        calls: How often it is called.
        reference: The activation that the reference computes.
        declared: What a configuration or a file's metadata says that it is.
        implemented: The module or operator of the candidate.
        computed: The activation that the candidate computes, as its values show it; empty if they do not.
        agrees: Whether reference, declaration and values are the same activation; ``None`` where it cannot be told.
        notes: What is wrong with the values, or why they do not tell.
    """

    site: str
    calls: int
    reference: str
    declared: str
    implemented: str
    computed: str
    agrees: bool | None
    notes: tuple[str, ...] = ()

    @property
    def cells(self) -> tuple[str, ...]:
        """The row of a table."""
        verdict = _VERDICTS[self.agrees]
        names = (self.site or "-", str(self.calls), self.reference or "-", self.declared or "-", self.implemented)
        return (*names, self.computed or "-", verdict)


@dataclass(frozen=True, repr=False)
class AuditReport(Displayed):
    """Whether two artefacts compute the same activations.

    Args:
        reference: What the candidate is compared with.
        candidate: What was asked about.
        rows: One for each site of the reference, in the order of the calls.
        costs: What each mismatch costs, where the reference is a module that was run.
        notes: What could not be found out.
    """

    reference: str
    candidate: str
    rows: tuple[AuditRow, ...]
    costs: tuple[Cost, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether every site is known to agree."""
        return all(row.agrees is True for row in self.rows)

    @property
    def differs(self) -> bool:
        """Whether some site is known to differ."""
        return any(row.agrees is False for row in self.rows)

    @property
    def exit_code(self) -> int:
        """0 if all is the same, 1 if something differs, 2 if that cannot be told."""
        return 1 if self.differs else 0 if self.passed else 2

    def to_json(self) -> str:
        """Return all of it as JSON."""
        plain = {**asdict(self), "passed": self.passed, "differs": self.differs}
        return json.dumps(without_nonfinite(plain, as_text=True), indent=2, allow_nan=False)

    def to_html(self) -> str:
        """Return the report as a page of its own, which needs nothing from elsewhere."""
        return page(self._summary(), self._repr_html_())

    def __str__(self) -> str:
        """Return a table, what is to be known of it, and the verdict as the last line."""
        rows = [_HEAD, *(tuple(map(printable, row.cells)) for row in self.rows)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
        return "\n".join([*lines, *map(printable, self._lines()), printable(self._summary())])

    def _lines(self) -> Iterator[str]:
        sites_by_note: dict[str, list[str]] = {}
        for site, note in ((row.site, note) for row in self.rows for note in row.notes):
            sites_by_note.setdefault(note, []).append(site)
        for note, sites in sites_by_note.items():
            more = f" and {count_of(len(sites) - 1, 'more site')}" if len(sites) > 1 else ""
            yield f"{sites[0] or 'the function'}{more}: {note}"
        yield from map(str, self.costs)
        yield from self.notes

    def _summary(self) -> str:
        differing = [row for row in self.rows if row.agrees is False]
        if differing:
            first = differing[0]
            more = f", and {count_of(len(differing) - 1, 'more site')}" if len(differing) > 1 else ""
            what = f"{first.site or 'it'} computes {first.computed or 'something else'}, not {first.reference}{more}"
            return f"{self.candidate} differs from {self.reference}: {what}"
        if self.passed:
            return f"{self.candidate} computes the activations of {self.reference}: {count_of(len(self.rows), 'site')}"
        return f"{self.candidate} and {self.reference}: the values do not tell whether activations are the same"

    def _html_table(self) -> HtmlTable:
        return HtmlTable(_HEAD, [row.cells for row in self.rows], self._summary(), list(self._lines()))
