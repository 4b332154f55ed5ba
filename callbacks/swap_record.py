"""What a checkpoint holds of a swap, and how it is made again."""

import glob
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from torch import nn

from lit_gelu import activations, surgery
from lit_gelu.activations import ActivationRegistry
from lit_gelu.activations.resolution import dotted_path
from lit_gelu.errors import NotAvailableYetError
from lit_gelu.surgery import NoMatchError, SwapReport
from lit_gelu.surgery.selectors import ActivationSelector, ClassSelector, NameSelector, selector_of


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


def describe_target(target: Any, registry: ActivationRegistry | None) -> str:
    """Return a target of a swap as text that is the same in every process.

    Args:
        target: What `lit_gelu.surgery.swap` takes as a target.
        registry: Where activations are looked up; ``None`` means the default registry.

    Returns:
        The form that YAML has for it.

    Example:
        >>> describe_target(nn.ReLU, None), describe_target(surgery.by_activation(nn.ReLU), None)
        ('class:torch.nn.modules.activation.ReLU', 'activation:relu')
    """
    match selector_of(target):
        case NameSelector(pattern):
            return pattern
        case ClassSelector(cls):
            return f"class:{dotted_path(cls)}"
        case ActivationSelector(str(text)):
            return f"activation:{text}"
        case ActivationSelector(activation):
            return f"activation:{(activations.registry if registry is None else registry).resolve(activation)}"
        case selector:
            return repr(selector)


def refuse_state(module: nn.Module, what: str) -> None:
    """Refuse a module whose coming or going changes the keys of a checkpoint.

    Lightning loads the weights before a callback can make the swap again, so such a checkpoint could not be resumed.

    Args:
        module: The activation that comes or goes.
        what: What to call it in the message.

    Raises:
        NotAvailableYetError: If it has parameters or persistent buffers.
    """
    state = ", ".join(module.state_dict())
    if state:
        raise NotAvailableYetError(
            "not available yet: a swap during training to or from an activation with learnable parameters or buffers "
            f"({what} has {state}). Swap between activations without them, or call lit_gelu.surgery.swap on the model "
            "before the Trainer gets it."
        )
