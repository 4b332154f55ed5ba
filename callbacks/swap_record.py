"""What a checkpoint holds of a swap, and how it is made again."""

import glob
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from torch import nn

from lit_gelu import surgery
from lit_gelu.activations import ActivationRegistry
from lit_gelu.errors import NotAvailableYetError
from lit_gelu.surgery import NoMatchError, SwapPlan, SwapReport


@dataclass(frozen=True)
class SwapRecord:
    """A swap that was made, as plain data.

    Args:
        epoch: The epoch in which it was made.
        step: The number of optimizer steps before it.
        order: How many swaps of the same run came before it.
        sites: From the fully qualified name of a site to its spec before and after.
    """

    epoch: int
    step: int
    order: int
    sites: Mapping[str, tuple[str, str]]

    @classmethod
    def of(cls, report: SwapReport, epoch: int, step: int, order: int) -> Self:
        """Make the record of a swap.

        Args:
            report: What was replaced.
            epoch: As above.
            step: As above.
            order: As above.

        Returns:
            The record.
        """
        return cls(epoch, step, order, {row.name: (str(row.old), str(row.new)) for row in report.rows})

    def to_dict(self) -> dict[str, Any]:
        """Return the record as plain data, which ``torch.load(weights_only=True)`` reads.

        Returns:
            Numbers, strings and dictionaries.

        Example:
            >>> SwapRecord(2, 40, 0, {"act": ("relu", "gelu")}).to_dict()
            {'epoch': 2, 'step': 40, 'order': 0, 'sites': {'act': {'old': 'relu', 'new': 'gelu'}}}
        """
        sites = {name: {"old": old, "new": new} for name, (old, new) in self.sites.items()}
        return {"epoch": self.epoch, "step": self.step, "order": self.order, "sites": sites}

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> Self:
        """Read what `to_dict` wrote.

        Args:
            state: The plain data.

        Returns:
            The record.

        Example:
            >>> record = SwapRecord(2, 40, 0, {"act": ("relu", "gelu")})
            >>> SwapRecord.from_dict(record.to_dict()) == record
            True
        """
        sites = {name: (row["old"], row["new"]) for name, row in state["sites"].items()}
        return cls(state["epoch"], state["step"], state["order"], sites)

    def replay(self, model: nn.Module, registry: ActivationRegistry | None) -> SwapReport | None:
        """Give the recorded sites their recorded activations.

        Args:
            model: The model.
            registry: Where the specs are looked up; ``None`` means the default registry.

        Returns:
            What was replaced; ``None`` if the sites have these activations already.

        Raises:
            NoMatchError: If the model lacks a recorded site.
        """
        present = {site.name: str(site.spec) for site in surgery.find_sites(model, registry=registry)}
        missing = [name for name in self.sites if name not in present]
        if missing:
            raise NoMatchError(
                f"The checkpoint says that ActivationSwap replaced {', '.join(map(repr, missing))}, and the model has "
                f"no such activation. Its sites: {', '.join(map(repr, present)) or 'none'}. Load the checkpoint into a "
                "model like the one that it was saved from."
            )
        targets = {glob.escape(name): new for name, (_, new) in self.sites.items() if present[name] != new}
        return surgery.swap(model, targets, registry=registry) if targets else None


def refuse_changed_state(plan: SwapPlan) -> None:
    """Refuse a swap after which the checkpoint has other keys than before.

    Lightning loads the weights before a callback can make the swap again, so such a checkpoint could not be resumed.

    Args:
        plan: The swap.

    Raises:
        NotAvailableYetError: If a module that comes or goes has parameters or persistent buffers.
    """
    for replacement in plan.replacements:
        for module, spec in ((replacement.module, replacement.spec), (replacement.site.module, replacement.site.spec)):
            state = ", ".join(module.state_dict())
            if state:
                raise NotAvailableYetError(
                    "not available yet: a swap during training to or from an activation with learnable parameters or "
                    f"buffers ({replacement.site.name!r}: {spec} has {state}). Swap to and from activations without "
                    "them, or call lit_gelu.surgery.swap on the model before the Trainer gets it."
                )
