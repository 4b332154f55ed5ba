"""Swaps in three steps: collect what is claimed, check all of it, then change the model."""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args

from torch import nn

from lit_gelu import activations
from lit_gelu.activations import ActivationRegistry, ActivationSpec
from lit_gelu.surgery.activation_site import ActivationSite
from lit_gelu.surgery.aliasing import require_no_aliasing
from lit_gelu.surgery.changes import make_all, revert_all
from lit_gelu.surgery.channels import with_channels
from lit_gelu.surgery.claims import collect_claims
from lit_gelu.surgery.effect import ineffective
from lit_gelu.surgery.errors import SwapError
from lit_gelu.surgery.hooks import share_hooks
from lit_gelu.surgery.marks import mark
from lit_gelu.surgery.mechanisms import Placement, changes_for, placement, require_no_capture
from lit_gelu.surgery.obstacles import Obstacles, OnObstacle, Placed
from lit_gelu.surgery.report import SkippedSite, SwappedSite, SwapReport
from lit_gelu.surgery.sites import Survey, without_wrappers


@dataclass(frozen=True)
class SwapPlan:
    """A swap that was checked and can be applied.

    Args:
        model: The model.
        placements: Which new module is to stand where.
        rows: What the report of `apply` will say.
        skipped: Selected sites that stay as they are.
        notes: What could not be found out, in sentences.
    """

    model: nn.Module
    placements: tuple[Placement, ...]
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
        """Change the model; if any step fails, what was changed is put back.

        Returns:
            The report; its ``undo`` puts back what was there.
        """
        changes = changes_for(self.model, list(self.placements))
        make_all(changes)
        return SwapReport(self.rows, self.skipped, self.notes, lambda: revert_all(changes))


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
    whether it is trained carry over to the new one; a module that stands in several places is replaced in all of them
    by one new module, and a model that is itself the activation becomes the new one. Fused paths of torch that would go
    on with the old activation are told. In the ``state_dict`` a key for each new activation (with an empty tensor) says
    what was put in: a model without the swap refuses such weights, one with it takes them with and without the keys
    (`without_marks` takes them out).
    ``channels="infer"`` becomes the number of channels that the sample shows, or
    without one that of the nearest layer before the site; see `infer_channels_`.

    With ``input_sample``, calls of functions are sites too; see `find_sites`. Such a call, and one of several calls of
    a module, becomes the call of a new child of the calling module: its class is exchanged for one in which that
    expression is written anew. A call that is not written out in the module's own method is intercepted while its
    ``forward`` runs, if nothing else is called by that name there; what can be neither is refused. With a sample it is
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
        NoMatchError: If a target matches no site; the message lists the sites.
        SwapConflictError: If two targets claim one site.
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
    obstacles = Obstacles(skip=on_obstacle == "skip")
    placed: list[Placed] = []
    skipped: list[SkippedSite] = []
    for site, wanted in collect_claims(survey, targets):
        resolved = registry.resolve(wanted)
        _check(site, resolved, registry)
        spec = with_channels(resolved, survey.model, site, registry)
        if spec == site.spec and not spec.opaque:
            skipped.append(SkippedSite(site.name, site.spec, "because it is that already"))
            continue
        new = _new_module(survey.model, site, wanted if spec == resolved else spec, registry)
        with obstacles.of(site):
            placed.append((placement(survey, site, new), spec))
            if placed[-1][0].place:  # a model that is itself the activation has nobody else's weights
                mark(new, spec)
    placed = _checked(survey, input_sample, placed, obstacles)
    rows = tuple(_row(survey.model, row.site, spec, row) for row, spec in placed)
    placements = tuple(row for row, _ in placed)
    notes = [row.note for row in placements if row.note]
    return SwapPlan(survey.model, placements, rows, (*skipped, *obstacles.skipped), (*survey.notes, *notes))


def _checked(survey: Survey, input_sample: Any, placed: list[Placed], obstacles: Obstacles) -> list[Placed]:
    """Return what can be placed all together, so that nothing comes up later."""
    model = survey.model
    placed = obstacles.passing(placed, lambda rows: require_no_capture(model, rows))
    placed = obstacles.passing(placed, lambda rows: changes_for(model, [row for row, _ in rows]))
    if input_sample is None:
        return placed
    placed = obstacles.passing(
        placed, lambda rows: require_no_aliasing(survey, input_sample, [row.site for row, _ in rows])
    )
    placements = [row for row, _ in placed]
    idle = ineffective(model, input_sample, placements, changes_for(model, placements))
    for number, reason in idle.items():
        site = placements[number].site
        with obstacles.of(site):
            raise SwapError(
                f"{site.name!r} cannot be swapped: the new activation would never run, because {reason}. Have the "
                "module hold an activation module and call that."
            )
    return [row for number, row in enumerate(placed) if number not in idle]


def _row(model: nn.Module, site: ActivationSite, spec: ActivationSpec, row: Placement) -> SwappedSite:
    own = site.kind == "module" and site.module is model  # what calls the model itself is no part of it
    count = None if site.calls is None or own else sum(call.count for call in site.calls)
    return SwappedSite(site.call or site.name, site.spec, spec, site.aliases, row.mechanism, row.place, count)


def _check(site: ActivationSite, spec: ActivationSpec, registry: ActivationRegistry) -> None:
    """Refuse what cannot stand at an activation's place."""
    if not spec.opaque and not registry.entry(spec.name).facts_for(spec.arguments).elementwise:
        raise SwapError(f"{spec} is not elementwise, so it cannot stand at {site.name!r}: it would change the shape.")


def _new_module(model: nn.Module, site: ActivationSite, wanted: Any, registry: ActivationRegistry) -> nn.Module:
    """Build the module for a site, with the old one's mode, hooks, device, dtype and whether it is trained."""
    new = registry.create(wanted)
    own = list(site.module.parameters()) if site.kind == "module" else []
    reference = next(itertools.chain(own, site.module.parameters(), model.parameters()), None)
    if reference is not None and reference.is_floating_point():
        new = new.to(device=reference.device, dtype=reference.dtype)
    if own and not any(parameter.requires_grad for parameter in own):
        new.requires_grad_(False)
    new.train(site.module.training)
    if site.kind == "module":
        share_hooks(site.module, new)
    return new
