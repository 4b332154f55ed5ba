"""One recipe for an activation that is named: its canonical spec, and how to build it. Nothing here can import."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from lit_gelu.activations.construction import ConstructionArguments, noted
from lit_gelu.activations.errors import ActivationArgumentError, ActivationSpecError
from lit_gelu.activations.function_activation import FunctionActivation
from lit_gelu.activations.names import Names
from lit_gelu.activations.spec import ActivationSpec
from lit_gelu.errors import LitGeluError, shown

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


def of_spec(registry: Names, spec: ActivationSpec, kwargs: dict[str, Any]) -> Recipe:
    """Resolve a spec, which names something registered.

    Args:
        registry: Where the name is looked up.
        spec: The spec.
        kwargs: Further arguments.

    Returns:
        The recipe.

    Raises:
        OpaqueActivationError: If it is the spec of something never registered.
    """
    if spec.opaque:
        spec.for_checkpoint()  # raises, with the remedy
    return named(registry, spec.name, merged(spec.name, spec.arguments, kwargs))


def named(registry: Names, name: str, arguments: dict[str, Any]) -> Recipe:
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
        return named(registry, entry.preset.name, merged(name, entry.preset.arguments, given))
    if entry.holds_object(arguments):
        return Recipe(opaque(dotted_path(entry.build), arguments), lambda: entry.build(**arguments))
    canonical = entry.canonical_arguments(ActivationSpec.of(entry.name, **arguments).arguments)
    spec = ActivationSpec.of(entry.name, **canonical)
    if entry.tried and canonical:
        _without_memory(entry.name, entry.build, canonical)
    return Recipe(spec, lambda: _noted(registry, entry.build(**canonical), canonical))


def of_class(registry: Names, cls: type, kwargs: dict[str, Any]) -> Recipe:
    """Resolve a module class.

    Args:
        registry: Where it may be registered.
        cls: The class.
        kwargs: Arguments of its constructor.

    Returns:
        The recipe; its spec is opaque if the class was never registered.

    Raises:
        ActivationSpecError: If it is no class of modules.
    """
    if not issubclass(cls, nn.Module):
        raise ActivationSpecError(f"{dotted_path(cls)!r} is no torch.nn.Module class. Accepted: {ACCEPTED}.")

    def build() -> nn.Module:
        try:
            return _noted(registry, cls(**kwargs), kwargs)
        except TypeError as error:
            raise ActivationArgumentError(f"{dotted_path(cls)}({shown(kwargs)}) cannot be built: {error}.") from error

    row = next((entry for entry in registry.entries() if any(form.type is cls for form in entry.modules)), None)
    if row is not None and row.tried:
        spec = of_spec(registry, registry.spec_of(_without_memory(dotted_path(cls), cls, kwargs)), {}).spec
        return Recipe(spec, build)
    spec = registry.spec_of(build())
    return Recipe(opaque(spec.name, kwargs) if spec.opaque else spec, build)


def _noted(registry: Names, module: nn.Module, kwargs: dict[str, Any]) -> nn.Module:
    """Note what an instance of a registered class was built from, if its constructor did not do so itself."""
    entry = registry.entry_of(module)
    form = None if entry is None else entry.form_of(module)
    return noted(module, kwargs) if form is not None and isinstance(form.read, ConstructionArguments) else module


def _without_memory(name: str, build: Callable[..., nn.Module], arguments: dict[str, Any]) -> nn.Module:
    """Build a module on the meta device, so that a value that it refuses is refused when the spec is read."""
    try:
        with torch.device("meta"):
            return build(**arguments)
    except LitGeluError:
        raise
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:  # of torch's own modules
        raise ActivationArgumentError(f"{name}({shown(arguments)}) cannot be built: {error}.") from error


def split_mapping(mapping: Mapping[Any, Any]) -> tuple[Any, dict[str, Any]]:
    """Take the mapping form of a spec apart.

    Args:
        mapping: ``{"name": ..., keyword: value}`` or ``{"class_path": ..., "init_args": {...}}``.

    Returns:
        The spec of the first form, or the class path of the second, as written; and the second's arguments.

    Raises:
        ActivationSpecError: If it has neither form.

    Example:
        >>> split_mapping({"class_path": "torch.nn.ELU", "init_args": {"alpha": 0.5}})
        ('torch.nn.ELU', {'alpha': 0.5})
    """
    rest = {key: value for key, value in mapping.items() if key not in {"name", "class_path", "init_args"}}
    init_args = mapping.get("init_args") or {}
    if not isinstance(init_args, Mapping) or ("name" in mapping) == ("class_path" in mapping):
        raise ActivationSpecError(
            f"{shown(dict(mapping))} does not name an activation. Write {{'name': 'gelu', 'approximate': 'tanh'}} or "
            "{'class_path': 'torch.nn.GELU', 'init_args': {'approximate': 'tanh'}}."
        )
    if "name" in mapping:
        return ActivationSpec(mapping["name"], tuple(merged(mapping["name"], rest, init_args).items())), {}
    if rest:
        given = ", ".join(map(shown, rest))
        raise ActivationSpecError(f"{given} stands beside 'class_path'. Put it into 'init_args'.")
    return mapping["class_path"], dict(init_args)


def merged(name: object, first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Join two sets of arguments in which no keyword may occur twice.

    Args:
        name: Whose they are, for the message.
        first: Some.
        second: Others.

    Returns:
        All.

    Raises:
        ActivationArgumentError: If a keyword is in both.
    """
    twice = sorted(map(str, set(first) & set(second)))
    if twice:
        raise ActivationArgumentError(f"{shown(name)}: {', '.join(twice)} is given twice. Give it once.")
    return {**first, **second}


def opaque(path: str, kwargs: Mapping[str, Any]) -> ActivationSpec:
    """Return the spec of something never registered; arguments that are no plain data are left out of the text.

    Args:
        path: Where it was defined.
        kwargs: Its arguments.

    Returns:
        The spec.

    Example:
        >>> str(opaque("my_package.act", {"scale": 2.0}))
        'opaque:my_package.act(scale=2.0)'
    """
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
        return opaque(module.name, module.kwargs)
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
