"""What a swap did, and how to undo it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from lit_gelu.activations import ActivationSpec
from lit_gelu.surgery.errors import SwapError


@dataclass(frozen=True)
class SwappedSite:
    """One site that was given another activation.

    Args:
        name: Its fully qualified name.
        old: The spec of what stood there.
        new: The spec of what stands there now.
        aliases: The site's other names.
    """

    name: str
    old: ActivationSpec
    new: ActivationSpec
    aliases: tuple[str, ...] = ()

    def __str__(self) -> str:
        also = f" (also {', '.join(self.aliases)})" if self.aliases else ""
        return f"{self.name}{also}: {self.old} -> {self.new}"


@dataclass(frozen=True)
class SkippedSite:
    """One site that was selected and left as it was.

    Args:
        name: Its fully qualified name.
        spec: The spec of what stands there.
        reason: Why it was left.
    """

    name: str
    spec: ActivationSpec
    reason: str

    def __str__(self) -> str:
        return f"{self.name}: {self.spec} left as it is, {self.reason}"


@dataclass
class SwapReport:
    """What `lit_gelu.surgery.swap` did.

    ``print(report)`` gives one line a site, ``len(report)`` counts the swapped ones.

    Args:
        rows: The sites that were swapped.
        skipped: The sites that were selected and left as they were.
    """

    rows: tuple[SwappedSite, ...]
    skipped: tuple[SkippedSite, ...] = ()
    _restore: Callable[[], None] | None = field(default=None, repr=False, compare=False)

    def undo(self) -> None:
        """Put back the very modules that were there before, with their hooks.

        Raises:
            SwapError: If it was undone already, or a site has been given another module since.

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

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain data for JSON, a logger or a checkpoint.

        Returns:
            ``{"swapped": [{"name", "aliases", "old", "new"}], "skipped": [{"name", "spec", "reason"}]}``.
        """
        return {
            "swapped": [
                {"name": row.name, "aliases": list(row.aliases), "old": str(row.old), "new": str(row.new)}
                for row in self.rows
            ],
            "skipped": [{"name": row.name, "spec": str(row.spec), "reason": row.reason} for row in self.skipped],
        }

    def __str__(self) -> str:
        return "\n".join(map(str, (*self.rows, *self.skipped)))

    def __len__(self) -> int:
        return len(self.rows)
