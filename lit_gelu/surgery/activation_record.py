"""Which activations a model has, as plain data: what a checkpoint says of them, and how they are put back."""

from collections.abc import Mapping
from typing import Any

from torch import nn

from lit_gelu.activations import ActivationRegistry, ActivationSpec
from lit_gelu.activations.registry import registry_or_default
from lit_gelu.errors import CheckpointError, shown
from lit_gelu.surgery.selectors import exactly
from lit_gelu.surgery.sites import Survey, without_wrappers
from lit_gelu.surgery.swap import swap

ActivationRecord = dict[str, str]
"""By fully qualified name the text of a spec."""


def record_activations(
    model: nn.Module, registry: ActivationRegistry | None = None, *, name_opaque: bool = False
) -> ActivationRecord:
    """Return the activation at every site of a model; one that was never registered only if ``name_opaque``."""
    # Calls of functions are in it once they were swapped, by the names that they had. Softmax, which is a gate and no
    # registered activation, is recorded by its opaque name and its arguments, as is any gate: it cannot be built from
    # that, but another in its place is noticed.
    return {
        site.call or site.name: str(site.spec) if name_opaque or site.role == "gate" else site.spec.for_checkpoint()
        for site in Survey(without_wrappers(model), None, registry_or_default(registry)).sites
    }


def read_activations(plain: object) -> ActivationRecord:
    """Check that what a file holds is a record; `restore_activations` looks its specs up."""
    record: ActivationRecord = {}
    for name, entry in plain.items() if isinstance(plain, Mapping) else [("", plain)]:
        match entry:
            case str() if isinstance(name, str) and isinstance(plain, Mapping):
                record[name] = entry
            case _:
                raise CheckpointError(
                    f"The checkpoint is damaged: it has {shown(entry)} where the spec of an activation should stand. "
                    "Load its weights into a model that is built in code."
                )
    return record


def restore_activations(
    model: nn.Module,
    recorded: object,
    registry: ActivationRegistry | None = None,
    input_sample: Any = None,
) -> None:
    """Give every site of a model the activation that was recorded for it; sites that have it stay as they are."""
    # A record may come from a file: its specs name registered activations, and nothing is imported. Calls that were
    # swapped are found with an ``input_sample`` alone; it may be a function of the model, called where there are some.
    recorded_specs = read_activations(recorded)
    present = record_activations(model, registry, name_opaque=True)
    calls = {name: recorded_specs[name] for name in recorded_specs.keys() - present.keys() if is_call(name)}
    if calls:
        sample = input_sample(model) if callable(input_sample) else input_sample
        _swap_calls(model, calls, registry, sample)
        present = record_activations(model, registry, name_opaque=True)
    _require_same_sites(recorded_specs, present)
    _swap(model, {name: entry for name, entry in recorded_specs.items() if present[name] != entry}, registry)


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
    """Say whether an entry cannot be turned back."""
    return entry.startswith("opaque:")


def _require_same_sites(recorded: ActivationRecord, present: ActivationRecord) -> None:
    """Refuse a record that a model cannot be brought to: of other sites, or of what cannot be built."""
    expected = {name for name, entry in present.items() if name in recorded or not _is_opaque(entry)}
    different = sorted(expected ^ recorded.keys())
    if different:
        raise CheckpointError(
            f"Only one of the checkpoint's model and this one has a registered activation at: {', '.join(different)}. "
            "Load the checkpoint into a model like the one that it was saved from. Layers made in setup come too late: "
            "make them in configure_model."
        )
    unknown = [name for name, entry in recorded.items() if _is_opaque(entry) and present[name] != entry]
    if unknown:
        differences = describe_differences({name: recorded[name] for name in unknown}, {n: present[n] for n in unknown})
        raise CheckpointError(
            f"What was never registered cannot be built from a checkpoint: {'; '.join(differences)}. Build the model "
            "with it first."
        )


def _stored(text: str, registry: ActivationRegistry | None) -> ActivationSpec:
    """Return the spec that a record's text stands for; names in it are looked up, never imported."""
    return registry_or_default(registry).resolve(text, trusted=False)


def _swap_calls(
    model: nn.Module, calls: dict[str, str], registry: ActivationRegistry | None, input_sample: Any
) -> None:
    """Swap calls by name; without a sample they cannot be found."""
    if input_sample is None:
        raise CheckpointError(
            f"In the checkpoint's model these calls had been swapped: {', '.join(sorted(calls))}. Give input_sample, "
            "a sample of the model's input, to find them in this one."
        )
    swap(
        model,
        {exactly(name): _stored(spec, registry) for name, spec in calls.items()},
        input_sample,
        registry=registry,
    )


def _swap(model: nn.Module, specs: dict[str, str], registry: ActivationRegistry | None) -> None:
    """Swap by exact name where the activation is another one."""
    sites = Survey(without_wrappers(model), None, registry_or_default(registry)).sites
    present = {site.name: str(site.spec) for site in sites}
    targets = {exactly(name): _stored(spec, registry) for name, spec in specs.items() if present[name] != spec}
    if targets:
        swap(model, targets, registry=registry)
