"""Swaps in three steps: collect what is claimed, check all of it, then change the model."""

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, get_args

from torch import nn

from lit_gelu import activations
from lit_gelu.activations import ActivationRegistry, ActivationSpec
from lit_gelu.activations.numerics.channels import INFER
from lit_gelu.display import Displayed, HtmlTable, count_of
from lit_gelu.errors import SwapError
from lit_gelu.surgery.changes import make_all, mark, revert_all
from lit_gelu.surgery.channels import with_inferred_channels
from lit_gelu.surgery.replacement import new_module, share_fate_of_weights
from lit_gelu.surgery.selectors import collect_claims, note_of_written
from lit_gelu.surgery.sites import ActivationSite, Survey, without_wrappers
from lit_gelu.surgery.source import is_never_read
from lit_gelu.surgery.substitution import (
    Substitution,
    changes_for,
    ineffective,
    require_no_aliasing,
    require_no_capture,
    substitution,
)


@dataclass(frozen=True, repr=False)
class SwappedSite(Displayed):
    """One site that was given another activation.

    Args:
        name: Its fully qualified name; of a call that was swapped before, the name that the call had.
        old: The spec of what stood there.
        new: The spec of what stands there now.
        aliases: The site's other names.
        mechanism: How: a module was replaced, an attribute made one, a call rewritten or intercepted, and why.
        place: Fully qualified name of the new module; for a call, that of a new child of the calling module.
        calls: How often ``input_sample`` called what stood there; ``None`` if no sample was run.
    """

    name: str
    old: ActivationSpec
    new: ActivationSpec
    aliases: tuple[str, ...] = ()
    mechanism: str = "module"
    place: str = ""
    calls: int | None = None

    def __str__(self) -> str:
        also = f" (also {', '.join(self.aliases)})" if self.aliases else ""
        how = f", {self.mechanism}: {self.place}" if self.place not in {"", self.name} else ""
        unused = ", which input_sample never called" if self.calls == 0 else ""
        return f"{self.name}{also}: {self.old} -> {self.new}{how}{unused}"

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain data; specs as text."""
        specs = {"old": str(self.old), "new": str(self.new)}
        return {**vars(self), **specs, "aliases": list(self.aliases)}

    def _summary(self) -> str:
        return str(self)


@dataclass(frozen=True, repr=False)
class SkippedSite(Displayed):
    """One site that was selected and left as it was.

    Args:
        name: Its fully qualified name.
        spec: The spec of what stands there.
        reason: Why it was left.
        obstacle: Whether it could not be swapped.
    """

    name: str
    spec: ActivationSpec
    reason: str
    obstacle: bool = False

    def __str__(self) -> str:
        return f"{self.name}: {self.spec} left as it is, {self.reason}"

    def _summary(self) -> str:
        return str(self)


@dataclass(repr=False)
class SwapReport(Displayed):
    """What `lit_gelu.surgery.swap` did.

    ``print(report)`` gives one line a site, ``len(report)`` counts the swapped ones.

    Args:
        rows: The sites that were swapped.
        skipped: The sites that were selected and left as they were.
        notes: What could not be found out, in sentences.
    """

    rows: tuple[SwappedSite, ...]
    skipped: tuple[SkippedSite, ...] = ()
    notes: tuple[str, ...] = ()
    _restore: Callable[[], None] | None = field(default=None, repr=False, compare=False)

    def undo(self) -> None:
        """Put back the very modules, functions and classes that were there before, with hooks and in their order.

        Raises:
            SwapError: If it was undone already, or a site has been given something else since.

        Example:
            >>> from torch import nn
            >>> from lit_gelu import surgery
            >>> model = nn.Sequential(nn.ReLU())
            >>> relu = model[0]
            >>> surgery.swap(model, {"0": "gelu"}).undo()
            >>> model[0] is relu
            True
        """
        if self._restore is None:
            raise SwapError("This swap has been undone already.")
        self._restore()
        self._restore = None

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain data for JSON, a logger or a checkpoint.

        Returns:
            ``{"swapped": [{"name", "aliases", "old", "new", "mechanism", "place", "calls"}],
            "skipped": [{"name", "spec", "reason"}], "notes": [...]}``.
        """
        return {
            "swapped": [row.to_dict() for row in self.rows],
            "skipped": [{"name": row.name, "spec": str(row.spec), "reason": row.reason} for row in self.skipped],
            "notes": list(self.notes),
        }

    def __str__(self) -> str:
        return "\n".join(map(str, (*self.rows, *self.skipped, *self.notes)))

    def __len__(self) -> int:
        return len(self.rows)

    def _summary(self) -> str:
        return f"{_in_one_line(self.rows, self.skipped)}{'' if self._restore else ', undone'}"

    def _html_table(self) -> HtmlTable:
        return _table("swapped", self.rows, self.skipped, self.notes)


