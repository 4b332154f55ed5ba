"""Swaps in three steps: collect what is claimed, check all of it, then change the model."""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from lit_gelu import activations
from lit_gelu.activations import ActivationRegistry, ActivationSpec
from lit_gelu.surgery.channels import with_channels
from lit_gelu.surgery.errors import NoMatchError, SwapConflictError, SwapError
from lit_gelu.surgery.report import SkippedSite, SwappedSite, SwapReport
from lit_gelu.surgery.selectors import Selector, selector_of
from lit_gelu.surgery.sites import ActivationSite, find_sites, without_compile_wrapper

_HOOKS = (
    "_backward_hooks",
    "_backward_pre_hooks",
    "_forward_hooks",
    "_forward_hooks_always_called",
    "_forward_hooks_with_kwargs",
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
    "_is_full_backward_hook",
)


@dataclass(frozen=True)
class _Replacement:
    """A site with the module that is to stand there."""

    site: ActivationSite
    spec: ActivationSpec
    module: nn.Module


@dataclass(frozen=True)
class SwapPlan:
    """A swap that was checked and can be applied.

    Args:
        model: The model.
        replacements: What is to be replaced by what.
        skipped: Selected sites that stay as they are.
    """

    model: nn.Module
    replacements: tuple[_Replacement, ...]
    skipped: tuple[SkippedSite, ...]

    @property
    def rows(self) -> tuple[SwappedSite, ...]:
        """What the report of `apply` will say."""
        return tuple(SwappedSite(r.site.name, r.site.spec, r.spec, r.site.aliases) for r in self.replacements)

    @property
    def new_parameters(self) -> tuple[str, ...]:
        """Fully qualified names of the parameters that the new modules bring."""
        return tuple(
            f"{r.site.name}.{name}" for r in self.replacements for name, _ in r.module.named_parameters(recurse=True)
        )

    def apply(self) -> SwapReport:
        """Change the model; if any step fails, what was changed is put back.

        Returns:
            The report; its ``undo`` puts back what was there.
        """
        done: list[_Replacement] = []
        try:
            for replacement in self.replacements:
                done.append(replacement)
                _put(self.model, replacement.site, replacement.module)
        except BaseException:
            for replacement in done:
                _put(self.model, replacement.site, replacement.site.module)
            raise
        return SwapReport(self.rows, self.skipped, self._restore)

    def _restore(self) -> None:
        for replacement in self.replacements:
            if self.model.get_submodule(replacement.site.name) is not replacement.module:
                raise SwapError(
                    f"Cannot undo: {replacement.site.name!r} has been given another module since. Undo the later "
                    "swap first."
                )
        for replacement in self.replacements:
            _put(self.model, replacement.site, replacement.site.module)


def swap(
    model: nn.Module,
    targets: Mapping[Any, Any],
    input_sample: Any = None,
    *,
    registry: ActivationRegistry | None = None,
) -> SwapReport:
    """Give activation sites of a model other activations, in place.

    Nothing is changed unless all of it can be. A replaced module's names, hooks, train/eval flag, device and dtype
    carry over to the new one; a module that stands in several places is replaced in all of them by one new module.
    ``channels="infer"`` becomes the number of channels of the nearest layer before the site; see `infer_channels_`.

    Args:
        model: Any module.
        targets: From target to spec. A target is a shell-style pattern over fully qualified names,
            ``"class:dotted.path"``, ``"activation:spec"``, a module class, or ``by_activation(spec)``. Patterns leave
            gates alone unless they are the site's name in full.
        input_sample: Not available yet: it will find functional calls.
        registry: Where names are looked up; by default `lit_gelu.activations.registry`.

    Returns:
        The report: prints one line a site, and undoes the swap.

    Raises:
        NoMatchError: If a target matches no site; the message lists the sites.
        SwapConflictError: If two targets claim one site.
        SwapError: If a target or a new activation is not accepted.

    Example:
        >>> model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2), nn.ReLU())
        >>> print(swap(model, {nn.ReLU: "gelu(approximate='tanh')"}))
        1: relu -> gelu(approximate='tanh')
        3: relu -> gelu(approximate='tanh')
    """
    return plan_swap(model, targets, input_sample, registry=registry).apply()


