"""Which form every GELU of a file takes."""

import re
from collections.abc import Sequence

import torch

from lit_gelu import surgery
from lit_gelu.activations import ActivationRegistry
from lit_gelu.errors import ArgumentError, SwapError
from lit_gelu.export.inputs import FlatModule
from lit_gelu.export.metadata import SiteRecord

_ROW = re.compile(r"gelu\(approximate='(\w+)'\)")  # of a GELU in the lowering table


def approximate_(
    flat: FlatModule, approximate: str, registry: ActivationRegistry, dtype: torch.dtype = torch.float32
) -> None:
    """Give every GELU of a module one form in place: modules, and calls of functions that its sample reaches."""
    if approximate == "as_trained":
        return
    rows = flat.call.resized(max(2, flat.call.batch_size))  # as it is traced: with one row it may do something else
    sample = tuple(tensor.to(dtype) if tensor.is_floating_point() else tensor for tensor in rows)
    targets = {surgery.by_activation("gelu"): f"gelu(approximate={approximate!r})"}
    try:
        surgery.swap(flat, targets, sample, registry=registry)
    except SwapError as error:
        sites = [f"{site.name}: {site.spec}" for site in surgery.find_sites(flat.model, registry=registry)]
        raise ArgumentError(
            f"approximate={approximate!r} was asked for, but not every GELU of {type(flat.model).__name__} can be "
            f"given that form, or it has none: {error} Its activation modules: {'; '.join(sites) or 'none'}. Use "
            "approximate='as_trained', or swap activations first (lit_gelu.surgery.swap)."
        ) from error


def require_forms(sites: Sequence[SiteRecord], approximate: str) -> None:
    """Refuse a file in which a GELU has another form than the one that was asked for."""
    others = [
        f"{site.site} ({form[1]})"
        for site in sites
        # A call; the sites of modules are `approximate_`'s.
        if ":" in site.site and site.calls and (form := _ROW.fullmatch(site.row)) and form[1] != approximate
    ]
    if others and approximate != "as_trained":
        raise ArgumentError(
            f"approximate={approximate!r} was asked for, but a GELU that is no site of the module, such as one that is "
            f"written by hand, has another form: {', '.join(others)}. Use torch.nn.GELU() modules there, or "
            "approximate='as_trained'."
        )
