"""From every form that names an activation to one recipe: its canonical spec, and how to build it."""

import copy
import functools
import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import nn

from lit_gelu.activations.errors import ActivationArgumentError, ActivationSpecError
from lit_gelu.activations.modules.function import FunctionActivation
from lit_gelu.activations.spec import ActivationSpec, parse_text

if TYPE_CHECKING:
    from lit_gelu.activations.registry import ActivationRegistry

ACCEPTED = (
    "a text such as \"gelu(approximate='tanh')\", a mapping {'name': ...} or {'class_path': ..., 'init_args': ...}, "
    "an ActivationSpec, a torch.nn.Module class, a function from tensor to tensor, or a torch.nn.Module"
)


@dataclass(frozen=True)
class Recipe:
    """An activation made definite.

    Args:
        spec: Its canonical spec.
        build: Builds a new module.
    """

    spec: ActivationSpec
    build: Callable[[], nn.Module]


def recipe(registry: "ActivationRegistry", spec: Any, kwargs: dict[str, Any]) -> Recipe:
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
            return _of_spec(registry, spec, kwargs)
        case str():
            return _of_text(registry, spec, kwargs)
        case Mapping():
            return _of_mapping(registry, spec, kwargs)
        case _ if callable(spec):
            return _of_callable(registry, spec, kwargs)
    raise ActivationSpecError(f"{spec!r} ({type(spec).__name__}) does not name an activation. Accepted: {ACCEPTED}.")


