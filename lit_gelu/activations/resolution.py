"""From every form that names an activation to one recipe: texts, mappings, classes, functions and modules of code."""

import copy
import functools
from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from lit_gelu.activations import recipes
from lit_gelu.activations.errors import ActivationArgumentError, ActivationSpecError
from lit_gelu.activations.function_activation import FunctionActivation
from lit_gelu.activations.importing import import_object
from lit_gelu.activations.names import Names
from lit_gelu.activations.recipes import Recipe
from lit_gelu.activations.spec import ActivationSpec, parse_text
from lit_gelu.activations.stored_specs import comes_from_file, stored_recipe
from lit_gelu.errors import shown


def recipe(registry: Names, spec: Any, kwargs: dict[str, Any]) -> Recipe:
    """Resolve any form of spec.

    Args:
        registry: Where names are looked up.
        spec: What was given.
        kwargs: Further arguments.

    Returns:
        The recipe.

    Raises:
        ActivationSpecError: If it is no spec.
    """
    match spec:
        case nn.Module():
            return _of_module(registry, spec, kwargs)
        case ActivationSpec():
            return recipes.of_spec(registry, spec, kwargs)
        case str() | Mapping() if comes_from_file(spec):
            return stored_recipe(registry, spec, kwargs)
        case str():
            return _of_text(registry, spec, kwargs)
        case Mapping():
            return _of_mapping(registry, spec, kwargs)
        case _ if callable(spec):
            return _of_callable(registry, spec, kwargs)
    raise ActivationSpecError(
        f"{shown(spec)} ({type(spec).__name__}) does not name an activation. Accepted: {recipes.ACCEPTED}."
    )


def _of_module(registry: Names, module: nn.Module, kwargs: dict[str, Any]) -> Recipe:
    if kwargs:
        raise ActivationArgumentError(
            f"{type(module).__name__} is a module already, so {', '.join(kwargs)} cannot be set. Give its class or "
            "its name."
        )
    return Recipe(registry.spec_of(module), lambda: copy.deepcopy(module))


def _of_text(registry: Names, text: str, kwargs: dict[str, Any]) -> Recipe:
    opaque, name, arguments = parse_text(text)
    if "." in name and not opaque:
        return _of_callable(registry, import_object(name), recipes.merged(name, arguments, kwargs))
    return recipes.of_spec(registry, ActivationSpec(name, tuple(arguments.items()), opaque=opaque), kwargs)


def _of_mapping(registry: Names, mapping: Mapping[str, Any], kwargs: dict[str, Any]) -> Recipe:
    found, arguments = recipes.split_mapping(mapping)
    if isinstance(found, ActivationSpec):
        return recipes.of_spec(registry, found, kwargs)
    return _of_callable(registry, import_object(found), recipes.merged(found, arguments, kwargs))


def _of_callable(registry: Names, target: Callable[..., Any], kwargs: dict[str, Any]) -> Recipe:
    if isinstance(target, nn.Module):
        return _of_module(registry, target, kwargs)
    if isinstance(target, type):
        return recipes.of_class(registry, target, kwargs)
    if isinstance(target, functools.partial) and not target.args:
        return _of_callable(registry, target.func, {**target.keywords, **kwargs})
    if not callable(target):
        raise ActivationSpecError(
            f"{shown(target)} ({type(target).__name__}) does not name an activation. Accepted: {recipes.ACCEPTED}."
        )
    for entry in registry.entries():
        for function, arguments in entry.functions:
            if function is target:
                return recipes.named(registry, entry.name, recipes.merged(entry.name, dict(arguments), kwargs))
    path = recipes.dotted_path(target)
    return Recipe(recipes.opaque(path, kwargs), lambda: FunctionActivation(target, path, kwargs))
