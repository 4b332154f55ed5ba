"""Which parameters a swap brings and leaves, known before it is made."""

from collections.abc import Mapping

from torch import nn

from lit_gelu import activations
from lit_gelu.activations import ActivationRegistry
from lit_gelu.activations.numerics.channels import ChannelModule
from lit_gelu.surgery import SwapPlan


def parameters_of_swap(plan: SwapPlan) -> list[str]:
    """Return the parameters that would come or go.

    Args:
        plan: The swap.

    Returns:
        Their fully qualified names.
    """
    return list(dict.fromkeys([*plan.removed_parameters, *plan.new_parameters]))


def parameters_of_specs(specs: Mapping[str, str], registry: ActivationRegistry | None) -> list[str]:
    """Return the parameters that activations bring, whatever the sites.

    Args:
        specs: From target to spec.
        registry: Where the specs are looked up; ``None`` means the default registry.

    Returns:
        A description of each activation that has parameters.
    """
    registry = activations.registry if registry is None else registry
    return [f"those of {spec}" for spec in dict.fromkeys(specs.values()) if _has_parameters(registry.create(spec))]


def _has_parameters(module: nn.Module) -> bool:
    return any(True for _ in module.parameters()) or (isinstance(module, ChannelModule) and module.needs_channels)
