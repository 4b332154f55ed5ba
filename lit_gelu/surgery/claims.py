"""Which target of a swap claims which site."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from lit_gelu.surgery.activation_site import ActivationSite
from lit_gelu.surgery.errors import NoMatchError, SwapConflictError
from lit_gelu.surgery.selectors import NameSelector, Selector, selector_of
from lit_gelu.surgery.sites import Survey

_LISTED = 40  # sites in an error message


def collect_claims(survey: Survey, targets: Mapping[Any, Any]) -> list[tuple[ActivationSite, Any]]:
    """Collect which site is to become what; every target must match, and no two the same site.

    Args:
        survey: What is known of the model.
        targets: As `lit_gelu.surgery.swap`.

    Returns:
        Sites with what they are to become; a single call of a module is a site of its own.

    Raises:
        NoMatchError: If a target matches no site.
        SwapConflictError: If two targets claim one site, or a module and one of its calls.
    """
    sites, registry = survey.sites, survey.registry
    claimed: dict[str, tuple[Selector, ActivationSite, Any]] = {}
    for target, wanted in targets.items():
        selector = selector_of(target)
        matching = [site for site in [*sites, *_single_calls(sites, selector)] if selector.matches(site, registry)]
        if not matching:
            listed = " ".join([describe_sites(sites, sampled=survey.seen is not None), *survey.notes])
            raise NoMatchError(f"No activation site matches {selector}. {listed}")
        for site in matching:
            if site.name in claimed:
                raise SwapConflictError(_conflict(site.name, claimed[site.name][0], selector))
            claimed[site.name] = (selector, site, wanted)
    for whole in sites:
        for part in whole.calls or ():
            if part.name != whole.name and whole.name in claimed and part.name in claimed:
                raise SwapConflictError(_conflict(part.name, claimed[whole.name][0], claimed[part.name][0]))
    return [(site, wanted) for _, site, wanted in claimed.values()]


def _conflict(name: str, first: Selector, second: Selector) -> str:
    return f"{name!r} is claimed by {first} and by {second}. Let only one of them match it."


def _single_calls(sites: list[ActivationSite], selector: Selector) -> list[ActivationSite]:
    """Return the calls of modules that are called from several places; only a pattern with ``#`` means them."""
    if not isinstance(selector, NameSelector) or "#" not in selector.pattern:
        return []
    return [
        replace(site, name=call.name, aliases=(), kind="call", calls=(call,), module=call._seen.owner, call="")
        for site in sites
        if site.kind != "call"
        for call in site.calls or ()
        if call.name != site.name
    ]


def describe_sites(sites: list[ActivationSite], *, sampled: bool) -> str:
    """List sites for an error message.

    Args:
        sites: The sites.
        sampled: Whether a sample was run to find them.

    Returns:
        One or two sentences.

    Example:
        >>> from torch import nn
        >>> from lit_gelu.surgery import find_sites
        >>> describe_sites(find_sites(nn.Sequential(nn.ReLU())), sampled=False)
        "The model's sites: '0' (relu). Calls of functions, such as F.gelu(x), are found if input_sample is given."
    """
    hint = "" if sampled else " Calls of functions, such as F.gelu(x), are found if input_sample is given."
    if not sites:
        return f"The model has no activation{'' if sampled else ' modules'}.{hint}"
    names = [f"{site.name!r} ({site.spec})" for site in sites]
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return f"The model's sites: {', '.join(names[:_LISTED])}{more}.{hint}"
