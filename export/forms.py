"""Which form every GELU of a file takes."""

import fnmatch
import glob
import re
from collections.abc import Mapping, Sequence
from typing import Any, get_args

import torch

from lit_gelu import surgery
from lit_gelu.activations import ActivationRegistry
from lit_gelu.export.errors import ExportOptionError
from lit_gelu.export.inputs import SCOPE, FlatModule
from lit_gelu.export.metadata import SiteRecord
from lit_gelu.export.options import Approximate
from lit_gelu.surgery.sites import names_for_patterns

_GELU = surgery.by_activation("gelu")
_ROW = re.compile(r"gelu\(approximate='(\w+)'\)")  # of a GELU in the lowering table
# Of patterns and forms as a file records them: "head=tanh, body.[a, b]=none".
_RECORDED = re.compile(rf"(.+?)=({'|'.join(get_args(Approximate))})(?:, |$)", re.DOTALL)


class NoGeluError(ExportOptionError):
    """A form was asked for where there is no GELU that could take it."""


def approximate_(
    flat: FlatModule,
    approximate: str | Mapping[str, str],
    registry: ActivationRegistry,
    dtype: torch.dtype = torch.float32,
) -> None:
    """Give every GELU of a module one form in place: modules, and calls of functions that its sample reaches."""
    if approximate == "as_trained":
        return
    model = type(flat.model).__name__
    rows = flat.call.resized(max(2, flat.call.batch_size))  # as it is traced: with one row it may do something else
    sample = tuple(tensor.to(dtype) if tensor.is_floating_point() else tensor for tensor in rows)
    try:
        surgery.swap(flat, _targets(flat, approximate, sample, registry), sample, registry=registry)
    except surgery.SwapError as error:
        if any(_GELU.matches(site, registry) for site in surgery.find_sites(flat, sample, registry=registry)):
            raise ExportOptionError(
                f"approximate={approximate!r} was asked for, but not every GELU of {model} can be given that form: "
                f"{error} Or use approximate='as_trained'."
            ) from error
        sites = [
            f"{site.name or '(the module itself)'}: {site.spec}"
            for site in surgery.find_sites(flat.model, registry=registry)
        ]
        raise NoGeluError(
            f"approximate={approximate!r} needs a GELU, and {model} has none. Use approximate='as_trained', or swap "
            f"activations first (lit_gelu.surgery.swap). Its activation modules: {'; '.join(sites) or 'none'}."
        ) from error


def forms_of(approximate: str | Mapping[str, str]) -> str | Mapping[str, str]:
    """Return forms by name pattern, where a file's record of them is given."""
    if isinstance(approximate, str) and "=" in approximate:
        return dict(_RECORDED.findall(approximate))
    return approximate


def _targets(
    flat: FlatModule,
    approximate: str | Mapping[str, str],
    sample: tuple[torch.Tensor, ...],
    registry: ActivationRegistry,
) -> dict[Any, str]:
    """Return what each GELU is swapped for."""
    forms = forms_of(approximate)
    if isinstance(forms, str):
        return {_GELU: f"gelu(approximate={forms!r})"}
    gelus = [site.name for site in surgery.find_sites(flat, sample, registry=registry) if _GELU.matches(site, registry)]
    prefix = f"{SCOPE}."
    targets: dict[Any, str] = {}
    unused = dict(forms)
    for name in gelus:
        plain = name.removeprefix(prefix)
        names = names_for_patterns(plain)
        pattern = next((p for p in forms if any(fnmatch.fnmatchcase(each, p) for each in names)), None)
        if pattern is not None:
            unused.pop(pattern, None)
            if forms[pattern] != "as_trained":
                targets[glob.escape(name)] = f"gelu(approximate={forms[pattern]!r})"
    if unused:
        listed = ", ".join(name.removeprefix(prefix) for name in gelus) or "none"
        raise NoGeluError(
            f"approximate={dict(forms)!r}: {', '.join(map(repr, unused))} fits no GELU that an earlier pattern does "
            f"not take. GELUs of this model: {listed}."
        )
    return targets


def require_forms(sites: Sequence[SiteRecord], approximate: str | Mapping[str, str]) -> None:
    """Refuse a file in which a GELU has another form than the one that was asked for."""
    calls = [(site, form[1]) for site in sites if site.calls and (form := _ROW.fullmatch(site.row))]
    others = [
        f"{site.site} ({form})"
        for site, form in calls
        if ":" in site.site  # a call; the sites of modules are `approximate_`'s
        and _wanted(site.site, approximate) not in {"as_trained", form}
    ]
    if others:
        raise ExportOptionError(
            f"approximate={approximate!r} was asked for, but a GELU that is no site of the module has another form: "
            f"{', '.join(others)}. It is called where lit_gelu.surgery.find_sites does not see it, such as in compiled "
            "code, or it is written by hand: use torch.nn.GELU() or lit_gelu.activations.create('gelu') modules there, "
            "or approximate='as_trained', or patterns that leave it alone."
        )


def _wanted(site: str, approximate: str | Mapping[str, str]) -> str:
    """Return the form that was asked for at a site; for a call, by its own name or that of the module that calls."""
    forms = forms_of(approximate)
    if isinstance(forms, str):
        return forms
    names = {*names_for_patterns(site), site.partition(":")[0]}
    fitting = (form for pattern, form in forms.items() if any(fnmatch.fnmatchcase(name, pattern) for name in names))
    return next(fitting, "as_trained")
