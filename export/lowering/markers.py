"""Marks activations, so that each is exactly one node of the exported graph, whatever torch would make of it.

Three ways to find an activation in a graph were tried. A translation table for ATen functions cannot express
onnxruntime's fused operators and never sees a module such as Swish, which is three functions. Matching patterns in the
graph breaks with every release of torch, and cannot tell a Sigmoid that is an activation from one within it. So the
exporter is told: on the evaluation copy, ``forward`` of every known activation module is replaced by one call of
``torch.onnx.ops.symbolic``, which puts a node ``lit_gelu::Activation(x)`` with the site's name into the graph and
leaves the module's type and attributes alone. The graph is exported once, and `lit_gelu.export.lowering.replace` then
replaces each marker by the table's recipe, with the arguments as they were at export (learned ones included).

Activations that the lowering table does not know are marked if they were registered with operators of their own
(``register(..., onnx=...)``); else torch decomposes them.
"""

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from lit_gelu.activations import ActivationRegistry
from lit_gelu.activations.errors import UnknownArgumentsError
from lit_gelu.activations.modules import FunctionActivation
from lit_gelu.activations.naming.entry import ActivationEntry
from lit_gelu.export.lowering.recipe import Argument, user_row
from lit_gelu.export.lowering.table import BoundActivation, bound
from lit_gelu.surgery.recognition import hidden_modules

if TYPE_CHECKING:
    import numpy as np

MARKER_DOMAIN = "lit_gelu"
MARKER_OPERATOR = "Activation"


@functools.cache
def _built_in() -> ActivationRegistry:
    """Return a registry of this package's own activations, whatever a user has registered under their names."""
    return ActivationRegistry()


def bind(module: nn.Module, registry: ActivationRegistry | None = None) -> BoundActivation | None:
    """Return the activation that a module is, with its present arguments; ``None`` if nothing says what it becomes."""
    entry = _built_in().entry_of(module)
    if entry is not None and not (isinstance(module, FunctionActivation) and module.function is not entry.function):
        activation = bound(entry.name, _arguments(entry, module))
        if activation is not None:
            return activation
    entry = None if registry is None else registry.entry_of(module)
    if entry is None or entry.onnx is None:
        return None
    try:
        arguments = _arguments(entry, module)
    except UnknownArgumentsError:
        return None  # a recipe needs the arguments as they are now; torch decomposes the module as it is
    return _registered(entry, arguments)


def bind_named(
    name: str, arguments: Mapping[str, Argument | str], registry: ActivationRegistry | None
) -> BoundActivation | None:
    """Return the activation of a name and arguments, this package's own first."""
    own = bound(name, arguments)
    if own is not None or registry is None or name not in registry:
        return own
    entry = registry.entry(name)
    return _registered(entry, {**_defaults(entry), **arguments})


def _registered(entry: ActivationEntry, arguments: Mapping[str, Argument | str]) -> BoundActivation | None:
    """Return what a user registered, if these arguments are a case of it."""
    recipes = user_row(entry.name, entry.onnx, arguments)
    return None if recipes is None else BoundActivation(entry.name, entry.name, recipes, arguments)


def _defaults(entry: ActivationEntry) -> dict[str, Any]:
    """Return the defaults of an activation's arguments."""
    return {key: p.default for key, p in entry.parameters.items() if isinstance(p.default, (int, float, str))}


def _arguments(entry: ActivationEntry, module: nn.Module) -> dict[str, Argument | str]:
    """Return an activation's arguments as they are now."""
    form = entry.form_of(module)
    live = {**form.read(module), **form.live_arguments(module)} if form else getattr(module, "kwargs", {})
    return {key: _plain(value) for key, value in {**_defaults(entry), **live}.items() if key != "inplace"}


def _plain(value: object) -> Argument | str:
    """Return a tensor as an array, anything else as it is."""
    if isinstance(value, Tensor):
        array: np.ndarray = value.detach().cpu().numpy()
        return array
    return value  # type: ignore[return-value]


def mark(model: nn.Module, registry: ActivationRegistry | None = None) -> dict[str, BoundActivation]:
    """Mark every activation module of a copy of which it is known what it becomes; return them by first name."""
    marked: dict[str, BoundActivation] = {}
    hidden = hidden_modules(model)
    for site, module in model.named_modules():
        bound = None if id(module) in hidden else bind(module, registry)
        if bound is not None:
            marked[site] = bound
            module.forward = functools.partial(_marked_forward, site, getattr(module, "inplace", False))
    return marked


def _marked_forward(site: str, inplace: bool, *args: Tensor, **kwargs: Tensor) -> Tensor:
    """Stand for an activation while the exporter traces; its one input may be named, and is overwritten if in-place."""
    (x,) = (*args, *kwargs.values())
    y = torch.onnx.ops.symbolic(
        f"{MARKER_DOMAIN}::{MARKER_OPERATOR}", (x,), {"site": site}, dtype=x.dtype, shape=x.shape, version=1
    )
    return x.copy_(y) if inplace else y
