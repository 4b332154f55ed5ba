"""Do module, record and graph agree on the activations? What decides beside any number."""

from collections.abc import Mapping

import onnx
from torch import nn

from lit_gelu.activations import ActivationRegistry
from lit_gelu.errors import LitGeluError
from lit_gelu.export.lowering.markers import BoundActivation, bind
from lit_gelu.export.lowering.policy import policy_of
from lit_gelu.export.lowering.recipe import Argument
from lit_gelu.export.lowering.table import TABLE
from lit_gelu.export.metadata import FileMetadata, SiteRecord, versions
from lit_gelu.export.parity.recorded import REGION, nodes_by_site, recipe_fault


def activation_faults(
    model: onnx.ModelProto, module: nn.Module, metadata: FileMetadata, registry: ActivationRegistry, *, rewritable: bool
) -> list[str]:
    """Say where module, record and graph do not agree on the activations.

    Every activation module must be recorded, as what it is; every node that is marked as an activation's must be one of
    a recorded site; and these must be the recorded recipe with the activation's own arguments, which must be a recipe
    of the lowering table. Arguments are compared to the last place, all else exactly.

    Args:
        model: The file's graph, with the constants of its activations.
        module: The module with the file's form of GELU.
        metadata: What the file says of itself.
        registry: Which registry names the activations.
        rewritable: Whether all nodes of a site may be gone, because a program that knows nothing of the record fused
            them: the outputs then decide.

    Returns:
        One sentence each.
    """
    bound = {name: b for name, part in module.named_modules() if (b := bind(part, registry)) is not None}
    records = {record.site: record for record in metadata.sites}
    faults = [
        f"{_called(site)} is {activation.name} in the module, and the file records nothing for it."
        for site, activation in bound.items()
        if site not in records
    ]
    nodes = nodes_by_site(model)
    faults += [f"the file has nodes of {_called(site)}, and records nothing for it." for site in nodes.keys() - records]
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    for record in metadata.sites:
        own = bound.get(record.site)
        if own is not None and own.row != record.row:
            faults.append(f"{_called(record.site)} is {own.row} in the module, and {record.row} is recorded.")
            continue
        if not record.row or (rewritable and record.site not in nodes):
            continue
        activation = _of_spec(record, registry) if own is None else own
        text = _unknown_recipe(record, activation, metadata) or recipe_fault(
            record, nodes.get(record.site, []), constants, _arguments(record, activation)
        )
        if text:
            faults.append(f"{_called(record.site)} ({record.spec}): {text}.")
    return faults


def _called(site: str) -> str:
    """Return a site's name; that of a module which is one activation is empty."""
    return site or "(the module itself)"


def _of_spec(record: SiteRecord, registry: ActivationRegistry) -> BoundActivation | None:
    """Return the activation of a call of a function, from its recorded spec; ``None`` if that does not say."""
    try:
        activation = bind(registry.stored.create(record.spec), registry)  # the file's text: looked up, never imported
    except LitGeluError:
        return None  # such as erfc, which is no activation
    return activation if activation is not None and activation.row == record.row else None


def _arguments(record: SiteRecord, activation: BoundActivation | None) -> Mapping[str, Argument | str]:
    """Return the arguments that the recipe is built with; of a folded site they are in other weights."""
    return {} if activation is None or record.folded else activation.arguments


def _unknown_recipe(record: SiteRecord, activation: BoundActivation | None, metadata: FileMetadata) -> str:
    """Say that a recorded recipe is none of the activation's; another release may have had others."""
    release = versions()["lit-gelu"]
    own = None if activation is None else activation.own
    row = TABLE.get(record.row)
    if not record.recipe or record.folded or own is not None or metadata.versions.get("lit-gelu") != release:
        return ""
    if row is None:
        return f"{record.row} is no row of the lowering table"
    known = {*vars(row).values(), *policy_of(record.row).values()}
    plain = record.recipe.removeprefix(REGION)
    return "" if plain in known else f"{plain} is no recipe of {record.row}"
