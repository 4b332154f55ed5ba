"""What becomes of sites that cannot be swapped: the whole swap is refused, or they stay and are reported."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Literal

from lit_gelu.activations import ActivationSpec
from lit_gelu.surgery.activation_site import ActivationSite
from lit_gelu.surgery.errors import SwapError
from lit_gelu.surgery.mechanisms import Placement
from lit_gelu.surgery.report import SkippedSite

OnObstacle = Literal["refuse", "skip"]
"""What becomes of a selected site that cannot be swapped."""
Placed = tuple[Placement, ActivationSpec]
"""Where a new module is to stand, and its spec."""


class Obstacles:
    """Collects the sites that cannot be swapped, or lets the first of them be an error.

    Args:
        skip: Whether they are to stay as they are.

    Attributes:
        skipped: Those that stay, and why.
    """

    def __init__(self, *, skip: bool) -> None:
        self._skip = skip
        self.skipped: list[SkippedSite] = []

    @contextlib.contextmanager
    def of(self, site: ActivationSite) -> Iterator[None]:
        """Take what is raised within as the reason why a site cannot be swapped.

        Args:
            site: The site.

        Yields:
            Nothing.

        Raises:
            SwapError: If sites that cannot be swapped are not to stay.
        """
        try:
            yield
        except SwapError as reason:
            if not self._skip:
                raise
            self.skipped.append(SkippedSite(site.name, site.spec, f"because of an obstacle: {reason}", obstacle=True))

    def passing(self, placed: list[Placed], check: Callable[[list[Placed]], Any]) -> list[Placed]:
        """Return the new modules that pass a check together.

        Args:
            placed: The new modules.
            check: Raises `SwapError` if some of them cannot be placed.

        Returns:
            All of them, or, if that is wanted, those that pass it by themselves.

        Raises:
            SwapError: If they do not pass it.
        """
        try:
            check(placed)
        except SwapError:
            if not self._skip:
                raise
        else:
            return placed
        passing = []
        for row in placed:
            with self.of(row[0].site):
                check([row])
                passing.append(row)
        check(passing)  # each may pass alone, and not beside another
        return passing
