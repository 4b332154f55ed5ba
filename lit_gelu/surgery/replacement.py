"""The module that takes a site's place: what it takes over from the old one, and from the weights around it."""

from collections.abc import Collection
from typing import Any

from torch import nn
from torch.nn.parameter import UninitializedParameter
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from lit_gelu.activations import ActivationRegistry
from lit_gelu.errors import SwapError
from lit_gelu.surgery.changes import share_hooks
from lit_gelu.surgery.sites import ActivationSite, without_wrappers
from lit_gelu.surgery.substitution import Substitution


def new_module(model: nn.Module, site: ActivationSite, spec: Any, registry: ActivationRegistry) -> nn.Module:
    """Build the module for a site, with the old one's mode, hooks, device, dtype and whether it is trained."""
    new = registry.create(spec)
    reference = _neighbour(model, site.module)
    if reference is not None:
        new = new.to(device=reference.device, dtype=reference.dtype if reference.is_floating_point() else None)
    new.train(site.module.training)
    if site.kind == "module":
        _require_no_hooks_on_parameters(site)
        share_hooks(site.module, new)
    return new


def _require_no_hooks_on_parameters(site: ActivationSite) -> None:
    """Refuse to give a new module hooks that compute the old one's parameters before each call."""
    for hook in site.module._forward_pre_hooks.values():
        if isinstance(hook, BasePruningMethod | WeightNorm | SpectralNorm):
            raise SwapError(
                f"{site.name!r} cannot be swapped: a {type(hook).__name__} of torch.nn.utils computes its parameters "
                "before each call, and the new activation has none of these. Remove it first (prune.remove, "
                "remove_weight_norm, remove_spectral_norm)."
            )
    added = list(site.module._modules) if type(site.module).__module__.startswith("torch.nn.") else []
    if added and (site.module._forward_hooks or site.module._forward_pre_hooks):
        raise SwapError(
            f"{site.name!r} cannot be swapped: {', '.join(added)} was put into it, which its hooks may call, as "
            "those of torch.ao.quantization do. Swap first, then call prepare, prepare_qat or what else did that."
        )


def share_fate_of_weights(model: nn.Module, row: Substitution) -> None:
    """Freeze the parameters of a new module where its part is frozen; refuse them where others hold the model's."""
    is_module = row.site.kind == "module"
    old = list(row.site.module.parameters()) if is_module else []
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
    places = row.site.names if is_module else (row.place,)
    neighbours = [weight for place in places for weight in weights_beside(without_wrappers(model), place)]
    weights = old or [weight for weight in neighbours if _is_matrix(weight)]
    if weights and not any(weight.requires_grad for weight in weights):
        row.module.requires_grad_(False)


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


def _neighbour(model: nn.Module, module: nn.Module) -> nn.Parameter | None:
    """Return a parameter of a module, else the nearest one before it, else behind it: floating-point if any is."""
    before: list[nn.Parameter] = []
    behind: list[nn.Parameter] = []
    parameters = before
    for other in model.modules():
        parameters = behind if other is module else parameters
        parameters += other.parameters(recurse=False)
    nearest = [*module.parameters(), *reversed(before), *behind]
    return next((parameter for parameter in nearest if parameter.is_floating_point()), next(iter(nearest), None))