def _merge(name: str, first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Join two sets of arguments in which no keyword may occur twice."""
    twice = sorted(set(first) & set(second))
    if twice:
        raise ActivationArgumentError(f"{name!r}: {', '.join(twice)} is given twice. Give it once.")
    return {**first, **second}


def _of_module(registry: "ActivationRegistry", module: nn.Module, kwargs: dict[str, Any]) -> Recipe:
    if kwargs:
        raise ActivationArgumentError(
            f"{type(module).__name__} is a module already, so {', '.join(kwargs)} cannot be set. Give its class or "
            "its name."
        )
    return Recipe(registry.spec_of(module), lambda: copy.deepcopy(module))


def _of_spec(registry: "ActivationRegistry", spec: ActivationSpec, kwargs: dict[str, Any]) -> Recipe:
    if spec.opaque:
        spec.for_checkpoint()  # raises, with the remedy
    return named(registry, spec.name, _merge(spec.name, spec.arguments, kwargs))


def named(registry: "ActivationRegistry", name: str, arguments: dict[str, Any]) -> Recipe:
    """Resolve a registered name with its arguments.

    Args:
        registry: Where the name is looked up.
        name: A name or alias.
        arguments: Its keyword arguments.

    Returns:
        The recipe, under the canonical name.
    """
    entry = registry.entry(name)
    if entry.preset is not None:
        given = entry.canonical_arguments(arguments)
        return named(registry, entry.preset.name, _merge(name, entry.preset.arguments, given))
    if entry.holds_object(arguments):
        return Recipe(_opaque(dotted_path(entry.build), arguments), lambda: entry.build(**arguments))
    canonical = entry.canonical_arguments(ActivationSpec.of(entry.name, **arguments).arguments)
    return Recipe(ActivationSpec.of(entry.name, **canonical), lambda: entry.build(**canonical))


def _of_text(registry: "ActivationRegistry", text: str, kwargs: dict[str, Any]) -> Recipe:
    opaque, name, arguments = parse_text(text)
    if "." in name and not opaque:
        return _of_callable(registry, import_object(name), _merge(name, arguments, kwargs))
    return _of_spec(registry, ActivationSpec(name, tuple(arguments.items()), opaque=opaque), kwargs)


def _of_mapping(registry: "ActivationRegistry", mapping: Mapping[str, Any], kwargs: dict[str, Any]) -> Recipe:
    rest = {key: value for key, value in mapping.items() if key not in {"name", "class_path", "init_args"}}
    init_args = mapping.get("init_args") or {}
    if not isinstance(init_args, Mapping) or ("name" in mapping) == ("class_path" in mapping):
        raise ActivationSpecError(
            f"{dict(mapping)!r} does not name an activation. Write {{'name': 'gelu', 'approximate': 'tanh'}} or "
            "{'class_path': 'torch.nn.GELU', 'init_args': {'approximate': 'tanh'}}."
        )
    if "name" in mapping:
        spec = ActivationSpec(mapping["name"], tuple(_merge(mapping["name"], rest, init_args).items()))
        return _of_spec(registry, spec, kwargs)
    if rest:
        raise ActivationSpecError(f"{', '.join(map(repr, rest))} stands beside 'class_path'. Put it into 'init_args'.")
    return _of_callable(
        registry, import_object(mapping["class_path"]), _merge(mapping["class_path"], init_args, kwargs)
    )


def _of_callable(registry: "ActivationRegistry", target: Callable[..., Any], kwargs: dict[str, Any]) -> Recipe:
    if isinstance(target, nn.Module):
        return _of_module(registry, target, kwargs)
    if isinstance(target, type):
        return _of_class(registry, target, kwargs)
    if isinstance(target, functools.partial) and not target.args:
        return _of_callable(registry, target.func, {**target.keywords, **kwargs})
    for entry in registry.entries():
        for function, arguments in entry.functions:
            if function is target:
                return named(registry, entry.name, _merge(entry.name, dict(arguments), kwargs))
    path = dotted_path(target)
    return Recipe(_opaque(path, kwargs), lambda: FunctionActivation(target, path, kwargs))


def _of_class(registry: "ActivationRegistry", cls: type, kwargs: dict[str, Any]) -> Recipe:
    if not issubclass(cls, nn.Module):
        raise ActivationSpecError(f"{dotted_path(cls)!r} is no torch.nn.Module class. Accepted: {ACCEPTED}.")

    def build() -> nn.Module:
        try:
            return cls(**kwargs)
        except TypeError as error:
            raise ActivationArgumentError(f"{dotted_path(cls)}({kwargs}) cannot be built: {error}.") from error

    spec = registry.spec_of(build())
    return Recipe(_opaque(spec.name, kwargs) if spec.opaque else spec, build)


def _opaque(path: str, kwargs: Mapping[str, Any]) -> ActivationSpec:
    """Return the spec of something never registered; arguments that are no plain data are left out of the text."""
    try:
        return ActivationSpec(path, tuple(kwargs.items()), opaque=True)
    except ActivationSpecError:
        return ActivationSpec(path, opaque=True)


def opaque_spec(module: nn.Module) -> ActivationSpec:
    """Return the spec of a module whose class was never registered.

    Args:
        module: Any module.

    Returns:
        A spec that names the class, or the function of a `FunctionActivation`.

    Example:
        >>> str(opaque_spec(nn.Softsign()))
        'opaque:torch.nn.modules.activation.Softsign'
    """
    if isinstance(module, FunctionActivation):
        return _opaque(module.name, module.kwargs)
    return ActivationSpec(dotted_path(type(module)), opaque=True)


def dotted_path(target: Any) -> str:
    """Return where an object was defined, as ``module.qualified_name``, without spaces or parentheses.

    Args:
        target: A class or a function.

    Returns:
        The path; objects without a name are called after their type.

    Example:
        >>> dotted_path(nn.GELU)
        'torch.nn.modules.activation.GELU'
    """
    owner = target if hasattr(target, "__qualname__") else type(target)
    module = getattr(owner, "__module__", None) or "builtins"
    return f"{module}.{owner.__qualname__}".translate(str.maketrans(" ()", "___"))


def import_object(path: object) -> Any:
    """Import the class or function that a dotted path names.

    Args:
        path: ``package.module.Name``.

    Returns:
        The object.

    Raises:
        ActivationSpecError: If there is no such module or no such name in it.

    Example:
        >>> import_object("torch.nn.ELU").__name__
        'ELU'
    """
    if not isinstance(path, str) or "." not in path:
        raise ActivationSpecError(f"class_path={path!r} is no dotted path. Write 'package.module.ClassName'.")
    module_path, _, name = path.rpartition(".")
    try:
        return getattr(importlib.import_module(module_path), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ActivationSpecError(
            f"Cannot import {path!r}: {error}. Is the package installed and the name right?"
        ) from error
