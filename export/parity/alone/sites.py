"""Each distinct activation of a file, alone; and what the file's record says against module and graph."""

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import torch
from torch import nn

from lit_gelu.activations import ActivationArgumentError, ActivationRegistry
from lit_gelu.export.errors import ModelFileError
from lit_gelu.export.lowering.lowering_table import TABLE, BoundActivation, bind
from lit_gelu.export.lowering.policy import Choice, absolute_error, ulp_bound
from lit_gelu.export.metadata import FileMetadata, SiteRecord
from lit_gelu.export.parity.alone.elementwise import ElementwiseCheck, Rounding, check_activation
from lit_gelu.export.parity.execution import SessionSetup
from lit_gelu.export.parity.structure import REGION
from lit_gelu.export.parity.subgraph import SiteNodes, element_type, node_label, sites_in_subgraphs

_DTYPES: Mapping[int, torch.dtype] = {
    int(onnx.TensorProto.FLOAT): torch.float32,
    int(onnx.TensorProto.FLOAT16): torch.float16,
    int(onnx.TensorProto.BFLOAT16): torch.bfloat16,
}


def check_sites(
    model: onnx.ModelProto,
    found: Sequence[SiteNodes],
    module: nn.Module,
    metadata: FileMetadata,
    setup: SessionSetup,
    tolerance: float,
    registry: ActivationRegistry,
) -> tuple[list[ElementwiseCheck], list[str]]:
    """Run each distinct activation of the file alone."""
    modules = dict(module.named_modules())
    first = {entry.site: entry for entry in reversed(found)}
    checks: dict[tuple[str, str, tuple[str, ...], torch.dtype], ElementwiseCheck] = {}
    inner = sites_in_subgraphs(model)
    notes = [_unrun(r.spec, "it is called within a branch or a loop.") for r in metadata.sites if r.site in inner]
    for record in metadata.sites:
        entry = first.get(record.site)
        try:
            known = None if entry is None or record.folded else _module_of(record, modules, registry)
        except ActivationArgumentError as error:
            notes.append(_unrun(record.spec, error))
            continue
        dtype = None if entry is None else _DTYPES.get(element_type(model, entry))
        if entry is None or known is None or dtype is None:
            continue
        activation, bound = known
        key = (bound.row, repr(sorted(bound.arguments.items())), tuple(map(node_label, entry.nodes)), dtype)
        if key in checks:
            continue
        taken = any(check.label == record.spec for check in checks.values())  # equal specs, other learned parameters
        label = f"{record.spec} at {record.site}" if taken else record.spec
        try:
            checks[key] = check_activation(
                model,
                entry,
                activation,
                dtype,
                setup,
                label=label,
                tolerance=tolerance,
                rounding=_rounding(record, bound, metadata, dtype),
            )
        except (ModelFileError, ActivationArgumentError) as error:  # torch takes arguments that no definition does
            notes.append(_unrun(label, error))
    return list(checks.values()), notes


def _unrun(label: str, error: object) -> str:
    return f"{label} could not be run alone: {error}"


def _module_of(
    record: SiteRecord, modules: Mapping[str, nn.Module], registry: ActivationRegistry
) -> tuple[nn.Module, BoundActivation] | None:
    """Return a site's module and activation: the module's own, or for a function call a new one from the spec."""
    if not record.row or not record.calls:
        return None
    own = modules.get(record.site)
    activation = None if own is None else bind(own)
    if own is not None and activation is not None and activation.row == record.row:
        return own, activation
    built = registry.stored.create(record.spec)  # the file's text: looked up, never imported
    activation = bind(built)
    return None if activation is None or activation.row != record.row else (built, activation)


def _rounding(
    record: SiteRecord, bound: BoundActivation, metadata: FileMetadata, dtype: torch.dtype
) -> Rounding | None:
    """Return what a strict 16-bit recipe of the table is off by at most; ``None`` for any other."""
    strict = metadata.lowering == "auto" and metadata.policy == "strict"
    if dtype == torch.float32 or not strict or not bound.in_table or not record.recipe:
        return None
    choice = Choice(record.recipe.removeprefix(REGION), record.lowering, record.recipe.startswith(REGION))
    sigma = np.abs(np.asarray(bound.arguments.get("sigma", 1.0), dtype=np.float64)).max()  # the table's is of sigma 1
    return Rounding(ulp_bound(choice), absolute_error(TABLE[record.row], choice) * max(1.0, float(sigma)))
