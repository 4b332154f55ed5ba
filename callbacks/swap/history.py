"""What a checkpoint holds of the swaps of a run, how it is written and read, and how a swap is made again.

Lightning calls no callback between reading a checkpoint and loading its weights, and leaves the callbacks' states out
of ``weights_only`` saves. Both are seen by the module's own ``on_save_checkpoint`` and ``on_load_checkpoint``, so these
are wrapped, on the instance: the module's class stays as it is.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from lightning.pytorch import LightningModule

from lit_gelu.activations import ActivationRegistry
from lit_gelu.activations.naming.spec import dotted_path
from lit_gelu.activations.registry import registry_or_default
from lit_gelu.errors import CheckpointError, shown
from lit_gelu.report import SwapChange, SwapEvent
from lit_gelu.surgery.swap import ActivationSelector, ClassSelector, NameSelector, selector_of

if TYPE_CHECKING:
    from lit_gelu.callbacks.swap.run import SwapRun

ACTIVATIONS_KEY = "lit_gelu_activations"  # tasks write it too
SWAPS_KEY = "lit_gelu_activation_swaps"
GROUPS_KEY = "lit_gelu_parameter_groups"
Checkpoint = dict[str, Any]


@dataclass(frozen=True)
class SwapRecord:
    """A swap that was made, as plain data."""

    epoch: int  # the epoch in which it was made
    step: int  # the number of optimizer steps before it; below 0 if another Trainer began it
    order: int  # how many swaps of the same run came before it
    # From the fully qualified name of a site to its spec before and after, as text.
    sites: Mapping[str, tuple[str, str]]
    # The step as loggers number it, one for each batch but for those that only accumulate (accumulate_grad_batches):
    # fewer than `step` where a batch has several optimizer steps.
    logged_step: int

    def event(self) -> SwapEvent:
        """Return what the report of a run says of it."""
        changes = tuple(SwapChange(name, old, new) for name, (old, new) in self.sites.items())
        return SwapEvent(self.logged_step, self.epoch, changes)

    def line(self) -> str:
        """Return one line that says what was replaced."""
        changes: dict[tuple[str, str], list[str]] = {}
        for name, change in self.sites.items():
            changes.setdefault(change, []).append(name)
        parts = [f"{old} -> {new} at {', '.join(names)}" for (old, new), names in changes.items()]
        return f"ActivationSwap at epoch {self.epoch}, step {self.step}: {'; '.join(parts) or 'nothing to replace'}"

    def to_dict(self) -> dict[str, Any]:
        """Return the record as plain data, which ``torch.load(weights_only=True)`` reads."""
        sites = {name: {"old": old, "new": new} for name, (old, new) in self.sites.items()}
        return {**vars(self), "sites": sites}

    @classmethod
    def from_dict(cls, state: object) -> Self:
        """Read what `to_dict` wrote."""
        match state:
            case {
                "epoch": int() as epoch,
                "step": int() as step,
                "order": int() as order,
                "sites": dict() as rows,
                "logged_step": int() as logged_step,
            } if all(isinstance(name, str) and _is_change(row) for name, row in rows.items()):
                sites = {name: (row["old"], row["new"]) for name, row in rows.items()}
                return cls(epoch, step, order, sites, logged_step)
        raise CheckpointError(f"The checkpoint is damaged: it has {shown(state)} where a swap should stand.")


def _is_change(row: object) -> bool:
    return isinstance(row, Mapping) and isinstance(row.get("old"), str) and isinstance(row.get("new"), str)


def describe_target(target: Any, registry: ActivationRegistry | None) -> str:
    """Return a target of a swap as text that is the same in every process: the form that YAML has for it."""
    match selector_of(target):
        case NameSelector(pattern):
            return pattern
        case ClassSelector(cls):
            return f"class:{dotted_path(cls)}"
        case ActivationSelector(activation):
            text = activation if isinstance(activation, str) else registry_or_default(registry).resolve(activation)
            return f"activation:{text}"
        case selector:
            return repr(selector)


Finder = Callable[[LightningModule], "SwapRun | None"]


def install_hooks(module: LightningModule, find: Finder) -> None:
    """Wrap a module's two checkpoint hooks, once."""
    for name in ("on_save_checkpoint", "on_load_checkpoint"):
        present = module.__dict__.get(name)
        if not (isinstance(present, partial) and present.func is _wrapped_hook):
            # A partial of a plain function: it can be pickled, its copy belongs to the module's copy, and Lightning's
            # `is_overridden` looks into it.
            module.__dict__[name] = partial(_wrapped_hook, module, name, present, find)


def _wrapped_hook(module: LightningModule, name: str, previous: Any, find: Finder, checkpoint: Checkpoint) -> None:
    """Call the module's own hook: when it saves, before the record is added; when it loads, behind the replay."""
    run = find(module)
    if run is not None and name == "on_load_checkpoint":
        run.read_checkpoint(checkpoint)
    (previous or getattr(type(module), name).__get__(module))(checkpoint)
    if run is not None and name == "on_save_checkpoint":
        run.write_checkpoint(checkpoint)
