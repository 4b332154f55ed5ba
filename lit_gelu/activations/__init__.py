"""Activation functions: pure functions, modules, and the registry that names them."""

import sys

from lit_gelu.activations import functional, modules
from lit_gelu.activations.activation_dropout import ActivationDropout
from lit_gelu.activations.analysis import depth, information
from lit_gelu.activations.analysis.comparison import ActivationComparison, LargestDifference, compare
from lit_gelu.activations.analysis.drawing import plot
from lit_gelu.activations.analysis.gains import calculate_gain, gain
from lit_gelu.activations.analysis.initialisation import initialise_for_activations_
from lit_gelu.activations.errors import (
    ActivationArgumentError,
    ActivationSpecError,
    DerivativeFromOutputError,
    DuplicateActivationError,
    OpaqueActivationError,
    StoredSpecError,
    UnknownActivationError,
)
from lit_gelu.activations.gated_ffn import GatedFFN
from lit_gelu.activations.naming.entry import ActivationEntry
from lit_gelu.activations.naming.facts import ActivationFacts, ActivationGains, ActivationInfo
from lit_gelu.activations.naming.spec import ActivationSpec
from lit_gelu.activations.naming.stored import StoredActivations, building_from_file
from lit_gelu.activations.registry import ActivationRegistry, registry

# Documented as modules of this package; their files are in analysis/.
sys.modules |= {"lit_gelu.activations.depth": depth, "lit_gelu.activations.information": information}

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
    "ActivationDropout",
    "ActivationEntry",
    "ActivationFacts",
    "ActivationGains",
    "ActivationInfo",
    "ActivationRegistry",
    "ActivationSpec",
    "ActivationSpecError",
    "DerivativeFromOutputError",
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
    "depth",
    "functional",
    "gain",
    "info",
    "information",
    "initialise_for_activations_",
    "install",
    "list_activations",
    "modules",
    "plot",
    "register",
    "registry",
    "resolve",
    "spec_of",
]
