"""Activation functions: pure functions, modules, and the registry that names them."""

from lit_gelu.activations import functional, information
from lit_gelu.activations.comparison import ActivationComparison, LargestDifference, compare
from lit_gelu.activations.default import registry
from lit_gelu.activations.entry import ActivationEntry
from lit_gelu.activations.errors import (
    ActivationArgumentError,
    ActivationSpecError,
    DuplicateActivationError,
    OpaqueActivationError,
    StoredSpecError,
    UnknownActivationError,
)
from lit_gelu.activations.gains import calculate_gain, gain
from lit_gelu.activations.gated_ffn import GatedFFN
from lit_gelu.activations.info import ActivationFacts, ActivationGains, ActivationInfo
from lit_gelu.activations.initialisation import initialise_for_activations_
from lit_gelu.activations.registry import ActivationRegistry
from lit_gelu.activations.spec import ActivationSpec
from lit_gelu.activations.stored_specs import StoredActivations, building_from_file

create = registry.create
info = registry.info
install = registry.install
list_activations = registry.list_activations
register = registry.register
resolve = registry.resolve
spec_of = registry.spec_of

__all__ = [
    "ActivationArgumentError",
    "ActivationComparison",
    "ActivationEntry",
    "ActivationFacts",
    "ActivationGains",
    "ActivationInfo",
    "ActivationRegistry",
    "ActivationSpec",
    "ActivationSpecError",
    "DuplicateActivationError",
    "GatedFFN",
    "LargestDifference",
    "OpaqueActivationError",
    "StoredActivations",
    "StoredSpecError",
    "UnknownActivationError",
    "building_from_file",
    "calculate_gain",
    "compare",
    "create",
    "functional",
    "gain",
    "info",
    "information",
    "initialise_for_activations_",
    "install",
    "list_activations",
    "register",
    "registry",
    "resolve",
    "spec_of",
]
