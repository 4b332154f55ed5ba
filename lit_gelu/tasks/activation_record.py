"""What a checkpoint says of the activations in a net, so that a swapped one is there again when it is loaded."""

import glob
from collections.abc import Mapping

from torch import nn

from lit_gelu import surgery
from lit_gelu.activations import ActivationRegistry
from lit_gelu.tasks.errors import CheckpointMismatchError


def record_activations(model: nn.Module, registry: ActivationRegistry) -> dict[str, str]:
    """Return the activation at every site of a model, as plain data.

    Args:
        model: Any module.
        registry: Says what an activation is.

    Returns:
        From fully qualified name to the text of the spec.

    Raises:
        OpaqueActivationError: If a site has an activation that was never registered.

    Example:
        >>> from lit_gelu.activations import registry
        >>> record_activations(nn.Sequential(nn.Linear(2, 2), nn.GELU()), registry)
        {'1': 'gelu'}
    """
    return {site.name: site.spec.for_checkpoint() for site in surgery.find_sites(model, registry=registry)}


def restore_activations(model: nn.Module, recorded: Mapping[str, str], registry: ActivationRegistry) -> None:
    """Give every site of a model the activation that was recorded for it; sites that have it stay as they are.

    Args:
        model: A model of the same structure as the recorded one; changed in place.
        recorded: What `record_activations` returned.
        registry: Where the specs are looked up.

    Raises:
        CheckpointMismatchError: If model and record do not have the same sites.

    Example:
        >>> from lit_gelu.activations import registry
        >>> model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
        >>> restore_activations(model, {"1": "gelu"}, registry)
        >>> model[1]
        GELU(approximate='none')
    """
    present = {site.name: str(site.spec) for site in surgery.find_sites(model, registry=registry)}
    different = sorted(present.keys() ^ recorded.keys())
    if different:
        raise CheckpointMismatchError(
            f"Only one of the checkpoint's model and this one has a registered activation at: {', '.join(different)}. "
            "Load the checkpoint into a model like the one that it was saved from."
        )
    changed = {glob.escape(name): spec for name, spec in recorded.items() if present[name] != spec}
    if changed:
        surgery.swap(model, changed, registry=registry)
