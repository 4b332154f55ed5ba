"""Swaps in three steps: collect which sites become what, check all of it, then change the model.

Sites are selected by name, by class, or by the activation that stands there now. What a swap puts in leaves a key in
the model's ``state_dict``.
"""

import fnmatch
import glob
import inspect
import re
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from lit_gelu import activations
from lit_gelu.activations import ActivationRegistry, ActivationSpec
from lit_gelu.activations.naming.importing import import_object
from lit_gelu.activations.naming.spec import NOT_OF_THE_FUNCTION, DottedPath, dotted_path, read_spec
from lit_gelu.activations.numerics.channels import INFER
from lit_gelu.display import Displayed, HtmlTable
from lit_gelu.errors import SwapError
from lit_gelu.surgery.channels import with_inferred_channels
from lit_gelu.surgery.report import LEFT, SwappedSite, SwapReport, in_one_line, table_of_sites
from lit_gelu.surgery.sites import ActivationSite, Survey, names_for_patterns, without_wrappers
from lit_gelu.surgery.source import is_never_read
from lit_gelu.surgery.substitution import (
    Substitution,
    changes_for,
    fit_into,
    in_effect,
    require_effect,
    require_no_aliasing,
    require_no_holder_of_parameters,
    revert_all,
    substitution,
)

_LISTED = 40  # sites in an error message


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
        return self.pattern


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
        return f"class:{dotted_path(self.type)}"


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
        if isinstance(written, str | Mapping):
            written = read_spec(written)
        if isinstance(written, DottedPath):
            required = dict(written.arguments) | required
        elif isinstance(written, ActivationSpec) and registry.entry(written.name).name == selected.name:
            required = written.arguments | required
        return all(present.get(name, inspect.Parameter.empty) == value for name, value in required.items())

    def __str__(self) -> str:
        return f"activation:{self.activation}"


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
            read_spec(text)  # refuses what is no spec before anything is looked for
            return ActivationSelector(text)
        case str():
            return NameSelector(target)
    raise SwapError(
        f"{target!r} is no target for a swap. Accepted: a pattern over fully qualified names, 'class:dotted.path', "
        "'activation:spec', a torch.nn.Module class, by_activation(spec)."
    )


@dataclass(frozen=True, repr=False)
class SwapPlan(Displayed):
    """A swap that was checked and can be applied.

    Args:
        model: The model.
        placements: Which new module is to stand where.
        rows: What the report of `apply` will say.
        skipped: Selected sites that stay as they are.
        notes: What could not be found out, in sentences.
    """

    model: nn.Module
    placements: tuple[Substitution, ...]
    rows: tuple[SwappedSite, ...]
    skipped: tuple[SwappedSite, ...]
    notes: tuple[str, ...] = ()

    @property
    def new_parameters(self) -> tuple[str, ...]:
        """Fully qualified names of the parameters that the new modules bring."""
        return tuple(
            f"{row.place}.{name}".removeprefix(".")
            for row in self.placements
            for name, _ in row.module.named_parameters()
        )

    @property
    def removed_parameters(self) -> tuple[str, ...]:
        """Fully qualified names of the parameters that go with the old modules."""
        return tuple(
            f"{row.site.name}.{name}".removeprefix(".")
            for row in self.placements
            if row.site.kind == "module"
            for name, _ in row.site.module.named_parameters()
        )

    def apply(self) -> SwapReport:
        """Change the model, and return the report; if any step fails, what was changed is put back."""
        changes = changes_for(self.model, list(self.placements))
        with in_effect(changes) as stack:
            stack.pop_all()
        return SwapReport(self.rows, self.skipped, self.notes, partial(revert_all, changes))

    def _summary(self) -> str:
        return f"{type(self.model).__name__}: {in_one_line(self.rows, self.skipped)}"

    def _html_table(self) -> HtmlTable:
        return table_of_sites("to be swapped", self.rows, self.skipped, self.notes)


