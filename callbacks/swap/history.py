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
from torch import nn

from lit_gelu import surgery
from lit_gelu.activations import ActivationRegistry
from lit_gelu.activations.naming.spec import dotted_path
from lit_gelu.activations.registry import registry_or_default
from lit_gelu.errors import CheckpointError, SwapError, shown
from lit_gelu.report import SwapChange, SwapEvent
from lit_gelu.surgery import SwapReport
from lit_gelu.surgery.activation_record import is_call
from lit_gelu.surgery.selectors import ActivationSelector, ClassSelector, NameSelector, exactly, selector_of

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
            } if all(isinstance(name, str) for name in rows):
                return cls(epoch, step, order, {name: _specs(row) for name, row in rows.items()}, logged_step)
        raise CheckpointError(f"The checkpoint is damaged: it has {shown(state)} where a swap should stand.")

    def replay(
        self, model: nn.Module, registry: ActivationRegistry | None, input_sample: Any = None
    ) -> SwapReport | None:
        """Give the recorded sites their recorded activations; ``None`` if they have these already."""
        sites = surgery.find_sites(model, registry=registry)
        present = {site.call or site.name: str(site.spec) for site in sites}
        to_find = input_sample is not None
        missing = [name for name in self.sites if name not in present and not (to_find and is_call(name))]
        if missing and not to_find and any(map(is_call, missing)):
            raise SwapError(
                f"The checkpoint says that ActivationSwap replaced {', '.join(missing)}: calls of functions, which are "
                "found with a sample alone. Give ActivationSwap the input_sample that it had."
            )
        if missing:
            raise SwapError(
                f"The checkpoint says that ActivationSwap replaced {', '.join(map(repr, missing))}, and the model has "
                f"no such activation. Its sites: {', '.join(map(repr, present)) or 'none'}. Load the checkpoint into a "
                "model like the one that it was saved from."
            )
        changed = {name: new for name, (_, new) in self.sites.items() if present.get(name) != new}
        names = registry_or_default(registry)
        targets = {exactly(name): names.resolve(new, trusted=False) for name, new in changed.items()}
        if not targets:
            return None
        sample = input_sample if any(map(is_call, self.sites)) else None
        return surgery.plan_swap(model, targets, sample, registry=registry).apply()


def _specs(row: object) -> tuple[str, str]:
    """Return the specs of one site before and after."""
    match row:
        case {"old": str() as old, "new": str() as new}:
            return old, new
    raise CheckpointError(f"The checkpoint is damaged: it has {shown(row)} where a swap should stand.")


def describe_target(target: Any, registry: ActivationRegistry | None) -> str:
    """Return a target of a swap as text that is the same in every process: the form that YAML has for it."""
    match selector_of(target):
        case NameSelector(pattern):
            return pattern
        case ClassSelector(cls):
            return f"class:{dotted_path(cls)}"
        case ActivationSelector(str(text)):
            return f"activation:{text}"
        case ActivationSelector(activation):
            return f"activation:{registry_or_default(registry).resolve(activation)}"
        case selector:
            return repr(selector)


Finder = Callable[[LightningModule], "SwapRun | None"]


def install_hooks(module: LightningModule, find: Finder) -> None:
    """Wrap a module's two checkpoint hooks, once."""
    for name, wrapper in (("on_save_checkpoint", _save), ("on_load_checkpoint", _load)):
        present = module.__dict__.get(name)
        if not (isinstance(present, partial) and present.func is wrapper):
            # A partial of a plain function: it can be pickled, its copy belongs to the module's copy, and Lightning's
            # `is_overridden` looks into it.
            module.__dict__[name] = partial(wrapper, module, present, find)


def _save(module: LightningModule, previous: Any, find: Finder, checkpoint: Checkpoint) -> None:
    """Call the module's own hook, then add the record."""
    _own_hook(module, previous, "on_save_checkpoint", checkpoint)
    run = find(module)
    if run is not None:
        run.write_checkpoint(checkpoint)


def _load(module: LightningModule, previous: Any, find: Finder, checkpoint: Checkpoint) -> None:
    """Replay the record, then call the module's own hook."""
    run = find(module)
    if run is not None:
        run.read_checkpoint(checkpoint)
    _own_hook(module, previous, "on_load_checkpoint", checkpoint)


def _own_hook(module: LightningModule, previous: Any, name: str, checkpoint: Checkpoint) -> None:
    hook = previous if previous is not None else getattr(type(module), name).__get__(module)
    hook(checkpoint)