def plan_swap(
    model: nn.Module,
    targets: Mapping[Any, Any],
    input_sample: Any = None,
    *,
    registry: ActivationRegistry | None = None,
) -> SwapPlan:
    """Check a swap without changing the model.

    Args:
        model: As `swap`.
        targets: As `swap`.
        input_sample: As `swap`.
        registry: As `swap`.

    Returns:
        The plan; ``plan.rows`` says what would be replaced, ``plan.apply()`` does it.

    Raises:
        SwapError: As `swap`.

    Example:
        >>> plan = plan_swap(nn.Sequential(nn.ReLU()), {"*": "prelu"})
        >>> plan.new_parameters
        ('0.weight',)
    """
    if not isinstance(targets, Mapping) or not targets:
        raise SwapError(f"{targets!r} is no swap. Give a mapping from targets to activations, such as {{'*': 'gelu'}}.")
    registry = registry or activations.registry
    model = without_compile_wrapper(model)
    sites = find_sites(model, input_sample, registry=registry)
    replacements: list[_Replacement] = []
    skipped: list[SkippedSite] = []
    for site, wanted in _claims(sites, targets, registry):
        resolved = registry.resolve(wanted)
        _check(site, resolved, registry)
        spec = with_channels(resolved, model, list(site.names))
        wanted = wanted if spec == resolved else spec
        if spec == site.spec and not spec.opaque:
            skipped.append(SkippedSite(site.name, site.spec, "because it is that already"))
        else:
            replacements.append(_Replacement(site, spec, _new_module(model, site, wanted, registry)))
    return SwapPlan(model, tuple(replacements), tuple(skipped))


def _claims(
    sites: list[ActivationSite], targets: Mapping[Any, Any], registry: ActivationRegistry
) -> list[tuple[ActivationSite, Any]]:
    """Collect which site is to become what; every target must match, and no two the same site."""
    claimed: dict[str, tuple[Selector, ActivationSite, Any]] = {}
    for target, wanted in targets.items():
        selector = selector_of(target)
        matching = [site for site in sites if selector.matches(site, registry)]
        if not matching:
            raise NoMatchError(f"No activation site matches {selector}. {describe_sites(sites)}")
        for site in matching:
            if site.name in claimed:
                raise SwapConflictError(
                    f"{site.name!r} is claimed by {claimed[site.name][0]} and by {selector}. Let only one of them "
                    "match it."
                )
            claimed[site.name] = (selector, site, wanted)
    return [(site, wanted) for _, site, wanted in claimed.values()]


def describe_sites(sites: list[ActivationSite]) -> str:
    """List sites for an error message.

    Args:
        sites: The sites.

    Returns:
        One sentence.

    Example:
        >>> describe_sites(find_sites(nn.Sequential(nn.ReLU())))
        "The model's sites: '0' (relu)."
    """
    if not sites:
        return "The model has no activation modules; functional calls such as F.gelu(x) cannot be swapped yet."
    return f"The model's sites: {', '.join(f'{site.name!r} ({site.spec})' for site in sites)}."


def _check(site: ActivationSite, spec: ActivationSpec, registry: ActivationRegistry) -> None:
    """Refuse what cannot stand at an activation's place."""
    if site.name == "":
        raise SwapError(
            "The model is itself the activation, so it cannot be replaced in place. Build the new one with create()."
        )
    if not spec.opaque and not registry.entry(spec.name).facts_for(spec.arguments).elementwise:
        raise SwapError(f"{spec} is not elementwise, so it cannot stand at {site.name!r}: it would change the shape.")


def _new_module(model: nn.Module, site: ActivationSite, wanted: Any, registry: ActivationRegistry) -> nn.Module:
    """Build the module for a site, with the old one's mode, hooks, device and dtype."""
    new = registry.create(wanted)
    reference = next(itertools.chain(site.module.parameters(), model.parameters()), None)
    if reference is not None and reference.is_floating_point():
        new = new.to(device=reference.device, dtype=reference.dtype)
    new.train(site.module.training)
    for attribute in _HOOKS:
        # The same dictionaries, so that a handle's remove() works wherever the module stands.
        setattr(new, attribute, getattr(site.module, attribute))
    return new


def _put(model: nn.Module, site: ActivationSite, module: nn.Module) -> None:
    """Set a module under every name of a site."""
    for name in site.names:
        parent_name, _, child = name.rpartition(".")
        parent = model.get_submodule(parent_name)
        setattr(parent, child, module)
        if isinstance(parent, nn.TransformerEncoderLayer) and child == "activation":
            # Its fused path reads this flag instead of the module: 1 is ReLU, 2 exact GELU, 0 switches the path off.
            exact_gelu = isinstance(module, nn.GELU) and module.approximate == "none"
            parent.activation_relu_or_gelu = 1 if isinstance(module, nn.ReLU) else 2 if exact_gelu else 0