def _in_one_line(rows: Sequence[SwappedSite], skipped: Sequence[SkippedSite]) -> str:
    """Return how many sites are given what, and how many are left."""
    changes = Counter(f"{row.old} -> {row.new}" for row in rows)
    what = "; ".join(f"{count_of(count, 'site')} {change}" for change, count in changes.items())
    return (what or "no site") + (f", {len(skipped)} left as they are" if skipped else "")


def _table(title: str, rows: Sequence[SwappedSite], skipped: Sequence[SkippedSite], notes: Sequence[str]) -> HtmlTable:
    """Return the sites for a notebook."""
    cells: list[tuple[Any, ...]] = [(row.name, row.old, row.new, row.mechanism, row.calls) for row in rows]
    cells += [(row.name, row.spec, row.spec, f"left as it is, {row.reason}", None) for row in skipped]
    return HtmlTable(("site", "old", "new", "how", "calls"), cells, f"{count_of(len(rows), 'site')} {title}", notes)


OnObstacle = Literal["refuse", "skip"]
"""What becomes of a selected site that cannot be swapped."""
Planned = list[tuple[Substitution, ActivationSpec]]
"""Where new modules are to stand, with their specs."""


class _Obstacles:
    """Collects the sites that cannot be swapped, with the reason, or lets the first of them be an error."""

    def __init__(self, *, skip: bool) -> None:
        self._skip = skip
        self.skipped: list[SkippedSite] = []

    @contextlib.contextmanager
    def of(self, site: ActivationSite) -> Iterator[None]:
        """Take what is raised within as the reason why a site cannot be swapped."""
        try:
            yield
        except SwapError as reason:
            if not self._skip:
                raise
            self.skipped.append(SkippedSite(site.name, site.spec, f"because of an obstacle: {reason}", obstacle=True))

    def passing(self, planned: Planned, check: Callable[[Planned], Any]) -> Planned:
        """Return the new modules that pass a check together: all, or, if sites may be skipped, those that can."""
        try:
            check(planned)
        except SwapError:
            if not self._skip:
                raise
        else:
            return planned
        passing = []
        for row in planned:
            with self.of(row[0].site):
                check([row])
                passing.append(row)
        check(passing)  # each may pass alone, and not beside another
        return passing


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
    skipped: tuple[SkippedSite, ...]
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
        make_all(changes)
        return SwapReport(self.rows, self.skipped, self.notes, partial(revert_all, changes))

    def _summary(self) -> str:
        return f"{type(self.model).__name__}: {_in_one_line(self.rows, self.skipped)}"

    def _html_table(self) -> HtmlTable:
        return _table("to be swapped", self.rows, self.skipped, self.notes)


