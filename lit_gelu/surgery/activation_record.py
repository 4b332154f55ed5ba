"""Which activations a model has, as plain data: what a checkpoint says of them, and how they are put back."""

from collections.abc import Mapping
from typing import Any

from torch import nn

from lit_gelu.activations import ActivationRegistry
from lit_gelu.activations.registry import registry_or_default
from lit_gelu.errors import CheckpointError, shown
from lit_gelu.surgery.report import SwapReport
from lit_gelu.surgery.sites import find_sites
from lit_gelu.surgery.swap import exactly, swap

ActivationRecord = dict[str, str]
"""By fully qualified name the text of a spec."""


def record_activations(
    model: nn.Module, registry: ActivationRegistry | None = None, *, name_opaque: bool = False
) -> ActivationRecord:
    """Return the activation at every site of a model; one that was never registered only if ``name_opaque``."""
    # Calls of functions are in it once they were swapped, by the names that they had.
    return {
        site.call or site.name: str(site.spec) if name_opaque else site.spec.for_checkpoint()
        for site in find_sites(model, registry=registry_or_default(registry))
    }


def read_activations(plain: object) -> ActivationRecord:
    """Check that what a file holds is a record; `restore_activations` looks its specs up."""
    record: ActivationRecord = {}
    for name, entry in plain.items() if isinstance(plain, Mapping) else [(None, plain)]:
        if not isinstance(name, str) or not isinstance(entry, str):
            raise CheckpointError(
                f"The checkpoint is damaged: it has {shown(entry)} where the spec of an activation should stand. "
                "Load its weights into a model that is built in code."
            )
        record[name] = entry
    return record


def restore_activations(
    model: nn.Module, recorded: object, registry: ActivationRegistry | None = None, input_sample: Any = None
) -> None:
    """Give every site of a model the activation that was recorded for it; sites that have it stay as they are."""
    # Calls that were swapped are found with an ``input_sample`` alone; it may be a function of the model, called where
    # there are some.
    specs = read_activations(recorded)
    present = record_activations(model, registry, name_opaque=True)
    if calls := {name: spec for name, spec in specs.items() if name not in present and is_call(name)}:
        swap_recorded(model, calls, registry, input_sample(model) if callable(input_sample) else input_sample)
        present = record_activations(model, registry, name_opaque=True)
    expected = {name for name, entry in present.items() if name in specs or not _is_opaque(entry)}
    if different := sorted(expected ^ specs.keys()):
        raise CheckpointError(
            f"Only one of the checkpoint's model and this one has a registered activation at: {', '.join(different)}. "
            "Load the checkpoint into a model like the one that it was saved from. Layers made in setup come too late: "
            "make them in configure_model."
        )
    swap_recorded(model, specs, registry)


def swap_recorded(
    model: nn.Module, recorded: Mapping[str, str], registry: ActivationRegistry | None, input_sample: Any = None
) -> SwapReport | None:
    """Give sites, by exact name, the activations that a record names; ``None`` if they have these already."""
    # A record may come from a file: its specs name registered activations, and nothing is imported.
    present = record_activations(model, registry, name_opaque=True)
    changed = {name: text for name, text in recorded.items() if present.get(name) != text}
    missing = changed.keys() - present.keys()
    calls = sorted(filter(is_call, missing))
    if calls and input_sample is None:
        raise CheckpointError(
            f"In the checkpoint's model these calls had been swapped: {', '.join(calls)}. Give input_sample, a sample "
            "of the model's input, to find them in this one."
        )
    if unknown := sorted((missing - {*calls}) | {name for name, text in changed.items() if _is_opaque(text)}):
        raise CheckpointError(
            f"The checkpoint names activations that this model does not have, or that were never registered, at: "
            f"{', '.join(unknown)}. Build the model like the one that it was saved from."
        )
    names = registry_or_default(registry)
    targets = {exactly(name): names.resolve(text, trusted=False) for name, text in changed.items()}
    return swap(model, targets, input_sample if calls else None, registry=registry) if targets else None


def is_call(name: str) -> bool:
    """Return whether a site's name is that of a call, which only an ``input_sample`` finds."""
    return ":" in name or "#" in name


def describe_differences(recorded: ActivationRecord, present: ActivationRecord) -> list[str]:
    """Return in words, one entry a site, where a model's activations are not those of a record."""
    nothing = "nothing registered"
    return [
        f"{name!r}: {recorded.get(name, nothing)} in the checkpoint, {present.get(name, nothing)} in the model"
        for name in sorted(recorded.keys() | present.keys())
        if recorded.get(name) != present.get(name) and not (name not in recorded and _is_opaque(present[name]))
    ]


def _is_opaque(entry: str) -> bool:
    return entry.startswith("opaque:")
