"""Swaps in three steps: collect what is claimed, check all of it, then change the model."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import nn
from torch.nn.parameter import UninitializedParameter
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from lit_gelu import activations
from lit_gelu.activations import ActivationRegistry, ActivationSpec
from lit_gelu.activations.numerics.channels import INFER
from lit_gelu.display import Displayed, HtmlTable
from lit_gelu.errors import SwapError
from lit_gelu.surgery.changes import make_all, mark, revert_all, share_hooks
from lit_gelu.surgery.channels import with_inferred_channels
from lit_gelu.surgery.report import SkippedSite, SwappedSite, SwapReport, in_one_line, table_of_sites
from lit_gelu.surgery.selectors import collect_claims, note_of_written
from lit_gelu.surgery.sites import ActivationSite, Survey, without_wrappers
from lit_gelu.surgery.source import is_never_read
from lit_gelu.surgery.substitution import (
    Substitution,
    changes_for,
    require_effect,
    require_no_aliasing,
    substitution,
)

_COMPUTING_PARAMETERS = BasePruningMethod, WeightNorm, SpectralNorm  # before each call


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
    skipped: list[SkippedSite] = []
    for site, claim in collect_claims(survey, targets):
        resolved = spec = registry.resolve(claim)
        if not spec.opaque and not registry.entry(spec.name).facts_for(spec.arguments).elementwise:
            raise SwapError(f"{spec} is not elementwise: at {site.name!r} it would change the shape.")
        if not spec.opaque and spec.arguments.get("channels") == INFER:
            spec = with_inferred_channels(spec, survey.model, site, registry)
        if spec == site.spec and not spec.opaque:
            skipped.append(SkippedSite(site.name, site.spec, "because it is that already"))
            continue
        if input_sample is None and site.kind == "module" and is_never_read(survey.model, site.name):
            raise SwapError(
                f"{site.name!r} cannot be swapped: no code of the model calls it, so nothing would change. Give "
                "input_sample=, which shows the calls that run."
            )
        row = substitution(survey, site, registry.create(claim if spec == resolved else spec))
        _fit_into(survey.model, row)
        _require_no_holder_of_parameters(model, row)
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
    return SwapPlan(
        survey.model, placements, tuple(rows), tuple(skipped), (*survey.notes, *note_of_written(survey, targets))
    )


def _fit_into(model: nn.Module, row: Substitution) -> None:
    """Give a new module the old one's mode and hooks, device, dtype and trainability of the weights there."""
    site, new = row.site, row.module
    new.train(site.module.training)
    if site.kind == "module":
        _require_hooks_that_fit(site)
        share_hooks(site.module, new)
    if not any(True for _ in (*new.parameters(), *new.buffers())):
        return
    places = site.names if site.kind == "module" else (row.place,)
    old = list(site.module.parameters()) if site.kind == "module" else []
    beside = [weight for place in places for weight in weights_beside(model, place)]
    reference = next((p for p in (*old, *beside) if p.is_floating_point()), next(iter((*old, *beside)), None))
    if reference is not None:
        new.to(device=reference.device, dtype=reference.dtype if reference.is_floating_point() else None)
    weights = old or [weight for weight in beside if _is_matrix(weight)]
    if weights and not any(weight.requires_grad for weight in weights):
        new.requires_grad_(False)


def _require_hooks_that_fit(site: ActivationSite) -> None:
    """Refuse to give a new module hooks that rest on what was put into the old one."""
    old = site.module
    hooks = [hook for hook in old._forward_pre_hooks.values() if isinstance(hook, _COMPUTING_PARAMETERS)]
    added = list(old._modules) if type(old).__module__.startswith("torch.nn.") else []
    if hooks or (added and (old._forward_hooks or old._forward_pre_hooks)):
        raise SwapError(
            f"{site.name!r} cannot be swapped: its hooks need {', '.join(added) or 'its parameters'}, as pruning, "
            "weight_norm and torch.ao.quantization put them there. Swap first, then call those."
        )


def _require_no_holder_of_parameters(model: nn.Module, row: Substitution) -> None:
    """Refuse parameters that come or go where somebody else holds the model's."""
    old = list(row.site.module.parameters()) if row.site.kind == "module" else []
    if not old and next(row.module.parameters(), None) is None:
        return
    wrappers = {"DistributedDataParallel", "FullyShardedDataParallel", "FSDPModule"}  # fully_shard's is the last
    wrapped = not wrappers.isdisjoint(cls.__name__ for module in model.modules() for cls in type(module).__mro__)
    if wrapped or any(hasattr(parameter, "device_mesh") for parameter in model.parameters()):
        raise SwapError(
            f"{row.site.name!r} cannot be swapped: parameters would come or go, and what holds the model's already "
            "(fully_shard, FullyShardedDataParallel, DistributedDataParallel, tensor parallelism) would not see it. "
            "Swap before that, or to and from activations without parameters."
        )


def weights_beside(model: nn.Module, place: str, other_than: Collection[int] = ()) -> list[nn.Parameter]:
    """Return the weights that a place in a model belongs to, nearest first: new parameters there share their fate.

    In the smallest module around it that has any, they are those of its last child before the place, else of the first
    behind it. Matrices and kernels decide which child that is, in models that have some.
    """
    # The order of all weights alone would take a part's first activation for the last one's of the part before.
    around = place.split(".")[:-1]
    rows: list[tuple[list[str], nn.Parameter]] = []
    here, end_of_part = None, 0
    for name, module in model.named_modules():
        path = name.split(".") if name else []
        here = len(rows) if name == place else here
        if place and not f"{name}.".startswith(f"{place}."):  # without a name the model itself is the place
            rows += [(path, weight) for weight in module.parameters(recurse=False) if id(weight) not in other_than]
        end_of_part = len(rows) if path[: len(around)] == around else end_of_part
    here = end_of_part if here is None else here  # a new child comes last
    nearest = [*reversed(rows[:here]), *rows[here:]]

    def shared(row: tuple[list[str], nn.Parameter]) -> int:
        return sum(row[0][:depth] == around[:depth] for depth in range(1, len(around) + 1))

    first = max([row for row in nearest if _is_matrix(row[1])] or nearest, key=shared, default=None)
    if first is None:
        return []
    depth = shared(first) + 1
    return [weight for path, weight in nearest if path[:depth] == first[0][:depth]]


def _is_matrix(weight: nn.Parameter) -> bool:
    return isinstance(weight, UninitializedParameter) or weight.dim() > 1  # a lazy layer's is going to be one