def swap(
    model: nn.Module,
    targets: Mapping[Any, Any],
    input_sample: Any = None,
    *,
    registry: ActivationRegistry | None = None,
    on_obstacle: OnObstacle = "refuse",
) -> SwapReport:
    """Give activation sites of a model other activations, in place.

    Nothing is changed unless all of it can be. A replaced module's names, hooks, train/eval flag, device, dtype and
    whether it is trained carry over to the new one (new parameters are frozen where the weights beside them are); a
    module that stands in several places is replaced in all of them by one new module, and a model that is itself the
    activation becomes the new one. Fused paths of torch that would go on with the old activation are told. In the
    ``state_dict`` a key for each new activation (with an empty tensor) says what was put in: a model without the swap
    refuses such weights, one with it takes them with and without the keys (`without_marks` takes them out).
    ``channels="infer"`` becomes the number of channels that the sample shows, or
    without one that of the nearest layer before the site; see `infer_channels_`.

    With ``input_sample``, calls of functions are sites too; see `find_sites`. Such a call, and one of several calls of
    a module, becomes the call of a new child of the calling module: its class is exchanged for one in which that
    expression is written anew. A call that is not written out in the module's own method is intercepted while its
    ``forward`` runs, if nothing else is called by that name there; what can be neither is refused, and so is a new
    child of an ``nn.Sequential`` or of another module that goes through its children. With a sample it is
    also checked that no activation which overwrites its input is relied on to do so, and, by two more passes with the
    new activations, that each of them runs where the old one did: what would change nothing is refused.

    Args:
        model: Any module.
        targets: From target to spec. A target is a shell-style pattern over fully qualified names,
            ``"class:dotted.path"``, ``"activation:spec"``, a module class, or ``by_activation(spec)``. Patterns leave
            gates alone unless they are the site's name in full.
        input_sample: As `find_sites`; without it, sites are modules, and functions that modules hold.
        registry: Where names are looked up; by default `lit_gelu.activations.registry`.
        on_obstacle: What becomes of a selected site that cannot be swapped: ``"refuse"`` raises, and nothing is
            changed; ``"skip"`` leaves that site as it is, swaps the others, and the report's ``skipped`` says why.

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
    return plan_swap(model, targets, input_sample, registry=registry, on_obstacle=on_obstacle).apply()


def plan_swap(
    model: nn.Module,
    targets: Mapping[Any, Any],
    input_sample: Any = None,
    *,
    registry: ActivationRegistry | None = None,
    on_obstacle: OnObstacle = "refuse",
) -> SwapPlan:
    """Check a swap; the model is as it was afterwards.

    Args:
        model: As `swap`.
        targets: As `swap`.
        input_sample: As `swap`.
        registry: As `swap`.
        on_obstacle: As `swap`.

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
    if on_obstacle not in get_args(OnObstacle):
        raise SwapError(f"{on_obstacle=} is not accepted. Give 'refuse' or 'skip'.")
    registry = registry or activations.registry
    survey = Survey(without_wrappers(model), input_sample, registry)
    obstacles = _Obstacles(skip=on_obstacle == "skip")
    planned: Planned = []
    skipped: list[SkippedSite] = []
    for site, claim in collect_claims(survey, targets):
        resolved = registry.resolve(claim)
        _check(site, resolved, registry)
        spec = resolved
        if not spec.opaque and spec.arguments.get("channels") == INFER:
            spec = with_inferred_channels(spec, survey.model, site, registry)
        if spec == site.spec and not spec.opaque:
            skipped.append(SkippedSite(site.name, site.spec, "because it is that already"))
            continue
        new = new_module(survey.model, site, claim if spec == resolved else spec, registry)
        with obstacles.of(site):
            if input_sample is None and site.kind == "module" and is_never_read(survey.model, site.name):
                raise SwapError(
                    f"{site.name!r} cannot be swapped: no code of the model calls it, so nothing would change. Give "
                    "input_sample=, which shows the calls that run."
                )
            row = substitution(survey, site, new)
            share_fate_of_weights(model, row)
            planned.append((row, spec))
            if row.place:  # a model that is itself the activation has nobody else's weights
                mark(new, spec)
    planned, parts = _without_parts(planned)
    planned = _passing(survey, input_sample, planned, obstacles)
    placements = tuple(row for row, _ in planned)
    rows = tuple(_swapped_site(survey.model, row, spec) for row, spec in planned)
    notes = (*survey.notes, *note_of_written(survey, targets))
    return SwapPlan(survey.model, placements, rows, (*skipped, *parts, *obstacles.skipped), notes)


def _without_parts(planned: Planned) -> tuple[Planned, list[SkippedSite]]:
    """Leave out the sites that go with a module which is replaced: activations that an activation is made of."""
    replaced = {name: row.site for row, _ in planned if row.site.kind == "module" for name in row.site.names}

    def holder(name: str) -> ActivationSite | None:
        around = (site for outer, site in replaced.items() if not outer or name.startswith(f"{outer}."))
        return next((site for site in around if name not in site.names), None)

    kept: Planned = []
    parts = []
    for row, spec in planned:
        holders = [holder(name) for name in row.site.names]
        if holders[0] is None or None in holders:
            kept.append((row, spec))
        else:
            reason = f"because it is a part of {holders[0].name!r}, which is replaced"
            parts.append(SkippedSite(row.site.name, row.site.spec, reason))
    return kept, parts


def _passing(survey: Survey, input_sample: Any, planned: Planned, obstacles: _Obstacles) -> Planned:
    """Return what can be put in all together, so that nothing comes up later."""
    model = survey.model
    planned = obstacles.passing(planned, lambda rows: require_no_capture(model, rows))
    planned = obstacles.passing(planned, lambda rows: changes_for(model, [row for row, _ in rows]))
    if input_sample is None:
        return planned
    planned = obstacles.passing(
        planned, lambda rows: require_no_aliasing(survey, input_sample, [row.site for row, _ in rows])
    )
    substitutions = [row for row, _ in planned]
    idle = ineffective(model, input_sample, substitutions, changes_for(model, substitutions))
    for number, reason in idle.items():
        site = substitutions[number].site
        with obstacles.of(site):
            raise SwapError(
                f"{site.name!r} cannot be swapped: {reason}. Have the module hold an activation module and call that."
            )
    return [row for number, row in enumerate(planned) if number not in idle]


def _swapped_site(model: nn.Module, row: Substitution, spec: ActivationSpec) -> SwappedSite:
    site = row.site
    is_model = site.kind == "module" and site.module is model  # what calls the model itself is no part of it
    count = None if site.calls is None or is_model else sum(call.count for call in site.calls)
    return SwappedSite(site.call or site.name, site.spec, spec, site.aliases, row.mechanism, row.place, count)


def _check(site: ActivationSite, spec: ActivationSpec, registry: ActivationRegistry) -> None:
    """Refuse what cannot stand at an activation's place."""
    if not spec.opaque and not registry.entry(spec.name).facts_for(spec.arguments).elementwise:
        raise SwapError(f"{spec} is not elementwise, so it cannot stand at {site.name!r}: it would change the shape.")
