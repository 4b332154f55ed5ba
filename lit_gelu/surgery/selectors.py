"""Which sites a swap is for: by name, by class, or by the activation that stands there now."""

import fnmatch
import glob
import inspect
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from lit_gelu.activations import ActivationRegistry, ActivationSpec
from lit_gelu.activations.naming.importing import import_object
from lit_gelu.errors import SwapError
from lit_gelu.surgery.sites import ActivationSite, Survey, names_for_patterns


class Selector:
    """Decides which sites a swap is for."""

    def matches(self, site: ActivationSite, registry: ActivationRegistry) -> bool:
        """Say whether a site is selected."""
        raise NotImplementedError


@dataclass(frozen=True)
class NameSelector(Selector):
    """Selects by a shell-style pattern over fully qualified names; a gate only if the pattern is its name in full."""

    pattern: str  # such as "encoder.*"; * also matches dots and what follows a colon

    def matches(self, site: ActivationSite, registry: ActivationRegistry) -> bool:  # noqa: ARG002, D102
        all_names = (*site.names, site.call) if site.call else site.names
        names = [name for each in all_names for name in names_for_patterns(each)]
        if site.role == "gate":
            return self.pattern in {*names, *(glob.escape(name) for name in names)}
        return any(fnmatch.fnmatchcase(name, self.pattern) for name in names)

    def __str__(self) -> str:
        return repr(self.pattern)


def exactly(name: str) -> NameSelector:
    """Select the site of a name, whatever characters are in it: names out of files are no patterns, and no classes."""
    return NameSelector(glob.escape(name))


@dataclass(frozen=True)
class ClassSelector(Selector):
    """Selects by class, subclasses included."""

    type: type[nn.Module]

    def matches(self, site: ActivationSite, registry: ActivationRegistry) -> bool:  # noqa: ARG002, D102
        return site.kind == "module" and isinstance(site.module, self.type)

    def __str__(self) -> str:
        return f"class {self.type.__name__}"


@dataclass(frozen=True, eq=False)  # a spec may be a mapping, which has no hash
class ActivationSelector(Selector):
    """Selects by the activation that stands there now: its name, and the arguments that the spec gives."""

    activation: Any

    def matches(self, site: ActivationSite, registry: ActivationRegistry) -> bool:  # noqa: D102
        return self.matches_spec(site.spec, registry)

    def matches_spec(self, spec: ActivationSpec, registry: ActivationRegistry) -> bool:
        """Say whether an activation is selected, by its canonical spec."""
        selected = registry.resolve(self.activation)
        if selected.name != spec.name or selected.opaque != spec.opaque:
            return False
        if selected.opaque:
            return True
        parameters = registry.entry(spec.name).parameters
        present = {name: parameter.default for name, parameter in parameters.items()} | spec.arguments
        # As written, with arguments that equal their defaults, which `resolve` drops.
        written, required = self.activation, selected.arguments
        if isinstance(written, str) and "." not in written.partition("(")[0]:
            written = ActivationSpec.parse(written)
        if isinstance(written, Mapping) and "name" in written:
            written = ActivationSpec(written["name"], tuple((key, v) for key, v in written.items() if key != "name"))
        if isinstance(written, ActivationSpec) and registry.entry(written.name).name == selected.name:
            required = written.arguments | required
        return all(present.get(name, inspect.Parameter.empty) == value for name, value in required.items())

    def __str__(self) -> str:
        return f"activation {self.activation}"


def by_activation(activation: Any) -> Selector:
    """Return a target for `swap`: the sites where an activation stands now.

    Args:
        activation: Any spec, such as ``"relu"`` or ``"gelu(approximate='tanh')"``. ``"gelu"`` selects all its forms,
            ``"gelu(approximate='none')"`` the exact one alone.

    Example:
        >>> from lit_gelu import surgery
        >>> model = nn.Sequential(nn.ReLU(), nn.GELU())
        >>> print(surgery.swap(model, {by_activation("relu"): "silu"}))
        0: relu -> silu
    """
    return ActivationSelector(activation)