def swap(
    model: nn.Module,
    targets: Mapping[Any, Any],
    input_sample: Any = None,
    *,
    registry: ActivationRegistry | None = None,
) -> SwapReport:
    """Give activation sites of a model other activations, in place.

    Nothing is changed unless all of it can be. A replaced module's names, hooks, train/eval flag, device, dtype and
    whether it is trained carry over (new parameters are frozen where the weights beside them are); a module that stands
    in several places is replaced in all of them by one. In the ``state_dict`` a key for each new activation says what
    was put in: a model without the swap refuses such weights, one with it takes them with and without the keys
    (`without_marks` takes them out). ``channels="infer"`` becomes a number as by `infer_channels_`.

    With ``input_sample``, calls of functions are sites too; see `find_sites`. Such a call, and one of several calls of
    a module, becomes the call of a new child of the calling module: its class is exchanged for one in which that
    expression is written anew. A call that is not written out in the module's own method is refused, and so is a new
    child of an ``nn.Sequential`` or of another module that goes through its children. With a sample it is also checked
    that no activation which overwrites its input is relied on to do so, and, by two more passes with the new
    activations, that each of them runs where the old one did: what would change nothing is refused.

    Args:
        model: Any module.
        targets: From target to spec. A target is a shell-style pattern over fully qualified names,
            ``"class:dotted.path"``, ``"activation:spec"``, a module class, or ``by_activation(spec)``. Patterns leave
            gates alone unless they are the site's name in full.
        input_sample: As `find_sites`; without it, sites are modules, and functions that modules hold.
        registry: Where names are looked up; by default `lit_gelu.activations.registry`.

    Returns:
        The report: prints one line a site, and undoes the swap.

    Raises:
        SwapError: If a target matches no site; the message lists the sites.
        SwapError: If two targets claim one site.
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
    """Return a swap that was checked, of what `swap` takes; the model is as it was.

    ``plan.rows`` says what would be replaced, ``plan.apply()`` does it.

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
    survey = Survey(without_wrappers(model), input_sample, registry)
    planned: list[tuple[Substitution, ActivationSpec]] = []
    skipped: list[SwappedSite] = []
    for site, claim in _collect_claims(survey, targets):
        resolved = spec = registry.resolve(claim)
        if not spec.opaque and not registry.entry(spec.name).facts_for(spec.arguments).elementwise:
            raise SwapError(f"{spec} is not elementwise: at {site.name!r} it would change the shape.")
        if not spec.opaque and spec.arguments.get("channels") == INFER:
            spec = with_inferred_channels(spec, survey.model, site, registry)
        if spec == site.spec and not spec.opaque:
            skipped.append(SwappedSite(site.name, site.spec, spec, mechanism=LEFT))
            continue
        if input_sample is None and site.kind == "module" and is_never_read(survey.model, site.name):
            raise SwapError(
                f"{site.name!r} cannot be swapped: no code of the model calls it, so nothing would change. Give "
                "input_sample=, which shows the calls that run."
            )
        row = substitution(survey, site, registry.create(claim if spec == resolved else spec))
        fit_into(survey.model, row)
        require_no_holder_of_parameters(model, row)
        mark(row.module, spec)
        planned.append((row, spec))
    placements = tuple(row for row, _ in planned)
    changes_for(survey.model, placements)  # what cannot be changed is refused now
    if input_sample is not None:
        require_no_aliasing(survey, input_sample, placements)
        require_effect(survey.model, input_sample, placements)
    rows = []
    for row, spec in planned:
        site, name = row.site, row.site.call or row.site.name
        count = None if site.calls is None else sum(call.count for call in site.calls)
        rows.append(SwappedSite(name, site.spec, spec, site.aliases, row.mechanism, row.place, count))
    notes = (*survey.notes, *_note_of_written(survey, targets))
    return SwapPlan(survey.model, placements, tuple(rows), tuple(skipped), notes)


def _collect_claims(survey: Survey, targets: Mapping[Any, Any]) -> list[tuple[ActivationSite, Any]]:
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
            raise SwapError(f"No activation site matches {str(selector)!r}.{hint} {listed}")
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
    return f"{name!r} is claimed by {str(first)!r} and by {str(second)!r}. Let only one of them match it."


def _note_of_written(survey: Survey, targets: Mapping[Any, Any]) -> list[str]:
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
        replace(site, name=call.name, aliases=(), kind="call", calls=(call,), module=call.owner, call="")
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


# An activation without parameters leaves no trace in a `state_dict`, so every new one adds a key with an empty
# tensor: `load_state_dict(strict=True)` of a model without the swap fails with it. Its name is all that torch's
# error shows (and not that of `_extra_state`), so it names the activation, what puts it in, and what takes the key out
# for a model that has the activation by itself. A model with the same swap takes the key, and weights that lack it. The
# module has the tensor as an attribute too, where `torch.distributed.checkpoint` and `torch.func.functional_call` look
# keys up.
_KEY = "_lit_gelu_swap_key"  # the attribute that holds the key
_LOADER = "__needs_ActivationSwap_or_lit_gelu_callbacks_load_from_checkpoint_or_lit_gelu_surgery_without_marks"
_LONGEST = 100  # characters of the activation in a key

_Weights = TypeVar("_Weights", bound=MutableMapping[str, Any])


def mark(module: nn.Module, spec: ActivationSpec) -> None:
    """Have a module that a swap puts in say so, by its canonical spec, in its ``state_dict``."""
    before = vars(module).pop(_KEY, None)
    vars(module).pop(str(before), None)
    parts = [spec.name]
    for name, value in spec.kwargs:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if name not in NOT_OF_THE_FUNCTION:
            parts += [name, f"{value:.12g}" if number else str(value)]
    words = re.sub(r"[^0-9A-Za-z]+", "_", "_".join(parts).replace("-", "_minus_")).strip("_")
    key = f"swapped_to_{words[:_LONGEST]}{_LOADER}"
    vars(module)[_KEY] = key
    vars(module)[key] = torch.empty(0)
    if before is None:
        untyped: Any = module
        untyped.register_state_dict_post_hook(_write)
        untyped.register_load_state_dict_pre_hook(_take)


def without_marks(state_dict: _Weights) -> _Weights:
    """Return a ``state_dict`` with the keys of swaps deleted: plain weights, for a model with these activations.

    Example:
        >>> from lit_gelu import surgery
        >>> model, same = nn.Sequential(nn.Linear(2, 2), nn.ReLU()), nn.Sequential(nn.Linear(2, 2), nn.GELU())
        >>> _ = surgery.swap(model, {nn.ReLU: "gelu"})
        >>> same.load_state_dict(without_marks(model.state_dict()))
        <All keys matched successfully>
    """
    for key in [key for key in state_dict if is_mark(key)]:
        del state_dict[key]
    return state_dict


def is_mark(key: str) -> bool:
    """Say whether a key of a ``state_dict`` is that of a swap."""
    return key.endswith(_LOADER) and key.rpartition(".")[2].startswith("swapped_to_")


def _write(module: nn.Module, state_dict: dict[str, Any], prefix: str, local_metadata: Any) -> None:  # noqa: ARG001
    """Add the key; a hook's signature."""
    key: str = vars(module)[_KEY]
    empty: Tensor = vars(module)[key]
    state_dict[prefix + key] = empty


def _take(module: nn.Module, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:  # noqa: ARG001
    """Take the own key out; another one stays and is refused as unexpected."""
    state_dict.pop(prefix + vars(module)[_KEY], None)
