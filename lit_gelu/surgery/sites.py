"""Where a model has activations."""

from dataclasses import dataclass
from typing import Any, Literal

from torch import nn

from lit_gelu import activations
from lit_gelu.activations import ActivationRegistry, ActivationSpec
from lit_gelu.activations.modules import FunctionActivation
from lit_gelu.errors import NotAvailableYetError
from lit_gelu.surgery.errors import SwapError

Role = Literal["activation", "gate"]


@dataclass(frozen=True)
class ActivationSite:
    """One activation module in a model.

    Args:
        name: Its fully qualified name; empty for the model itself.
        module: The module.
        spec: Its canonical spec.
        role: ``"gate"`` for sigmoid, hard sigmoid and tanh, which mostly gate another value; such a site is swapped
            only if it is named in full, by its class or by its activation.
        aliases: The module's other fully qualified names, if it stands in several places.
    """

    name: str
    module: nn.Module
    spec: ActivationSpec
    role: Role
    aliases: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """All fully qualified names."""
        return (self.name, *self.aliases)


def find_sites(
    model: nn.Module, input_sample: Any = None, *, registry: ActivationRegistry | None = None
) -> list[ActivationSite]:
    """List the activation modules of a model, in the order of its modules.

    A module counts if its class is registered; ``torch.nn.Identity`` does not, because networks use it for much else,
    nor does a gated unit such as ``torch.nn.GLU``: it halves its input, so no other activation could stand there. A
    module that stands in several places is listed once, with its other names.

    Args:
        model: Any module; a compiled one is looked into.
        input_sample: Not available yet: it will find functional calls such as ``F.gelu(x)``.
        registry: Says what an activation is; by default `lit_gelu.activations.registry`.

    Returns:
        The sites.

    Raises:
        NotAvailableYetError: If ``input_sample`` is given.
        SwapError: If ``model`` is no module.

    Example:
        >>> model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2), nn.Sigmoid())
        >>> [(site.name, str(site.spec), site.role) for site in find_sites(model)]
        [('1', 'relu', 'activation'), ('3', 'sigmoid', 'gate')]
    """
    if input_sample is not None:
        raise NotAvailableYetError(
            "not available yet: input_sample. Leave it out; activation modules are found without it."
        )
    if not isinstance(model, nn.Module):
        raise SwapError(f"find_sites takes a torch.nn.Module, not {type(model).__name__}.")
    registry = registry or activations.registry
    names: dict[int, list[str]] = {}
    modules: dict[int, nn.Module] = {}
    for name, module in without_compile_wrapper(model).named_modules(remove_duplicate=False):
        if _is_activation(module, registry):
            names.setdefault(id(module), []).append(name)
            modules[id(module)] = module
    return [_site(module, names[key], registry) for key, module in modules.items()]


def without_compile_wrapper(model: nn.Module) -> nn.Module:
    """Return the module inside ``torch.compile``'s wrapper, or the module itself.

    Args:
        model: Any module.

    Returns:
        The original module.
    """
    original = getattr(model, "_orig_mod", model)
    return original if isinstance(original, nn.Module) else model


def _is_activation(module: nn.Module, registry: ActivationRegistry) -> bool:
    if type(module) is nn.Identity:
        return False
    entry = registry.entry_of(module)
    if entry is None:
        return isinstance(module, FunctionActivation)
    return not entry.facts_for(registry.spec_of(module).arguments).halves


def _site(module: nn.Module, names: list[str], registry: ActivationRegistry) -> ActivationSite:
    spec = registry.spec_of(module)
    gate = not spec.opaque and registry.entry(spec.name).facts_for(spec.arguments).gate
    return ActivationSite(names[0], module, spec, "gate" if gate else "activation", tuple(names[1:]))