def selector_of(target: Any) -> Selector:
    """Turn a target into a selector: a pattern over names, class:path, activation:spec, a class, or a selector."""
    match target:
        case Selector():
            return target
        case type() if issubclass(target, nn.Module):
            return ClassSelector(target)
        case str() if target.startswith("class:"):
            return selector_of(import_object(target.removeprefix("class:").strip()))
        case str() if target.startswith("activation:"):
            text = target.removeprefix("activation:").strip()
            if "." not in text.partition("(")[0]:
                ActivationSpec.parse(text)  # refuses what is no spec before anything is looked for
            return ActivationSelector(text)
        case str():
            return NameSelector(target)
    raise SwapError(
        f"{target!r} is no target for a swap. Accepted: a pattern over fully qualified names, 'class:dotted.path', "
        "'activation:spec', a torch.nn.Module class, by_activation(spec)."
    )


_LISTED = 40  # sites in an error message


def collect_claims(survey: Survey, targets: Mapping[Any, Any]) -> list[tuple[ActivationSite, Any]]:
    """Collect which site is to become what; every target must match, and no two the same site or call of it."""
    sites, registry = survey.sites, survey.registry
    claimed: dict[str, tuple[Selector, ActivationSite, Any]] = {}
    for target, spec in targets.items():
        selector = selector_of(target)
        matching = [site for site in [*sites, *_single_calls(sites, selector)] if selector.matches(site, registry)]
        if not matching:
            elsewhere = [replace(site, role="activation") for site in sites if site.role == "gate"]
            gates = [repr(site.name) for site in elsewhere if selector.matches(site, registry)]
            hint = f" Patterns leave gates alone ({', '.join(gates)}): name them in full." if gates else ""
            listed = " ".join([_listed(sites, sampled=survey.seen is not None), *survey.notes])
            raise SwapError(f"No activation site matches {selector}.{hint} {listed}")
        for site in matching:
            if site.name in claimed:
                raise SwapError(_conflict(site.name, claimed[site.name][0], selector))
            claimed[site.name] = (selector, site, spec)
    for site in sites:
        for part in site.calls or ():
            if part.name != site.name and site.name in claimed and part.name in claimed:
                raise SwapError(_conflict(part.name, claimed[site.name][0], claimed[part.name][0]))
    return [(site, spec) for _, site, spec in claimed.values()]


def _conflict(name: str, first: Selector, second: Selector) -> str:
    return f"{name!r} is claimed by {first} and by {second}. Let only one of them match it."


def note_of_written(survey: Survey, targets: Mapping[Any, Any]) -> list[str]:
    """Say which calls of functions would be selected too, if a sample had found them; at most one sentence."""
    selectors = [selector_of(target) for target in targets]
    patterns = [selector.pattern for selector in selectors if isinstance(selector, NameSelector)]
    named = [selector.activation for selector in selectors if isinstance(selector, ActivationSelector)]
    names = {survey.registry.resolve(activation).name for activation in named}
    missed = [
        str(call)
        for call in survey.written_calls()
        if call.activation in names or any(fnmatch.fnmatchcase(call.name, pattern) for pattern in patterns)
    ]
    if not missed:
        return []
    more = f" and {len(missed) - _LISTED} more" if len(missed) > _LISTED else ""
    return [
        "Calls of functions are sites only with input_sample, a batch for forward. Without it these stay as they are: "
        f"{', '.join(missed[:_LISTED])}{more}."
    ]


def _single_calls(sites: list[ActivationSite], selector: Selector) -> list[ActivationSite]:
    """Return the calls of modules that are called from several places; only a pattern with ``#`` means them."""
    if not isinstance(selector, NameSelector) or "#" not in selector.pattern:
        return []
    return [
        replace(site, name=call.name, aliases=(), kind="call", calls=(call,), module=call.seen.owner, call="")
        for site in sites
        if site.kind != "call"
        for call in site.calls or ()
        if call.name != site.name
    ]


def _listed(sites: list[ActivationSite], *, sampled: bool) -> str:
    hint = "" if sampled else " Calls of functions, such as F.gelu(x), are found if input_sample is given."
    if not sites:
        hint += " Classes and functions of your own are found once they are registered (lit_gelu.activations.register)."
        return f"The model has no activation{'' if sampled else ' modules'}.{hint}"
    names = [f"{site.name!r} ({site.spec})" for site in sites]
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return f"The model's sites: {', '.join(names[:_LISTED])}{more}.{hint}"
