"""Activation functions: pure functions, modules, and the registry that names them."""

from lit_gelu.activations import functional, modules
from lit_gelu.activations.analysis.comparison import ActivationComparison, LargestDifference, compare
from lit_gelu.activations.analysis.drawing import plot
from lit_gelu.activations.analysis.initialisation import initialise_for_activations_
from lit_gelu.activations.gaussian import gain
from lit_gelu.activations.modules import GatedFFN
from lit_gelu.activations.naming.entry import ActivationEntry, ActivationFacts
from lit_gelu.activations.naming.importing import building_from_file
from lit_gelu.activations.naming.info import ActivationGains, ActivationInfo
from lit_gelu.activations.naming.spec import ActivationSpec
from lit_gelu.activations.registry import ActivationRegistry, registry
from lit_gelu.errors import ArgumentError, SpecError, UnknownActivationError

ActivationArgumentError = DuplicateActivationError = ArgumentError
ActivationSpecError = OpaqueActivationError = StoredSpecError = SpecError

create = registry.create
info = registry.info
install = registry.install
list_activations = registry.list_activations
register = registry.register
resolve = registry.resolve
spec_of = registry.spec_of

__all__ = [
    "ActivationArgumentError", "ActivationComparison", "ActivationEntry", "ActivationFacts", "ActivationGains",
    "ActivationInfo", "ActivationRegistry", "ActivationSpec", "ActivationSpecError", "DuplicateActivationError",
    "GatedFFN", "LargestDifference", "OpaqueActivationError", "StoredSpecError", "UnknownActivationError",
    "building_from_file", "compare", "create", "functional", "gain", "info", "initialise_for_activations_", "install",
    "list_activations", "modules", "plot", "register", "registry", "resolve", "spec_of",
]  # fmt: skip
