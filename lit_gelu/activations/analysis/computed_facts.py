"""What `info` computes of an activation, beside what its author states."""

from typing import Any

from lit_gelu.activations.analysis.gains import gains
from lit_gelu.activations.analysis.shape import shape_of
from lit_gelu.activations.naming.facts import ActivationFacts
from lit_gelu.activations.naming.names import Names
from lit_gelu.activations.naming.spec import ActivationSpec
from lit_gelu.activations.numerics.channels import INFER
from lit_gelu.errors import ArgumentError


def computed_facts(spec: ActivationSpec, facts: ActivationFacts, registry: Names) -> dict[str, Any]:
    """Return the fields of `ActivationShape` and the gains; nothing of what is no function of one number."""
    if not facts.elementwise:
        return {}
    if spec.arguments.get("channels") == INFER:
        spec = ActivationSpec.of(spec.name, **{**spec.arguments, "channels": 1})
    try:
        shape = shape_of(registry.create(spec), facts.kinks, registry=registry)
    except ArgumentError:  # it differs between channels
        return {}
    try:
        return {**vars(shape), "gains": gains(spec, registry=registry)}
    except ArgumentError:  # an expectation that is 0 or does not exist
        return vars(shape)
