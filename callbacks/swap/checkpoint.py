"""What a checkpoint says of the swaps of a run, and the hooks that write and read it.

Lightning calls no callback between reading a checkpoint and loading its weights, and leaves the callbacks' states out
of ``weights_only`` saves. Both are seen by the module's own ``on_save_checkpoint`` and ``on_load_checkpoint``, so these
are wrapped, on the instance: the module's class stays as it is.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from lightning.pytorch import LightningModule

ACTIVATIONS_KEY = "lit_gelu_activations"  # tasks write it too
SWAPS_KEY = "lit_gelu_activation_swaps"
GROUPS_KEY = "lit_gelu_parameter_groups"
Checkpoint = dict[str, Any]


class Participant(Protocol):
    """What the hooks call: before the module's own hook at loading, after it at saving."""

    def write_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Add to what will be written."""

    def read_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Prepare the module for the weights that will be loaded."""


Finder = Callable[[LightningModule], Participant | None]


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
    participant = find(module)
    if participant is not None:
        participant.write_checkpoint(checkpoint)


def _load(module: LightningModule, previous: Any, find: Finder, checkpoint: Checkpoint) -> None:
    """Replay the record, then call the module's own hook."""
    participant = find(module)
    if participant is not None:
        participant.read_checkpoint(checkpoint)
    _own_hook(module, previous, "on_load_checkpoint", checkpoint)


def _own_hook(module: LightningModule, previous: Any, name: str, checkpoint: Checkpoint) -> None:
    hook = previous if previous is not None else getattr(type(module), name).__get__(module)
    hook(checkpoint)
